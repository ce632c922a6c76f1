"""The JAX frontend in the conformance suite."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conformance import Conformance
from reference import DTYPES, Array

import farandole.jax as hvd

jax.config.update("jax_enable_x64", True)


class JaxFrontend:
    api = hvd
    dtypes = DTYPES
    has_async = False
    has_in_place = False

    # NumPy converts the values, because JAX would compile a program for each shape.
    def tensor(self, values: Array, dtype: str) -> jax.Array:
        return jnp.asarray(np.asarray(values).astype(jnp.dtype(dtype)))

    def array(self, tensor: Any) -> Array:
        values = np.asarray(tensor)
        return values.astype(float) if jnp.issubdtype(values.dtype, jnp.floating) else values

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype)


class JaxConformance(Conformance):
    def __init__(self) -> None:
        super().__init__(JaxFrontend())

    def check_jax_needs_no_other_framework(self) -> None:
        assert not {"torch", "tensorflow"} & set(sys.modules)
