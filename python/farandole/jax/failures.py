"""Failures of compiled programs, for training that continues from its last commit."""

from __future__ import annotations

import contextlib

import jax

from farandole import errors
from farandole.jax.primitive import wait_for_programs


def our_error(error: Exception) -> Exception:
    """Return the error of the call that has made a compiled program fail with this error. Return
    any other error as it is. First wait for the programs that still run, because this process can
    leave the job only after that."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        wait_for_programs()
    cause: BaseException = error
    # While a failed step ends, Keras may find that the arrays of the step are gone, and raise a
    # RuntimeError that says so.
    while type(cause) is RuntimeError and cause.__context__ is not None:
        cause = cause.__context__
    is_of_program = isinstance(cause, jax.errors.JaxRuntimeError)
    return (errors.of_failed_call(str(cause)) if is_of_program else None) or error
