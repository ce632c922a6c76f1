"""The table of the flags of `horovodrun`.

One row declares a flag: its names on the command line and in a configuration file, and the
arguments of `farandole run` for it. The parser of the command line, the reader of the file, and
run() read the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Flag:
    """One setting. Its value is None if it was not given.

    negating_names: the flags that set it to False. If there are any, the flags in `names` set it to
        True, and none of these flags takes a value.
    arguments: the names of the setting as arguments of run(), if they differ from `name`.
    key: the section and the key in a configuration file.
    to_run_flags: returns the arguments of `farandole run` for a value.
    to_elastic_flags: the same for a setting that has an effect only in an elastic job.
    why_value_ignored: returns why a value has no effect here; an empty text if it has an effect.
    why_ignored: why the setting has no effect here. Shown to the user who gives the setting, unless
        the value is False. If to_run_flags is given, too, the setting has an effect only in a job
        over several hosts.
    """

    name: str
    names: tuple[str, ...]
    type: Callable[[str], Any] | None = None
    negating_names: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    key: tuple[str, str] | None = None
    metavar: str | None = None
    value_min: float | None = None
    value_max: float | None = None
    choices: tuple[str, ...] = ()
    count: int | None = None  # the number of values after the flag; None means one
    to_run_flags: Callable[[Any], list[str]] | None = None
    to_elastic_flags: Callable[[Any], list[str]] | None = None
    why_value_ignored: Callable[[Any], str] | None = None
    why_ignored: str = ""
    help: str = ""

    def problem_of(self, value: Any) -> str:
        """Return a text that says what is wrong with a value; empty if the value is valid."""
        if self.choices and value not in self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        if self.value_min is not None and value < self.value_min:
            return f"it must be at least {self.value_min:g}"
        if self.value_max is not None and value > self.value_max:
            return f"it must be at most {self.value_max:g}"
        return ""


def _with_value(flag: str) -> Callable[[Any], list[str]]:
    return lambda value: [flag, str(value)]


def _cooldown_flags(seconds: list[int]) -> list[str]:
    return ["--cooldown-range", ",".join(map(str, seconds))]


def _stall_check_flags(is_enabled: bool) -> list[str]:
    return [] if is_enabled else ["--stall-warning", "0", "--stall-limit", "0"]


def _mark_cycles_flags(marks_cycles: bool) -> list[str]:
    return ["--timeline-mark-cycles"] if marks_cycles else []


def _log_time_flags(shows_time: bool) -> list[str]:
    return [] if shows_time else ["--log-hide-time"]


def _binding_flags(value: str) -> list[str]:
    """Return the flags of `farandole run` for arguments of mpirun such as "-bind-to core"."""
    words = value.replace("=", " ").split()
    for option, unit in itertools.pairwise(words):
        if option.lstrip("-") == "bind-to" and unit.split(":")[0] in ("core", "socket", "none"):
            return ["--bind-to", unit.split(":")[0]]
    return []


def _why_binding_ignored(value: str) -> str:
    if _binding_flags(value):
        return ""
    return f"{value!r} has none of -bind-to core, -bind-to socket and -bind-to none"


SAME_TRANSPORT = "the workers always use the same transport, which needs neither MPI nor Gloo"
ONE_HOST = "all workers are on this host"
NO_CYCLE = "there is no cycle; calls run as soon as all ranks have made them"
AUTOMATIC_ALGORITHM = "the algorithm is chosen automatically"
NO_TUNING = "settings are not tuned during a job"
FIXED_SIZE = "the number of workers is fixed"


def _ignored_switch(name: str, section: str, key: str, why_ignored: str) -> Flag:
    return Flag(
        name,
        (f"--{name.replace('_', '-')}",),
        negating_names=(f"--no-{name.replace('_', '-')}",),
        key=(section, key),
        why_ignored=why_ignored,
    )


def _autotune_flag(
    name: str, converter: Callable[[str], Any], value_max: float | None = None
) -> Flag:
    return Flag(
        f"autotune_{name}",
        (f"--autotune-{name.replace('_', '-')}",),
        type=converter,
        key=("autotune", name),
        value_min=None if converter is str else 0,
        value_max=value_max,
        why_ignored=NO_TUNING,
    )


FLAGS = (
    Flag("disable_cache", ("--disable-cache",), why_ignored="no information about hosts is cached"),
    Flag(
        "start_timeout",
        ("--start-timeout",),
        type=int,
        value_min=1,
        to_run_flags=_with_value("--start-timeout"),
        help="Seconds that the workers wait for each other at the start.",
    ),
    Flag(
        "network_interfaces",
        ("--network-interfaces", "--network-interface"),
        type=str,
        arguments=("network_interfaces", "network_interface"),
        to_run_flags=_with_value("--network-interfaces"),
        why_ignored="the workers of one host use no network",
    ),
    Flag(
        "output_filename",
        ("--output-filename",),
        type=str,
        metavar="DIR",
        to_run_flags=_with_value("--output-dir"),
        help="Also writes the output of each rank to DIR/rank.<NN>/stdout and stderr.",
    ),
    Flag(
        "ssh_port",
        ("-p", "--ssh-port"),
        type=int,
        value_min=1,
        to_run_flags=_with_value("--ssh-port"),
        why_ignored=ONE_HOST,
        help="The port of ssh on the hosts.",
    ),
    Flag(
        "ssh_identity_file",
        ("-i", "--ssh-identity-file"),
        type=str,
        metavar="FILE",
        to_run_flags=_with_value("--ssh-identity-file"),
        why_ignored=ONE_HOST,
        help="The private key for ssh.",
    ),
    Flag(
        "fusion_threshold_mb",
        ("--fusion-threshold-mb",),
        type=int,
        key=("params", "fusion_threshold_mb"),
        value_min=0,
        to_run_flags=lambda value: ["--bucket-bytes", str(value * MEBIBYTE)],
        help="Tensors are combined in buckets of at most this many MiB; with 0, each has its own.",
    ),
    Flag(
        "cycle_time_ms",
        ("--cycle-time-ms",),
        type=float,
        key=("params", "cycle_time_ms"),
        value_min=0,
        why_ignored=NO_CYCLE,
    ),
    Flag(
        "cache_capacity",
        ("--cache-capacity",),
        type=int,
        key=("params", "cache_capacity"),
        value_min=0,
        why_ignored="plans of repeated calls need no setting",
    ),
    _ignored_switch(
        "hierarchical_allreduce", "params", "hierarchical_allreduce", AUTOMATIC_ALGORITHM
    ),
    _ignored_switch(
        "hierarchical_allgather", "params", "hierarchical_allgather", AUTOMATIC_ALGORITHM
    ),
    _ignored_switch("torus_allreduce", "params", "torus_allreduce", AUTOMATIC_ALGORITHM),
    _ignored_switch("autotune", "autotune", "enabled", NO_TUNING),
    _autotune_flag("log_file", str),
    _autotune_flag("warmup_samples", int),
    _autotune_flag("steps_per_sample", int),
    _autotune_flag("bayes_opt_max_samples", int),
    _autotune_flag("gaussian_process_noise", float, value_max=1),
    Flag(
        "slots_per_host",
        ("--slots-per-host",),
        type=int,
        arguments=("slots",),
        value_min=1,
        to_elastic_flags=_with_value("--slots-per-host"),
        why_ignored=FIXED_SIZE,
    ),
    Flag(
        "elastic_timeout",
        ("--elastic-timeout",),
        type=int,
        value_min=1,
        to_elastic_flags=_with_value("--elastic-timeout"),
        why_ignored=FIXED_SIZE,
    ),
    Flag(
        "blacklist_cooldown_range",
        ("--blacklist-cooldown-range",),
        type=int,
        arguments=("cooldown_range",),
        count=2,
        to_elastic_flags=_cooldown_flags,
        why_ignored=FIXED_SIZE,
    ),
    Flag(
        "reset_limit",
        ("--reset-limit",),
        type=int,
        value_min=0,
        to_elastic_flags=_with_value("--reset-limit"),
        why_ignored=FIXED_SIZE,
    ),
    Flag(
        "timeline_filename",
        ("--timeline-filename",),
        type=str,
        metavar="FILE",
        key=("timeline", "filename"),
        to_run_flags=_with_value("--timeline"),
        help="A file to which all workers write a trace of their calls.",
    ),
    Flag(
        "timeline_mark_cycles",
        ("--timeline-mark-cycles",),
        negating_names=("--no-timeline-mark-cycles",),
        key=("timeline", "mark_cycles"),
        to_run_flags=_mark_cycles_flags,
        help="Whether the timeline marks each call that is made while none is in flight.",
    ),
    Flag(
        "stall_warning",
        ("--stall-check-warning-time-seconds",),
        type=int,
        key=("stall_check", "warning_time_seconds"),
        value_min=0,
        to_run_flags=_with_value("--stall-warning"),
        help="Seconds that a call may wait before the launcher says why; 0 means never.",
    ),
    Flag(
        "stall_limit",
        ("--stall-check-shutdown-time-seconds",),
        type=int,
        key=("stall_check", "shutdown_time_seconds"),
        value_min=0,
        to_run_flags=_with_value("--stall-limit"),
        help="Seconds after which a waiting call ends the job; 0 means never.",
    ),
    # This row must follow the two rows above: if a flag is given several times, `farandole run`
    # uses its last value.
    Flag(
        "stall_check",
        ("--stall-check",),
        negating_names=("--no-stall-check",),
        key=("stall_check", "enabled"),
        to_run_flags=_stall_check_flags,
        help="Whether the launcher says for which ranks a call waits.",
    ),
    _ignored_switch(
        "mpi_threads_disable", "library_options", "mpi_threads_disable", SAME_TRANSPORT
    ),
    Flag("mpi_args", ("--mpi-args",), type=str, why_ignored=SAME_TRANSPORT),
    Flag("tcp", ("--tcp",), why_ignored=SAME_TRANSPORT),
    Flag(
        "binding_args",
        ("--binding-args",),
        type=str,
        metavar="WORDS",
        to_run_flags=_binding_flags,
        why_value_ignored=_why_binding_ignored,
        help='Words for mpirun: "-bind-to core", "-bind-to socket" or "-bind-to none".',
    ),
    Flag(
        "num_nccl_streams",
        ("--num-nccl-streams",),
        type=int,
        key=("library_options", "num_nccl_streams"),
        value_min=0,
        why_ignored="tensors on GPUs go through host memory",
    ),
    Flag(
        "thread_affinity",
        ("--thread-affinity",),
        type=int,
        key=("library_options", "thread_affinity"),
        value_min=0,
        why_ignored="only whole workers are bound to cores, by --binding-args",
    ),
    Flag(
        "gloo_timeout_seconds",
        ("--gloo-timeout-seconds",),
        type=int,
        key=("library_options", "gloo_timeout_seconds"),
        value_min=0,
        why_ignored="a lost worker is noticed at once; --start-timeout limits the start",
    ),
    Flag(
        "log_level",
        ("--log-level",),
        type=str.upper,
        key=("logging", "level"),
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
        to_run_flags=lambda value: ["--log-level", value.lower()],
        help="Log lines that are less severe than this are not shown.",
    ),
    Flag(
        "log_with_timestamp",
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        negating_names=("--log-without-timestamp", "--log-hide-timestamp"),
        key=("logging", "with_timestamp"),
        to_run_flags=_log_time_flags,
        help="Whether log lines have the time.",
    ),
    Flag("use_gloo", ("--gloo",), why_ignored=SAME_TRANSPORT),
    Flag("use_mpi", ("--mpi",), why_ignored=SAME_TRANSPORT),
    Flag("use_jsrun", ("--jsrun",), why_ignored=SAME_TRANSPORT),
)


def elastic_settings_of(host_flags: Sequence[str], elastic_flags: Sequence[str]) -> list[str]:
    """Return the names of the settings that have an effect because the job is elastic."""
    if not elastic_flags:
        return []
    discovers_hosts = "--host-discovery-script" in host_flags
    return [
        flag.name
        for flag in FLAGS
        if flag.to_elastic_flags and (flag.name != "slots_per_host" or discovers_hosts)
    ]
