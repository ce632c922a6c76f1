"""A worker of an elastic job whose group changes many times: `elastic_leak_worker.py CHANGES`.

Worker 0 stays. The others join, make some steps, and kill themselves, some of them while the group
is formed. After each change, worker 0 counts the resources of its process and of its launcher. At
the end, it prints the smallest counts within the second tenth of the changes and within the last
tenth. The test compares only the smallest counts, because the launcher uses more resources while it
has more workers.
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

WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
CHANGES = int(sys.argv[1])
FAILPOINTS = ("", "rank.asked", "", "formation.shared", "", "formation.counted", "engine.stopped")
STEPS = 2
WORKERS = 3
failpoint = FAILPOINTS[WORKER_NUMBER % len(FAILPOINTS)]
if failpoint and WORKER_NUMBER >= WORKERS:
    os.environ["FARANDOLE_FAILPOINT"] = f"{failpoint}:kill:1"

import farandole  # noqa: E402 - the failpoint must be known before
from farandole import calls, elastic, lifecycle  # noqa: E402
from farandole.objects import broadcast_object  # noqa: E402


def resources_of(pid: int) -> dict[str, int]:
    folder = Path(f"/proc/{pid}")
    return {
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": len(os.listdir(folder / "task")),
        "maps": len((folder / "maps").read_text().splitlines()),
        "memory files": (folder / "maps").read_text().count("memfd:"),
        "resident": int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


class SmallestUsage:
    """The smallest resource counts of a process within the second tenth of the changes, and those
    within the last tenth. No other counts are kept, because all counts would need more and more
    memory."""

    def __init__(self, pid: int) -> None:
        self.pid, self.changes = pid, 0
        self.smallest: dict[str, dict[str, int]] = {"early": {}, "late": {}}

    def add(self) -> None:
        tenth = 10 * self.changes // CHANGES
        self.changes += 1
        if tenth not in (1, 9):
            return
        smallest = self.smallest["early" if tenth == 1 else "late"]
        for name, number in resources_of(self.pid).items():
            smallest[name] = min(number, smallest.get(name, number))


def reset() -> None:
    lifecycle.shutdown()
    own_usage.add()
    launcher_usage.add()
    farandole.init()


def train(state: elastic.ObjectState) -> None:
    sizes[farandole.size()] += 1
    for step in itertools.count(1):
        calls.barrier()
        state.step += 1
        state.commit()
        # Worker 0 waits until it is alone: if another worker failed after the last step, the job
        # would fail.
        if WORKER_NUMBER == 0 and own_usage.changes >= CHANGES and farandole.size() == 1:
            return
        must_die = WORKER_NUMBER % 3 == 0 or farandole.size() == WORKERS
        if WORKER_NUMBER != 0 and must_die and step == STEPS + WORKER_NUMBER % 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)


own_usage, launcher_usage = SmallestUsage(os.getpid()), SmallestUsage(os.getppid())
sizes: Counter[int] = Counter()
farandole.init()
elastic.run_fn(train, reset)(elastic.ObjectState(broadcast_object, lifecycle.rank, step=0))
epoch = lifecycle.engine().epoch
report = {
    "epoch": epoch,
    "sizes": sizes,
    "worker": own_usage.smallest,
    "launcher": launcher_usage.smallest,
}
print(json.dumps(report), flush=True)
