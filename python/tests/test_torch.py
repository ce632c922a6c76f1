"""The torch frontend in jobs of one to four workers."""

from __future__ import annotations

import pytest
from job import run_checks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_conformance(size: int) -> None:
    run_checks(size, "torch_frontend:TorchConformance")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_optimizer(size: int) -> None:
    run_checks(size, "torch_optimizer:OptimizerChecks")
