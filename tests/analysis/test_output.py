# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
import re

import pytest

from residual_hf.analysis.output import Panel, Point, to_pictures


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
