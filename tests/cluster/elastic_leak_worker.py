"""A worker of an elastic job whose group changes many times: `elastic_leak_worker.py CHANGES`.

Worker 0 stays. The others come, make some steps, and kill themselves; some do so while the group is
formed. After each change, worker 0 notes what it and its launcher use. At the end, it prints the
smallest numbers of the second tenth of the changes and of the last tenth. It prints the smallest,
because the launcher uses more while it has more workers.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
CHANGES = int(sys.argv[1])
FAILPOINTS = ("", "rank.asked", "", "formation.shared", "", "formation.counted", "engine.stopped")
STEPS = 2
WORKERS = 3
place = FAILPOINTS[NUMBER % len(FAILPOINTS)]
if place and NUMBER >= WORKERS:
    os.environ["FARANDOLE_FAILPOINT"] = f"{place}:kill:1"

import farandole  # noqa: E402 - the failpoint must be known before
from farandole import calls, elastic, lifecycle  # noqa: E402
from farandole.objects import broadcast_object  # noqa: E402


def used_by(pid: int) -> dict[str, int]:
    folder = Path(f"/proc/{pid}")
    return {
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": len(os.listdir(folder / "task")),
        "maps": len((folder / "maps").read_text().splitlines()),
        "memory files": (folder / "maps").read_text().count("memfd:"),
        "resident": int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


class Notes:
    """The smallest numbers that a process has used: early, and late. All other notes are dropped,
    because keeping them would be a leak."""

    def __init__(self, pid: int) -> None:
        self.pid, self.changes = pid, 0
        self.least: dict[str, dict[str, int]] = {"early": {}, "late": {}}

    def add(self) -> None:
        tenth = 10 * self.changes // CHANGES
        self.changes += 1
        if tenth not in (1, 9):
            return
        least = self.least["early" if tenth == 1 else "late"]
        for name, number in used_by(self.pid).items():
            least[name] = min(number, least.get(name, number))


def reset() -> None:
    lifecycle.shutdown()
    own.add()
    launcher.add()
    farandole.init()


def train(state: elastic.ObjectState) -> None:
    sizes[farandole.size()] += 1
    for step in itertools.count(1):
        calls.barrier()
        state.step += 1
        state.commit()
        # A job whose worker fails after the last step fails, too.
        if NUMBER == 0 and own.changes >= CHANGES and farandole.size() == 1:
            return
        is_due = NUMBER % 3 == 0 or farandole.size() == WORKERS
        if NUMBER != 0 and is_due and step == STEPS + NUMBER % 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)


own, launcher = Notes(os.getpid()), Notes(os.getppid())
sizes: Counter[int] = Counter()
farandole.init()
elastic.run_fn(train, reset)(elastic.ObjectState(broadcast_object, lifecycle.rank, step=0))
epoch = lifecycle.engine().epoch
answer = {"epoch": epoch, "sizes": sizes, "worker": own.least, "launcher": launcher.least}
print(json.dumps(answer), flush=True)
