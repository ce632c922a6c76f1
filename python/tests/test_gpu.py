"""Tensors on a GPU, in jobs whose ranks share this GPU. docs/what_works.md says what such jobs can
do."""

from __future__ import annotations

import pytest
import torch
from job import run_checks

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that torch can use"
)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("suite", ["GpuConformance", "GpuDevice", "GpuTraining"])
def test_gpu(suite: str, size: int) -> None:
    run_checks(size, f"torch_gpu:{suite}")
