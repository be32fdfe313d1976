"""Draws the imports between folders in `ARCHITECTURE.md`, between two comments: `python docs/architecture.py`."""

import re
import sys
from pathlib import Path

import grimp
import networkx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
PICTURE = re.compile(r"(<!-- imports -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with the picture of the imports as they are."""
    return PICTURE.sub(lambda match: match[1] + picture() + match[2], page)


def picture() -> str:
    """A Mermaid graph: a row for each layer, an arrow for each import that no other path of arrows implies."""
    rows, imports = layers(), networkx.transitive_reduction(networkx.DiGraph(folder_imports()))
    lines = ["```mermaid", "flowchart TD"]
    for number, row in enumerate(rows):
        lines += [
            f"    subgraph layer{number}[ ]",
            "        direction LR",
            *(f"        {name}" for name in row),
            "    end",
        ]
    lines += [f"    {above} --> {below}" for row in rows for above in row for below in sorted(imports[above])]
    return "\n".join([*lines, "```", ""])


def layers() -> list[list[str]]:
    """The folders of each layer, from the contract in `pyproject.toml`, top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return [[name.strip() for name in re.split(r"[|:]", row)] for row in contracts[0]["layers"]]


def folder_imports() -> dict[str, set[str]]:
    """The folders and modules of the package -> those that they import."""
    graph = grimp.build_graph("residual_hf", cache_dir=None)
    found: dict[str, set[str]] = {name: set() for row in layers() for name in row}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            above, below = (name.split(".")[1] if "." in name else name for name in (module, imported))
            if above != below and above in found and below in found:
                found[above].add(below)
    return found


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
