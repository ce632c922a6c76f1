"""`horovodrun`: translate Horovod's command line into one of `farandole run`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import farandole
from farandole.launcher_command import become_launcher, launcher_command
from horovod.runner.build_report import build_report
from horovod.runner.common.util.config_parser import read_config
from horovod.runner.flags import FLAGS, Flag, elastic_settings_of
from horovod.runner.job_size import JobSize
from horovod.runner.workers import OUTPUT_PREFIX, worker_variables
from horovod.version import __version__ as horovod_version


class _Parser(argparse.ArgumentParser):
    """Parse flags and, after them, a command with flags of its own."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        begin = self._command_index(words)
        parsed = super().parse_args(words[:begin], namespace)
        parsed.command = words[begin:]
        return parsed

    def _command_index(self, words: Sequence[str]) -> int:
        """Return the index of the first word that is neither a flag nor the value of a flag."""
        value_counts = {
            name: 1 if action.nargs is None else int(action.nargs)
            for action in self._actions
            for name in action.option_strings
        }
        index = 0
        while index < len(words) and words[index][:1] == "-" and words[index] not in ("-", "--"):
            name, equals, _ = words[index].partition("=")
            # The user may shorten the name of a flag. Later, argparse rejects a name that matches
            # several flags, or no flag.
            matches = [flag for flag in value_counts if flag.startswith(name)]
            index += 1
            if matches and not equals:
                index += value_counts[name if name in value_counts else matches[0]]
        return min(index, len(words))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"horovodrun: {message}\nSee `horovodrun --help`.\n")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command [arguments...]",
        description="Starts a command N times, on this host or on those of -H, as one job.",
        epilog="Other flags of Horovod are accepted. A message names those that have no effect.",
    )
    parser.add_argument(
        "-v",
        "--version",
        action="version",
        version=f"{horovod_version} (farandole {farandole.__version__})",
    )
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help="The number of workers.")
    parser.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="Show which parts of Horovod work here, and exit.",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="Also show the command that is started."
    )
    parser.add_argument(
        "--config-file", metavar="FILE", help="A YAML file with values of these flags."
    )
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="Also put the time before every line.",
    )
    _add_host_flags(parser)
    exclusive_group = parser.add_mutually_exclusive_group()
    for flag in FLAGS:
        _add_flag(exclusive_group if flag.name.startswith("use_") else parser, flag)
    return parser


def _add_host_flags(parser: argparse.ArgumentParser) -> None:
    exclusive_group = parser.add_mutually_exclusive_group()
    exclusive_group.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,...",
        help="The hosts, and how many workers each can have. Other hosts are reached over ssh.",
    )
    exclusive_group.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        help="The same, from a file with lines such as: host1 slots=N.",
    )
    exclusive_group.add_argument(
        "--host-discovery-script",
        metavar="COMMAND",
        help="A command that lists the hosts of an elastic job; it runs every second.",
    )
    for bound in ("min", "max"):
        names = (f"--{bound}-np", f"--{bound}-num-proc")
        parser.add_argument(*names, type=int, dest=f"{bound}_num_proc", help=argparse.SUPPRESS)


def _add_flag(parser: argparse._ActionsContainer, flag: Flag) -> None:
    text = flag.help or argparse.SUPPRESS
    if flag.type is not None:
        parser.add_argument(
            *flag.names,
            dest=flag.name,
            type=_converter_of(flag),
            nargs=flag.count,
            metavar=flag.metavar or ("LEVEL" if flag.choices else "N"),
            help=text,
        )
        return
    for names, value in ((flag.names, True), (flag.negating_names, False)):
        if names:
            parser.add_argument(
                *names, dest=flag.name, action="store_const", const=value, help=text
            )


def _converter_of(flag: Flag) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        assert flag.type is not None
        value = flag.type(text)
        if problem := flag.problem_of(value):
            raise argparse.ArgumentTypeError(f"{text!r}: {problem}")
        return value

    # argparse uses this name in its error text: "invalid int value".
    convert.__name__ = flag.type.__name__ if flag.type else ""
    return convert


def job_size_of(arguments: argparse.Namespace) -> JobSize:
    return JobSize(
        arguments.num_proc,
        arguments.min_num_proc,
        arguments.max_num_proc,
        arguments.hosts,
        arguments.hostfile,
        arguments.host_discovery_script,
    )


def values_of(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags on the command line and in the configuration file, by name,
    and the unknown keys of the file."""
    values: dict[str, Any] = {}
    unknown_keys: list[str] = []
    if arguments.config_file is not None:
        try:
            values, unknown_keys = read_config(arguments.config_file)
        except (OSError, ValueError) as error:
            raise ValueError(f"--config-file {arguments.config_file}: {error}") from None
    from_command_line = {flag.name: getattr(arguments, flag.name) for flag in FLAGS}
    return values | {
        name: value for name, value in from_command_line.items() if value is not None
    }, unknown_keys


def ignored_settings(
    values: dict[str, Any],
    unknown_keys: Sequence[str] = (),
    has_host_flags: bool = False,
    elastic_settings: Sequence[str] = (),
) -> list[str]:
    """Return a line for every given setting that has no effect here. See elastic_settings_of()."""
    lines = [
        f"{flag.names[0]} has no meaning here: {flag.why_ignored}"
        for flag in FLAGS
        if flag.why_ignored
        and not (has_host_flags and flag.to_run_flags)
        and flag.name not in elastic_settings
        and values.get(flag.name) not in (None, False)
    ]
    lines += [
        f"{flag.names[0]} has no meaning here: {why}"
        for flag in FLAGS
        if flag.why_value_ignored and flag.name in values
        for why in [flag.why_value_ignored(values[flag.name])]
        if why
    ]
    return lines + [f"the key {key} of the file has no meaning here" for key in unknown_keys]


def run_arguments(
    workers: int,
    values: dict[str, Any],
    shows_time: bool,
    host_flags: Sequence[str] = (),
    elastic_flags: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of `farandole` for a job with these settings, without the user's
    program."""
    words = ["run", "-n", str(workers), *host_flags]
    words += ["--prefix", ("{time}" if shows_time else "") + OUTPUT_PREFIX]
    for name, value in worker_variables(has_host_flags=bool(host_flags)).items():
        words += ["-x", f"{name}={value}"]
    words += elastic_flags
    elastic_settings = elastic_settings_of(host_flags, elastic_flags)
    for flag in FLAGS:
        if flag.to_elastic_flags and flag.name in elastic_settings and flag.name in values:
            words += flag.to_elastic_flags(values[flag.name])
    for flag in FLAGS:
        if flag.to_run_flags is None or flag.name not in values:
            continue
        if host_flags or not flag.why_ignored:
            words += flag.to_run_flags(values[flag.name])
    return words


def program_of(words: Sequence[str]) -> list[str]:
    program = list(words[1:] if words[:1] == ["--"] else words)
    if not program:
        raise ValueError("which command? For example `horovodrun -np 2 python train.py`")
    return program


def parse_args() -> argparse.Namespace:
    """Return the flags of this process's command line as attributes, such as `num_proc`; the
    attribute `command` is a list. Print the error and exit with code 2 if a flag is wrong."""
    parsed: argparse.Namespace = make_parser().parse_args()
    return parsed


def check_build(verbose: bool) -> None:
    """Print which parts of Horovod work here. `verbose` has no effect."""
    print(build_report())


def is_gloo_used(
    use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None
) -> bool:
    """Return whether run_controller() would call gloo_run."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)


# size waiver: Horovod's arguments
def run_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], object],
    use_mpi: bool | None,
    mpi_run: Callable[[], object],
    use_jsrun: bool | None,
    js_run: Callable[[], object],
    verbosity: int | None,
) -> None:
    """Call gloo_run, mpi_run or js_run: the one whose use_… argument is true. By default, call
    gloo_run. `verbosity` has no effect."""
    if is_gloo_used(use_gloo, use_mpi, use_jsrun):
        gloo_run()
    elif use_mpi:
        mpi_run()
    else:
        js_run()


def run_commandline() -> None:
    """Replace this process with `farandole run`, or print the error and exit with code 2."""
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.check_build:
        check_build(arguments.verbose)
        return
    try:
        size = job_size_of(arguments)
        workers, host_flags = size.checked_workers(), size.host_flags()
        values, unknown_keys = values_of(arguments)
        program = program_of(arguments.command)
        command = launcher_command()
    except (OSError, ValueError, farandole.FarandoleError) as error:
        parser.error(str(error))
    shows_time, elastic_flags = arguments.prefix_output_with_timestamp, size.elastic_flags()
    words = run_arguments(workers, values, shows_time, host_flags, elastic_flags)
    words = [command, *words, "--", *program]
    elastic_settings = elastic_settings_of(host_flags, elastic_flags)
    lines = ignored_settings(values, unknown_keys, bool(host_flags), elastic_settings)
    if arguments.verbose:
        lines.append(f"starting {shlex.join(words)}")
    for line in lines:
        print(f"horovodrun: {line}", file=sys.stderr)
    sys.stderr.flush()
    become_launcher(command, words)


if __name__ == "__main__":
    run_commandline()
