from __future__ import annotations

from contenders import Contender, Task
from goals import Comparison, Threshold
from report import lines_of, outcome_of
from rounds import Entry, Round, settings_worth_a_round

US, FAST, SLOW = (Contender(name, "", ("x",)) for name in ("farandole", "fast", "slow"))


def rounds_of(
    comparison: Comparison, entries: list[Entry], times: list[list[float]]
) -> list[Round]:
    """Return equal rounds; `times` has the times of each entry, by size."""
    results = {
        entry.key: {
            size: {"p50_us": time, "p99_us": 3 * time}
            for size, time in zip(comparison.task.sizes, own_times, strict=True)
        }
        for entry, own_times in zip(entries, times, strict=True)
    }
    return [Round(60, 20, 0.5, results) for _ in range(7)]


def text_of(comparison: Comparison, times: list[list[float]]) -> str:
    families = ("ours", "mpi", "mpi")
    entries = [
        Entry(family, who, comparison.task, comparison.task.sizes)
        for family, who in zip(families, (US, FAST, SLOW), strict=True)
    ]
    return "\n".join(
        lines_of(outcome_of(comparison, entries, rounds_of(comparison, entries, times), 1))
    )


def test_the_best_peer_of_each_size_counts() -> None:
    comparison = Comparison(
        "G0", "it", Task(sizes=(8, 1024)), (Threshold("mpi", 1.3, 2, stretch_worst=2.5),)
    )
    text = text_of(comparison, [[1, 1], [3, 9], [9, 2]])
    assert "| fast | 3.00 [3.00, 3.00] |" in text
    assert "| slow | 2.00 [2.00, 2.00] |" in text
    assert "mean 2.45 [2.45, 2.45], worst 2.00 [2.00, 2.00] at 1 KiB" in text
    assert "must ≥ 1.3: **reached**" in text
    assert "stretch ≥ 2, no size below 2.5: not reached" in text
    assert "7 rounds, 1 dropped" in text


def test_a_tail_goal_compares_p99_divided_by_p50() -> None:
    comparison = Comparison("G0", "it", Task(sizes=(8,)), (Threshold("mpi", 1.0),), tail=True)
    text = text_of(comparison, [[1], [5], [5]])
    assert "mean 1.00" in text
    assert "Our p99 / p50 is 3.00 [3.00, 3.00]; stretch ≤ 1.5: not reached." in text


def test_settings_run_the_sizes_at_which_they_may_win() -> None:
    third = Contender("third", "", ("x",))
    trial = {US: {8: 1.0, 16: 5.0}, FAST: {8: 1.05, 16: 1.0}, third: {8: 1.02, 16: 9.0}}
    assert settings_worth_a_round(trial, (8, 16)) == {US: (8,), third: (8,), FAST: (16,)}
