"""A worker that makes calls for a timeline: `traced_worker.py ACTION [PATH...]`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from array import array

from small_worker import allgather, allreduce, numbers, take, wait_for

import farandole
from farandole import core, lifecycle

ODD_NAME = 'a "b" \\c\n\t\x1b[31m\x7f ünï {[,:]}'


def make_calls() -> None:
    """Make calls of several kinds, one with a name that JSON must escape."""
    allreduce(numbers(6), "grad/fc")
    allreduce(numbers(6), ODD_NAME)
    allgather(numbers(3 * (farandole.rank() + 1)))
    take(wait_for(core.barrier("", 0)))


def write_two_files(first: str, second: str) -> None:
    """Write two files, one after another. Also call stop_timeline() while no timeline is active."""
    farandole.stop_timeline()
    allreduce(numbers(6), "unrecorded")
    for path, name in ((first, "one"), (second, "two")):
        farandole.start_timeline(path)
        allreduce(numbers(6), name)
        farandole.stop_timeline()
        allreduce(numbers(6), "unrecorded")
    farandole.stop_timeline()


def make_named_calls() -> None:
    """Make batches of a thousand calls. Each call has another name."""
    engine = lifecycle.engine()
    for step in range(6):
        memory = [array("d", [1.0]) for _ in range(1000)]
        batch = []
        for number, values in enumerate(memory):
            address = values.buffer_info()[0]
            view = core.BufferView(core.dtypes["float64"], (1,), address, address)
            name = f"step {step} tensor {number}"
            batch.append(core.allreduce(name, 0, view, core.reduce_ops["sum"], 1.0, 1.0))
        engine.submit_batch(batch, False)
        for call in batch:
            engine.wait(call.handle)
            take(call.handle)


def fill_the_file() -> None:
    """Make more calls than a small file can hold."""
    for _ in range(3000):
        allreduce(numbers(10), "a")


def kill_last_rank(path: str) -> None:
    """Make calls. The last rank kills itself when some of its calls are in the file."""
    if farandole.rank() != farandole.size() - 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so we have 10 s to close the file, not 5 s
    step = 0
    while True:
        step += 1
        try:
            allreduce(numbers(10), "a")
        except farandole.GroupLostError:
            return
        if farandole.rank() == farandole.size() - 1 and step % 100 == 0:
            with open(path) as trace:
                own_events = f'"pid":{farandole.rank()},'
                if any(own_events in line and '"ALLREDUCE"' in line for line in trace):
                    os.kill(os.getpid(), signal.SIGKILL)


def limit_file_size() -> None:
    """Limit the size of files, as on a full disk, and go on with calls."""
    allreduce(numbers(10), "before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    for _ in range(300):
        allreduce(numbers(10), "a")
    print("went on", flush=True)


def print_path_errors(folder: str) -> None:
    """Print the errors of start_timeline() for paths that cannot be used."""
    for path in (folder, folder + "/no/trace.json", "", "zero\0byte", 7):
        try:
            farandole.start_timeline(path)  # type: ignore[arg-type]
        except ValueError as error:
            print(f"reported: {error}", flush=True)
    allreduce(numbers(10))


def fork_child(path: str) -> None:
    """Fork a child that outlives the engine; the child must neither hold nor close the file."""
    farandole.start_timeline(path)
    allreduce(numbers(10), "a")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        try:
            farandole.start_timeline(path)
        except farandole.FarandoleError as error:
            print(f"reported: {error}", flush=True)
        os.read(read_end, 1)
        os._exit(0)
    allreduce(numbers(10), "a")
    farandole.shutdown()
    os.close(write_end)
    os.waitpid(child, 0)


ACTIONS = (
    make_calls,
    write_two_files,
    make_named_calls,
    fill_the_file,
    kill_last_rank,
    limit_file_size,
    print_path_errors,
    fork_child,
)


def main(action: str, *paths: str) -> None:
    farandole.init()
    {function.__name__: function for function in ACTIONS}[action](*paths)
    farandole.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
