# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from tiny_translator import tiny_model, tiny_tokenizer

from residual_hf.checkpoint import save_checkpoint
from residual_hf.cli import main
from residual_hf.data.text_files import file_hash
from residual_hf.errors import InputError
from residual_hf.evaluation.metrics import score
from residual_hf.hub import card_plot
from residual_hf.hub.card import validate_card, write_card
from residual_hf.hub.card_text import FOLDERS
from residual_hf.hub.citations import bibtex
from residual_hf.model.connections import LN_MODES
from residual_hf.model.ln_modes import PreLN

REFERENCES = [f"the {a} dog sees a {b} cat in the {c} park" for a in "xyz" for b in "uvw" for c in "rst"]
GOOD = [line.replace("sees", "saw") if i % 3 else line for i, line in enumerate(REFERENCES)]
BAD = ["the dog is here now" for _ in REFERENCES]
CARDS = sorted(path for path in (Path(__file__).parents[2] / "model_cards").glob("*.md") if path.name != "README.md")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, source_lang="de", target_lang="en")
    return save_checkpoint(model, tokenizer, tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def make_run(tmp_path, model_folder):
    """Makes a folder as `residual-hf train` leaves it, with translations of our choice."""

    def make(name="run", hypotheses=GOOD, splits=("train", "valid", "test")):
        data = {}
        for split in ("train", "valid", "test"):
            for language in ("de", "en"):
                (tmp_path / f"{split}.{language}").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
            data[split] = {"source": str(tmp_path / f"{split}.de"), "target": str(tmp_path / f"{split}.en")}
        run = tmp_path / name
        shutil.copytree(model_folder, run / "model")
        recipe = {
            "source_lang": "de",
            "target_lang": "en",
            "output_dir": str(run),
            "data": {split: data[split] for split in splits},
            "training": {"lr": 0.004, "seed": 7, "metric": "nll", "average": 0},
            "decoding": {"num_beams": 5, "length_penalty": 1.0},
        }
        metrics = {"updates": 400, "minutes": 12.0}
        for split in splits[1:]:
            (run / f"{split}.hypotheses.txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
            metrics[split] = {"loss": 2.5, "nll": 2.125, "ppl": 8.373} | score(hypotheses, REFERENCES).as_dict()
        curve = [{"step": step, "nll": 9.0 - step / 100, "loss": 9.0} for step in (1, 100, 200, 300, 400)]
        curve += [{"step": step, "eval_nll": 8.0 - step / 100, "eval_bleu": step / 20} for step in (200, 400)]
        record = {
            "command": ["/somewhere/bin/residual-hf", "train", "recipe.yaml", "--set", "training.seed=7"],
            "seconds": 720.0,
            "commit": "0123456789" * 4,
            "versions": {"residual_hf": "0.1", "torch": "2.11"},
            "seed": 7,
            "device": "NVIDIA H200",
            "processes": 2,
            "parameters": 123456,
            "tokens_per_second": 98765.4,
            "data": {split: [describe(data[split])] for split in splits},
        }
        write_json(run / "metrics.json", metrics)
        write_json(run / "run.json", record)
        write_json(run / "cleaning.json", {"pairs": 30, "kept": 27, "dropped": {"duplicate": 3}, "examples": {}})
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in curve), encoding="utf-8")
        return run

    return make


def describe(spec):
    hashes = {path: file_hash(Path(path)) for path in spec.values()}
    return {"pairs": len(REFERENCES), "sha256": hashes, "source_lang": "de", "target_lang": "en"}


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def edit_json(path, **changes):
    write_json(path, json.loads(path.read_text()) | changes)


def text_of(path):
    return path.read_text(encoding="utf-8")


def test_folders_of_the_machine_stay_out(make_run):
    run = make_run()
    recipe = yaml.safe_load(text_of(run / "recipe.yaml"))
    recipe["tokenizer"] = {"path": "/home/someone/secret/tokenizer"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    corpus = "data.train={source: /home/someone/a.de, target: ~/texts/a.en}"
    words = ["/opt/lib/residual_hf/cli.py", "train", "/home/someone/recipe.yaml", "--set", corpus]
    edit_json(run / "run.json", command=[*words, "--output-dir", "runs/one"])
    text = text_of(write_card(run))
    command = "residual-hf train recipe.yaml --set 'data.train={source: a.de, target: a.en}' --output-dir runs/one"
    assert command in text
    assert "path: tokenizer\n" in text
    for folder in ("/home", "someone", "~", "/opt", str(run)):
        assert folder not in text.replace("training_curve", ""), folder


def test_metadata_survive_the_hubs_own_reader(make_run):
    run = make_run()
    path = write_card(run, model_name="de-en-small", license="cc-by-4.0", datasets=["someone/corpus"])
    assert path == run / "model" / "README.md"
    validate_card(path)
    data = ModelCard.load(path).data
    assert (data.language, data.license, data.datasets) == (["de", "en"], "cc-by-4.0", ["someone/corpus"])
    assert (data.pipeline_tag, data.library_name) == ("translation", "transformers")
    assert data.tags == ["residual_hf", "resi_dual"]
    assert data.model_name == "de-en-small"
    metrics = json.loads((run / "metrics.json").read_text())
    found = {(r.dataset_split, r.metric_type): (r.metric_value, r.metric_args["signature"]) for r in data.eval_results}
    assert found == {
        (label, name): (round(metrics[split][name]["value"], 2), metrics[split][name]["signature"])
        for split, label in (("test", "test"), ("valid", "validation"))
        for name in ("bleu", "chrf", "ter")
    }
    assert ModelCard(str(ModelCard.load(path))).data.eval_results == data.eval_results


def test_card_says_what_the_run_recorded(make_run):
    run = make_run()
    text = text_of(write_card(run))
    mode = LN_MODES["resi_dual"]
    digest = hashlib.sha256((run.parent / "train.de").read_bytes()).hexdigest()
    for fact in (
        mode.equation,
        mode.source,
        "123,456",
        "one run with one seed (7)",
        f"{digest}  train.de",
        "Cleaning kept 27 of 30 training pairs of train.de, train.en; left out: 3 duplicate.",
        "Licence of the data: not stated.",
        "Weights: not stated.",
        "12.0 minutes on 2 x NVIDIA H200",
        "98,765 target tokens per second",
        "`residual-hf train recipe.yaml --set training.seed=7`",
        "lr: 0.004",
        "@misc{xie2023residual,",
    ):
        assert fact in text, fact
    assert str(run.parent) not in text  # no folder of the machine it was trained on


def test_interval_holds_the_score(make_run):
    text = text_of(write_card(make_run()))
    tables = text.split("**Validation set**")
    rows = re.findall(r"\| (BLEU|chrF|TER) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", tables[0])
    assert [row[0] for row in rows] == ["BLEU", "chrF", "TER"]
    assert all(float(low) < float(value) < float(high) for _, value, low, high in rows)
    assert " to " not in tables[1].split("Intervals")[0]


def test_scores_without_a_test_set_are_called_validation(make_run):
    path = write_card(make_run(splits=("train", "valid")))
    assert {result.dataset_split for result in ModelCard.load(path).data.eval_results} == {"validation"}
    text = text_of(path)
    assert "There was no test set. These are scores on the validation set" in text
    assert "Test set" not in text


def test_what_is_not_known_is_left_out(make_run):
    run = make_run()
    (run / "run.json").unlink()
    (run / "cleaning.json").unlink()
    text = text_of(write_card(run))
    assert "| training | not recorded | train.de, train.en |" in text
    for absent in ("tokens per second", "commit", "Cleaning", "Carbon", "SHA-256", "| parameters", "None"):
        assert absent not in text, absent
    assert "license" not in ModelCard.load(run / "model" / "README.md").data.to_dict()


def test_a_resumed_run_states_no_duration(make_run):
    run = make_run()
    edit_json(run / "run.json", resumed=["2026-01-01T00:00:00+00:00"])
    assert "12.0 minutes" not in text_of(write_card(run))


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_no_interval_without_the_references_of_the_run(make_run, change, caplog):
    run = make_run()
    references = run.parent / "test.en"
    references.unlink() if change == "gone" else references.write_text("\n".join(GOOD) + "\n")
    text = text_of(write_card(run))
    assert "No confidence intervals: they need one test set" in text
    assert not re.search(r"[\d.]+ to [\d.]+ \|", text)
    assert "test.en" in caplog.text


def test_significance_against_a_baseline(make_run):
    text = text_of(write_card(make_run(), baseline=make_run("base", BAD)))
    (row,) = re.findall(r"\| BLEU \| ([\d.]+) \| ([\d.]+) \| \+([\d.]+) \| ([\d.]+) \| (yes|no) \|", text)
    baseline, ours, difference, p = map(float, row[:4])
    assert ours - baseline == pytest.approx(difference, abs=0.011)
    assert p < 0.01 and row[4] == "yes"
    assert "The baseline is the run `base` (`resi_dual`)" in text and "one seed of each" in text


def test_the_same_translations_do_not_differ(make_run):
    text = text_of(write_card(make_run(), baseline=make_run("base")))
    assert re.search(r"\| BLEU \| [\d.]+ \| [\d.]+ \| \+0.00 \| 1.000 \| no \|", text)


def test_baseline_on_other_references_is_refused(make_run):
    run, base = make_run(), make_run("base")
    recipe = yaml.safe_load((base / "recipe.yaml").read_text())
    other = run.parent / "other.en"
    other.write_text("\n".join(GOOD) + "\n")
    recipe["data"]["test"]["target"] = str(other)
    (base / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (base / "run.json").unlink()
    with pytest.raises(InputError, match="base was scored on other references for data.test"):
        write_card(run, baseline=base)
    assert not (run / "model" / "README.md").exists()


def test_translations_that_do_not_have_the_recorded_score_are_not_compared(make_run):
    run, base = make_run(), make_run("base", BAD)
    (run / "test.hypotheses.txt").write_text("\n".join(BAD) + "\n")
    with pytest.raises(InputError, match=r"test.hypotheses.txt has bleu .*, metrics.json .*not of one run"):
        write_card(run, baseline=base)


BLOCKED = "import sys; sys.modules['residual_hf'] = None\n"


def test_every_way_of_use_runs(make_run):
    """Each in a process of its own beside a folder of the model's name; the first two without residual_hf."""
    run = make_run()
    text = text_of(write_card(run, model_name="small"))
    (run / "model").rename(run / "small")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    environment = {**os.environ, "HF_MODULES_CACHE": str(run / "modules"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for prefix, blocks_of_kind in ((BLOCKED, blocks[:2]), ("", blocks[2:])):
        code = prefix + "\n".join(blocks_of_kind)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=run, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == len(blocks_of_kind)


def test_carbon_is_hours_times_watts_times_intensity(make_run):
    path = write_card(make_run(), carbon_intensity=300)
    grams = 0.2 * 2 * 0.7 * 300  # hours, devices, kW of an H200, g per kWh
    assert ModelCard.load(path).data.co2_eq_emissions["emissions"] == pytest.approx(grams)
    assert "0.2 h x 2 x NVIDIA H200 x 700 W (the board power of its data sheet)" in text_of(path)


def test_carbon_of_an_unknown_device_needs_its_power(make_run):
    run = make_run()
    edit_json(run / "run.json", device="abacus", processes=1, seconds=3)
    with pytest.raises(InputError, match="device_power: missing; the power of device 'abacus' is not known"):
        write_card(run, carbon_intensity=300)
    with pytest.raises(InputError, match="device_power: 50 given without carbon_intensity"):
        write_card(run, device_power=50)
    text = text_of(write_card(run, carbon_intensity=300, device_power=50))
    assert "x 50 W (as stated)" in text and "- 3.0 seconds on abacus\n" in text


def test_learning_curve_is_drawn(make_run):
    pytest.importorskip("matplotlib", reason="the extra [card] is not installed")
    run = make_run()
    assert "(training_curve.png)" in text_of(write_card(run))
    assert (run / "model" / "training_curve.png").read_bytes().startswith(b"\x89PNG")
    path = write_card(run, output=run.parent / "cards" / "mine.md")
    assert "(mine.png)" in text_of(path) and path.with_name("mine.png").exists()


def test_card_without_matplotlib_says_where_the_curve_is(make_run, monkeypatch):
    monkeypatch.setattr(card_plot, "find_spec", lambda name: None)
    run = make_run()
    assert "The learning curve is in `metrics.jsonl`" in text_of(write_card(run))
    assert not list((run / "model").glob("*.png"))


def test_a_resumed_update_counts_once():
    records = [{"step": 10, "nll": 3.0}, {"step": 20, "nll": 2.5}, {"step": 10, "nll": 2.9}, {"step": 20, "lr": 1.0}]
    assert card_plot.series(records, "nll") == {10: 2.9, 20: 2.5}


def test_mode_that_is_not_imported_is_named_and_no_more(make_run):
    run = make_run()
    edit_json(run / "model" / "config.json", ln_mode="of_someone")
    path = write_card(run)
    assert ModelCard.load(path).data.tags == ["residual_hf", "of_someone"]
    assert "`ln_mode` **of_someone**." in text_of(path) and "Source:" not in text_of(path)


def test_several_corpora_are_scored_by_themselves(make_run):
    run = make_run()
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    spec = recipe["data"]["test"]
    recipe["data"]["test"] = [spec, spec | {"source_lang": "en", "target_lang": "de"}]
    recipe["data"]["bidirectional"] = True
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    reports = {"a de-en": score(GOOD, REFERENCES).as_dict(), "b en-de": score(BAD, REFERENCES).as_dict()}
    cleaning = {name: {"pairs": 9, "kept": 9, "dropped": {}} for name in ("a.de|a.en", "b.de|b.en")}
    write_json(run / "cleaning.json", cleaning)
    edit_json(run / "metrics.json", test={"nll": 2.0, "bleu": {"value": 33.333}, "corpora": reports})
    path = write_card(run)
    validate_card(path)
    found = [
        r for r in ModelCard.load(path).data.eval_results if r.dataset_split == "test" and r.metric_type == "bleu"
    ]
    assert [(r.dataset_name, r.metric_value) for r in found] == [
        (name, round(report["bleu"]["value"], 2)) for name, report in reports.items()
    ]
    assert "Mean over the 2 test sets: BLEU 33.33." in text_of(path)
    assert "Cleaning kept 9 of 9 training pairs of b.de, b.en." in text_of(path)
    assert "from `de` to `en`, `en` to `de`" in text_of(path)


def test_existing_card_is_kept_unless_asked(make_run):
    run = make_run()
    card = run / "model" / "README.md"
    card.write_text("mine")
    with pytest.raises(InputError, match=r"output: .*README.md exists; use --overwrite or another file"):
        write_card(run)
    assert card.read_text() == "mine"
    write_card(run, overwrite=True)
    assert card.read_text().startswith("---\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"license": "my-licence"}, "license: 'my-licence' given; allowed is an identifier of https://huggingface.co"),
        ({"license": "other"}, "license_name: missing"),
        ({"datasets": ["not an id"]}, r"datasets\[0\]: 'not an id' given"),
        ({"model_name": "a b"}, "model_name: 'a b' given"),
        ({"carbon_intensity": -1.0}, "carbon_intensity: -1.0 given, must be at least 0"),
        ({"output": "card.txt"}, "output: card.txt given, must be a file"),
    ],
)
def test_bad_statements_leave_no_card(make_run, options, message):
    run = make_run()
    with pytest.raises(InputError, match=message):
        write_card(run, **options)
    assert not list((run / "model").glob("*.md")) and not list((run / "model").glob("*.png"))


@pytest.mark.parametrize("missing", ["metrics.json", "recipe.yaml", "model/config.json"])
def test_unfinished_run_is_refused(make_run, missing):
    run = make_run()
    (run / missing).unlink()
    with pytest.raises(InputError, match=f"run has no {missing}"):
        write_card(run)


RESULT = {
    "task": {"type": "translation"},
    "dataset": {"type": "d", "name": "D"},
    "metrics": [{"type": "bleu", "value": 1.0}],
}
METADATA = {
    "language": ["de", "no"],
    "license": "mit",
    "library_name": "transformers",
    "pipeline_tag": "translation",
    "tags": ["residual_hf"],
    "model-index": [{"name": "m", "results": [RESULT]}],
}


def changed(**changes):
    return {"model-index": [{"name": "m", "results": [RESULT | changes]}]}


def write_metadata(path, metadata):
    path.write_text(f"---\n{yaml.safe_dump(metadata)}---\n# text\n", encoding="utf-8")
    return path


def test_good_metadata_pass(tmp_path):
    validate_card(write_metadata(tmp_path / "card.md", METADATA))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline_tag": None}, "pipeline_tag: missing"),
        ({"library_name": None}, "library_name: missing"),
        ({"language": ["de", False]}, r"language\[1\]: False given; allowed is a code of ISO 639"),
        ({"language": "German"}, "language: 'German' given"),
        ({"license": "apache"}, "license: 'apache' given"),
        ({"tags": "residual_hf"}, "tags: 'residual_hf' given; allowed is a list"),
        ({"base_model": "a/b/c"}, "base_model: 'a/b/c' given; allowed is an id on the Hub"),
        ({"co2_eq_emissions": {"emissions": "many"}}, "co2_eq_emissions.emissions: 'many' given"),
        ({"model-index": [{"results": [RESULT]}]}, r"model-index\[0\].name: missing"),
        ({"model-index": [{"name": "m", "results": []}]}, r"model-index\[0\].results: \[\] given"),
        (changed(task={}), r"model-index\[0\].results\[0\].task.type: missing"),
        (changed(dataset={"type": "d"}), r"model-index\[0\].results\[0\].dataset.name: missing"),
        (changed(metrics=[{"type": "bleu"}]), r"model-index\[0\].results\[0\].metrics\[0\].value: missing"),
        (changed(metrics=[{"type": "bleu", "value": float("nan")}]), r"metrics\[0\].value: nan given"),
    ],
)
def test_bad_metadata_are_named(tmp_path, change, message):
    metadata = {key: value for key, value in (METADATA | change).items() if value is not None}
    with pytest.raises(InputError, match=message):
        validate_card(write_metadata(tmp_path / "card.md", metadata))


def test_card_without_metadata_is_refused(tmp_path):
    (tmp_path / "card.md").write_text("# text\n")
    with pytest.raises(InputError, match="no metadata"):
        validate_card(tmp_path / "card.md")


def test_papers_are_those_that_the_modes_name():
    for name, mode in LN_MODES.items():
        if mode.__module__.startswith("residual_hf.") and "source" in vars(mode):
            author, year = re.match(r"(\w+).*? (\d{4})", mode.source).groups()
            papers = [re.search(r"author = \{+(.*?)( and |\},).*year = \{(\d+)\}", e, re.DOTALL) for e in bibtex(name)]
            assert "bibtex" in vars(mode)
            assert any(author in paper[1] and year == paper[3] for paper in papers), name


def test_a_mode_of_a_user_is_cited_by_its_own_entry():
    entry = "@misc{me2026highway,\n  title = {Highway},\n}"
    assert bibtex(type("Highway", (PreLN,), {"bibtex": entry})) == [entry]
    assert bibtex(type("Variant", (PreLN,), {"bibtex": (entry, "xie2023residual")}))[1].startswith(
        "@misc{xie2023residual,"
    )
    with pytest.raises(ValueError, match="bibtex: 'xie2022' is neither a BibTeX entry"):
        bibtex(type("Wrong", (PreLN,), {"bibtex": "xie2022"}))


def test_command_writes_a_card_and_refuses_with_a_reason(make_run, capsys):
    run = make_run()
    output = run.parent / "cards" / "small.md"
    arguments = ["card", str(run), "--name", "small", "--data-license", "CC BY 2.0 FR", "--output", str(output)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert "Licence of the data: CC BY 2.0 FR." in text_of(output)
    assert main(arguments) == 2
    assert "residual-hf card: output:" in capsys.readouterr().err


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_cards_of_this_repository_can_be_published(card):
    validate_card(card)
    assert card.with_suffix(".png").is_file()
    assert not FOLDERS.search(text_of(card))
