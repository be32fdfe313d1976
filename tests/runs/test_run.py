"""The main path end to end, on a corpus of a few dozen made-up sentences."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.files import read_json_lines, same_weights, write_metric
from support.recipes import changed, make_recipe
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import residual_hf
from residual_hf.base.errors import InputError
from residual_hf.runs.run import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, train(make_recipe(folder))


def test_run_folder_is_complete(finished):
    folder, metrics = finished
    run = folder / "run"
    assert json.loads((run / "metrics.json").read_text()) == metrics
    assert metrics["updates"] == 60
    weights = [*run.rglob("*.safetensors")]
    assert {path.stat().st_mode for path in weights} == {(run / "run.json").stat().st_mode} and len(weights) > 1
    assert "ln_mode" in (run / "model" / "README.md").read_text()
    for split, size in (("valid", 12), ("test", 9)):
        assert "version:" in metrics[split]["bleu"]["signature"]
        assert metrics[split]["nll"] > 0 and metrics[split]["chrf"]["value"] >= 0
        assert len((run / f"{split}.hypotheses.txt").read_text().splitlines()) == size
        references = (folder / f"{split}.de").read_text()
        assert (run / f"{split}.references.txt").read_text() == references
    records = read_json_lines(run / "metrics.jsonl")
    assert {"loss", "nll", "ppl", "learning_rate"} <= set(records[0])
    assert any("eval_nll" in record for record in records)
    assert "update 60" in (run / "train.log").read_text()
    assert list((run / "model").glob("*.safetensors"))


def test_log_says_what_happens_and_shows_translations(finished):
    folder, metrics = finished
    log = (folder / "run" / "train.log").read_text()
    stages = ["training a tokenizer: bpe, 330 entries", "tokenizing train: 300 pairs", "training: update 1 to 60"]
    stages += ["update 5 of 60, ", "update 60 of 60, 0 s left", "scoring the model on test: 9 sentences, beam size 2"]
    assert [log.find(stage) >= 0 for stage in stages] == [True] * len(stages)
    for line in (1, 7, 12):
        assert log.count(f"validation sentence {line}\n") == 2  # of two evaluations
    source, reference = ((folder / f"valid.{language}").read_text().splitlines()[6] for language in ("en", "de"))
    assert f"  source:      {source}\n  reference:   {reference}\n  translation: " in log
    assert re.search(r" nll [\d.]+, best [\d.]+ at update (30|60)\n", log)


def test_saved_model_is_the_one_that_was_scored(finished):
    folder, metrics = finished
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "model")
    translator = residual_hf.Translator.from_pretrained(folder / "run" / "model")
    sources = (folder / "test.en").read_text().splitlines()
    hypotheses = (folder / "run" / "test.hypotheses.txt").read_text().split("\n")[:-1]
    assert translator.translate(sources) == hypotheses
    piped = pipeline("translation", model=model, tokenizer=tokenizer)(sources, max_new_tokens=40)
    assert [p["translation_text"] for p in piped] == hypotheses
    references = (folder / "test.de").read_text().splitlines()
    batch = tokenizer(sources, text_target=references, padding=True, return_tensors="pt")
    labels = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
    with torch.no_grad():
        nll = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.item()
    assert nll == pytest.approx(metrics["test"]["nll"], rel=1e-4)


def test_tokenizer_truncates_to_what_the_model_reads(finished):
    model = finished[0] / "run" / "model"
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    encoded = AutoTokenizer.from_pretrained(model)("dog " * 1000, text_target="hund " * 1000, truncation=True)
    assert (len(encoded["input_ids"]), len(encoded["labels"])) == (positions, positions)


def test_existing_folder_is_refused_and_kept(finished):
    folder, metrics = finished
    with pytest.raises(InputError, match=r"output_dir: .*run exists and is not empty; use --overwrite, --resume"):
        train(make_recipe(folder))
    assert json.loads((folder / "run" / "metrics.json").read_text()) == metrics


def test_interrupted_run_resumes_to_the_same_weights(tmp_path, finished, interrupted):
    """A run that is interrupted after update 6 and resumed ends with bitwise the same weights."""
    recipe = make_recipe(tmp_path)
    interrupted(recipe, 6)
    assert not (tmp_path / "run" / "model").exists()
    metrics = train(recipe, resume=True)
    assert metrics["updates"] == 60
    assert same_weights(*(folder / "run" / "model" / "model.safetensors" for folder in (finished[0], tmp_path)))


def test_an_interrupted_run_averages_the_checkpoints_of_one_that_was_not(tmp_path, interrupted):
    recipe = make_recipe(tmp_path, max_updates=6, eval_every=3, average=2, keep_last=2, eval_bleu=False)
    train(recipe)
    resumed = replace(recipe, output_dir=tmp_path / "resumed")
    interrupted(resumed, 3)
    train(resumed, resume=True)
    assert same_weights(*(tmp_path / name / "model" / "model.safetensors" for name in ("run", "resumed")))


def test_a_short_run_averages_the_checkpoints_it_has(tmp_path, caplog):
    recipe = make_recipe(tmp_path, max_updates=4, eval_every=2, average=5, keep_last=5, eval_bleu=False)
    train(recipe)
    assert "5 last checkpoints requested, but only 2 were kept: averaging these" in caplog.text
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    one, two, mean = (load_file(f / "model.safetensors") for f in (*checkpoints, tmp_path / "run" / "model"))
    name = "model.encoder.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(mean[name], (one[name] + two[name]) / 2)


def test_separate_vocabularies(tmp_path):
    recipe = make_recipe(tmp_path, max_updates=2, eval_every=2)
    train(changed(recipe, "tokenizer", joint=False, min_frequency=10_000))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert not model.config.share_encoder_decoder_embeddings
    assert model.config.decoder_vocab_size == tokenizer.target_vocab_size
    letters = set((tmp_path / "train.en").read_text()) - {" ", "\n"}
    assert len(tokenizer) == 4 + 256 + len(letters | {"▁"})  # no pair is frequent enough to be merged
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train.de").unlink(), r"no such file: .*train\.de"),
        (lambda f: (f / "test.en").write_bytes(b"caf\xe9\n" * 9), r"test\.en.*line 1"),
        (
            lambda f: (f / "test.en").write_text("dog " * 90 + "\n" + "dog\n" * 8),
            r"data\.test: .*test\.en: line 1 has \d+ tokens, but the model reads at most 64",
        ),
    ],
    ids=["missing file", "encoding", "too long"],
)
def test_bad_corpora_are_refused_before_training(tmp_path, damage, message):
    recipe = make_recipe(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        train(recipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("training", "model", "message"),
    [
        ({"max_tokens": 300, "tokens_per_update": 1000}, {}, "training.tokens_per_update: 1000 given, must be a mult"),
        ({"freeze": ["model.encodr.*"]}, {}, "training.freeze: 'model.encodr.*' matches nothing; there are model.enc"),
        ({"r_drop": 5.0}, {"dropout": 0.0}, "training.r_drop: the model has no dropout"),
    ],
)
def test_training_that_does_not_fit_the_model_is_refused_before_the_text_is_read(tmp_path, training, model, message):
    recipe = make_recipe(tmp_path, **training)
    recipe.model.update(model)
    (tmp_path / "train.en").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=re.escape(message)):
        train(recipe)
    assert not (tmp_path / "run").exists()


def test_training_corpus_is_cleaned_and_the_report_written(tmp_path):
    recipe = make_recipe(tmp_path, max_updates=2, eval_every=2, eval_bleu=False)
    pairs = [{"translation": {"en": f"a\ndog {n}", "de": f"ein\nHund {n}"}} for n in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    test = {"jsonl": str(tmp_path / "test.jsonl"), "source_lang": "en", "target_lang": "de"}
    train(changed(recipe, "data", cleaning={"min_words": 3, "duplicates": "pair"}, test=test))
    texts = [(tmp_path / "run" / f"test.{kind}.txt").read_text() for kind in ("sources", "references", "hypotheses")]
    assert [text.count("\n") for text in texts] == [3, 3, 3] and texts[0].startswith("a dog 0\n")
    report = json.loads((tmp_path / "run" / "cleaning.json").read_text())
    assert report["pairs"] == 300 and report["kept"] < 300
    assert set(report["dropped"]) == {"too short", "duplicate"}
    assert f"cleaning: kept {report['kept']} of 300 pairs" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        pytest.param("bpe", {"bpe_dropout": 0.3}, marks=pytest.mark.slow),
        ("unigram", {"unigram_alpha": 0.2, "sides": "source"}),
    ],
)
def test_segmentation_is_drawn_anew_in_every_epoch_and_resumes(tmp_path, kind, sampling):
    def sampled(name, **training):
        recipe = make_recipe(tmp_path / name, eval_bleu=False, eval_every=10, **training)
        data = replace(recipe.data, subword_regularization=sampling)
        return replace(recipe, data=data, tokenizer={"kind": kind, "vocab_size": 330})

    train(sampled("whole", max_updates=20))
    parts = sampled("parts", max_updates=10)
    train(parts)
    train(changed(parts, "training", max_updates=20), resume=True)
    last = "run/checkpoints/checkpoint-20/model.safetensors"
    assert same_weights(tmp_path / "whole" / last, tmp_path / "parts" / last)


def test_trackers_by_name_get_the_figures_of_a_run(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra [trackers] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(make_recipe(tmp_path, max_updates=2, eval_every=2, report_to=["tensorboard"]))

    (folder,) = (tmp_path / "run" / "checkpoints" / "runs").iterdir()
    assert {"train/nll", "eval/bleu"} <= set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])


def test_emissions_are_measured_and_shown_in_the_card(tmp_path):
    pytest.importorskip("codecarbon", reason="the extra [energy] is not installed")
    train(make_recipe(tmp_path, max_updates=2, eval_every=2, eval_bleu=False, report_to=["codecarbon"]))
    emissions = json.loads((tmp_path / "run" / "run.json").read_text())["emissions"]
    assert emissions["grams"] > 0 and emissions["kilowatt_hours"] > 0 and emissions["codecarbon"]
    assert "## Emissions" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_further_metrics_of_a_recipe_are_in_the_final_scores(tmp_path):
    recipe = make_recipe(tmp_path, max_updates=2, eval_every=2)
    missing = changed(recipe, "evaluation", metrics=("no_such_metric",))
    with pytest.raises(InputError, match="evaluation.metrics: 'no_such_metric' cannot be loaded"):
        train(missing)
    assert not (tmp_path / "run").exists()
    counts = '"words": sum(len(line.split()) for line in inputs["sources"]), "lines": len(inputs["predictions"])'
    write_metric(tmp_path / "count.py", '"sources": text, "predictions": text', counts)
    metrics = train(changed(recipe, "evaluation", metrics=(str(tmp_path / "count.py"),), tokenize="char"))
    words = len((tmp_path / "test.en").read_text().split())
    assert metrics["test"]["metrics"] == {str(tmp_path / "count.py"): {"words": words, "lines": 9.0}}
    assert "tok:char" in metrics["test"]["bleu"]["signature"]
    assert "| `count.py` `lines` | 9 |" in (tmp_path / "run" / "model" / "README.md").read_text()


@pytest.mark.parametrize(("updates", "epochs", "expected"), [(100, 2, 14), (9, 2, 9)])
def test_updates_or_epochs_whichever_comes_first(tmp_path, updates, epochs, expected):
    limits = {"max_updates": updates, "max_epochs": epochs}
    schedule = {"schedule": "linear", "warmup_updates": 1, "log_every": 1}
    assert train(make_recipe(tmp_path, **limits, **schedule, eval_every=50, eval_bleu=False))["updates"] == expected
    log = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates[-1] == pytest.approx(rates[1] / (expected - 1))  # the schedule ends where training does


@pytest.mark.parametrize(
    "settings",
    [
        {"ema_decay": 0.5},
        {"patience": 1, "lr": 1e-30, "warmup_init_lr": 0.0, "max_updates": 90},
        {"max_epochs": 1, "max_updates": 90},
    ],
)
def test_a_run_killed_after_its_last_checkpoint_ends_with_the_same_weights(tmp_path, settings):
    recipe = make_recipe(tmp_path, **{"max_updates": 12, "eval_every": 6, "eval_bleu": False, **settings})
    whole = train(recipe)
    assert whole["updates"] < 90
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "metrics.json").unlink()
    again = train(recipe, resume=True)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert again["updates"] == whole["updates"] and again["valid"]["nll"] == whole["valid"]["nll"]
