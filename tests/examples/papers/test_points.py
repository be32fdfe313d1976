import re

import pytest
from matplotlib.figure import Figure
from points import Panel, Point, draw_map, to_pictures


def test_rows_of_dots_keep_their_order():
    nll = {"post_ln": (7.0, 6.0), "pre_ln": (4.0, 5.0), "b2t": (4.5, 9.0)}
    points = [Point("6+6", mode, 1, rate, ys[i]) for mode, ys in nll.items() for i, rate in enumerate((0.1, 0.2))]
    panels = [Panel("6+6", "learning rate", "validation NLL", rows=True)]
    svg = to_pictures("rows", panels, points, "caption")["svg"].decode()
    assert re.findall("<!-- (post_ln|pre_ln|b2t) -->", svg) == ["post_ln", "pre_ln", "b2t"]
    assert re.findall("<!-- (0.1|0.2|learning rate) -->", svg)[-3:] == ["learning rate", "0.1", "0.2"]


def test_a_series_has_one_colour_in_all_panels():
    panels = [Panel("first", "x", "y"), Panel("last", "x", "y")]
    points = [
        Point(panel, name, 1, x, x)
        for panel, names in (("first", "abc"), ("last", "cab"))
        for name in names
        for x in (1, 2)
    ]
    svg = to_pictures("lines", panels, points, "caption")["svg"].decode()
    lines = re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: (#\w+); stroke-width: 1.2', svg)
    assert lines[:3] == [lines[4], lines[5], lines[3]] and len({*lines}) == 3 and len(lines) == 6


def test_twelve_series_have_twelve_colours():
    points = [Point("first", name, 1, x, x) for name in "abcdefghijkl" for x in (1, 2)]
    svg = to_pictures("lines", [Panel("first", "x", "y")], points, "caption")["svg"].decode()
    assert len({*re.findall(r"stroke: (#\w+); stroke-width: 1.2", svg)}) == 12


@pytest.mark.parametrize("rows", [False, True])
def test_one_value_is_the_only_tick_of_its_axis(rows):
    points = [Point("rates", mode, 1, 6, 0.0) for mode in ("pre_ln", "b2t")]
    svg = to_pictures("single", [Panel("rates", "layers", "rate", rows=rows)], points, "caption")["svg"].decode()
    begin, middle = (svg.index(f'id="matplotlib.axis_{number}"') for number in (1, 2))
    horizontal = re.findall(r"<!-- (\S*) -->", svg[begin:middle])
    assert horizontal == (["0", "rate"] if rows else ["6", "layers"])
    if not rows:
        assert re.findall(r"<!-- (\S*) -->", svg[middle:])[:2] == ["0", "rate"]


def test_maps_of_a_panel_share_their_colours_and_name_what_was_measured():
    points = [Point("NLL", mode, 1, lr, 0.99, z) for mode, z in (("a", 1.0), ("b", 3.0)) for lr in (3e-4, 1e-2)]
    axes = Figure().subplots(1, 2)
    for axis, mode in zip(axes, "ab", strict=True):
        draw_map(axis, Panel("NLL", "rate", "beta", heat=True), mode, points)
    assert [axis.images[0].get_clim() for axis in axes] == [(1.0, 3.0)] * 2
    assert [axis.images[0].get_array().tolist() for axis in axes] == [[[1.0, 1.0]], [[3.0, 3.0]]]
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["0.0003", "0.01"]
    assert axes[1].get_title() == "b: NLL"


def test_a_value_that_is_no_number_leaves_the_colours_of_the_others():
    points = [Point("cosine", "a", 1, x, 1, z) for x, z in enumerate((float("nan"), 2.0, 5.0))]
    axis = Figure().subplots()
    draw_map(axis, Panel("cosine", "j", "i", heat=True), "a", points)
    assert axis.images[0].get_clim() == (2.0, 5.0)


def test_maps_of_many_layers_label_some():
    points = [Point("encoder", "a", 1, layer, layer, 1.0) for layer in range(1, 19)]
    axis = Figure().subplots()
    draw_map(axis, Panel("encoder", "j", "i", heat=True), "a", points)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["1", "3", "5", "7", "9", "11", "13", "15", "17"]
