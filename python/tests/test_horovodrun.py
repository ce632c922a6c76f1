"""`horovodrun` translates its flags and its configuration file. These tests start no job."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horovod.runner import launch
from horovod.runner.common.util.config_parser import read_config
from horovod.runner.common.util.hosts import (
    INVALID_SLOT_INFO,
    HostInfo,
    check_slots,
    get_host_assignments,
    parse_host_file,
    parse_host_files,
    parse_hosts,
    parse_hosts_and_slots,
)
from horovod.runner.flags import FLAGS

FIRST_WORDS = ["run", "-n", "2", "--prefix", "[{rank}]<{stream}>:"]

CONFIG_FILE = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 5.5
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
autotune:
  enabled: true
  log_file: tuning.csv
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: trace.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  thread_affinity: 1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  with_timestamp: false
"""


def values_of(*words: str) -> tuple[dict[str, Any], list[str]]:
    arguments = launch.make_parser().parse_args([*words, "python", "x.py"])
    return launch.values_of(arguments)


def settings(*words: str) -> list[str]:
    """Return the words that horovodrun passes to `farandole run`, without the words that it passes
    for every job."""
    line = launch.run_arguments(2, values_of(*words)[0], shows_time=False)
    assert line[: len(FIRST_WORDS)] == FIRST_WORDS
    variables = line[len(FIRST_WORDS) : len(FIRST_WORDS) + 6]
    assert variables[::2] == ["-x"] * 3
    assert set(variables[1::2]) == {
        "HOROVOD_CONTROLLER=gloo",
        "HOROVOD_CPU_OPERATIONS=gloo",
        f"HOROVOD_HOSTNAME={socket.gethostname()}",
    }
    return line[len(FIRST_WORDS) + 6 :]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG_FILE)
    return path


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--fusion-threshold-mb 32", "--bucket-bytes 33554432"),
        ("--fusion-threshold-mb=0", "--bucket-bytes 0"),
        ("--start-timeout 77", "--start-timeout 77"),
        ("--output-filename log", "--output-dir log"),
        ("--timeline-filename trace.json", "--timeline trace.json"),
        ("--timeline-mark-cycles", "--timeline-mark-cycles"),
        ("--no-timeline-mark-cycles", ""),
        ("--stall-check-warning-time-seconds 5", "--stall-warning 5"),
        ("--stall-check-shutdown-time-seconds 9", "--stall-limit 9"),
        ("--no-stall-check", "--stall-warning 0 --stall-limit 0"),
        ("--stall-check", ""),
        ("--log-level debug", "--log-level debug"),
        ("--log-level WARNING", "--log-level warning"),
        ("--log-hide-timestamp", "--log-hide-time"),
        ("--log-without-timestamp", "--log-hide-time"),
        ("--log-with-timestamp", ""),
        ("--gloo --cycle-time-ms 2 --autotune --tcp", ""),
    ],
)
def test_flags_become_flags_of_farandole_run(flags: str, expected: str) -> None:
    assert settings(*flags.split()) == expected.split()


def test_no_stall_check_wins_over_its_times() -> None:
    words = settings("--no-stall-check", "--stall-check-warning-time-seconds", "5")
    assert words[-4:] == ["--stall-warning", "0", "--stall-limit", "0"]


def test_every_flag_either_works_or_says_why_not() -> None:
    for flag in FLAGS:
        assert flag.to_run_flags or flag.why_ignored, flag.name
    sample_values = {int: "1", float: "0.5", str: "text", str.upper: "INFO"}
    for flag in FLAGS:
        values = [sample_values[flag.type]] * (flag.count or 1) if flag.type else []  # type: ignore[index]
        for name in flag.names:
            lines = launch.ignored_settings(values_of(name, *values)[0])
            reason = flag.why_ignored
            if flag.why_value_ignored:
                reason = flag.why_value_ignored(values[0])
            expected = [f"{flag.names[0]} has no meaning here: {reason}"]
            assert lines == (expected if reason else []), name
        for name in flag.negating_names:
            assert launch.ignored_settings(values_of(name)[0]) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-bind-to core -map-by slot", "core"),
        ("--map-by socket --bind-to socket", "socket"),
        ("--bind-to=none", "none"),
        ("--bind-to core:overload-allowed", "core"),
        ("-bind-to hwthread", None),
        ("-map-by core", None),
        ("-b packed:4", None),
    ],
)
def test_binding_arguments_of_mpirun_become_bind_to(words: str, expected: str | None) -> None:
    flag = f"--binding-args={words}"
    lines = launch.ignored_settings(values_of(flag)[0])
    if expected is None:
        assert settings(flag) == []
        assert lines == [
            f"--binding-args has no meaning here: {words!r} has none of -bind-to core, "
            "-bind-to socket and -bind-to none"
        ]
    else:
        assert settings(flag) == ["--bind-to", expected]
        assert lines == []


def test_the_time_is_before_the_prefix() -> None:
    assert launch.run_arguments(2, {}, shows_time=True)[4] == "{time}[{rank}]<{stream}>:"


def test_the_configuration_file_sets_flags(config_file: Path) -> None:
    words = settings("--config-file", str(config_file))
    assert (
        words
        == (
            "--bucket-bytes 33554432 --timeline trace.json --timeline-mark-cycles "
            "--stall-warning 120 --stall-limit 240 --log-level info --log-hide-time"
        ).split()
    )
    values, unknown = values_of("--config-file", str(config_file))
    assert unknown == []
    ignored = {line.split()[0] for line in launch.ignored_settings(values)}
    assert ignored == {
        *("--cycle-time-ms", "--cache-capacity", "--hierarchical-allreduce", "--autotune"),
        *("--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample"),
        *("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"),
        *("--mpi-threads-disable", "--num-nccl-streams"),
        *("--thread-affinity", "--gloo-timeout-seconds", "--gloo"),
    }


def test_the_command_line_wins_over_the_file(config_file: Path) -> None:
    flags = "--no-autotune --timeline-filename other.json --log-with-timestamp".split()
    values, _ = values_of("--config-file", str(config_file), *flags)
    assert (values["autotune"], values["timeline_filename"]) == (False, "other.json")
    assert "--log-hide-time" not in settings("--config-file", str(config_file), *flags)
    assert values["fusion_threshold_mb"] == 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("params: {fusion_threshold_mb: -1}", "params.fusion_threshold_mb is -1; it must be at"),
        ("params: {cache_capacity: many}", "params.cache_capacity is 'many'; it must be a whole"),
        ("params: {hierarchical_allreduce: 2}", "it must be true or false"),
        ("autotune: {gaussian_process_noise: 1.5}", "it must be at most 1"),
        ("logging: {level: LOUD}", "it must be one of TRACE, DEBUG"),
        ("controller: jsrun", "controller is 'jsrun'; it must be one of gloo, mpi"),
        ("[1, 2]", "it must contain sections"),
        ("params: {", "it is not YAML"),
    ],
)
def test_wrong_values_of_the_file_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"config\.yaml: ") as caught:
        values_of("--config-file", str(path))
    assert message in str(caught.value)


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("params: {speed: 3, cache_capacity: }\ntimeline:\nverbose: true\n")
    assert read_config(str(path)) == ({}, ["params.speed", "verbose"])
    assert launch.ignored_settings({}, ["verbose"]) == [
        "the key verbose of the file has no meaning here"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fusion-threshold-mb -1", "at least 0"),
        ("--elastic-timeout 0", "at least 1"),
        ("--autotune-gaussian-process-noise 1.5", "at most 1"),
        ("--cache-capacity many", "invalid int value"),
        ("--log-level LOUD", "must be one of"),
        ("--gloo --mpi", "not allowed with"),
        ("-H localhost:2 --hostfile x", "not allowed with"),
    ],
)
def test_wrong_flags_are_rejected(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        values_of(*words.split())
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("horovodrun: ") and message in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "how many workers"),
        ("-np 0", "at least 1"),
        ("-np 4 -H localhost:2", "4 workers are asked for, and the hosts have 2 slots"),
        ("-np 2 -H a:b:c", '"a:b:c" is not a host'),
        ("-np 2 --min-np 3", "between 1 and 2"),
        ("-np 2 --max-num-proc 4", "never has more workers than at its start"),
    ],
)
def test_wrong_sizes_are_rejected(words: str, message: str) -> None:
    arguments = launch.make_parser().parse_args([*words.split(), "true"])
    size = launch.job_size_of(arguments)
    with pytest.raises(ValueError) as caught:
        size.checked_workers(), size.host_flags()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "words",
    ["-np 2 -H localhost:2", "-np 2 -H localhost:1,127.0.0.1:1", "-np 2 --min-np 2 --max-np 2"],
)
def test_jobs_on_this_host_are_accepted(words: str) -> None:
    arguments = launch.make_parser().parse_args([*words.split(), "true"])
    assert launch.job_size_of(arguments).checked_workers() == 2
    assert launch.job_size_of(arguments).host_flags() == []


def test_a_smaller_minimum_makes_the_job_elastic() -> None:
    parser = launch.make_parser()
    words = "-np 4 --min-np 2 --max-np 4 --reset-limit 3 --blacklist-cooldown-range 5 60"
    arguments = parser.parse_args([*words.split(), "--slots-per-host", "4", "true"])
    size = launch.job_size_of(arguments)
    assert (size.checked_workers(), size.workers_min) == (4, 2)
    values, _ = launch.values_of(arguments)
    run_words = launch.run_arguments(4, values, False, (), size.elastic_flags())
    for flag, value in (
        ("--min-workers", "2"),
        ("--reset-limit", "3"),
        ("--cooldown-range", "5,60"),
    ):
        assert run_words[run_words.index(flag) + 1] == value
    settings = launch.elastic_settings_of((), size.elastic_flags())
    ignored = launch.ignored_settings(values, elastic_settings=settings)
    assert [line.split()[0] for line in ignored] == ["--slots-per-host"]
    # In a job of fixed size, these flags have no effect. A message names each of them.
    assert len(launch.ignored_settings(values)) == 3
    assert "--reset-limit" not in launch.run_arguments(4, values, False)
    equal_size = launch.job_size_of(parser.parse_args(["-np", "2", "--min-np", "2", "true"]))
    assert equal_size.workers_min == 2, "lost workers are replaced"


def test_a_discovery_script_makes_the_job_elastic() -> None:
    parser = launch.make_parser()
    words = "-np 4 --min-np 2 --max-np 8 --host-discovery-script ./find.sh --slots-per-host 4 -p 22"
    arguments = parser.parse_args([*words.split(), "true"])
    size = launch.job_size_of(arguments)
    assert size.checked_workers() == 4
    values, _ = launch.values_of(arguments)
    run_words = launch.run_arguments(4, values, False, size.host_flags(), size.elastic_flags())
    for flag, value in (
        ("-n", "4"),
        ("--min-workers", "2"),
        ("--max-workers", "8"),
        ("--host-discovery-script", "./find.sh"),
        ("--slots-per-host", "4"),
        ("--ssh-port", "22"),
    ):
        assert run_words[run_words.index(flag) + 1] == value
    settings = launch.elastic_settings_of(size.host_flags(), size.elastic_flags())
    assert launch.ignored_settings(values, (), True, settings) == []
    without_slots = launch.job_size_of(
        parser.parse_args(["-np", "3", "--host-discovery-script", "find", "true"])
    )
    assert without_slots.elastic_flags() == ["--min-workers", "3"]
    too_small = launch.job_size_of(
        parser.parse_args([*words.replace("--max-np 8", "--max-np 3").split(), "true"])
    )
    with pytest.raises(ValueError, match="must not be smaller"):
        too_small.checked_workers()


def test_other_hosts_are_reached_by_ssh(tmp_path: Path) -> None:
    parser = launch.make_parser()
    words = (
        "-np 4 -H localhost:2,other:2 -p 2222 -i key --network-interfaces eth0 --cycle-time-ms 1"
    )
    arguments = parser.parse_args([*words.split(), "--cycle-time-ms", "1", "true"])
    flags = launch.job_size_of(arguments).host_flags()
    assert flags == ["-H", "localhost:2,other:2"]
    values, _ = launch.values_of(arguments)
    run_words = launch.run_arguments(4, values, False, flags)
    assert run_words[:5] == ["run", "-n", "4", "-H", "localhost:2,other:2"]
    for flag, value in (
        ("--ssh-port", "2222"),
        ("--ssh-identity-file", "key"),
        ("--network-interfaces", "eth0"),
    ):
        assert run_words[run_words.index(flag) + 1] == value
    assert not any("HOROVOD_HOSTNAME" in word for word in run_words)
    assert [line.split()[0] for line in launch.ignored_settings(values, has_host_flags=True)] == [
        "--cycle-time-ms"
    ]
    # If the job runs on this host only, these flags have no effect. A message says so.
    assert len(launch.ignored_settings(values)) == 4
    assert "--ssh-port" not in launch.run_arguments(4, values, False)
    hostfile = tmp_path / "hosts"
    hostfile.write_text("other slots=4\n")
    arguments = parser.parse_args(["-np", "4", "-hostfile", str(hostfile), "true"])
    assert launch.job_size_of(arguments).host_flags() == ["--hostfile", str(hostfile)]


def test_hosts_are_parsed_from_files_and_flags(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\nlocalhost slots=2\n\nother:3\nthird\n")
    lines = [HostInfo("localhost", 2), HostInfo("other", 3), HostInfo("third")]
    assert parse_host_file(str(path)) == lines
    assert parse_hosts(f"{socket.gethostname()}:4") == [HostInfo(socket.gethostname(), 4)]
    check_slots(parse_hosts(socket.gethostname()), 64)
    path.write_text("localhost cores=2\n")
    with pytest.raises(ValueError, match="is not a host"):
        parse_host_file(str(path))


def test_the_program_follows_the_flags() -> None:
    parser = launch.make_parser()
    arguments = parser.parse_args(["-np", "2", "python", "x.py", "--verbose", "-np", "3"])
    assert (arguments.num_proc, arguments.verbose) == (2, False)
    assert launch.program_of(arguments.command) == ["python", "x.py", "--verbose", "-np", "3"]
    arguments = parser.parse_args(["-np", "2", "--", "python", "--", "x"])
    assert launch.program_of(arguments.command) == ["python", "--", "x"]
    with pytest.raises(ValueError, match="which command"):
        launch.program_of([])


def test_flags_of_the_program_are_not_ours() -> None:
    """The program may have flags that look like flags of horovodrun, or like abbreviations of
    them."""
    program_words = ["train.sh", "--log", "x", "--host", "a", "--timeline=y", "-c", "--min", "-np"]
    own_flags = [
        "--num-proc=2",
        "--verb",
        "--start-time",
        "30",
        "--blacklist-cooldown-range",
        "1",
        "2",
    ]
    arguments = launch.make_parser().parse_args(own_flags + program_words)
    assert (arguments.num_proc, arguments.verbose, arguments.start_timeout) == (2, True, 30)
    assert arguments.blacklist_cooldown_range == [1, 2]
    assert arguments.command == program_words
    for shortened in (["-n", "2", "x"], ["--num-p", "2", "x"], ["-np", "2", "--verb", "x"]):
        arguments = launch.make_parser().parse_args(shortened)
        assert (arguments.num_proc, arguments.command) == (2, ["x"])
    for words in (["--log", "INFO", "x"], ["--nonsense", "x"], ["-np"]):
        with pytest.raises(SystemExit):
            launch.make_parser().parse_args(words)


def test_programs_may_use_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--num-proc", "3", "--min-np", "2", "python", "x.py"])
    arguments = launch.parse_args()
    assert (arguments.num_proc, arguments.min_num_proc, arguments.max_num_proc) == (3, 2, None)
    assert arguments.command == ["python", "x.py"]


@pytest.mark.parametrize(
    ("gloo", "mpi", "jsrun", "expected"),
    [
        (None, None, None, "gloo"),
        (True, None, None, "gloo"),
        (False, True, False, "mpi"),
        (None, None, True, "jsrun"),
    ],
)
def test_the_controller_that_is_asked_for_runs(
    gloo: bool | None, mpi: bool | None, jsrun: bool | None, expected: str
) -> None:
    calls: list[str] = []
    launch.run_controller(
        gloo,
        lambda: calls.append("gloo"),
        mpi,
        lambda: calls.append("mpi"),
        jsrun,
        lambda: calls.append("jsrun"),
        verbosity=2,
    )
    assert calls == [expected]
    assert launch.is_gloo_used(gloo, mpi, jsrun) == (expected == "gloo")


def test_ranks_are_given_host_after_host() -> None:
    hosts = [HostInfo.from_string(text) for text in ("a:1", " b:3 ", "c:2")]
    assert hosts == [HostInfo("a", 1), HostInfo("b", 3), HostInfo("c", 2)]
    slots = get_host_assignments(hosts, 2, 5)
    assert [(s.hostname, s.rank, s.local_rank, s.cross_rank) for s in slots] == [
        *(("a", 0, 0, 0), ("b", 1, 0, 1), ("b", 2, 1, 0), ("b", 3, 2, 0), ("c", 4, 0, 2)),
    ]
    assert [(s.size, s.local_size, s.cross_size) for s in slots] == [
        *((5, 1, 3), (5, 3, 3), (5, 3, 1), (5, 3, 1), (5, 1, 3)),
    ]
    assert len(get_host_assignments(hosts, 6)) == 6
    assert [slot.hostname for slot in get_host_assignments(hosts, 1, 1)] == ["a"]
    with pytest.raises(ValueError, match="7 workers are asked for, and the hosts have 6 slots"):
        get_host_assignments(hosts, 7)
    with pytest.raises(ValueError, match='"d" has no number of slots'):
        get_host_assignments([HostInfo.from_string("d")], 1)
    assert INVALID_SLOT_INFO.rank == -1


def test_hosts_as_text_and_as_numbers_of_slots(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two hosts\na slots=2\nb slots = 4  # the larger one\n")
    assert parse_host_files(str(path)) == "a:2,b:4"
    assert parse_hosts_and_slots("a:2,b:4") == (["a", "b"], {"a": 2, "b": 4})


def test_the_launcher_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "horovod.runner.launch", "--check-build"]
    completed = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "PyTorch" in completed.stdout and completed.stderr == ""
