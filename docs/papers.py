"""Writes `docs/papers.md` from `docs/papers/*.yaml`: `python docs/papers.py`.

A file has the `title` and the `url` of a paper and its `items`, each with

- `name`: such as Table 2, Figure 8, Equation 4, Theorem 3.2;
- `claim`: what the paper says, with its figures;
- `command`: one command a line, or `reason`: why there is none;
- `needs`: data, hardware, time;
- `measured`: what was measured here, and the path of the page, file or test that has it; or "not measured";
- `agrees`: yes, no, partly or open;
- `picture`: optional, a file in `docs/`.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from residual_hf.base.tables import as_markdown
from residual_hf.base.yaml_files import read_yaml

DOCS = Path(__file__).parent
ORDER = ("residual", "b2t", "rethinking_skip", "residual_stream", "admin")
REQUIRED = {"name", "claim", "needs", "measured", "agrees"}
FIELDS = REQUIRED | {"command", "reason", "picture"}
ANSWERS = {True: "yes", False: "no", "partly": "partly", "open": "open"}  # YAML reads yes and no as true and false
OPEN = "not measured"
INTRO = """\
# The papers, item by item

The tables, figures, theorems, equations and claims of the papers behind this package: the command that repeats each,
what it needs, what was measured here, and whether that agrees. **partly**: a part of the claim was seen, or the whole
with a qualification. **open**: not measured, or a claim about complete trainings of which only short ones of small
models were run, from which nothing follows. Recipes need the corpora and GPUs of the papers; `--full` has their width
and number of updates, on sentences that the package generates (a small English-German grammar, that of `quickstart`).
Diagrams of architectures have no line of their own. {counts}.
`python docs/papers.py` writes this page from the files in `docs/papers/`.
"""


def read_papers(folder: Path = DOCS / "papers") -> dict[str, dict[str, Any]]:
    """The papers by the name of their file, in the order of the page."""
    return {name: read_yaml(path) for name in ORDER if (path := folder / f"{name}.yaml").exists()}


def render(papers: dict[str, dict[str, Any]]) -> str:
    intro = INTRO.format(counts=summary([item for paper in papers.values() for item in paper["items"]]))
    return "\n".join([intro, *(section(paper) for paper in papers.values())])


def summary(items: list[dict[str, Any]]) -> str:
    counts = Counter(ANSWERS[item["agrees"]] for item in items)
    return f"{len(items)} items: " + ", ".join(
        f"{counts[answer]} {answer}" for answer in ANSWERS.values() if counts[answer]
    )


def section(paper: dict[str, Any]) -> str:
    rows = [("item", "claim", "command", "needs", "measured here", "agrees"), *map(row, paper["items"])]
    title = f"## [{paper['title']}]({paper['url']})"
    return f"{title}\n\n{summary(paper['items'])}.\n\n{as_markdown(rows)}\n"


def row(item: dict[str, Any]) -> tuple[str, ...]:
    commands = "<br>".join(f"`{line}`" for line in command_lines(item)) or f"none: {item['reason']}"
    picture = f" ([picture]({item['picture']}))" if "picture" in item else ""
    cells = (item["name"], item["claim"], commands, item["needs"], item["measured"] + picture, ANSWERS[item["agrees"]])
    return tuple(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)


def command_lines(item: dict[str, Any]) -> list[str]:
    return [line.strip() for line in item.get("command", "").splitlines() if line.strip()]


if __name__ == "__main__":
    (DOCS / "papers.md").write_text(render(read_papers()), encoding="utf-8")
