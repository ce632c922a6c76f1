"""The report of `horovodrun --check-build`: Horovod's list, with an X for each part that works."""

from __future__ import annotations

from collections.abc import Callable

import farandole
import horovod
from horovod.common import util

_SECTIONS: dict[str, dict[str, Callable[[], object]]] = {
    "Available Frameworks": {
        "TensorFlow": lambda: util.extension_available("tensorflow"),
        "PyTorch": lambda: util.extension_available("torch"),
        "MXNet": lambda: util.extension_available("mxnet"),
    },
    "Available Controllers": {"MPI": util.mpi_built, "Gloo": util.gloo_built},
    "Available Tensor Operations": {
        "NCCL": util.nccl_built,
        "DDL": util.ddl_built,
        "CCL": util.ccl_built,
        "MPI": util.mpi_built,
        "Gloo": util.gloo_built,
    },
}
# The entries of MPI and Gloo also have an X, because mpi_built() and gloo_built() return True. This
# note explains the X.
_NOTE = "All marked entries are one engine, which neither contains nor needs MPI or Gloo."


def build_report() -> str:
    blocks = [f"Horovod v{horovod.__version__} (farandole {farandole.__version__}):"]
    for title, rows in _SECTIONS.items():
        lines = [f"    [{'X' if works() else ' '}] {name}" for name, works in rows.items()]
        blocks.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join([*blocks, _NOTE])
