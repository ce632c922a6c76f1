"""Callbacks for fit(), with Horovod's names and arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from farandole import lifecycle
from farandole.errors import CallError
from farandole.group import global_process_set
from farandole.keras.backend import numpy_of, run_on_numpy
from farandole.keras.operations import broadcast_variables
from farandole.keras.optimizer import drop_old_step, is_distributed
from farandole.keras.variables import build_optimizer, optimizers_of, variables_of
from farandole.operations import Allreduce
from farandole.reduce_op import Average, Min

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """When fit() begins, broadcast the weights of the model and the variables of its optimizers
    from root_rank. If the model is not built yet on some rank, do this after the first batch
    instead. If an optimizer that was not passed to compile() is not built yet on some rank,
    broadcast all variables again after the first batch. Each rank keeps the states of its seed
    generators, so that dropout differs between the ranks.

    Args:
        root_rank: The rank that sends its values to all ranks.
        device: Ignored. Scripts that were written for Horovod pass it.
        local_variables: Variables that are not broadcast.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self._root_rank, self._local_variables = root_rank, list(local_variables or ())
        self._is_done = False

    def register_local_var(self, variable: Any) -> None:
        """Do not broadcast this variable: each rank keeps its own value."""
        self._local_variables.append(variable)

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        optimizers = optimizers_of(model)
        if lifecycle.size() > 1 and not any(map(is_distributed, optimizers)):
            warnings.warn(
                "the optimizer of this model is not distributed, so its ranks train apart unless "
                "train_step() combines gradients: use hvd.DistributedOptimizer(), and "
                "hvd.load_model() for models from files",
                stacklevel=2,
            )
        drop_old_step(model, optimizers)
        compiled_optimizers = [] if model.optimizer is None else [model.optimizer]
        is_built = build_optimizer(model, model.optimizer)
        # Some ranks may have built their model before fit(), and others not. So all ranks must
        # agree on when they broadcast.
        own_flags = [
            np.array([is_built, all(optimizer.built for optimizer in optimizers)], np.int32)
        ]
        common_flags = run_on_numpy(
            Allreduce(global_process_set, Min), own_flags, "variables.exist"
        )[0]
        is_built, are_optimizers_built = map(bool, common_flags)
        if is_built:
            self._broadcast(optimizers if are_optimizers_built else compiled_optimizers)
        self._is_done = is_built and are_optimizers_built

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_done:
            self._broadcast(optimizers_of(self.model))
            self._is_done = True

    def _broadcast(self, optimizers: Sequence[Any]) -> None:
        shared_variables = [
            variable
            for variable in variables_of(self.model, optimizers)
            if not any(variable is local_variable for local_variable in self._local_variables)
        ]
        broadcast_variables(shared_variables, self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Average each metric over all ranks at the end of each epoch. A metric may be a number or an
    array. Put this callback before callbacks that use metrics, such as ReduceLROnPlateau.

    Args:
        device: Ignored. Scripts that were written for Horovod pass it.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        average_metrics(logs)


def average_metrics(logs: Any) -> None:
    """Replace the numbers and arrays in the dict by their averages over all ranks."""
    if not logs:
        return
    names = sorted(logs)
    own_values = [numpy_of(logs[name]).astype(np.float64) for name in names]
    operation = Allreduce(global_process_set, Average)
    # The name of the call contains the names of the metrics, so that the ranks get an error if
    # their metrics differ.
    averages = run_on_numpy(operation, own_values, f"metrics.{','.join(names)}")
    values = [value if value.ndim else float(value) for value in averages]
    logs.update(zip(names, values, strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiply the learning rate by a factor that depends on the epoch.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A function that returns the factor for an epoch, or a number. A number m means
            exponential decay: the factor is m ** (epoch - start_epoch).
        start_epoch: The first epoch in which the callback sets the rate.
        end_epoch: The first epoch in which the callback no longer sets the rate. None: it sets the
            rate until the end.
        staircase: Whether the rate is set once in each epoch. If not, it is set before each batch,
            and the multiplier gets fractions of epochs.
        momentum_correction: Ignored, because Keras 3 compiles the momentum into the step.
        steps_per_epoch: The number of batches of an epoch. None: the number that fit() uses.
    """

    # size waiver: Horovod's arguments
    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise CallError("initial_lr must be the learning rate that is multiplied; got None")
        self._initial_lr, self._given_steps = initial_lr, steps_per_epoch
        self._steps = steps_per_epoch
        self._multiplier = (
            multiplier
            if callable(multiplier)
            else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self._start_epoch, self._end_epoch, self._staircase = start_epoch, end_epoch, staircase
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not isinstance(self.model.optimizer.get_config().get("learning_rate", 0.0), float):
            raise CallError(
                "the optimizer has a learning rate schedule of its own: give it a number, or leave "
                "out this callback"
            )
        # The number of batches may change between two calls of fit(), for example with the number
        # of ranks.
        self._steps = self._given_steps or self.params.get("steps")
        if not self._staircase and not self._steps:
            raise CallError(
                "the number of batches of an epoch is not known: pass steps_per_epoch to the "
                "callback"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._staircase:
            self._set_rate(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._staircase:
            self._set_rate(self._epoch + batch / (self._steps or 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_rate(self, epoch: float) -> None:
        if epoch >= self._start_epoch and (self._end_epoch is None or epoch < self._end_epoch):
            self.model.optimizer.learning_rate = self._initial_lr * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from initial_lr / size() to initial_lr in the first epochs: Goyal et
    al., "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Args:
        initial_lr: The rate after the warm-up; usually the rate of one rank times size().
        warmup_epochs: The number of epochs until the rate is `initial_lr`.
        momentum_correction: Ignored, because Keras 3 compiles the momentum into the step.
        steps_per_epoch: The number of batches of an epoch. None: the number that fit() uses.
        verbose: 1: print the rate after the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # Add one batch, so that the rate of the last batch of the warm-up is initial_lr itself.
            epoch += 1.0 / (self._steps or 1)
            size = lifecycle.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self._verbose, self._warmup_epochs = verbose, warmup_epochs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose > 0 and epoch == self._warmup_epochs - 1:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"epoch {epoch + 1}: the learning rate after the warm-up is {rate:g}")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """keras.callbacks.ModelCheckpoint that keeps only the best model. Set its `filepath` before
    fit(). Use it on one rank, or with a path for each rank.

    Args:
        monitor: The metric by which models are compared.
        verbose: 1: print when a model is saved.
        save_weights_only: Whether only the weights are saved.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            f"no_path_yet{suffix}",
            monitor,
            verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise CallError("BestModelCheckpoint has no path: set its attribute filepath")
        super().on_train_begin(logs)
