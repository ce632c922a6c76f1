"""Compiled programs of JAX in an elastic job. After a change of the group, JAX uses a compiled
program again if the change does not concern this program. A program that contains the size of the
group is never used with another size."""

from __future__ import annotations

import pytest
from launched import run
from test_elastic import elastic_words

PROGRAM = """
import os, signal
import jax, jax.numpy as jnp, numpy as np
import farandole.jax as hvd
from farandole.jax import programs

x = jnp.ones(2)
make_free = lambda: jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
free = make_free()
baked = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum) / hvd.size())
gather = jax.jit(hvd.allgather)
first = {}

def compiled_by(function):
    before = len(programs._executables)
    result = np.asarray(function(x))
    return len(programs._executables) - before, result

def is_rejected(program):
    try:
        jax.block_until_ready(program(x))
    except jax.errors.JaxRuntimeError as error:
        jax.clear_caches()
        return "compiled before the last init()" in str(error)
    return False

def check_values():
    n, result = compiled_by(free)
    assert (result == hvd.size()).all(), result
    counts = [n]
    n, result = compiled_by(baked)
    assert (result == 1).all(), result
    counts.append(n)
    n, result = compiled_by(gather)
    assert result.shape == (2 * hvd.size(),), result
    return [*counts, n]

hvd.init()
state = hvd.elastic.JaxState(x=x, kills=0)

@hvd.elastic.run
def train(state):
    if state.kills == 0:
        front = hvd.add_process_set([0, 1])
        if hvd.rank() < 2:
            in_front = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=front))
            first["front"] = in_front.lower(x).compile()
            assert (first["front"](x) == 2).all()
        assert check_values() == [1, 1, 1]
        assert check_values() == [0, 0, 0]
        first["free"], first["baked"] = free.lower(x).compile(), baked.lower(x).compile()
        state.kills = 1
        state.commit()
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.allreduce(x)
    assert hvd.size() == 2
    assert is_rejected(first["free"]), "it was not traced in this group"
    assert is_rejected(first["baked"])
    assert check_values() == [0, 1, 1], "only programs with the size are compiled again"
    assert (first["free"](x) == 2).all(), "the same program was traced in this group"
    assert is_rejected(first["baked"]), "a program with the old size made a call"
    alone = hvd.add_process_set([0])
    if hvd.rank() == 0:
        in_alone = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=alone))
        assert (in_alone(x) == 1).all()
        assert is_rejected(first["front"]), "another set has the same number"
    print("checked", flush=True)

train(state)
"""


def test_programs_are_used_again_only_if_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    flags = ("--cooldown-range", "60,60")  # the killed worker is not replaced
    job = run(*elastic_words(3, "-c", PROGRAM, flags=flags))
    assert job.process.returncode == 0 and job.output.count("checked") == 2, job.errors
