"""Draw curves as a small SVG with logarithmic axes, with string functions only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 70, 150, 40, 50
COLOURS = ("#d1495b", "#00798c", "#edae49", "#66a182", "#2e4057", "#8d6a9f")
Curves = Mapping[str, Mapping[int, float]]  # name: (abscissa: ordinate)


class Axes:
    # `x` has the first and the last exponent of 2 on the axis, `y` those of 10.
    def __init__(self, curves: Curves) -> None:
        abscissas = [x for curve in curves.values() for x in curve]
        values = [value for curve in curves.values() for value in curve.values()]
        self.x = math.log2(min(abscissas)), math.log2(max(abscissas))
        self.y = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(self, x: float, value: float) -> tuple[float, float]:
        across = (math.log2(x) - self.x[0]) / max(self.x[1] - self.x[0], 1e-9)
        height_share = (math.log10(value) - self.y[0]) / max(self.y[1] - self.y[0], 1e-9)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - height_share * (HEIGHT - TOP - BOTTOM), 1),
        )


def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#ddd"/>'


def size_text(power_of_two: int) -> str:
    unit, remainder = divmod(power_of_two, 10)
    return f"{1 << remainder} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def time_text(power_of_ten: int) -> str:
    unit = ("ns", "µs", "ms", "s")[(power_of_ten + 3) // 3]
    return f"{10 ** ((power_of_ten + 3) % 3)} {unit}"


@dataclass(frozen=True)
class Units:
    """The functions that format the numbers beside the axes, from powers of two and of ten."""

    across: Callable[[int], str] = size_text
    up: Callable[[int], str] = time_text


def grid(axes: Axes, units: Units) -> Iterator[str]:
    low, high = 10.0 ** axes.y[0], 10.0 ** axes.y[1]
    first, last = 2.0 ** axes.x[0], 2.0 ** axes.x[1]
    for exponent in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(first, 10.0**exponent)
        yield line((x, y), axes.at(last, 10.0**exponent))
        yield text(x - 8, y + 4, units.up(exponent), anchor="end")
    for exponent in range(math.ceil(axes.x[0]), math.floor(axes.x[1]) + 1):
        if exponent % 3 == 0:
            x, y = axes.at(2.0**exponent, low)
            yield line((x, y), axes.at(2.0**exponent, high))
            yield text(x, y + 20, units.across(exponent))


def curve_of(axes: Axes, name: str, points: Mapping[int, float], colour: str) -> Iterator[str]:
    places = [axes.at(x, value) for x, value in sorted(points.items())]
    path = " ".join(f"{x},{y}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{name}</title></circle>'


def legend(curves: Curves) -> Iterator[str]:
    for number, name in enumerate(curves):
        yield text(WIDTH - RIGHT + 20, TOP + 20 + 22 * number, name, "start", COLOURS[number])


def plot(title: str, curves: Curves, units: Units = Units()) -> str:
    """Return the SVG. By default, the curves are times in microseconds by numbers of bytes."""
    axes = Axes(curves)
    shapes = [
        shape
        for colour, (name, points) in zip(COLOURS, curves.items(), strict=False)
        for shape in curve_of(axes, name, points, colour)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    heading = text(WIDTH / 2, 22, title)
    parts = [head, background, heading, *grid(axes, units), *shapes, *legend(curves)]
    return "\n".join([*parts, "</svg>\n"])
