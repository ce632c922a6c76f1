"""Failures of compiled programs, for training that continues from its last commit."""

from __future__ import annotations

import contextlib

import jax

from farandole import errors
from farandole.jax.primitive import wait_for_programs


def find_cause(error: Exception) -> Exception:
    """If a call inside a compiled program failed and JAX raised `error` because of it, return the
    error of that call. Otherwise, return `error` itself. First wait for the programs that are still
    running, because this process can leave the job only after they have ended."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        wait_for_programs()
    cause: BaseException = error
    # When a step fails, Keras may find that its arrays are deleted, and raise a RuntimeError
    # instead of the step's error.
    while type(cause) is RuntimeError and cause.__context__ is not None:
        cause = cause.__context__
    is_of_program = isinstance(cause, jax.errors.JaxRuntimeError)
    return (errors.error_of_failed_call(str(cause)) if is_of_program else None) or error
