"""Batch normalization over the batches of all ranks, as if they were one batch."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from farandole.errors import CallError
from farandole.group import Group, checked_group, global_process_set
from farandole.reduce_op import Sum
from farandole.torch.dynamo import outside_dynamo
from farandole.torch.operations import allgather, allreduce

Module = TypeVar("Module", bound=torch.nn.Module)
_CONVERTED_CLASSES = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class SyncBatchNorm(_BatchNorm):
    """Normalize inputs of the shape (N, C, ...) over the batches of all members.

    It replaces torch.nn.BatchNorm1d, 2d and 3d, on any device. In training, all members of the
    process_set must run it, even a member whose batch is smaller or empty. forward() makes one
    blocking call, and backward() makes another one.

    The statistics and the gradient of the input are computed over all members' batches together.
    The gradients of weight and bias are this rank's part of a sum: their sum over the members is
    the gradient of the whole batch.

    In eval() it uses the running statistics and makes no calls. Without running statistics it makes
    the same calls as in training.

    Raises:
        CallError: The input does not have `num_features` channels, or all members together have
            only one value of each channel.
    """

    # size waiver: Horovod's arguments
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: Group = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: Module, process_set: Group = global_process_set
    ) -> Module:
        """Turn each torch.nn.BatchNorm1d, 2d and 3d in the module into a SyncBatchNorm, and return
        the module.

        The layers are changed in place. They keep their parameters, buffers, options and hooks, so
        an optimizer may be made before or after this call. Layers of other classes stay as they
        are, even those of classes that derive from these three. This call does not block.

        Args:
            module: A module that contains such layers at any depth, or is one.
            process_set: The group over whose batches the layers normalize.

        Returns:
            The same object.

        Raises:
            CallError: A layer is a torch.nn.LazyBatchNorm, which has no parameters yet.

        Example::

            model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        """
        group = checked_group(process_set)
        layers = dict(module.named_modules())
        for name, layer in layers.items():
            if isinstance(layer, LazyModuleMixin) and isinstance(layer, _BatchNorm):
                raise CallError(
                    f"the layer {name!r} is a {type(layer).__name__} without parameters: run the "
                    "model once on a batch before convert_sync_batchnorm()"
                )
        for layer in layers.values():
            if type(layer) in _CONVERTED_CLASSES:
                layer.__class__ = cls
                layer.process_set = group
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise CallError(
                f"SyncBatchNorm({self.num_features}) needs an input of the shape (N, "
                f"{self.num_features}, ...); got {list(input.shape)}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        uses_running_statistics = not self.training and self.running_mean is not None
        if uses_running_statistics:
            return super().forward(input)
        return self._normalize_over_members(input)

    @outside_dynamo
    def _normalize_over_members(self, input: torch.Tensor) -> torch.Tensor:
        if self.process_set.size() == 1:
            return super().forward(input)
        output, mean, variance, count = _Normalize.apply(
            input, self.weight, self.bias, self.eps, self.process_set
        )
        if self.training and self.track_running_stats:
            self._update_running_statistics(mean, variance * (count / (count - 1)))
        return output

    @torch.no_grad()
    def _update_running_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        new_weight = self.momentum
        if new_weight is None:  # then average over all batches so far
            new_weight = 1.0 / float(self.num_batches_tracked)
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.lerp_(new.to(running.dtype), new_weight)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: Group,
    ) -> Any:
        values = _at_least_float32(input)
        mean, variance, count = _gather_statistics(values, process_set)
        scale = torch.rsqrt(variance + eps)
        normalized = (values - _per_channel(mean, values)) * _per_channel(scale, values)
        output = normalized
        if weight is not None:
            output = output * _per_channel(weight, values)
        if bias is not None:
            output = output + _per_channel(bias, values)
        ctx.save_for_backward(normalized, scale, weight, bias)
        ctx.count, ctx.process_set = count, process_set
        ctx.mark_non_differentiable(mean, variance)
        output = output.to(input.dtype)
        # An activation may change the output in place, and backward() needs `normalized`.
        return output.clone() if output is normalized else output, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        normalized, scale, weight, bias = ctx.saved_tensors
        values = _at_least_float32(gradient)
        reduced_dimensions = [dimension for dimension in range(values.dim()) if dimension != 1]
        bias_gradient = values.sum(reduced_dimensions)
        weight_gradient = (values * normalized).sum(reduced_dimensions)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            means = ctx.count**-1 * allreduce(
                torch.stack((bias_gradient, weight_gradient)),
                name="sync_batch_norm.gradients",
                op=Sum,
                process_set=ctx.process_set,
            )
            centered_gradient = (
                values
                - _per_channel(means[0], values)
                - normalized * _per_channel(means[1], values)
            )
            factor = scale if weight is None else scale * weight
            input_gradient = (centered_gradient * _per_channel(factor, values)).to(gradient.dtype)
        weight_result = None if weight is None else weight_gradient.to(weight.dtype)
        bias_result = None if bias is None else bias_gradient.to(bias.dtype)
        return input_gradient, weight_result, bias_result, None, None


def _gather_statistics(
    values: torch.Tensor, process_set: Group
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the mean and the variance of each channel over all members, and the number of values
    per channel.

    Each member sends its mean, and its variance around that mean. The members' values are combined
    in float64, because subtracting nearly equal numbers would lose digits.
    """
    channels = values.shape[1]
    count = values.numel() // channels
    own_row = torch.zeros((1, 2 * channels + 1), dtype=torch.float64, device=values.device)
    if count > 0:
        variance, mean = torch.var_mean(values.transpose(0, 1).flatten(1), dim=1, correction=0)
        own_row[0, :-1] = torch.cat((mean, variance))
    own_row[0, -1] = count
    gathered = allgather(own_row, name="sync_batch_norm.statistics", process_set=process_set)
    counts = gathered[:, -1:]
    total = float(counts.sum())
    if total <= 1:
        raise CallError(
            "SyncBatchNorm needs more than one value of each channel in training; all ranks "
            f"together have {total:.0f}"
        )
    means, variances = gathered[:, :-1].chunk(2, dim=1)
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean).square()) * counts).sum(0) / total
    return mean.to(values.dtype), variance.to(values.dtype), total


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert half-precision values to float32, because intermediate results need its precision."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _per_channel(values: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor with one value for each channel, so that it is broadcast over a batch."""
    return values.to(batch.dtype).view(-1, *[1] * (batch.dim() - 2))
