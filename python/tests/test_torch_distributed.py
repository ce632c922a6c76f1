"""The torch.distributed backend in jobs of `farandole run`, of other launchers, and without any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from job import WORKER, command_of_launcher, run_checks, run_command

SPAWNING = Path(__file__).with_name("spawning_program.py")


@pytest.mark.parametrize("size", [2, 4])
def test_under_our_launcher(size: int) -> None:
    run_checks(size, "torch_distributed:DistributedChecks", timeout=300)


@pytest.mark.parametrize(("launcher", "size"), [("torchrun", 2), ("torchrun", 4), ("mpirun", 2)])
def test_under_other_launchers(launcher: str, size: int) -> None:
    words = command_of_launcher(
        launcher, size, sys.executable, WORKER, "torch_distributed:WithoutGloo"
    )
    if words is None:
        pytest.skip(f"{launcher} is not installed")
    job = run_command(words, timeout=300)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == size, job.text


def test_gloo_without_a_launcher_makes_a_job_of_one() -> None:
    """Check what docs/howto/torch_distributed.md says about other backends."""
    program = (
        "import farandole.torch, torch.distributed as dist; dist.init_process_group('gloo'); "
        "print('of', dist.get_world_size())"
    )
    job = run_command([sys.executable, "-c", program])
    assert (job.code, job.text.splitlines()[-1]) == (0, "of 1"), job.text


def test_the_init_method_wins_over_rank_and_world_size(tmp_path: Path) -> None:
    """RANK and WORLD_SIZE alone identify no job; the file does."""
    program = (
        "import farandole.torch, torch.distributed as dist; dist.init_process_group('farandole', "
        f"init_method='file://{tmp_path}/store', rank=0, world_size=1); print(dist.get_rank())"
    )
    job = run_command([sys.executable, "-c", program], {"RANK": "0", "WORLD_SIZE": "2"})
    assert (job.code, job.text.splitlines()[-1]) == (0, "0"), job.text


def test_processes_that_torch_starts() -> None:
    job = run_command([sys.executable, str(SPAWNING)])
    assert job.code == 0, job.text
    assert job.text.count("the sum is 3.0") == 3, job.text
