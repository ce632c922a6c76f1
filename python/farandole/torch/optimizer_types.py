"""The types of the results of DistributedOptimizer(), for type checkers.

The result has the class of the wrapped optimizer and also the methods of AnyDistributedOptimizer.
Python has no type for "a subclass of both" if one of the two classes is a type variable. So this
module has one class for each optimizer of torch (decision 48).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, Protocol, overload

    from torch import optim

    from farandole.torch.optimizer import AnyDistributedOptimizer

    OptimizerT = TypeVar("OptimizerT", bound=optim.Optimizer)
    P = ParamSpec("P")

    class _ASGD(AnyDistributedOptimizer, optim.ASGD): ...

    class _Adadelta(AnyDistributedOptimizer, optim.Adadelta): ...

    class _Adagrad(AnyDistributedOptimizer, optim.Adagrad): ...

    class _AdamW(AnyDistributedOptimizer, optim.AdamW): ...

    class _Adam(AnyDistributedOptimizer, optim.Adam): ...

    class _Adamax(AnyDistributedOptimizer, optim.Adamax): ...

    class _LBFGS(AnyDistributedOptimizer, optim.LBFGS): ...

    class _NAdam(AnyDistributedOptimizer, optim.NAdam): ...

    class _RAdam(AnyDistributedOptimizer, optim.RAdam): ...

    class _RMSprop(AnyDistributedOptimizer, optim.RMSprop): ...

    class _Rprop(AnyDistributedOptimizer, optim.Rprop): ...

    class _SGD(AnyDistributedOptimizer, optim.SGD): ...

    class _SparseAdam(AnyDistributedOptimizer, optim.SparseAdam): ...

    # Older versions of torch lack these two optimizers. With such a version, a checker treats them
    # as Any. Every optimizer matches Any, so these two must come last.
    class _Adafactor(AnyDistributedOptimizer, optim.Adafactor): ...

    class _Muon(AnyDistributedOptimizer, optim.Muon): ...

    class DistributedOptimizerFunction(Protocol[P]):
        """The type of DistributedOptimizer(). P stands for its arguments after the first one."""

        # AdamW comes before Adam, because it is a subclass of Adam.
        @overload
        def __call__(self, optimizer: optim.ASGD, *args: P.args, **kwargs: P.kwargs) -> _ASGD: ...
        @overload
        def __call__(
            self, optimizer: optim.Adadelta, *args: P.args, **kwargs: P.kwargs
        ) -> _Adadelta: ...
        @overload
        def __call__(
            self, optimizer: optim.Adagrad, *args: P.args, **kwargs: P.kwargs
        ) -> _Adagrad: ...
        @overload
        def __call__(self, optimizer: optim.AdamW, *args: P.args, **kwargs: P.kwargs) -> _AdamW: ...
        @overload
        def __call__(self, optimizer: optim.Adam, *args: P.args, **kwargs: P.kwargs) -> _Adam: ...
        @overload
        def __call__(
            self, optimizer: optim.Adamax, *args: P.args, **kwargs: P.kwargs
        ) -> _Adamax: ...
        @overload
        def __call__(self, optimizer: optim.LBFGS, *args: P.args, **kwargs: P.kwargs) -> _LBFGS: ...
        @overload
        def __call__(self, optimizer: optim.NAdam, *args: P.args, **kwargs: P.kwargs) -> _NAdam: ...
        @overload
        def __call__(self, optimizer: optim.RAdam, *args: P.args, **kwargs: P.kwargs) -> _RAdam: ...
        @overload
        def __call__(
            self, optimizer: optim.RMSprop, *args: P.args, **kwargs: P.kwargs
        ) -> _RMSprop: ...
        @overload
        def __call__(self, optimizer: optim.Rprop, *args: P.args, **kwargs: P.kwargs) -> _Rprop: ...
        @overload
        def __call__(self, optimizer: optim.SGD, *args: P.args, **kwargs: P.kwargs) -> _SGD: ...
        @overload
        def __call__(
            self, optimizer: optim.SparseAdam, *args: P.args, **kwargs: P.kwargs
        ) -> _SparseAdam: ...
        @overload
        def __call__(
            self, optimizer: optim.Adafactor, *args: P.args, **kwargs: P.kwargs
        ) -> _Adafactor: ...
        @overload
        def __call__(self, optimizer: optim.Muon, *args: P.args, **kwargs: P.kwargs) -> _Muon: ...
        @overload
        def __call__(
            self, optimizer: OptimizerT, *args: P.args, **kwargs: P.kwargs
        ) -> OptimizerT: ...

    def keeps_class(
        function: Callable[Concatenate[Any, P], Any],
    ) -> DistributedOptimizerFunction[P]: ...
else:

    def keeps_class(function: Function) -> Function:
        """Return the function itself. Only type checkers see a difference."""
        return function
