"""The tables of examples, against the records of the runs and the pages that sum them up."""

import json
from statistics import fmean

import pytest
from support import ROOT

FOLDER = ROOT / "examples" / "multi30k"


def rows_of(page, header):
    """The cells of the table that begins with these columns."""
    lines = page.read_text(encoding="utf-8").partition(f"\n{header}")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def records_of(folder):
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("runs/*.json")}


def scores_of(record):
    return [f"{record['scores'][key][0]:.{digits}f}" for key, digits in (("nll", 3), ("bleu", 2))]


def test_the_table_has_the_recorded_scores():
    rows = [[cell.strip("`") for cell in row] for row in rows_of(FOLDER / "README.md", "| mode | rate | seed |")]
    found = {f"{mode}_lr{float(rate)}_s{seed}": scores for mode, rate, seed, *scores in rows}
    assert found == {name: scores_of(run) for name, run in records_of(FOLDER).items()}


def test_the_table_of_deep_models_has_the_recorded_curves_and_scores():
    folder = FOLDER.parent / "iwslt14_de_en"
    rows = rows_of(folder / "README.md", "| | 500 updates | 1,000")
    found = {f"{mode.strip('`')}_12l_w0_lr0.002_s1": figures for mode, *figures in rows}
    curves = {name: [f"{nll:.3f}" for _, nll in run["curve"]] for name, run in records_of(folder).items()}
    assert found == {name: curves[name] + scores_of(run)[1:] for name, run in records_of(folder).items()}


def test_readme_has_each_mode_at_the_rate_with_its_lowest_nll():
    """By the first seed; all seeds at that rate are shown."""
    runs = {}
    for mode, rate, _, nll, bleu in rows_of(FOLDER / "README.md", "| mode | rate | seed |"):
        runs.setdefault(mode, {}).setdefault(rate, []).append((nll, bleu))
    shown = {
        mode: (rate, list(zip(nll.split(", "), bleu.split(", "), strict=True)))
        for mode, *_, rate, bleu, nll in rows_of(ROOT / "README.md", "| `ln_mode` |")
        if rate
    }
    assert len(shown) == 5
    assert shown == {mode: min(runs[mode].items(), key=lambda item: item[1]) for mode in shown}


@pytest.mark.parametrize("page, columns", [("README.md", "bleu end"), ("docs/results.md", "bleu start end")])
def test_means_and_ranges_are_those_of_the_seeds(page, columns):
    seeds, mode = {}, ""
    for name, seed, start, *_, end, _, bleu, _ in rows_of(FOLDER / "README.md", "| | seed | NLL after 1,000"):
        mode = name or mode
        if seed != "3, bf16":  # the third seed of Pre-LN once more
            seeds.setdefault(mode, []).append({"start": float(start), "end": float(end), "bleu": float(bleu)})
    rows = rows_of(ROOT / page, "| `ln_mode` | sacreBLEU")
    assert len(rows) >= 6
    for mode, *cells in rows:
        for column, cell in zip(columns.split(), cells, strict=False):
            values, digits = [run[column] for run in seeds[mode]], 2 if column == "bleu" else 3
            assert cell == "{:.{n}f} ({:.{n}f}-{:.{n}f})".format(fmean(values), min(values), max(values), n=digits)
