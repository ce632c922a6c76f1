"""The report of one comparison: a row for each size, and whether its thresholds were reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contenders import Result
from goals import TAIL_RATIO_STRETCH, Comparison, Threshold
from ratios import Interval, bootstrap, mean_speedup, speedup
from rounds import Entry, Round


@dataclass
class Row:
    """One size compared with one peer."""

    size: int
    ours_us: float
    theirs_us: float
    peer_setting: str  # the peer's fastest library and setting
    speedup: Interval


@dataclass
class Judgement:
    threshold: Threshold
    rows: list[Row]
    mean: Interval
    worst: Row

    def reached(self, bound: float | None, worst: float) -> bool | None:
        if bound is None:
            return None
        return self.mean.middle >= bound and self.worst.speedup.middle >= worst

    @property
    def must(self) -> bool | None:
        return self.reached(self.threshold.must, self.threshold.must_worst)

    @property
    def stretch(self) -> bool | None:
        return self.reached(self.threshold.stretch, self.threshold.stretch_worst)


@dataclass
class Outcome:
    comparison: Comparison
    rounds: list[Round]  # only the quiet rounds
    dropped: int  # how many rounds were not quiet
    entries: list[Entry]
    judgements: list[Judgement]
    tail: Interval | None = None  # our p99 / p50


def size_text(size: int) -> str:
    for unit, letter in ((1 << 20, " MiB"), (1 << 10, " KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size} B"


def reported_value(result: Result, tail: bool) -> float:
    p50: float = result["p50_us"]
    return result["p99_us"] / p50 if tail else p50


def series(entry: Entry, size: int, rounds: Sequence[Round], tail: bool) -> list[float]:
    return [reported_value(measured.results[entry.key][size], tail) for measured in rounds]


def best_of(
    family: str, size: int, entries: Sequence[Entry], rounds: Sequence[Round], tail: bool
) -> tuple[str, list[float]]:
    """Return the fastest entry of one library at one size: its name, and its values in all rounds.
    `family` is "ours", or a peer such as "mpi"."""
    fastest = min(
        (entry for entry in entries if entry.family == family and size in entry.sizes),
        key=lambda entry: statistics.median(series(entry, size, rounds, tail=False)),
    )
    return fastest.contender.name, series(fastest, size, rounds, tail)


def judge(
    threshold: Threshold, comparison: Comparison, entries: Sequence[Entry], rounds: Sequence[Round]
) -> Judgement:
    rows, ours, theirs = [], {}, {}
    for size in comparison.task.sizes:
        _, ours[size] = best_of("ours", size, entries, rounds, comparison.tail)
        peer_setting, theirs[size] = best_of(threshold.peer, size, entries, rounds, comparison.tail)
        middles = statistics.median(ours[size]), statistics.median(theirs[size])
        rows.append(Row(size, *middles, peer_setting, speedup(ours[size], theirs[size])))
    worst = min(rows, key=lambda row: row.speedup.middle)
    return Judgement(threshold, rows, mean_speedup(ours, theirs), worst)


def outcome_of(
    comparison: Comparison, entries: list[Entry], rounds: list[Round], dropped: int
) -> Outcome:
    judgements = [
        judge(threshold, comparison, entries, rounds) for threshold in comparison.thresholds
    ]
    outcome = Outcome(comparison, rounds, dropped, entries, judgements)
    if comparison.tail:
        _, tails = best_of("ours", comparison.task.sizes[0], entries, rounds, tail=True)
        outcome.tail = bootstrap(
            len(tails), lambda chosen: statistics.median(tails[index] for index in chosen)
        )
    return outcome


def verdict(name: str, bound: float | None, worst: float, reached: bool | None) -> str:
    if bound is None or reached is None:
        return ""
    worst_text = f", no size below {worst:g}" if worst else ""
    return f"; {name} ≥ {bound:.3g}{worst_text}: {'**reached**' if reached else 'not reached'}"


def judgement_line(judgement: Judgement) -> str:
    threshold = judgement.threshold
    worst_text = (
        ""
        if len(judgement.rows) == 1
        else f", worst {judgement.worst.speedup} at {size_text(judgement.worst.size)}"
    )
    return (
        f"Against {threshold.peer}: geometric mean {judgement.mean}{worst_text}"
        f"{verdict('must', threshold.must, threshold.must_worst, judgement.must)}"
        f"{verdict('stretch', threshold.stretch, threshold.stretch_worst, judgement.stretch)}."
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a Markdown table with aligned columns, readable as plain text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|"


def time_text(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def lines_of(outcome: Outcome) -> Iterator[str]:
    """Return the text for the terminal, which is also Markdown."""
    comparison = outcome.comparison
    unit = "p99 / p50" if comparison.tail else "µs"
    head = ["size", f"ours, {unit}"]
    for threshold in comparison.thresholds:
        head += [f"{threshold.peer}, {unit}", "who", "speed-up [95 %]"]
    rows = [head]
    for number, row in enumerate(outcome.judgements[0].rows):
        cells = [size_text(row.size), time_text(row.ours_us)]
        for judgement in outcome.judgements:
            one = judgement.rows[number]
            cells += [time_text(one.theirs_us), one.peer_setting, str(one.speedup)]
        rows.append(cells)
    yield f"### {comparison.goal}: {comparison.title}"
    yield ""
    yield from aligned(rows)
    yield ""
    yield from (judgement_line(judgement) for judgement in outcome.judgements)
    if outcome.tail:
        good = "**reached**" if outcome.tail.middle <= TAIL_RATIO_STRETCH else "not reached"
        yield f"Our p99 / p50 is {outcome.tail}; stretch ≤ {TAIL_RATIO_STRETCH}: {good}."
    yield machine_line(outcome)


def machine_line(outcome: Outcome) -> str:
    pings = sorted(measured.ping_pong_ns for measured in outcome.rounds)
    rates = sorted(measured.memcpy_gbps for measured in outcome.rounds)
    loads = sorted(measured.load for measured in outcome.rounds)
    return (
        f"{len(outcome.rounds)} rounds, {outcome.dropped} dropped; ping-pong {pings[0]:.0f} to "
        f"{pings[-1]:.0f} ns, copies {rates[0]:.1f} to {rates[-1]:.1f} GB/s, "
        f"load {loads[0]:.1f} to {loads[-1]:.1f}."
    )


def command_lines(outcome: Outcome) -> Iterator[str]:
    for entry in outcome.entries:
        yield entry.contender.command_line(entry.task, entry.sizes)


def as_json(outcome: Outcome) -> dict[str, Any]:
    def interval(value: Interval) -> list[float]:
        return [value.middle, value.low, value.high]

    return {
        "goal": outcome.comparison.goal,
        "title": outcome.comparison.title,
        "dropped_rounds": outcome.dropped,
        "commands": list(command_lines(outcome)),
        "rounds": [vars(measured) for measured in outcome.rounds],
        "judgements": [
            {
                "peer": judgement.threshold.peer,
                "mean": interval(judgement.mean),
                "worst": [judgement.worst.size, *interval(judgement.worst.speedup)],
                "must": judgement.must,
                "stretch": judgement.stretch,
                "rows": [vars(row) | {"speedup": interval(row.speedup)} for row in judgement.rows],
            }
            for judgement in outcome.judgements
        ],
    }
