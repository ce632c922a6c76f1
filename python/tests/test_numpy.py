"""A frontend for NumPy, which exists for tests only, in jobs of one to three workers."""

from __future__ import annotations

import pytest
from job import run_checks


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("suite", ["NumpyConformance", "NumpyWithoutAsync"])
def test_conformance(size: int, suite: str) -> None:
    run_checks(size, f"numpy_frontend:{suite}")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shared_modules(size: int) -> None:
    run_checks(size, "shared_modules:SharedModules")
