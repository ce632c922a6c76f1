"""The torch frontend in jobs of one to four workers.

Several short suites share a job, because `import torch` takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from job import everyday_and_long, run_checks


@pytest.mark.parametrize("size", everyday_and_long([1, 3], [2, 4]))
def test_conformance(size: int) -> None:
    run_checks(size, "torch_frontend:TorchConformance")


@pytest.mark.parametrize("size", everyday_and_long([3], [1, 2]))
def test_optimizer(size: int) -> None:
    run_checks(size, "torch_optimizer:OptimizerChecks", "torch_layouts:LayoutChecks")


@pytest.mark.parametrize("size", everyday_and_long([3], [1, 2]))
def test_backward(size: int) -> None:
    run_checks(
        size,
        "torch_backward:BackwardChecks",
        "torch_failed_steps:FailedStepChecks",
        "torch_added_parameters:AddedParameterChecks",
    )


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 3]))
def test_optimizers_in_unusual_programs(size: int) -> None:
    run_checks(
        size,
        "torch_habits:HabitChecks",
        "torch_grad_scaler:GradScalerChecks",
        "torch_pairing:PairingChecks",
        "torch_state:StateChecks",
        "torch_parameters:ParameterChecks",
        "torch_elastic:ElasticChecks",
    )


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 4]))
def test_torch_only_features(size: int) -> None:
    run_checks(
        size,
        "torch_surface:TorchSurface",
        "torch_batch_norm:BatchNormChecks",
        "torch_far_device:FarDeviceChecks",
        "torch_in_place:InPlaceChecks",
    )


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 4]))
def test_training(size: int) -> None:
    run_checks(size, "torch_training:TrainingChecks", "torch_frozen:FrozenChecks")


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 3]))
def test_join(size: int) -> None:
    run_checks(size, "torch_join:JoinChecks")


def test_docstrings() -> None:
    run_checks(2, "torch_docstrings:DocstringChecks")


def run_if_enough_memory(gib: int, suite: str) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if available < gib << 20:
        pytest.skip(f"{available >> 20} GiB of memory are available, not {gib}")
    run_checks(2, suite)


@pytest.mark.long
def test_large_tensors() -> None:
    """The job uses about 5 GiB. It runs only if much more is available."""
    run_if_enough_memory(12, "large_tensors:LargeTensors")


@pytest.mark.skipif(
    "FARANDOLE_TEST_LARGER_TENSORS" not in os.environ,
    reason="40 s on two cores, and 13 GiB: runs only if FARANDOLE_TEST_LARGER_TENSORS is set",
)
def test_larger_tensors() -> None:
    run_if_enough_memory(16, "large_tensors:LargerTensors")
