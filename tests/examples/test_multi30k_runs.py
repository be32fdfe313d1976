# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of finished runs in examples/multi30k/README.md, against the records of the runs."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "multi30k"


def test_the_table_has_the_recorded_scores():
    records = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("runs/*.json")}
    rows = re.findall(
        r"^\| `(\w+)` \| ([\de.-]+) \| ([\d.]+) \| ([\d.]+) \|$", (FOLDER / "README.md").read_text(), re.M
    )
    assert len(rows) == len(records) > 0
    for mode, rate, nll, bleu in rows:
        scores = records[f"{mode}_lr{float(rate)}_s1"]["scores"]
        assert (f"{scores['nll'][0]:.3f}", f"{scores['bleu'][0]:.2f}") == (nll, bleu)
