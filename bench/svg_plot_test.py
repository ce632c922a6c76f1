from __future__ import annotations

from xml.etree import ElementTree

from svg_plot import plot


def test_a_plot_is_xml_with_a_point_for_each_time() -> None:
    curves = {"us": {8: 0.1, 1 << 20: 80.0}, "them": {8: 0.3}}
    root = ElementTree.fromstring(plot("title", curves))
    kinds = [element.tag.split("}")[1] for element in root.iter()]
    assert kinds.count("circle") == 3
    assert kinds.count("polyline") == 2
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert {"title", "us", "them", "8 B", "32 KiB", "100 ns", "100 µs"} <= set(texts)
