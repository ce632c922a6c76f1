"""The torch frontend in jobs of one to four workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from job import run_checks

LARGE_NEEDS_GIB = 12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_conformance(size: int) -> None:
    run_checks(size, "torch_frontend:TorchConformance")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_optimizer(size: int) -> None:
    run_checks(size, "torch_optimizer:OptimizerChecks")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_backward(size: int) -> None:
    run_checks(size, "torch_backward:BackwardChecks")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pairing(size: int) -> None:
    run_checks(size, "torch_pairing:PairingChecks")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_state(size: int) -> None:
    run_checks(size, "torch_state:StateChecks")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters(size: int) -> None:
    run_checks(size, "torch_parameters:ParameterChecks")


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "suite",
    [
        "torch_surface:TorchSurface",
        "torch_batch_norm:BatchNormChecks",
        "torch_devices:DeviceChecks",
    ],
)
def test_what_only_torch_has(size: int, suite: str) -> None:
    run_checks(size, suite)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_training(size: int) -> None:
    run_checks(size, "torch_training:TrainingChecks")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_elastic(size: int) -> None:
    run_checks(size, "torch_elastic:ElasticChecks")


def test_large_tensors() -> None:
    """About 5 GiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if available < LARGE_NEEDS_GIB << 20:
        pytest.skip(f"{available >> 20} GiB of memory are available, not {LARGE_NEEDS_GIB}")
    run_checks(2, "large_tensors:LargeTensors")
