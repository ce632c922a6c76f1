"""Checks of blocking calls that write into a tensor.

A call on a contiguous tensor in host memory takes a direct path, through DLPack's C exchange API.
Calls on other tensors, and all calls if torch has no such API, go through Python.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from suite import Suite
from torch_frontend import TorchFrontend

import farandole.torch as hvd
from farandole.torch import tensors as torch_tensors


class _Subclass(torch.Tensor):
    pass


def _tensors() -> dict[str, Any]:
    """Return new tensors of many kinds, with the same values each time. Some of them cannot take a
    result."""
    values = torch.arange(1.0, 25.0)
    dtypes = [getattr(torch, name) for name in torch_tensors.core.dtypes]
    tensors: dict[str, Any] = {str(dtype): values.to(dtype) for dtype in dtypes}
    tensors |= {
        "no dimension": torch.tensor(3.0),
        "no element": torch.empty(2, 0).as_strided((2, 0), (0, 0)),
        "part": values[5:9].clone()[1:],
        "transposed": values.view(4, 6).t(),
        "every second element": values[::2],
        "one row with any stride": values.as_strided((1, 3), (17, 1)),
        "expanded": torch.ones(1).expand(3),
        "channels last": values.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "negative bit": torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
        "contiguous, with a negative bit": torch.view_as_complex(torch.ones(1, 2)).conj().imag,
        "leaf with a gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "subclass": torch.ones(3).as_subclass(_Subclass),
        "inference": torch.inference_mode()(lambda: torch.ones(3))(),
        "sparse": torch.ones(2, 2).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "complex": torch.ones(2, dtype=torch.complex64),
        "float8": torch.ones(2).to(torch.float8_e5m2),
        "list": [1.0],
        "nothing": None,
    }
    return tensors


class InPlaceChecks(Suite):
    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def check_direct_and_python_paths_agree(self) -> None:
        """For every kind of tensor, the direct path and the path through Python give the same
        result or error."""
        direct_outcomes = self.outcomes()
        reader, torch_tensors._tensor_reader = torch_tensors._tensor_reader, None
        try:
            through_python = self.outcomes()
        finally:
            torch_tensors._tensor_reader = reader
        assert direct_outcomes == through_python, (direct_outcomes, through_python)
        kinds = _tensors()
        if reader is not None:
            for kind in ("torch.float32", "torch.bool", "no dimension", "part", "parameter"):
                assert torch_tensors.direct_view(kinds[kind]) is not None, kind

    def outcomes(self) -> dict[str, Any]:
        return {
            f"{name} of {kind}": self.outcome_of(call, tensor)
            for name, call in (
                ("allreduce", lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum)),
                ("broadcast", lambda tensor: hvd.broadcast_(tensor, self.size - 1)),
            )
            for kind, tensor in _tensors().items()
        }

    def outcome_of(self, call: Callable[[Any], Any], tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            with torch.no_grad(), suppress(RuntimeError, NotImplementedError):
                tensor.mul_(self.rank + 1)
        version_before = None if not _has_version(tensor) else tensor._version
        try:
            assert call(tensor) is tensor
        except ValueError as error:
            return str(error)
        is_counted = version_before is None or tensor._version > version_before
        return tensor.dtype, tensor.shape, tensor.double().tolist(), is_counted

    def check_an_interrupted_call_keeps_its_memory(self) -> None:
        """A signal handler interrupts rank 0 in the wait for a call, and the other ranks make the
        call later. The engine then still writes the result to the tensor's memory on rank 0, even
        if the program has dropped the tensor."""
        if self.size == 1:
            return
        kept_tensor = torch.full((5000,), float(self.rank + 1))
        for name, tensor in (("kept", kept_tensor), ("dropped", kept_tensor.clone())):
            if self.rank == 0:
                self.interrupt(lambda name=name, tensor=tensor: hvd.allreduce_(tensor, name=name))
        del tensor
        # If the memory of the dropped tensor were free, these tensors would use it.
        other_tensors = [torch.full((5000,), -1.0) for _ in range(50)]
        hvd.barrier()
        if self.rank > 0:
            hvd.allreduce_(kept_tensor, name="kept")
            hvd.allreduce_(torch.full((5000,), float(self.rank + 1)), name="dropped")
        hvd.barrier()
        assert all(bool((other == -1).all()) for other in other_tensors)
        hvd.allreduce_(torch.ones(1), name="after")  # rank 0 completes its calls in this wait
        assert torch.equal(kept_tensor, torch.full((5000,), (self.size + 1) / 2)), kept_tensor

    def interrupt(self, call: Callable[[], object]) -> None:
        def interrupt(*_: object) -> None:
            raise InterruptedError

        former_handler = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 3.0)  # by then, the call is in flight
            call()
        except InterruptedError:
            pass
        else:
            raise AssertionError("the call was not interrupted")
        finally:
            signal.signal(signal.SIGALRM, former_handler)

    def check_a_failed_call_frees_its_name(self) -> None:
        """A blocking call leaves no handle behind, so the program can use the name of a failed call
        again immediately after the error."""
        for _ in range(3):
            self.expect_error(
                "root rank", lambda: hvd.broadcast_(torch.ones(2), self.size, name="again")
            )
        tensor = torch.ones(2)
        hvd.allreduce_(tensor, op=hvd.Sum, name="again")
        assert tensor.tolist() == [self.size] * 2


def _has_version(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and not tensor.is_inference()
