"""The torch.distributed backend in jobs of `farandole run`, of other launchers, and without any."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from job import WORKER, Job, command_of_launcher, run, run_checks, run_command

SPAWNING_PROGRAM = Path(__file__).with_name("spawning_program.py")


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_under_our_launcher(size: int) -> None:
    suites = ("torch_distributed:DistributedChecks", "torch_dtypes:DtypeChecks")
    other_suites = ("torch_groups:SecondGroupChecks", "torch_hooks:HookChecks")
    run_checks(size, *suites, *other_suites)


@pytest.mark.parametrize("size", [2, 3])
def test_exchanges_and_shared_groups(size: int) -> None:
    run_checks(size, "torch_exchanges:ExchangeChecks", "torch_exchanges:SharedGroupChecks")


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_with_torch_compile(size: int) -> None:
    run_checks(size, "torch_compiled:CompiledChecks")


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_under_other_launchers(launcher: str) -> None:
    """In the long tests, test_under_our_launcher() makes the same checks with four ranks."""
    words = command_of_launcher(
        launcher,
        2,
        sys.executable,
        WORKER,
        "torch_distributed:ChecksWithoutGloo",
        "torch_hooks:HookChecks",
        "torch_groups:MemberGroupChecks",
    )
    if words is None:
        pytest.skip(f"{launcher} is not installed")
    job = run_command(words)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == 2, job.text


@pytest.mark.long
def test_nine_ranks_send_to_each_other() -> None:
    run_checks(9, "torch_distributed:MessageChecks")


def run_program(*lines: str, environment: Mapping[str, str] | None = None, size: int = 0) -> Job:
    """Run a program in one process, or with `size` workers."""
    words = [sys.executable, "-c", "\n".join(lines)]
    return run(size, *words, environment=environment) if size else run_command(words, environment)


IMPORTS = "import os, sys, torch, torch.distributed as dist"
SUM_PROGRAM = """
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"{dist.get_backend()} has the sum {tensor.item():g}\\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_job_of_one_needs_no_launcher() -> None:
    """Check what docs/howto/torch_distributed.md says about the scheme farandole://."""
    job = run_program(
        IMPORTS, "dist.init_process_group('gloo', init_method='farandole://')", SUM_PROGRAM
    )
    assert (job.code, job.text.splitlines()[-1]) == (0, "gloo has the sum 1"), job.text


def test_the_backend_needs_no_import() -> None:
    """`import torch` registers the backend, but imports no other module of Farandole."""
    print_modules = "print([name for name in sys.modules if 'farandole' in name], end=' ')"
    job = run_program(
        IMPORTS, print_modules, "dist.init_process_group('farandole')", SUM_PROGRAM, size=2
    )
    assert job.code == 0, job.text
    assert job.text.count("['farandole_torch_backend'] farandole has the sum 3") == 2, job.text


def test_the_backend_can_be_imported_without_autoloading() -> None:
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    has_backend = "print(hasattr(dist.Backend, 'FARANDOLE'))"
    job = run_program(
        IMPORTS, has_backend, "import farandole.torch", has_backend, environment=environment
    )
    assert (job.code, job.text.split()) == (0, ["False", "True"]), job.text


def test_a_torch_that_does_not_fit_is_imported_all_the_same() -> None:
    program = """
import sys, types
import farandole_torch_backend
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
farandole_torch_backend.autoload()
print("imported")
"""
    job = run_program(program)
    assert (job.code, job.text) == (0, "imported\n")


def test_nothing_of_torch_is_patched() -> None:
    program = """
handlers = torch.distributed.rendezvous.__globals__["_rendezvous_handlers"]
before = dict(handlers)
import farandole.torch
assert {name: handler for name, handler in handlers.items() if name != "farandole"} == {
    name: handler for name, handler in before.items() if name != "farandole"
}
print(handlers["env"].__module__)
"""
    job = run_program(IMPORTS, program)
    assert (job.code, job.text) == (0, "torch.distributed.rendezvous\n"), job.text


@pytest.mark.parametrize("libuv", ["0", "1"])
def test_jobs_with_gloo_can_run_side_by_side(libuv: str) -> None:
    """Rank 0 of each job listens on the port that its launcher has reserved."""
    program = (IMPORTS, "dist.init_process_group('gloo')", SUM_PROGRAM)
    with ThreadPoolExecutor() as pool:
        futures = [
            pool.submit(run_program, *program, environment={"USE_LIBUV": libuv}, size=2)
            for _ in range(2)
        ]
    for job in (future.result() for future in futures):
        assert job.code == 0, job.text
        assert job.text.count("gloo has the sum 3") == 2, job.text


@pytest.mark.parametrize(
    ("size", "reporters"), [(2, (1, 0)), pytest.param(3, (0, 0), marks=pytest.mark.long)]
)
def test_a_job_that_a_worker_starts_is_reported(size: int, reporters: tuple[int, int]) -> None:
    """Each worker of a job starts torchrun, so the program runs as two jobs instead of one. In each
    of these two jobs, one rank prints a warning. The child processes of this rank do not repeat the
    warning."""
    program = (
        f"{IMPORTS}\nimport subprocess, sys\nprint('imported')\n"
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    )
    torchrun_command = command_of_launcher("torchrun", size, sys.executable, "-c", program)
    assert torchrun_command is not None
    job = run(2, *torchrun_command)
    assert job.text.count("imported") == 2 * size, job.text
    for outer, reporter in enumerate(reporters):
        line = (
            rf"\[{outer}\] farandole: this process \(pid \d+\) is rank {reporter} of {size} by "
            "RANK and WORLD_SIZE, but a worker of `farandole run`, rank "
            f"{outer} of 2, has started it"
        )
        assert len(re.findall(line, job.text)) == 1, job.text
    assert job.text.count("farandole: this process") == 2, job.text


def test_a_child_of_a_worker_starts_alone() -> None:
    """A worker starts a program without our variables, but with those that `farandole run` sets for
    torchrun, such as RANK. The program must run as a job of one."""
    program = """
import os, subprocess, sys
kept = {n: v for n, v in os.environ.items() if not n.startswith(("FARANDOLE_", "HOROVOD_"))}
subprocess.run(
    [sys.executable, "-c", "import farandole; farandole.init(); print(farandole.size())"],
    check=True, env=kept,
)
"""
    job = run_program(program, size=2)
    assert job.code == 0, job.text
    assert sorted(job.text.splitlines())[:2] == ["[0] 1", "[1] 1"], job.text


def test_the_init_method_wins_over_rank_and_world_size(tmp_path: Path) -> None:
    """A file:// rendezvous identifies the job, so it replaces RANK and WORLD_SIZE, which alone
    identify no job."""
    program = (
        "import farandole.torch, torch.distributed as dist; dist.init_process_group('farandole', "
        f"init_method='file://{tmp_path}/store', rank=0, world_size=1); print(dist.get_rank())"
    )
    job = run_command([sys.executable, "-c", program], {"RANK": "0", "WORLD_SIZE": "2"})
    assert (job.code, job.text.splitlines()[-1]) == (0, "0"), job.text


def test_processes_that_torch_starts_form_a_group() -> None:
    job = run_command([sys.executable, str(SPAWNING_PROGRAM)])
    assert job.code == 0, job.text
    assert job.text.count("the sum is 3.0") == 3, job.text
