"""After many changes of its group, a worker uses no more resources than before. The same holds for
its launcher. To run more changes:

    python tests/cluster/test_elastic_leaks.py 1000
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launched import CommandRun

CHANGES = 120
MANY_CHANGES = 400
TIMEOUT_SECONDS = 600
GROWTH_BYTES_MAX = 1 << 20
# The largest allowed growth: the launcher has more descriptors while it starts or ends workers, and
# malloc may make a map or two. A leak in each change would be much larger.
GROWTH_MAX = 8
WORKER = str(Path(__file__).with_name("elastic_leak_worker.py"))


def usage_after(changes: int) -> dict[str, Any]:
    flags = ("-n", "3", "--min-workers", "1", "--cooldown-range", "0,0")
    launched = CommandRun(
        *("run", *flags, sys.executable, WORKER, str(changes)),
        # With several arenas, the number of maps would depend on which threads allocate at the
        # same time.
        environment={"MALLOC_ARENA_MAX": "1"},
        seconds=TIMEOUT_SECONDS if changes <= MANY_CHANGES else changes,
    )
    with launched:
        assert launched.end() == 0, launched.errors
        assert launched.remaining_processes() == []
    report: dict[str, Any] = json.loads(launched.output[launched.output.index("{") :])
    return report


@pytest.mark.parametrize("changes", [CHANGES, pytest.param(MANY_CHANGES, marks=pytest.mark.long)])
def test_many_changes_of_the_group_leak_nothing(changes: int) -> None:
    usage = usage_after(changes)
    assert usage["epoch"] > changes
    assert usage["sizes"].keys() == {"1", "2", "3"}
    for process in ("worker", "launcher"):
        early_counts, late_counts = usage[process]["early"], usage[process]["late"]
        assert late_counts.pop("resident") - early_counts.pop("resident") <= GROWTH_BYTES_MAX, usage
        for name, number in late_counts.items():
            is_steady = process == "worker" and name != "maps"
            maximum = early_counts[name] + (0 if is_steady else GROWTH_MAX)
            assert number <= maximum, f"{name} of the {process}: {usage}"
    assert usage["worker"]["late"]["memory files"] == 0


if __name__ == "__main__":
    print(json.dumps(usage_after(int(sys.argv[1]))))
