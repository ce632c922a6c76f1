"""Calls that wait for their results, with gradients. There is one autograd function for all of
them: backward() makes the calls that collectives.py names, alone or as a batch like forward's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole import arguments
from farandole.torch.collectives import Collective, start, start_batch

# A tensor, and how many rows came from each member.
Received = tuple[torch.Tensor, Sequence[int]]


def run(collective: Collective, tensor: torch.Tensor, name: str | None) -> Received:
    if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
        return _with_gradients([collective], [tensor], name, grouped=False)[0]
    return start(collective, tensor, name, both, waits=True).wait()


def run_batch(
    collectives: Sequence[Collective], tensors: Sequence[torch.Tensor], name: str | None
) -> list[Received]:
    if torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors):
        return _with_gradients(collectives, tensors, name, grouped=True)
    return start_batch(collectives, tensors, name, both, waits=True).wait()


def both(tensor: torch.Tensor, received_rows: Sequence[int]) -> Received:
    return tensor, received_rows


def _with_gradients(
    collectives: Sequence[Collective],
    tensors: Sequence[torch.Tensor],
    name: str | None,
    grouped: bool,
) -> list[Received]:
    *outputs, received = _Collectives.apply(collectives, name, grouped, *tensors)
    return list(zip(outputs, received, strict=True))


class _Collectives(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        collectives: Sequence[Collective],
        name: str | None,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        if grouped:
            results = run_batch(collectives, tensors, name)
        else:
            results = [run(collectives[0], tensors[0], name)]
        ctx.collectives, ctx.name, ctx.grouped = collectives, name, grouped
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.received = [received_rows for _, received_rows in results]
        return *(tensor for tensor, _ in results), ctx.received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # All that can have a gradient take part, whether or not this rank needs it. The last of
        # `gradients` stands for the numbers of rows.
        chosen = [i for i, gradient in enumerate(gradients[:-1]) if gradient.is_floating_point()]
        steps = [
            ctx.collectives[i].backward(gradients[i], ctx.shapes[i], ctx.received[i])
            for i in chosen
        ]
        name = arguments.gradient_name(ctx.name)
        if ctx.grouped:
            results = run_batch(
                [step.collective for step in steps], [step.tensor for step in steps], name
            )
        else:
            results = [run(steps[0].collective, steps[0].tensor, name)]
        of_inputs: list[torch.Tensor | None] = [None] * len(ctx.shapes)
        for i, step, (tensor, _) in zip(chosen, steps, results, strict=True):
            of_inputs[i] = step.finish(tensor)
        return None, None, None, *of_inputs
