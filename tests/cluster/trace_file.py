"""Reads the trace of a timeline. It rejects a trace that Perfetto or chrome://tracing would not
accept."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The escapes that Perfetto's tokenizer knows (json_trace_tokenizer.cc); \u is not among them.
ESCAPES = '"\\/bfnrt'
PHASES = {"B", "E", "M", "i"}
# Node 0 prints this line if another node needs long to send its timeline.
COLLECTION_NOTICE = "farandole: collecting the timelines of the other nodes; Ctrl-C ends this\n"
Event = dict[str, Any]


@dataclass
class Slice:
    """A slice of one thread of the trace. Its arguments are those of its begin event and of its end
    event."""

    name: str
    begin: float
    end: float = float("nan")
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    start: dict[str, Any]
    slices: dict[tuple[int, str], list[Slice]]  # by rank and thread name, in order of time
    unfinished: list[Slice]
    notices: list[Event]
    ranks: dict[int, str]  # rank → name of its process

    def names(self, rank: int) -> set[str]:
        return {name for of_rank, name in self.slices if of_rank == rank}


def read_trace(path: Path, *, complete: bool = True) -> Trace:
    """Read a trace from a file. The file must be complete. With complete=False, its end may be
    missing, as in the file of a killed job."""
    text = path.read_bytes().decode()  # strictly UTF-8
    if not complete and not text.endswith("]\n"):
        text = text.rstrip()  # blanks may follow, up to the end of a page
        assert text.endswith("},"), text[-200:]
        text = text[:-1] + "]"
    _check_bytes(text)
    return _read_events(
        json.loads(text, parse_constant=_reject, object_pairs_hook=_reject_duplicates)
    )


def _reject(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> Event:
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def _check_bytes(text: str) -> None:
    for line in text.splitlines()[1:]:
        escaped = False
        for letter in line:
            assert letter >= " " and letter != "\x7f", repr(line)
            assert not escaped or letter in ESCAPES, line
            escaped = letter == "\\" and not escaped


def _check_fields(event: Event) -> None:
    assert event["ph"] in PHASES, event
    assert type(event["pid"]) is int and type(event["tid"]) is int, event
    assert event["ph"] == "E" or (type(event["name"]) is str and event["name"]), event
    assert event["ph"] == "M" or (type(event["ts"]) is float and event["ts"] >= 0), event
    assert event.keys() <= {"ph", "ts", "pid", "tid", "name", "args", "s"}, event


def _read_events(events: list[Event]) -> Trace:
    first_event = events.pop(0)
    assert (first_event["ph"], first_event["name"]) == ("M", "start"), first_event
    trace = Trace(first_event["args"], {}, [], [], {})
    threads: dict[tuple[int, int], str] = {}
    stacks: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    times: dict[tuple[int, int], float] = defaultdict(float)
    for event in events:
        _check_fields(event)
        thread = event["pid"], event["tid"]
        if event["ph"] == "M":
            _describe(trace, threads, event)
            continue
        assert event["pid"] in trace.ranks, f"no name for the process of {event}"
        if event["ph"] == "i":
            trace.notices.append(event)
            continue
        assert thread in threads, f"no name for the thread of {event}"
        assert event["ts"] >= times[thread], f"time goes back at {event}"
        times[thread] = event["ts"]
        if event["ph"] == "B":
            stacks[thread].append(
                Slice(event["name"], event["ts"], arguments=event.get("args", {}))
            )
            continue
        assert stacks[thread], f"nothing ends at {event}"
        ended_slice = stacks[thread].pop()
        ended_slice.end = event["ts"]
        ended_slice.arguments |= event.get("args", {})
        trace.slices.setdefault((event["pid"], threads[thread]), []).append(ended_slice)
    trace.unfinished = [slice for stack in stacks.values() for slice in stack]
    assert len({tid for _, tid in threads}) == len(threads), "a number for two threads"
    return trace


def _describe(trace: Trace, threads: dict[tuple[int, int], str], event: Event) -> None:
    if event["name"] == "process_name":
        trace.ranks[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        name = event["args"]["name"]
        assert threads.setdefault((event["pid"], event["tid"]), name) == name, event
    else:
        assert event["name"] in ("process_sort_index", "process_labels", "end"), event
