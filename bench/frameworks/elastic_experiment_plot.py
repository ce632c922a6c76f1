"""The plot of elastic_experiment.py: accuracy and number of workers by step, and the accuracy of
each run at its end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from panel_plot import Axis, Panel, Point, document
from svg_plot import COLOURS, text

WIDTH, HEIGHT, LEFT, PANEL_WIDTH = 860, 700, 60, 660
SHIFT = 2  # pixels; equal curves of worker counts would hide each other, so they are shifted


@dataclass
class Run:
    """The results that one job has reported."""

    seed: int
    accuracy: float  # at the end of the training
    curve: dict[int, float]  # the accuracy by step
    digest: str  # of the model's replicas at the end
    seconds: float


# The keys are schedules. The first schedule has a fixed number of workers.
Runs = dict[str, list[Run]]
Schedules = dict[str, list[int]]


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def axis_around(values: Iterable[float], step: float) -> Axis:
    """Return an axis that contains the values, with a tick at each multiple of the step."""
    sorted_values = sorted(values)
    first, last = math.floor(sorted_values[0] / step), math.ceil(sorted_values[-1] / step)
    ticks = [round(number * step, 6) for number in range(first, max(last, first + 1) + 1)]
    return Axis(ticks[0], ticks[-1], ticks, percent)


def by_step(runs: Sequence[Run], statistic: Callable[[list[float]], float]) -> list[Point]:
    return [(step, statistic([run.curve[step] for run in runs])) for step in runs[0].curve]


def accuracy_panel(runs: Runs, steps: Axis) -> Iterator[str]:
    values = [
        value
        for runs_of_schedule in runs.values()
        for run in runs_of_schedule
        for value in run.curve.values()
    ]
    title = "accuracy during the training: means, and the range of the fixed runs"
    panel = Panel(title, LEFT, 40, PANEL_WIDTH, 240, steps, axis_around(values, 0.1))
    yield from panel.grid()
    fixed_runs, *_ = runs.values()
    yield panel.area(by_step(fixed_runs, min), by_step(fixed_runs, max), COLOURS[0])
    for colour, runs_of_schedule in zip(COLOURS, runs.values(), strict=False):
        yield panel.curve(by_step(runs_of_schedule, statistics.fmean), colour)


def workers_panel(schedules: Schedules, steps: Axis) -> Iterator[str]:
    workers_max = max(max(sizes) for sizes in schedules.values())
    axis = Axis(0, workers_max, range(workers_max + 1))
    panel = Panel("workers, by step", LEFT, 340, PANEL_WIDTH, 120, steps, axis)
    yield from panel.grid()
    for number, (colour, sizes) in enumerate(zip(COLOURS, schedules.values(), strict=False)):
        width = steps.last / len(sizes)
        points = [
            (boundary * width, size)
            for index, size in enumerate(sizes)
            for boundary in (index, index + 1)
        ]
        yield panel.curve(points, colour, number * SHIFT)


def ends_panel(runs: Runs) -> Iterator[str]:
    accuracies = {
        name: [run.accuracy for run in runs_of_schedule] for name, runs_of_schedule in runs.items()
    }
    values = [value for some in accuracies.values() for value in some]
    names = list(runs)
    columns = Axis(-0.5, len(names) - 0.5, range(len(names)), lambda index: names[int(index)])
    title = "accuracy of each run at its end; the line is the mean of the fixed runs"
    panel = Panel(title, LEFT, 520, PANEL_WIDTH, 140, columns, axis_around(values, 0.01))
    yield from panel.grid()
    fixed_accuracies = accuracies[names[0]]
    both_ends = (columns.first, columns.last)
    lowest, highest, mean = (
        min(fixed_accuracies),
        max(fixed_accuracies),
        statistics.fmean(fixed_accuracies),
    )
    yield panel.area(
        [(x, lowest) for x in both_ends], [(x, highest) for x in both_ends], COLOURS[0]
    )
    yield panel.curve([(x, mean) for x in both_ends], COLOURS[0])
    for index, (colour, runs_of_schedule) in enumerate(zip(COLOURS, runs.values(), strict=False)):
        for run in runs_of_schedule:
            abscissa = index + 0.08 * (run.seed - (len(runs_of_schedule) - 1) / 2)
            yield panel.dot((abscissa, run.accuracy), f"seed {run.seed}", colour)


def legend(runs: Runs) -> Iterator[str]:
    for number, name in enumerate(runs):
        yield text(LEFT + PANEL_WIDTH + 30, 60 + 22 * number, name, "start", COLOURS[number])


def draw(runs: Runs, schedules: Schedules) -> str:
    """Return the SVG."""
    steps = max(
        step for runs_of_schedule in runs.values() for run in runs_of_schedule for step in run.curve
    )
    axis = Axis(0, steps, [steps * quarter // 4 for quarter in range(5)])
    parts = [*accuracy_panel(runs, axis), *workers_panel(schedules, axis)]
    return document(WIDTH, HEIGHT, [*parts, *ends_panel(runs), *legend(runs)])
