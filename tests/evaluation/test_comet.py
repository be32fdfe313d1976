"""COMET runs as a program, for which a script stands in."""

import sys

import pytest

from residual_hf.base.errors import InputError
from residual_hf.evaluation.sentence_metrics import Comet
from residual_hf.evaluation.translation_metric import load_metric

PROGRAM = """#!{python}
import argparse, json, os, sys
parser = argparse.ArgumentParser()
for name in ("--sources", "--translations", "--references", "--model", "--to_json"):
    parser.add_argument(name, required=True)
parser.add_argument("--gpus", type=int, required=True)
for name in ("--quiet", "--only_system"):
    parser.add_argument(name, action="store_true", required=True)
options = parser.parse_args()
if "PYTHONPATH" in os.environ:
    sys.exit("packages of another environment")
if options.model == "broken":
    sys.exit("no such model")
files = (options.sources, options.translations, options.references)
rows = list(zip(*(open(file, encoding="utf-8").read().split("\\n")[:-1] for file in files)))
scores = [dict(src=s, mt=t, ref=r, COMET=float(t == r)) for s, t, r in rows]
json.dump({{options.translations: scores}}, open(options.to_json, "w"))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "comet-score"
    path.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")


def test_comet_scores_sentences_with_its_sources(program):
    metric = load_metric("comet")
    predictions, references = ["ja", "nein", "two\nlines", "x"], ["ja", "doch", "two lines", "y"]
    assert metric.compute(predictions, references, ["yes", "no", "s", "t"]) == {"Unbabel/wmt22-comet-da": 0.5}


def test_a_model_can_be_chosen_and_its_failure_is_named(program):
    load_metric.cache_clear()
    assert load_metric("comet:Unbabel/XCOMET-XL") == Comet("Unbabel/XCOMET-XL")
    with pytest.raises(InputError, match="comet-score --model broken failed: no such model"):
        load_metric("comet:broken").compute(["a"], ["a"], ["a"])
    with pytest.raises(InputError, match="comet:~/no.ckpt: no such file"):
        load_metric("comet:~/no.ckpt")


def test_without_the_program_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    load_metric.cache_clear()
    with pytest.raises(InputError, match="comet needs the program comet-score.*pipx install unbabel-comet"):
        load_metric("comet")
