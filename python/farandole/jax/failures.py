"""Failures of compiled programs, for training that continues from its last commit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from farandole import errors
from farandole.jax.primitive import wait_for_programs

Function = TypeVar("Function", bound=Callable[..., Any])


def with_our_errors(func: Function) -> Function:
    """Wrap a training function. If a call of a compiled program fails, the function raises the
    error of farandole.errors. After any error, it first waits for the programs that still run, so
    that the job can be left."""

    @functools.wraps(func)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return func(*args, **options)
        except Exception as error:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                wait_for_programs()
            ours = _error_of_call(error)
            if ours is None:
                raise
            raise ours from error

    return cast(Function, run)


def _error_of_call(error: BaseException) -> errors.FarandoleError | None:
    # While a failed step ends, Keras may find that the arrays of the step are gone, and raise a
    # RuntimeError that says so.
    while type(error) is RuntimeError and error.__context__ is not None:
        error = error.__context__
    is_of_program = isinstance(error, jax.errors.JaxRuntimeError)
    return errors.of_failed_call(str(error)) if is_of_program else None
