import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard
from support import ROOT
from support.finished_run import (
    BAD,
    GOOD,
    REFERENCES,
    content,
    corpus,
    edit_json,
    edit_recipe,
    score,
    write_json,
    write_lines,
)
from support.processes import run_forked

from residual_hf.base.errors import InputError
from residual_hf.hub.card import write_card
from residual_hf.model.connections import LN_MODES
from residual_hf.records import learning_curve as curve_module
from residual_hf.records.markdown import public
from residual_hf.records.run_folder import Run


def test_metadata_survive_the_reader_of_the_hub(make_run):
    run = make_run()
    path = write_card(run, model_name="de-en-small", license="cc-by-4.0", datasets=["someone/corpus"])
    assert path == run / "model" / "README.md"
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


def test_a_folder_names_the_model_unless_it_is_called_run(make_run):
    for folder, name in (("run", "de-en"), ("lr=0.001 #2", "lr=0.001 #2")):
        edit_recipe(run := make_run(folder), lambda recipe: recipe.update(source_lang="de", target_lang="en"))
        card = content(write_card(run))
        assert ModelCard(card).data.model_name == name and f"\n# {name.replace('#', chr(92) + '#')}\n" in card


def test_card_says_what_the_run_recorded(make_run, resamples):
    run = make_run()
    card = content(write_card(run))
    mode = LN_MODES["resi_dual"]
    facts = [
        *(mode.equation, mode.source, "123,456"),
        "one run, with seed 7",
        "testtesttest",
        "  train.de\n",
        f"Decoding the {len(REFERENCES)} lines of the test set took 1.5 seconds on NVIDIA H200.",
        f"| source | Satz 0 |\n| translation | {GOOD[0]} |\n| reference | {REFERENCES[0]} |",
        "| training | 30 | `train.de\\|train.en` |",
        "Cleaning kept 27 of 30 training pairs of `train.de|train.en`; removed: 3 duplicate.",
        "on 27 sentence pairs from random weights",
        *("Data: not stated.", "Weights: not stated."),
        "- 2 x NVIDIA H200, 12.0 minutes\n",
        "98,765 target tokens per second",
        "`residual-hf train recipe.yaml --set training.seed=7`",
        "lr: 0.004",
        "Beam search with 5 beams, length penalty 1.0.",
        "@misc{xie2023residual,",
    ]
    assert not [fact for fact in facts if fact not in card]
    assert "someone" not in card and "\n\n\n" not in card


def test_hyperparameters_are_those_with_a_value(make_run):
    def add_fields(recipe):
        recipe["training"].update(r_drop=0.0, compile=False, freeze=[], eps=None)
        recipe["data"].update(max_length=100, cleaning={"max_ratio": 4.0, "max_words": None})

    edit_recipe(run := make_run(), add_fields)
    shown = yaml.safe_load(content(write_card(run)).split("```yaml\n")[1].split("```")[0])
    training = {"average": 0, "lr": 0.004, "metric": "nll", "seed": 7, "r_drop": 0.0, "compile": False}
    assert shown["training"] == training and shown["data"] == {"max_length": 100, "cleaning": {"max_ratio": 4.0}}


def test_card_says_how_the_text_was_prepared_and_mixed(make_run):
    def prepare(recipe):
        genuine, synthetic = {"source": "/home/someone/a.de", "weight": 2.0}, {"tag": "<BT>", "weight": 1.0}
        recipe["data"] = {"pretokenized": "moses", "train": [genuine, synthetic], "valid": genuine}
        recipe["tokenizer"] = {"kind": "pretokenized", "path": "/home/someone/dict.txt"}

    assert "Moses" not in content(write_card(run := make_run()))
    edit_recipe(run, prepare)
    card = content(write_card(run, overwrite=True))
    for fact in ("text tokenized by Moses", "segmented into subwords", "train:\n", "- weight: 2.0\n", "- tag: <BT>\n"):
        assert fact in card, fact
    assert "someone" not in card and "scored as they are" not in card
    assert 'translate("A sent@@ ence in German .")' in card
    edit_recipe(run, lambda recipe: recipe["data"].pop("pretokenized"))
    assert "The words of the segmented files were scored as they are" in content(write_card(run, overwrite=True))


def test_interval_contains_the_score(make_run, resamples):
    tables = content(write_card(make_run())).split("**Validation set**")
    rows = re.findall(r"\| (BLEU|chrF|TER) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", tables[0])
    assert [row[0] for row in rows] == ["BLEU", "chrF", "TER"]
    assert all(float(low) < float(value) < float(high) for _, value, low, high in rows)
    assert " to " not in tables[1].split("Intervals")[0]


def test_ter_of_words_without_spaces_that_an_earlier_version_recorded_has_no_interval(make_run, resamples):
    run, lines = make_run(), {"hypotheses": "我们明天晚上去北京。", "references": "我们明天早上去北京。"}
    for name, line in lines.items():
        write_lines(run / f"test.{name}.txt", [line] * len(REFERENCES))
    scores = score([lines["hypotheses"]], [lines["references"]])
    scores["ter"] = {"value": 100.0, "signature": "nrefs:1|case:mixed|tok:tercom|norm:no|punct:yes|asian:no"}
    edit_json(run / "metrics.json", test={"sentences": len(REFERENCES), "seconds": 1.5, **scores})
    assert re.search(r"\| TER \| 100.00 \|  \| `nrefs", content(write_card(run)))


def test_scores_without_a_test_set_are_called_validation(make_run):
    path = write_card(make_run(splits=("train", "valid")))
    assert {result.dataset_split for result in ModelCard.load(path).data.eval_results} == {"validation"}
    assert "There was no test set. These are scores on the validation set" in content(path)
    assert "Test set" not in content(path)


def test_unknown_fields_are_omitted(make_run):
    run = make_run()
    write_json(run / "run.json", {"data": {"train": [corpus("train", sha256={}, pairs=None)]}})
    (run / "cleaning.json").unlink()
    card = content(write_card(run))
    absent = ["tokens per second", "commit", "Cleaning", "Emissions", "SHA-256", "| parameters", "None", "with seed"]
    assert not [fact for fact in (*absent, "- 1 x", "\n\n\n") if fact in card]
    assert "| training |  | `train.de" in card
    assert "license" not in ModelCard.load(run / "model" / "README.md").data.to_dict()


def test_what_the_model_was_trained_on_and_averaged_from(make_run):
    run = make_run()
    edit_recipe(run, lambda recipe: recipe["training"].update(average=10, average_of="last", precision="bf16"))
    edit_json(run / "run.json", averaged=3, precision="fp32", commit="1234+, then 5678")
    card = content(write_card(run))
    assert "was trained only on the data below and reproduces its errors" in card
    assert "- weights: average of the last 3 checkpoints" in card
    assert "\n- in fp32 (the recipe has bf16, in which this CPU does not train)\n" in card
    assert "\n- code at commit `1234`, with uncommitted changes, then `5678`\n" in card
    edit_recipe(run, lambda recipe: recipe.update(model={"from": "user/base"}))
    edit_json(run / "run.json", precision="bf16")
    card = content(write_card(run, overwrite=True))
    assert "was trained on the data below, after the training of `user/base`, and reproduces their errors" in card
    assert "\n- in bf16\n" in card
    assert ModelCard(card).data.base_model == "user/base"
    (run.parent / "user" / "base").mkdir(parents=True)  # a folder where the run began, not a name on the Hub
    assert ModelCard(content(write_card(run, overwrite=True))).data.base_model is None


def test_sentences_of_the_test_set_can_be_left_out(make_run):
    run = make_run()
    assert content(write_card(run, samples=2)).count("| reference |") == 2
    card = content(write_card(run, samples=0, overwrite=True))
    assert "| reference |" not in card and REFERENCES[0] not in card
    with pytest.raises(InputError, match="samples: -1 given, must be >= 0"):
        write_card(run, samples=-1, overwrite=True)


def test_a_resumed_run_has_a_card_without_its_duration_when_it_has_finished(make_run):
    run, emissions = make_run(), {"grams": 1.0, "kilowatt_hours": 1.0}
    edit_json(run / "run.json", resumed=["2026-01-01T00:00:00+00:00"], finished=None)
    with pytest.raises(InputError, match="was resumed and has not finished: continue it"):
        write_card(run)
    known = Run.read(run)
    assert known.metrics == {} and known.samples("test") == []  # those in the folder are of the model before
    edit_json(run / "run.json", finished="2026-01-02", emissions=emissions)
    assert Run.read(run).samples("test")
    card = content(write_card(run))
    assert not any(text in card for text in ("12.0 minutes", "tokens per second", "Emissions"))


def test_measured_emissions(make_run):
    emissions = {"grams": 84.0, "kilowatt_hours": 0.28, "country": "France", "codecarbon": "3"}
    edit_json((run := make_run()) / "run.json", emissions=emissions)
    path = write_card(run)
    assert ModelCard.load(path).data.co2_eq_emissions == {"emissions": 84.0, "source": "codecarbon"}
    assert "84 g CO2 equivalent for 0.28 kWh (France), measured during training with [codecarbon]" in content(path)


def test_no_intervals_without_references(make_run, caplog):
    run = make_run()
    (run / "test.references.txt").unlink()
    assert not re.search(r"[\d.]+ to [\d.]+ \||Intervals", content(write_card(run)))
    assert "test.references.txt" in caplog.text


def test_comparison_with_a_baseline(make_run, resamples):
    card = content(write_card(make_run(), baseline=make_run("base", BAD)))
    (row,) = re.findall(r"\| BLEU \| ([\d.]+) \| ([\d.]+) \| \+([\d.]+) \| ([\d.]+) \| (yes|no) \|", card)
    baseline, ours, difference, p = map(float, row[:4])
    assert ours - baseline == pytest.approx(difference, abs=0.011)
    assert p < 0.01 and row[4] == "yes"
    assert "The baseline is the run `base` (`resi_dual`)" in card and "koehn2004statistical" in card


def test_equal_translations_do_not_differ(make_run, resamples):
    card = content(write_card(make_run(), baseline=make_run("base")))
    assert re.search(r"\| BLEU \| [\d.]+ \| [\d.]+ \| \+0.00 \| 1.000 \| no \|", card)


def test_learning_curve_is_drawn(make_run, learning_curves):
    pytest.importorskip("matplotlib", reason="the extra [card] is not installed")
    run = make_run()
    assert "(training_curve.png)" in content(write_card(run))
    assert (run / "model" / "training_curve.png").read_bytes().startswith(b"\x89PNG")
    (run.parent / "cards").mkdir()
    path = write_card(run, output=run.parent / "cards" / "mine.md")
    assert "(mine.png)" in content(path) and path.with_name("mine.png").exists()
    path.with_name("photo.png").write_text("mine")
    with pytest.raises(InputError, match="photo.png exists; use --overwrite"):
        write_card(run, output=path.with_name("photo.md"))
    assert path.with_name("photo.png").read_text() == "mine" and not path.with_name("photo.md").exists()


DRAW = """
from residual_hf.records.learning_curve import learning_curve
assert learning_curve([{"step": 1, "nll": 2.0}, {"step": 2, "nll": 1.0}])
import matplotlib
print(matplotlib.get_backend())
"""


@pytest.mark.parametrize("backend", ["of_another_python", pytest.param("svg", marks=pytest.mark.slow)])
def test_learning_curve_needs_no_backend_and_keeps_that_of_jupyter(backend):
    pytest.importorskip("matplotlib", reason="the extra [card] is not installed")
    drawn_by = run_forked("-c", DRAW, MPLBACKEND=backend).stdout
    assert drawn_by == "svg\n" or backend != "svg"


def test_card_without_matplotlib_has_no_picture(make_run, learning_curves, monkeypatch):
    monkeypatch.setattr(curve_module, "find_spec", lambda name: None)
    run = make_run()
    assert "![" not in content(write_card(run))
    assert not list((run / "model").glob("*.png"))


def test_a_resumed_update_counts_once():
    records = [{"step": 10, "nll": 3.0}, {"step": 20, "nll": 2.5}, {"step": 10, "nll": 2.9}, {"step": 20, "lr": 1.0}]
    assert curve_module.series(records, "nll") == {10: 2.9, 20: 2.5}


def test_mode_that_is_not_imported_is_only_named(make_run):
    run = make_run()
    edit_json(run / "model" / "config.json", ln_mode="of_someone")
    path = write_card(run)
    assert ModelCard.load(path).data.tags == ["residual_hf", "of_someone"]
    assert "`ln_mode: of_someone`." in content(path) and "Source:" not in content(path)


def test_what_stacks_have_of_their_own_is_named(make_run):
    run, options = make_run(), {"dual_scale": 0.5}
    config = run / "model" / "config.json"
    edit_json(config, norm_type=None, decoder_norm_type="rms_norm", decoder_ln_mode_options=options)
    card = content(write_card(run))
    for row in ("| decoder norm | rms_norm |\n", "| decoder mode options | \\{'dual_scale': 0.5\\} |\n"):
        assert row in card
    edit_json(config, is_decoder_only=True, decoder_ln_mode="pre_ln")
    path = write_card(run, overwrite=True)
    assert ModelCard.load(path).data.tags == ["residual_hf", "pre_ln"] and "resi_dual" not in content(path)


def test_several_corpora_are_scored_separately(make_run):
    run = make_run()
    edit_recipe(run, lambda recipe: recipe["data"].update(bidirectional=True))
    reports = {"a de-en": score(GOOD, REFERENCES), "b en-de": score(BAD, REFERENCES)}
    write_json(run / "cleaning.json", {name: {"pairs": 9, "kept": 9, "dropped": {}} for name in ("a.de", "b.de")})
    edit_json(run / "metrics.json", test={"nll": 2.0, "bleu": {"value": 33.333}, "corpora": reports})
    path = write_card(run)
    results = ModelCard.load(path).data.eval_results
    found = {r.dataset_name: r.metric_value for r in results if (r.dataset_split, r.metric_type) == ("test", "bleu")}
    assert found == {name: round(report["bleu"]["value"], 2) for name, report in reports.items()}
    assert "**Test set** (`mean of 2 corpora`)" in content(path) and "| BLEU | 33.33 |" in content(path)
    assert "Cleaning kept 9 of 9 training pairs of `b.de`." in content(path)
    assert "Translates German to English, English to German: a Transformer" in content(path)


@pytest.mark.parametrize(("language", "best"), [("de", "a WER of 100.0 %"), ("ja", "a CER of 12.5 %")])
def test_the_first_sentence_has_the_error_rate_that_means_something(make_run, language, best):
    run = make_run()
    edit_recipe(run, lambda recipe: recipe.update(task="speech_recognition"))
    speech = corpus("train", source_lang=language, target_lang=language)
    edit_json(run / "run.json", data={"train": [speech], "test": [speech]})
    edit_json(run / "metrics.json", test={"wer": {"value": 100.0}, "cer": {"value": 12.5}})
    assert f"with {best} on the test set" in content(write_card(run))


def test_results_of_further_metrics_are_shown(make_run):
    run = make_run()
    results = {"/home/me/rouge": {"rougeL": 0.51234}}
    edit_json(run / "metrics.json", test=score(GOOD, REFERENCES) | {"metrics": results})
    card = content(write_card(run))
    assert "| `rouge` `rougeL` | 0.5123 | | |" in card and "/home" not in card


def test_cards_of_this_repository():
    for path in (ROOT / "model_cards").glob("*.md"):
        if path.name != "README.md":
            card = ModelCard.load(path)
            assert card.data.model_name == path.stem and path.with_suffix(".png").is_file()
            assert public(card.text) == card.text
