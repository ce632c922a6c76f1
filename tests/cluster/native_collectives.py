"""Sums numbers of all workers by TensorFlow's or JAX's own collectives.

The first argument is the name of the framework. The framework itself finds the job in the
environment.
"""

from __future__ import annotations

import sys


def add_in_tensorflow() -> None:
    import tensorflow as tf  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync

    @tf.function
    def total() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(10.0 + index))

    result = strategy.run(total)
    print(f"worker {index} of {size}: {float(result)}", flush=True)


def add_in_jax() -> None:
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from jax.experimental import multihost_utils  # noqa: PLC0415

    jax.distributed.initialize()
    index, size = jax.process_index(), jax.process_count()
    gathered = multihost_utils.process_allgather(np.array([10.0 + index], np.float32))
    print(f"worker {index} of {size}: {float(gathered.sum())}", flush=True)
    jax.distributed.shutdown()


{"tensorflow": add_in_tensorflow, "jax": add_in_jax}[sys.argv[1]]()
