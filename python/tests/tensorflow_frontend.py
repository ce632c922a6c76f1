"""The TensorFlow frontend in the conformance suite."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from conformance import Conformance
from reference import DTYPES, Array

import farandole.tensorflow as hvd


class TensorFlowFrontend:
    api = hvd
    dtypes = DTYPES
    has_async = False
    has_in_place = False

    def tensor(self, values: Array, dtype: str) -> Any:
        return tf.constant(np.asarray(values).astype(tf.as_dtype(dtype).as_numpy_dtype))

    def array(self, tensor: Any) -> Array:
        values = tensor.numpy()
        return values.astype(float) if tensor.dtype.is_floating else values

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)


class TensorFlowConformance(Conformance):
    def __init__(self) -> None:
        super().__init__(TensorFlowFrontend())

    def check_tensorflow_needs_no_other_frontend(self) -> None:
        """The check ignores JAX, because TensorFlow imports JAX if JAX is installed."""
        assert not {"farandole.torch", "farandole.jax", "torch"} & set(sys.modules)
