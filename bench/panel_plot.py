"""Draw parts of an SVG whose axes are linear: panels with curves, areas and points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from svg_plot import line, text

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """The range of an axis. `ticks` are the numbers that are shown beside the axis."""

    first: float
    last: float
    ticks: Sequence[float]
    text_of: Callable[[float], str] = lambda tick: f"{tick:g}"

    def share(self, value: float) -> float:
        return (value - self.first) / (self.last - self.first)


@dataclass(frozen=True)
class Panel:
    """A rectangle with axes. Its methods take values of the axes, and return SVG elements."""

    title: str
    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> Point:
        return (
            round(self.left + self.x.share(x) * self.width, 1),
            round(self.top + (1 - self.y.share(y)) * self.height, 1),
        )

    def grid(self) -> Iterator[str]:
        yield text(self.left, self.top - 10, self.title, "start")
        for tick in self.y.ticks:
            x, y = self.at(self.x.first, tick)
            yield line((x, y), self.at(self.x.last, tick))
            yield text(x - 8, y + 4, self.y.text_of(tick), "end")
        for tick in self.x.ticks:
            x, y = self.at(tick, self.y.first)
            yield text(x, y + 18, self.x.text_of(tick))

    def curve(self, points: Sequence[Point], colour: str, shift: float = 0) -> str:
        """Join the points. `shift` moves the curve up, so that equal curves do not hide each
        other."""
        coordinates = (self.at(*point) for point in points)
        path = " ".join(f"{x},{round(y - shift, 1)}" for x, y in coordinates)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def area(self, low: Sequence[Point], high: Sequence[Point], colour: str) -> str:
        """Fill the area between two curves."""
        corners = [self.at(*point) for point in (*low, *reversed(high))]
        path = " ".join(f"{x},{y}" for x, y in corners)
        return f'<polygon points="{path}" fill="{colour}" fill-opacity="0.2"/>'

    def dot(self, point: Point, name: str, colour: str) -> str:
        x, y = self.at(*point)
        title = f"<title>{name}</title>"
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}">{title}</circle>'


def document(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>\n"])
