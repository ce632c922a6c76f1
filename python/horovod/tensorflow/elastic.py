"""Training loops that continue from their last commit after a failure."""

from typing import TYPE_CHECKING, Any

import farandole.tensorflow.elastic as _elastic
from farandole.tensorflow.elastic import TensorFlowState, run

if TYPE_CHECKING:
    from farandole.keras.elastic import KerasState as TensorFlowKerasState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def __getattr__(name: str) -> Any:
    # TensorFlowKerasState imports Keras, so it is imported only on first use.
    return getattr(_elastic, name)
