"""The table of finished runs in examples/multi30k/README.md, against the records of the runs."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "multi30k"


def test_the_table_has_the_recorded_scores():
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("runs/*.json")}
    table = (FOLDER / "README.md").read_text(encoding="utf-8").partition("| mode | rate | NLL | sacreBLEU |\n")[2]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.partition("\n\n")[0].splitlines()]
    found = {f"{mode}_lr{float(rate)}_s1": scores for mode, rate, *scores in rows[1:]}
    nll_and_bleu = {
        name: [f"{run['scores'][key][0]:.{n}f}" for key, n in (("nll", 3), ("bleu", 2))]
        for name, run in records.items()
    }
    assert found == nll_and_bleu
