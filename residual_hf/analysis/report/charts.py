"""Line charts and heat maps as SVG inside an HTML page, whose style sheet colors them."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 250, 52, 18, 8, 32
"""Pixels."""
MOST_POINTS, MOST_DOTS, MOST_COLUMNS = 300, 40, 60
VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")

Points = Mapping[float, float]


class Axis:
    """Positions of values on a line from pixel `start` to pixel `end`; `rounded` to the ticks around the values."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool = False, rounded: bool = False):
        self.low, self.high = min(values), max(values)
        self.log = log and self.low > 0
        if self.low == self.high:
            margin = abs(self.low) / 2 or 1.0
            self.low, self.high = self.low - margin, self.high + margin
        self.start, self.end = start, end
        if rounded and not self.log:
            step = self.step()
            self.low, self.high = math.floor(self.low / step) * step, math.ceil(self.high / step) * step

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def step(self) -> float:
        """About a fifth of the range: 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

    def ticks(self) -> list[float]:
        """Round values in the range."""
        if not self.log:
            step = self.step()
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [n * step for n in range(first, last + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(powers) < 4 else (1,)
        ticks = [factor * 10.0**power for power in powers[:: max(1, len(powers) // 5)] for factor in factors]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def line_chart(title: str, series: Mapping[int, Points], log: bool = False) -> str:
    """A figure over updates with a line for each series, whose key is the number of its color, `--c0` to `--c7`.

    Points that are not finite are left out. The figure has no content without points.
    """
    series = {key: thinned(finite(points)) for key, points in series.items()}
    series = {key: points for key, points in series.items() if points}
    if not series:
        return ""
    values = [value for points in series.values() for value in points.values()]
    log = log and max(values) > 10 * min(values)
    x = Axis([v for points in series.values() for v in points], LEFT, WIDTH - RIGHT)
    y = Axis(values, HEIGHT - BOTTOM, TOP, log, rounded=True)
    shapes = []
    for tick in y.ticks():
        shapes.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        shapes.append(label(LEFT - 5, y(tick) + 3.5, short(tick), "end"))
    shapes += [label(x(tick), HEIGHT - BOTTOM + 14, short(tick)) for tick in x.ticks()]
    for key, points in series.items():
        path = "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in points.items())
        shapes.append(f'<path class="line run{key} c{key % 8}" d="{path}"/>')
        mark = f'class="run{key} c{key % 8}" r="2.2"' if len(points) <= MOST_DOTS else f'class="run{key} hidden" r="4"'
        shapes += [
            f'<circle {mark} cx="{x(at):.1f}" cy="{y(value):.1f}"><title>{tip("update", at, value)}</title></circle>'
            for at, value in points.items()
        ]
    shapes.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, "update"))
    return figure(title, shapes, HEIGHT)


def heat_map(title: str, rows: Mapping[str, Points], log: bool = False, span: Sequence[float] = ()) -> str:
    """A figure over updates with a row of cells for each name, the first at the bottom, and the range of the colors.

    Of more than `MOST_COLUMNS` columns, evenly spaced ones are shown. The colors cover the values and those of `span`.
    """
    rows = {name: finite(points) for name, points in rows.items()}
    columns = thinned({x: x for points in rows.values() for x in sorted(points)}, MOST_COLUMNS)
    values = [points[x] for points in rows.values() for x in columns if x in points]
    if not values:
        return ""
    values += [value for value in span if math.isfinite(value)]
    color = Axis(values, 0.0, 1.0, log)
    cell = max(4.0, min(14.0, 200 / len(rows)))
    height = TOP + cell * len(rows) + BOTTOM + 18
    wide = (WIDTH - LEFT - RIGHT) / len(columns)
    shapes = []
    for number, (name, points) in enumerate(rows.items()):
        top = TOP + cell * (len(rows) - 1 - number)
        for column, x in enumerate(columns):
            if x in points:
                shapes.append(
                    f'<rect x="{LEFT + wide * column:.2f}" y="{top:.2f}" width="{wide + 0.3:.2f}" '
                    f'height="{cell + 0.3:.2f}" fill="{viridis(color(points[x]))}">'
                    f"<title>{tip(f'{name}, update', x, points[x])}</title></rect>"
                )
        if number % math.ceil(11 / cell) == 0:  # names are 11 pixels high
            shapes.append(label(LEFT - 4, top + cell / 2 + 3.5, name, "end"))
    bottom = TOP + cell * len(rows)
    places = list(columns)
    for column in sorted({0, len(places) // 2, len(places) - 1}):
        shapes.append(label(LEFT + wide * (column + 0.5), bottom + 13, short(places[column])))
    shapes.append(label(LEFT, height - 6, "update", "start"))
    shapes += scale(color, height - 14)
    return figure(title, shapes, height)


def scale(color: Axis, top: float) -> list[str]:
    """A bar with the colors from the lowest to the highest value."""
    left, wide = WIDTH - RIGHT - 190, 10
    bar = [
        f'<rect x="{left + 50 + wide * i}" y="{top:.1f}" width="{wide}.3" height="9" fill="{shade}"/>'
        for i, shade in enumerate(VIRIDIS)
    ]
    ends = (left + 46, color.low, "end"), (left + 54 + wide * len(VIRIDIS), color.high, "start")
    return bar + [label(x, top + 8.5, short(value), anchor) for x, value, anchor in ends]


def viridis(share: float) -> str:
    """The color of a value from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    index = min(int(place), len(VIRIDIS) - 2)
    low, high = (bytes.fromhex(shade[1:]) for shade in VIRIDIS[index : index + 2])
    return "#" + bytes(round(a + (b - a) * (place - index)) for a, b in zip(low, high, strict=True)).hex()


def finite(points: Points) -> dict[float, float]:
    return {x: y for x, y in points.items() if math.isfinite(y)}


def thinned(points: Points, most: int = MOST_POINTS) -> dict[float, float]:
    """At most `most` of the points in order of x, evenly spaced, with the first and the last."""
    items = sorted(points.items())
    shown = min(most, len(items))
    return dict(items[round(i * (len(items) - 1) / max(1, shown - 1))] for i in range(shown))


def short(value: float) -> str:
    """A number in few characters."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 and value == round(value) else f"{value:.3g}"


def tip(what: str, at: float, value: float) -> str:
    """The text at the pointer over a value."""
    return escape(f"{what} {short(at)}: {short(value)}")


def figure(title: str, shapes: Sequence[str], height: float) -> str:
    caption, content = escape(title), "".join(shapes)
    return (
        f'<figure class="chart"><figcaption>{caption}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{caption}">{content}</svg></figure>'
    )


def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
