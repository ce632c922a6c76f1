"""After a process has joined and left its job a thousand times, it uses no more resources than
after ten times."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from job import run

WORKER = Path(__file__).with_name("cycling_worker.py")
CYCLES = 1000
GROWTH_BYTES_MAX = 1 << 20
TIMEOUT_SECONDS = 900


def test_a_process_joins_and_leaves_a_thousand_times(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "interrupted")
    job = run(
        2,
        *(sys.executable, WORKER, tmp_path, str(CYCLES)),
        # With several arenas, the number of maps would depend on which threads allocate at the
        # same time.
        environment={"MALLOC_ARENA_MAX": "1"},
        timeout=TIMEOUT_SECONDS,
    )
    assert job.code == 0, job.text
    states = [json.loads(line.split("] ", 1)[1]) for line in job.text.splitlines() if "{" in line]
    for rank in range(2):
        early_state, later_state, last_state = (state for state in states if state["rank"] == rank)
        assert (early_state["cycle"], later_state["cycle"], last_state["cycle"]) == (
            10,
            100,
            CYCLES,
        )
        assert last_state["resources"] == early_state["resources"]
        assert last_state["launcher"] == early_state["launcher"]
        assert not any("memfd" in name for name in last_state["resources"]["maps"])
        assert last_state["resident"] - later_state["resident"] <= GROWTH_BYTES_MAX
