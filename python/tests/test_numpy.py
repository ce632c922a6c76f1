"""The NumPy frontend, which exists only for tests, in jobs of one to three workers."""

from __future__ import annotations

import pytest
from job import everyday_and_long, run_checks


@pytest.mark.parametrize("size", everyday_and_long([3], [1, 2]))
def test_conformance(size: int) -> None:
    run_checks(size, "numpy_frontend:NumpyConformance")


def test_conformance_without_asynchronous_calls() -> None:
    run_checks(2, "numpy_frontend:NumpyWithoutAsync")


@pytest.mark.parametrize("size", everyday_and_long([1, 2], [3]))
def test_shared_modules(size: int) -> None:
    run_checks(size, "shared_modules:SharedModules", "elastic_steps:StepChecks")
