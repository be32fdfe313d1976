"""Heat maps by layer and update from the `diagnostics.jsonl` of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residual_hf.base.files import undamaged_entries
from residual_hf.training.spikes import FILE, Alert

from .charts import heat_map

SHORT = {"self_attention": "self", "cross_attention": "cross", "feed_forward": "ffn"}

Grid = dict[str, dict[float, float]]
"""Values by row (layer and sub-layer) and update."""


@dataclass(frozen=True)
class Quantity:
    """A figure of sub-layers: its name in a row of `rows`, of the rows at `location` if there are several."""

    name: str
    title: str
    rows: str = "sublayers"
    location: str | None = None
    log: bool = True


QUANTITIES = (
    Quantity("gradient", "gradient norm of the weights"),
    Quantity("update_ratio", "update relative to the weights"),
    Quantity("branch_share", "share of the branch in its sum", log=False),
    Quantity("rms", "root mean square of the output", rows="activations", location="output"),
)


def layer_maps(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs that have diagnostics: the number of each, its maps, and its spikes as sentences.

    All runs have the same colors, so that they can be compared.
    """
    files = {number: folder / FILE for number, folder in enumerate(folders)}
    lines = {number: undamaged_entries(file) for number, file in files.items() if file.is_file()}
    maps: dict[int, dict[str, Any]] = {}
    for number, found in lines.items():
        alerts = [str(Alert(**line["alert"])) for line in found if "alert" in line]
        maps[number] = {"run": number, "charts": [], "alerts": [f"{text[0].upper()}{text[1:]}." for text in alerts]}
    for quantity in QUANTITIES:
        grids = {number: read_grids(found, quantity) for number, found in lines.items()}
        rows = [row for stacks in grids.values() for grid in stacks.values() for row in grid.values()]
        values = [value for row in rows for value in row.values()]
        for number, stacks in grids.items():
            for stack, grid in stacks.items():
                title = f"{stack.capitalize()}: {quantity.title}"
                if chart := heat_map(title, grid, quantity.log, values):
                    maps[number]["charts"].append(chart)
    return [found for found in maps.values() if found["charts"] or found["alerts"]]


def read_grids(lines: Sequence[Mapping[str, Any]], quantity: Quantity) -> dict[str, Grid]:
    """The values of a quantity by stack; of an update that was measured twice, by a resumed run, the later ones.

    Logarithmic colors have none for 0, such as the gradient of a layer that was dropped.
    """
    grids: dict[str, Grid] = {}
    for line in lines:
        for row in line.get("sublayers", ()):  # in their order; there are no activations of dropped layers
            grids.setdefault(row["stack"], {}).setdefault(name_of(row), {})
        for row in line.get(quantity.rows, ()):
            value = row.get(quantity.name)
            here = quantity.location in (None, row.get("location"))
            if here and value is not None and (value > 0 or not quantity.log):
                grids[row["stack"]][name_of(row)][float(line["step"])] = float(value)
    return grids


def name_of(row: Mapping[str, Any]) -> str:
    return f"{row['layer']} {SHORT[row['sublayer']]}"
