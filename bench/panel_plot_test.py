from __future__ import annotations

from xml.etree import ElementTree

from panel_plot import Axis, Panel, document


def test_panels_are_xml_and_values_lie_between_the_ends_of_the_axes() -> None:
    panel = Panel("title", 10, 20, 100, 50, Axis(0, 4, (0, 4)), Axis(1, 2, (1, 2), "{} s".format))
    assert panel.at(0, 1) == (10, 70)
    assert panel.at(4, 2) == (110, 20)
    assert panel.at(2, 1.5) == (60, 45)
    points = [(0.0, 1.0), (4.0, 2.0)]
    shapes = [panel.curve(points, "red"), panel.area(points, points, "red")]
    parts = [*panel.grid(), *shapes, panel.dot((2, 1), "name", "red")]
    root = ElementTree.fromstring(document(200, 100, parts))
    kinds = [element.tag.split("}")[1] for element in root.iter()]
    assert {kinds.count(kind) for kind in ("polyline", "polygon", "circle")} == {1}
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert texts == ["title", "1 s", "2 s", "0", "4"]
