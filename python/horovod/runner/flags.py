"""The flags of `horovodrun`: their names on the command line and in a configuration file, and their
meaning here. One row declares a flag; the parser, the file and the launch read the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Flag:
    """One setting. Its value is None if it was not given.

    negated: the flags that mean no; then `names` are those that mean yes, and none has a value.
    arguments: its names in run(), if they differ.
    key: the section and the name in a configuration file.
    words: the arguments of `farandole run` for a value.
    no_meaning: why it has no effect here; shown once if it is given, unless it means no.
    """

    name: str
    names: tuple[str, ...]
    type: Callable[[str], Any] | None = None
    negated: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    key: tuple[str, str] | None = None
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    count: int | None = None  # how many values follow the flag; None: one
    words: Callable[[Any], list[str]] | None = None
    no_meaning: str = ""
    help: str = ""

    def problem_of(self, value: Any) -> str:
        """Return what is wrong with a value; empty if it is valid."""
        if self.choices and value not in self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        if self.least is not None and value < self.least:
            return f"it must be at least {self.least:g}"
        if self.most is not None and value > self.most:
            return f"it must be at most {self.most:g}"
        return ""


def _given_as(flag: str) -> Callable[[Any], list[str]]:
    return lambda value: [flag, str(value)]


def _stall_check(enabled: bool) -> list[str]:
    return [] if enabled else ["--stall-warning", "0", "--stall-limit", "0"]


def _mark_cycles(marked: bool) -> list[str]:
    return ["--timeline-mark-cycles"] if marked else []


def _log_with_time(shown: bool) -> list[str]:
    return [] if shown else ["--log-hide-time"]


SAME_TRANSPORT = "the workers always use the same transport, which needs neither MPI nor Gloo"
ONE_HOST = "all workers are on this host"
NO_CYCLE = "there is no cycle; calls run as soon as all ranks have made them"
AUTOMATIC = "the algorithm is chosen automatically"
NO_TUNING = "settings are not tuned during a job"
FIXED = "the number of workers is fixed"


def _yes_or_no(name: str, section: str, key: str, no_meaning: str) -> Flag:
    return Flag(
        name,
        (f"--{name.replace('_', '-')}",),
        negated=(f"--no-{name.replace('_', '-')}",),
        key=(section, key),
        no_meaning=no_meaning,
    )


def _autotune(name: str, kind: Callable[[str], Any], most: float | None = None) -> Flag:
    return Flag(
        f"autotune_{name}",
        (f"--autotune-{name.replace('_', '-')}",),
        type=kind,
        key=("autotune", name),
        least=None if kind is str else 0,
        most=most,
        no_meaning=NO_TUNING,
    )


FLAGS = (
    Flag("disable_cache", ("--disable-cache",), no_meaning="no information about hosts is cached"),
    Flag(
        "start_timeout",
        ("--start-timeout",),
        type=int,
        least=1,
        words=_given_as("--start-timeout"),
        help="Seconds that the workers wait for each other at the start.",
    ),
    Flag(
        "network_interfaces",
        ("--network-interfaces", "--network-interface"),
        type=str,
        arguments=("network_interfaces", "network_interface"),
        no_meaning="the workers of one host use no network",
    ),
    Flag(
        "output_filename",
        ("--output-filename",),
        type=str,
        metavar="DIR",
        words=_given_as("--output-dir"),
        help="Also writes the output of each rank to DIR/rank.<NN>/stdout and stderr.",
    ),
    Flag("ssh_port", ("-p", "--ssh-port"), type=int, no_meaning=ONE_HOST),
    Flag("ssh_identity_file", ("-i", "--ssh-identity-file"), type=str, no_meaning=ONE_HOST),
    Flag(
        "fusion_threshold_mb",
        ("--fusion-threshold-mb",),
        type=int,
        key=("params", "fusion_threshold_mb"),
        least=0,
        words=lambda value: ["--bucket-bytes", str(value * MEBIBYTE)],
        help="Tensors are combined in buckets of at most this many MiB; with 0, each has its own.",
    ),
    Flag(
        "cycle_time_ms",
        ("--cycle-time-ms",),
        type=float,
        key=("params", "cycle_time_ms"),
        least=0,
        no_meaning=NO_CYCLE,
    ),
    Flag(
        "cache_capacity",
        ("--cache-capacity",),
        type=int,
        key=("params", "cache_capacity"),
        least=0,
        no_meaning="plans of repeated calls need no setting",
    ),
    _yes_or_no("hierarchical_allreduce", "params", "hierarchical_allreduce", AUTOMATIC),
    _yes_or_no("hierarchical_allgather", "params", "hierarchical_allgather", AUTOMATIC),
    _yes_or_no("torus_allreduce", "params", "torus_allreduce", AUTOMATIC),
    _yes_or_no("autotune", "autotune", "enabled", NO_TUNING),
    _autotune("log_file", str),
    _autotune("warmup_samples", int),
    _autotune("steps_per_sample", int),
    _autotune("bayes_opt_max_samples", int),
    _autotune("gaussian_process_noise", float, most=1),
    Flag(
        "slots_per_host",
        ("--slots-per-host",),
        type=int,
        arguments=("slots",),
        least=1,
        no_meaning=FIXED,
    ),
    Flag("elastic_timeout", ("--elastic-timeout",), type=int, least=0, no_meaning=FIXED),
    Flag(
        "blacklist_cooldown_range",
        ("--blacklist-cooldown-range",),
        type=int,
        arguments=("cooldown_range",),
        count=2,
        no_meaning=FIXED,
    ),
    Flag("reset_limit", ("--reset-limit",), type=int, least=0, no_meaning=FIXED),
    Flag(
        "timeline_filename",
        ("--timeline-filename",),
        type=str,
        metavar="FILE",
        key=("timeline", "filename"),
        words=_given_as("--timeline"),
        help="A file to which all workers write a trace of their calls.",
    ),
    Flag(
        "timeline_mark_cycles",
        ("--timeline-mark-cycles",),
        negated=("--no-timeline-mark-cycles",),
        key=("timeline", "mark_cycles"),
        words=_mark_cycles,
        help="Whether the timeline marks each call that is made while none is in flight.",
    ),
    Flag(
        "stall_warning",
        ("--stall-check-warning-time-seconds",),
        type=int,
        key=("stall_check", "warning_time_seconds"),
        least=0,
        words=_given_as("--stall-warning"),
        help="Seconds that a call may wait before the launcher says why; 0 means never.",
    ),
    Flag(
        "stall_limit",
        ("--stall-check-shutdown-time-seconds",),
        type=int,
        key=("stall_check", "shutdown_time_seconds"),
        least=0,
        words=_given_as("--stall-limit"),
        help="Seconds after which a waiting call ends the job; 0 means never.",
    ),
    # Comes after the two flags above, because the last words win.
    Flag(
        "stall_check",
        ("--stall-check",),
        negated=("--no-stall-check",),
        key=("stall_check", "enabled"),
        words=_stall_check,
        help="Whether the launcher says for which ranks a call waits.",
    ),
    _yes_or_no("mpi_threads_disable", "library_options", "mpi_threads_disable", SAME_TRANSPORT),
    Flag("mpi_args", ("--mpi-args",), type=str, no_meaning=SAME_TRANSPORT),
    Flag("tcp", ("--tcp",), no_meaning=SAME_TRANSPORT),
    Flag("binding_args", ("--binding-args",), type=str, no_meaning=SAME_TRANSPORT),
    Flag(
        "num_nccl_streams",
        ("--num-nccl-streams",),
        type=int,
        key=("library_options", "num_nccl_streams"),
        least=0,
        no_meaning="tensors on GPUs go through host memory",
    ),
    Flag(
        "thread_affinity",
        ("--thread-affinity",),
        type=int,
        key=("library_options", "thread_affinity"),
        least=0,
        no_meaning="the threads of the workers are not pinned",
    ),
    Flag(
        "gloo_timeout_seconds",
        ("--gloo-timeout-seconds",),
        type=int,
        key=("library_options", "gloo_timeout_seconds"),
        least=0,
        no_meaning="a lost worker is noticed at once; --start-timeout limits the start",
    ),
    Flag(
        "log_level",
        ("--log-level",),
        type=str.upper,
        key=("logging", "level"),
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
        words=lambda value: ["--log-level", value.lower()],
        help="The least severe log lines that are shown.",
    ),
    Flag(
        "log_with_timestamp",
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        negated=("--log-without-timestamp", "--log-hide-timestamp"),
        key=("logging", "with_timestamp"),
        words=_log_with_time,
        help="Whether log lines have the time.",
    ),
    Flag("use_gloo", ("--gloo",), no_meaning=SAME_TRANSPORT),
    Flag("use_mpi", ("--mpi",), no_meaning=SAME_TRANSPORT),
    Flag("use_jsrun", ("--jsrun",), no_meaning=SAME_TRANSPORT),
)
