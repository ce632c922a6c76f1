"""Compiled programs: which job they belong to, and their reuse in the next job.

When a job is formed again, JAX traces all programs again, because they may contain the number of
ranks. Most programs turn out to be the same as before. So this module keeps the executables of an
elastic job, and returns them instead of compiling the same text again.

Each call in a program has the program's number, which is a digest of the program's text.
farandole.core knows for which job a number is valid, and rejects a call if its program's number is
not valid for the present job. A number becomes valid for a job only when a program that was traced
in this job has the same text. So a program that contains the size of an earlier job can never make
a call.

The module replaces `jax._src.compiler.compile_or_get_cached`, which is not public.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from jax._src import compiler
from jax._src.lib.mlir import ir

from farandole import core, lifecycle

FFI_TARGET = "farandole_call"
# This attribute of a call has the number of the job in which the call was traced. When the program
# is compiled, the attribute has the program's number instead.
PROGRAM_ATTRIBUTE = "program"
_EXECUTABLES_MAX = 256

_executables: OrderedDict[bytes, Any] = OrderedDict()  # the most recently used one is last
_executables_lock = threading.Lock()


def _calls_of(module: Any) -> list[tuple[Any, str, dict[str, Any]]]:
    """Return the calls in a module. One attribute of a call's operation contains the configuration
    of the call. Each entry has the operation, the name of this attribute, and the configuration."""
    calls = []

    def visit(operation: Any) -> Any:
        operation = operation.operation
        if operation.name == "stablehlo.custom_call":
            attributes = operation.attributes
            if ir.StringAttr(attributes["call_target_name"]).value == FFI_TARGET:
                name = next(n for n in _CONFIG_NAMES if n in attributes)
                config = ir.DictAttr(attributes[name])
                calls.append(
                    (operation, name, {attribute.name: attribute.attr for attribute in config})
                )
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return calls


_CONFIG_NAMES = ("mhlo.backend_config", "backend_config")


def _set_numbers(calls: list[tuple[Any, str, dict[str, Any]]], numbers: list[int]) -> None:
    for (operation, name, config), number in zip(calls, numbers, strict=True):
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        operation.attributes[name] = ir.DictAttr.get(config | {PROGRAM_ATTRIBUTE: attribute})


def _process_sets_of(calls: list[tuple[Any, str, dict[str, Any]]]) -> str:
    """Return, as text, the ranks of the process sets that the calls use. In another job, another
    process set may have the same number."""
    if not lifecycle.is_initialized():
        return ""
    numbers = {ir.IntegerAttr(config["group"]).value for _, _, config in calls} - {0}
    return repr({number: lifecycle.engine().ranks_of(number) for number in sorted(numbers)})


def _with_program_numbers(compile_module: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_module)
    def compile_or_reuse(
        backend: Any, module: Any, devices: Any, options: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        def compile_now() -> Any:
            return compile_module(backend, module, devices, options, *arguments, **keywords)

        with module.context:
            calls = _calls_of(module)
            if not calls and not lifecycle.is_elastic():
                return compile_now()
            jobs = [ir.IntegerAttr(config[PROGRAM_ATTRIBUTE]).value for _, _, config in calls]
            _set_numbers(calls, [0] * len(calls))
            text = module.operation.get_asm(enable_debug_info=False)
            digest = hashlib.sha256((text + _process_sets_of(calls)).encode()).digest()
            number = int(np.frombuffer(digest, np.int64)[0])
            _set_numbers(calls, [number] * len(calls))
        try:
            if jobs:  # the oldest job in which a call of the program was traced
                core.set_job_of_program(number, min(jobs))
            # Do not reuse programs with Python callbacks, because the text does not contain the
            # callbacks.
            if not lifecycle.is_elastic() or "callback" in text:
                return compile_now()
            platform = backend.platform.encode()
            return _reuse_or_compile(compile_now, digest + platform + options.SerializeAsString())
        finally:
            with module.context:
                _set_numbers(calls, jobs)

    return compile_or_reuse


def _reuse_or_compile(compile_now: Callable[[], Any], key: bytes) -> Any:
    with _executables_lock:
        if key in _executables:
            _executables.move_to_end(key)
            return _executables[key]
    executable = compile_now()
    with _executables_lock:
        _executables[key] = executable
        while len(_executables) > _EXECUTABLES_MAX:
            _executables.popitem(last=False)
    return executable


compiler.compile_or_get_cached = _with_program_numbers(compiler.compile_or_get_cached)
