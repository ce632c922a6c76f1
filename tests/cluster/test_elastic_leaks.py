"""A worker that stays while its group changes many times uses no more than before, and neither does
its launcher. More changes by hand:

    python tests/cluster/test_elastic_leaks.py 1000
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launched import Launched

CHANGES = 120
MANY_CHANGES = 400
HANG_SECONDS = 600
GROWTH_BYTES_MAX = 1 << 20
# The launcher has more descriptors while it starts or ends workers, and malloc may make a map or
# two. This is far less than one per change.
UNSTEADY_MAX = 8
WORKER = str(Path(__file__).with_name("elastic_leak_worker.py"))


def uses_after(changes: int) -> dict[str, Any]:
    flags = ("-n", "3", "--min-workers", "1", "--cooldown-range", "0,0")
    launched = Launched(
        *("run", *flags, sys.executable, WORKER, str(changes)),
        # With several arenas, the number of maps would depend on which threads allocate at the
        # same time.
        environment={"MALLOC_ARENA_MAX": "1"},
        seconds=HANG_SECONDS if changes <= MANY_CHANGES else changes,
    )
    with launched:
        assert launched.end() == 0, launched.errors
        assert launched.remaining_processes() == []
    answer: dict[str, Any] = json.loads(launched.output[launched.output.index("{") :])
    return answer


@pytest.mark.parametrize("changes", [CHANGES, pytest.param(MANY_CHANGES, marks=pytest.mark.long)])
def test_many_changes_of_the_group_leak_nothing(changes: int) -> None:
    answer = uses_after(changes)
    assert answer["epoch"] > changes
    assert answer["sizes"].keys() == {"1", "2", "3"}
    for process in ("worker", "launcher"):
        early, late = answer[process]["early"], answer[process]["late"]
        assert late.pop("resident") - early.pop("resident") <= GROWTH_BYTES_MAX, answer
        for name, number in late.items():
            is_steady = process == "worker" and name != "maps"
            most = early[name] + (0 if is_steady else UNSTEADY_MAX)
            assert number <= most, f"{name} of the {process}: {answer}"
    assert answer["worker"]["late"]["memory files"] == 0


if __name__ == "__main__":
    print(json.dumps(uses_after(int(sys.argv[1]))))
