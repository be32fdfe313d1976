"""What may change when a run is resumed, and what it then does."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from support.files import content, flip, read_json_lines, same_weights
from support.recipes import SMALL, changed, make_recipe
from transformers import AutoTokenizer, TrainerState

from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json, write_atomically
from residual_hf.base.modes import import_modes
from residual_hf.checkpoint import load_checkpoint
from residual_hf.cli import main
from residual_hf.data.pipeline import read_corpora
from residual_hf.data.shortlist import load_shortlist
from residual_hf.model import connections
from residual_hf.model.checksums import write_checksums
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.options import from_mapping
from residual_hf.native import instruction_set, library
from residual_hf.records.run_record import RunRecord
from residual_hf.runs import final_model
from residual_hf.runs import run as run_module
from residual_hf.runs.final_model import average_run
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.resuming import check_same_run, has_finished, warn_about_scores
from residual_hf.runs.run import train
from residual_hf.runs.warm_start import load_start
from residual_hf.training.callbacks import is_out_of_patience
from residual_hf.training.trainer import is_finished
from residual_hf.training.training_settings import TrainingSettings


def check(recipe, folder):
    check_same_run(recipe, read_corpora(recipe.data), folder)


def test_what_may_change_is_taken(run):
    recipe, folder = run  # the corpora are elsewhere than before
    more = {"max_updates": 9, "max_epochs": 3, "patience": 5, "eval_every": 3, "keep_last": 4}
    recipe = changed(changed(recipe, "training", **more), "decoding", num_beams=1)
    check(changed(recipe, "data", test=None), folder)
    with pytest.raises(InputError, match="training.max_updates: 3 given, but 4 updates are made"):
        check(changed(recipe, "training", max_updates=3), folder)


def test_the_text_of_a_language_model_may_be_elsewhere_but_its_window_changes_scores(tmp_path, caplog):
    path, values = tmp_path / "a", make_recipe(tmp_path).as_dict()
    path.write_text("a dog\n")
    corpus = {"text": str(path)}
    values |= {"task": "language_modeling", "language": "en", "source_lang": None, "target_lang": None}
    values |= {"data": {"train": corpus, "valid": corpus}, "training": {"max_updates": 1, "label_smoothing": 0.0}}
    values |= {"training": values["training"] | {"warmup_updates": 0, "max_tokens": 64}}
    folder = started(from_mapping(Recipe, values))
    corpus["text"] = str(path.rename(tmp_path / "b"))
    recipe = from_mapping(Recipe, values)
    check(recipe, folder)
    warn_about_scores(recipe, folder)
    assert not caplog.text
    warn_about_scores(changed(recipe, "evaluation", context_window=3), folder)
    assert "evaluation.context_window: 0, now 3: the nll of earlier checkpoints was measured otherwise" in caplog.text


def test_differences_are_listed_and_nothing_is_written(run):
    recipe, folder = run
    before = content(folder)
    other = changed(recipe, "training", lr=0.5, seed=7, max_updates=9)
    other = replace(changed(other, "tokenizer", vocab_size=400), model=recipe.model | {"dropout": 0.3})
    text = folder.parent / "train.en"
    text.write_text(text.read_text().replace("dog", "cat"))
    with pytest.raises(InputError) as refused:
        train(other, resume=True)
    for difference in (
        "data.train: other text",
        "model.dropout: 0.1, now 0.3",
        "tokenizer.vocab_size: 330, now 400",
        "training.lr: 0.01, now 0.5",
        "training.seed: 1, now 7",
    ):
        assert difference in str(refused.value)
    assert "max_updates" not in str(refused.value)
    assert f"set model.from: {folder} and another output_dir" in str(refused.value)
    assert content(folder) == before
    other = from_mapping(Recipe, recipe.as_dict() | {"target_lang": "fr"})
    with pytest.raises(InputError, match="started differently: .*target_lang: 'de', now 'fr'"):
        check(other, folder)
    (folder / "model").rename(folder / "other")
    last = max((folder / "checkpoints").iterdir())
    with pytest.raises(InputError, match=f"model.from: {last} "):
        check(changed(recipe, "training", lr=0.5), folder)
    load_start(str(last), {})


def test_another_tokenizer_is_refused(run):
    recipe, folder = run
    path = folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(InputError, match="tokenizer: other files"):
        check(recipe, folder)
    path.unlink()
    with pytest.raises(InputError, match="run/tokenizer has no tokenizer_config.json"):
        check(recipe, folder)


def started(recipe):
    """The folder of a run that has read its corpora."""
    folder = Path(recipe.output_dir)
    folder.mkdir()
    run_module.record_start(recipe, read_corpora(recipe.data), folder)
    return folder


def test_a_streamed_corpus_may_be_elsewhere_but_has_the_same_lines_in_the_same_order(tmp_path):
    recipe = changed(make_recipe(tmp_path / "a", **SMALL), "data", stream=True)
    folder = started(recipe).rename(tmp_path / "run")
    (tmp_path / "a").rename(tmp_path / "b")
    moved = replace(changed(make_recipe(tmp_path / "b", **SMALL), "data", stream=True), output_dir=str(folder))
    check(moved, folder)
    lines = {name: (tmp_path / "b" / name).read_text().splitlines(keepends=True) for name in ("train.en", "train.de")}
    for change in (lambda read: [*read, "dog\n"], lambda read: read[::-1]):
        for name, read in lines.items():
            (tmp_path / "b" / name).write_text("".join(change(read)))
        with pytest.raises(InputError, match="data.train: other text"):
            check(moved, folder)


def test_a_glossary_may_be_elsewhere_and_is_the_same(tmp_path):
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("dog\tHund\n")
    recipe = changed(make_recipe(tmp_path, **SMALL), "data", glossary=str(glossary))
    folder = started(recipe)
    moved = glossary.rename(tmp_path / "moved.tsv")
    recipe = changed(recipe, "data", glossary=str(moved))
    check(recipe, folder)
    moved.write_text("dog\tKöter\n")
    with pytest.raises(InputError, match="data.glossary: other text"):
        check(recipe, folder)


def test_another_number_of_processes_is_refused_unless_updates_stay_the_same(run):
    recipe, folder = run
    RunRecord.update(folder, processes=2)
    with pytest.raises(InputError, match="started differently: processes: 2, now 1"):
        check(recipe, folder)
    recipe = changed(recipe, "training", tokens_per_update=600)
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict()))
    check(recipe, folder)


def test_a_model_folder_that_cannot_be_replaced_is_found_at_the_start(run):
    recipe, folder = run
    (folder / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"run/model has no model\.safetensors"):
        train(changed(recipe, "training", max_updates=6), resume=True)
    assert not (folder / "checkpoints" / "checkpoint-6").exists()


def test_entries_after_the_last_checkpoint_are_logged_once(run):
    recipe, folder = run
    file = folder / "metrics.jsonl"
    with file.open("a") as log:
        log.write('{"step": 5, "loss": 9.0}\n{"step": 6, "lo')  # as a killed process leaves it
    (folder / ".replaced.killed").mkdir()  # by a process that was to overwrite the folder
    train(changed(recipe, "training", max_updates=6), resume=True)
    assert not (folder / ".replaced.killed").exists()
    entries = read_json_lines(file)
    assert [entry["step"] for entry in entries] == sorted(entry["step"] for entry in entries)
    assert not any(entry.get("loss") == 9.0 for entry in entries)


def test_a_card_that_somebody_has_changed_is_kept(run, caplog):
    recipe, folder = run
    train(changed(recipe, "decoding", num_beams=1), resume=True)
    assert "is not as the run wrote it" not in caplog.text
    card = folder / "model" / "README.md"
    card.write_text(f"{card.read_text()}\n## Contact\n")
    train(changed(recipe, "decoding", num_beams=3), resume=True)
    (kept,) = folder.glob("README.*.md")
    assert kept.read_text().endswith("## Contact\n") and "Contact" not in card.read_text()
    assert f"it is kept as {kept}" in caplog.text


def test_a_folder_to_resume_must_be_a_run(tmp_path):
    recipe = make_recipe(tmp_path, **SMALL)
    with pytest.raises(InputError, match=r"run has no run\.json, must be the folder of a run; start .* without --res"):
        train(recipe, resume=True)
    assert not (tmp_path / "run").exists()


def test_scores_that_cannot_be_compared_are_named(run, caplog):
    recipe, folder = run
    warn_about_scores(changed(recipe, "training", eval_beams=3), folder)  # of NLL, which has no search
    assert not caplog.text
    bleu = changed(recipe, "training", metric="bleu", eval_bleu=True)
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(bleu.as_dict()))
    warn_about_scores(bleu, folder)
    assert not caplog.text
    warn_about_scores(changed(bleu, "training", eval_beams=3), folder)
    warn_about_scores(changed(bleu, "decoding", length_penalty=3.0), folder)
    for change in ("training.eval_beams: 1, now 3", "decoding.length_penalty: 1.0, now 3.0"):
        assert f"{change}: the bleu of earlier checkpoints was measured otherwise" in caplog.text


def test_a_run_stopped_by_patience_goes_on_with_more(tmp_path):
    settings = {"lr": 1e-30, "warmup_init_lr": 0.0, "max_updates": 12, "eval_every": 2, "eval_bleu": False}
    recipe = make_recipe(tmp_path, patience=1, **settings)
    assert train(recipe)["updates"] == 4
    assert train(changed(recipe, "training", patience=3), resume=True)["updates"] == 8


def test_a_run_that_stops_after_its_minutes_goes_on_when_it_is_resumed(tmp_path, caplog):
    settings = {"max_updates": 3, "eval_every": 3, "eval_bleu": False}
    whole, recipe = make_recipe(tmp_path / "a", **settings), make_recipe(tmp_path / "b", max_minutes=1e-9, **settings)
    train(whole)
    folder = Path(recipe.output_dir)
    assert train(recipe)["updates"] == 1
    assert "training.max_minutes: stopped at update 1 of 3; --resume trains on" in caplog.text
    load_checkpoint(folder / "model")
    assert train(recipe, resume=True)["updates"] == 2
    assert train(changed(recipe, "training", max_minutes=None), resume=True)["updates"] == 3
    last = "checkpoints/checkpoint-3/model.safetensors"
    assert (folder / last).read_bytes() == Path(whole.output_dir, last).read_bytes()
    assert not RunRecord.read(folder).out_of_time


def test_the_precisions_and_commits_of_all_starts_are_recorded(run, monkeypatch, caplog):
    recipe, folder = run
    first = RunRecord.read(folder)
    RunRecord.update(folder, seconds=6000.0)
    monkeypatch.setattr("residual_hf.records.recording.device_name", lambda: "a CPU, 9 threads")
    monkeypatch.setattr("residual_hf.runs.resuming.device_name", lambda: "a CPU, 9 threads")
    assert RunRecord.read(folder).precision == "fp32"
    RunRecord.update(folder, commit="1234+")
    monkeypatch.setattr("residual_hf.records.recording.commit", lambda: "5678")
    monkeypatch.setattr("residual_hf.training.trainer.cpu_precision", lambda precision: "bf16")
    monkeypatch.setattr("residual_hf.training.acceleration.cpu_precision", lambda precision: "fp32")
    for updates in (6, 8):
        train(changed(recipe, "training", max_updates=updates), resume=True)
        record = RunRecord.read(folder)
        assert (record.precision, record.commit) == ("fp32, then bf16", "1234+, then 5678")
        assert record.commits == ["1234+", "5678"]
        assert record.device == f"{first.device}, then a CPU, 9 threads"
    assert 6000 < record.seconds < 6300 and read_json(folder / "metrics.json")["minutes"] >= 100
    assert caplog.text.count("will differ in their last digits") == 1  # at the first of the two
    assert f"device: {first.device}, now a CPU, 9 threads" in caplog.text


def test_other_kernels_are_recorded_and_named(run, monkeypatch, caplog):
    recipe, folder = run
    first = RunRecord.read(folder).kernels
    assert first.split(",")[0] == instruction_set()
    monkeypatch.setattr("residual_hf.records.recording.instruction_set", lambda: "other")
    train(changed(recipe, "training", max_updates=6), resume=True)
    other = f"other,{first.partition(',')[2]}"
    assert RunRecord.read(folder).kernels == f"{first}, then {other}"
    assert f"another order (kernels: {first}, now {other})" in caplog.text


def test_the_file_of_a_mode_that_has_changed_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    file = tmp_path / "own_plus.py"
    file.write_text(
        "from residual_hf import register_ln_mode\nfrom residual_hf.model.ln_modes import PostLN\n"
        "@register_ln_mode('own_plus')\nclass OwnPlus(PostLN):\n    pass\n"
    )
    import_modes(file)
    recipe = make_recipe(tmp_path)
    recipe = replace(recipe, model=recipe.model | {"ln_mode": "own_plus"})
    train(changed(recipe, "training", max_updates=2))
    train(changed(recipe, "training", max_updates=4), resume=True)
    assert "its file has changed" not in caplog.text
    file.write_text(file.read_text() + "# another\n")
    train(changed(recipe, "training", max_updates=6), resume=True)
    sys.modules.pop("own_plus")
    assert "ln_mode own_plus: its file has changed since the run was started" in caplog.text


def test_a_resumed_run_evaluates_and_logs_as_often_as_its_recipe_says(run):
    recipe, folder = run
    train(changed(recipe, "training", max_updates=12, eval_every=4, log_every=3, keep_last=9), resume=True)
    entries = read_json_lines(folder / "metrics.jsonl")
    assert [entry["step"] for entry in entries if "eval_nll" in entry] == [2, 4, 8, 12]
    assert [entry["step"] for entry in entries if "loss" in entry and entry["step"] > 4] == [6, 9, 12]


def test_a_scored_run_is_scored_again(tmp_path):
    recipe = make_recipe(tmp_path, diagnostics={"every": 2}, **SMALL)
    train(recipe)
    log = tmp_path / "run" / "metrics.jsonl"
    entries = read_json_lines(log)
    with log.open("a") as file:
        file.write('{"step": 4, "valid_')  # as when the disk is full
    train(changed(recipe, "decoding", num_beams=1), resume=True)
    assert [entry.keys() for entry in read_json_lines(log)] == [entry.keys() for entry in entries]


def test_a_tokenizer_and_a_starting_model_may_have_moved(finished, tmp_path):
    (first, second), model = (tmp_path / "first", tmp_path / "second"), finished[1] / "run" / "model"
    shutil.copytree(model, first)
    values = make_recipe(tmp_path, **SMALL).as_dict()
    recipe = from_mapping(Recipe, values | {"model": {"from": str(first)}, "tokenizer": {"path": str(first)}})
    train(recipe)
    more = changed(changed(recipe, "training", max_updates=5), "tokenizer", path=str(model))
    with pytest.raises(InputError, match="tokenizer.path: "):
        train(more, resume=True)  # another one, while the first is there
    first.rename(second)
    values = more.as_dict() | {"model": {"from": str(second)}, "tokenizer": {"path": str(second)}}
    assert train(from_mapping(Recipe, values), resume=True)["updates"] == 5


def test_patience_counts_evaluations_since_the_best():
    values = enumerate((3.0, 2.0, float("nan"), 2.0, 2.5), start=1)
    history = [{"step": step, "eval_nll": value, "eval_bleu": value} for step, value in values] + [{"loss": 1.0}]
    assert is_out_of_patience(history, 3, "nll") and not is_out_of_patience(history, 4, "nll")
    assert is_out_of_patience(history[:2], 1, "bleu") and not is_out_of_patience(history[:2], None, "bleu")
    assert not is_out_of_patience([], 1, "nll")
    state = TrainerState(log_history=history, global_step=5)
    settings = [TrainingSettings(max_updates=10, warmup_updates=1, patience=patience) for patience in (3, 4, None)]
    assert [is_finished(state, each) for each in settings] == [True, False, False]


def test_the_model_is_saved_before_it_is_scored_and_scoring_is_resumed(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("scoring failed")

    recipe = make_recipe(tmp_path, **SMALL)
    monkeypatch.setattr(final_model, "final_scores", fail)
    with pytest.raises(RuntimeError, match="scoring failed"):
        train(recipe)
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    monkeypatch.undo()
    metrics = train(recipe, resume=True)
    assert metrics["updates"] == 4 and metrics["test"]["bleu"]
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights


def test_a_finished_run_stays_as_it_is_unless_something_has_changed(run, caplog):
    recipe, folder = run
    train(changed(recipe, "decoding", num_beams=1), resume=True)  # scores again
    before = content(folder)
    metrics = train(changed(recipe, "decoding", num_beams=1), resume=True)
    assert content(folder) == before and metrics == read_json(folder / "metrics.json")
    assert "has finished, and the recipe is the same" in caplog.text
    elsewhere = make_recipe(shutil.copytree(folder.parent, folder.parents[1] / "elsewhere"), **SMALL)
    assert has_finished(changed(elsewhere, "decoding", num_beams=1), read_corpora(elsewhere.data), folder)
    of_run = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(of_run.replace("  max_minutes: null\n", ""))  # of a version without this field
    assert (folder / "recipe.yaml").read_text() != of_run
    assert has_finished(changed(elsewhere, "decoding", num_beams=1), read_corpora(elsewhere.data), folder)
    weights = folder / "model" / "model.safetensors"
    flip(weights)
    assert not has_finished(changed(recipe, "decoding", num_beams=1), read_corpora(recipe.data), folder)
    assert "model.safetensors is damaged" in caplog.text and "made again from the checkpoints" in caplog.text
    text = folder.parent / "test.de"
    text.write_text(text.read_text().replace("Hund", "Wolf"))
    assert train(changed(recipe, "decoding", num_beams=1), resume=True)["test"] != metrics["test"]
    assert weights.read_bytes() == before["model/model.safetensors"]


def test_training_pairs_that_another_version_makes_of_the_same_text_are_refused(run, monkeypatch):
    recipe, folder = run
    more = changed(recipe, "training", max_updates=6)
    before = content(folder / "checkpoints")
    monkeypatch.setattr("residual_hf.data.pipeline.mix", lambda corpus, *settings: corpus.select(range(9)))
    with pytest.raises(InputError, match="--resume: .*run was trained with other pairs, made from the same text"):
        train(more, resume=True)
    assert content(folder / "checkpoints") == before


def test_a_finished_run_without_its_checkpoints_is_not_trained_again(run):
    recipe, folder = run
    for deleted in ("checkpoints/checkpoint-4", "checkpoints"):
        shutil.rmtree(folder / deleted)
        before = content(folder)
        with pytest.raises(InputError, match="has finished, but has no checkpoint of update 4.* set model.from"):
            train(changed(recipe, "decoding", num_beams=1), resume=True)
        assert content(folder) == before
    assert train(recipe, resume=True) == read_json(folder / "metrics.json")


def test_a_run_of_fp16_goes_on_without_a_gpu(run):
    recipe, folder = run
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    torch.save({"scale": 2.0}, checkpoint / "scaler.pt")
    write_checksums(checkpoint)
    assert train(changed(recipe, "training", max_updates=5), resume=True)["updates"] == 5


def test_the_first_process_of_a_run_that_is_scored_again_is_not_that_of_its_checkpoint(run):
    recipe, folder = run
    remember_as_best(folder, is_world_process_zero=False)
    train(changed(recipe, "decoding", num_beams=1), resume=True)
    assert "test_loss" in read_json_lines(folder / "metrics.jsonl")[-1]


def remember_as_best(folder, **state):
    for path in folder.glob("checkpoints/*/trainer_state.json"):
        write_atomically(path, json.dumps(read_json(path) | state))
        write_checksums(path.parent)


def test_a_run_that_was_moved_keeps_its_best_checkpoint(run):
    recipe, folder = run
    remember_as_best(folder, best_model_checkpoint="/nowhere/run/checkpoints/checkpoint-2", best_global_step=2)
    train(changed(recipe, "decoding", num_beams=1), resume=True)  # scores again
    kept, final = (folder / name / "model.safetensors" for name in ("checkpoints/checkpoint-2", "model"))
    assert final.read_bytes() != (folder / "checkpoints/checkpoint-4/model.safetensors").read_bytes()
    assert same_weights(final, kept)


def test_the_last_checkpoint_takes_the_place_of_a_missing_best_one(run, caplog):
    recipe, folder = run
    remember_as_best(folder, best_model_checkpoint=str(folder / "checkpoints" / "checkpoint-3"), best_global_step=3)
    train(changed(recipe, "decoding", num_beams=1), resume=True)  # scores again
    assert "checkpoint-3, the best checkpoint, is missing: the last one takes its place" in caplog.text
    assert same_weights(*(folder / name / "model.safetensors" for name in ("checkpoints/checkpoint-4", "model")))


def test_the_last_average_takes_the_place_of_a_missing_best_one(tmp_path):
    recipe, folder = make_recipe(tmp_path, ema_decay=0.5, **SMALL), tmp_path / "run"
    train(recipe)
    missing = {"best_model_checkpoint": str(folder / "checkpoints" / "checkpoint-3"), "best_global_step": 3}
    remember_as_best(folder, best_metric=0.0, **missing)  # no NLL will be better
    train(changed(recipe, "training", max_updates=6), resume=True)
    last, final = (
        load_file(folder / n) for n in ("checkpoints/checkpoint-6/ema.safetensors", "model/model.safetensors")
    )
    assert all(torch.equal(weight, last[name]) for name, weight in final.items())


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_run_gets_a_shortlist_and_is_scored_with_it(stream, tmp_path, run, monkeypatch):
    recipe, folder = run
    if stream:
        recipe = changed(make_recipe(tmp_path / "streamed", **SMALL), "data", stream=True, upper_case=1.0)
        folder = tmp_path / "streamed" / "run"
        train(recipe)
    used, translate = [], final_model.translate_corpus
    read, encode = [], final_model.encode_training
    monkeypatch.setattr(
        final_model, "encode_training", lambda given, *args, **kw: read.extend(given) or encode(given, *args, **kw)
    )
    monkeypatch.setattr(final_model, "translate_corpus", lambda *args: used.append(args[-2:]) or translate(*args))
    recipe = changed(recipe, "decoding", shortlist=True)
    train(recipe, resume=True)
    shortlist = load_shortlist(folder, ResidualConfig.from_pretrained(folder / "model"))
    for settings, given in used:
        assert settings.shortlist == (given is not None) == (library() is not None)
        if given is not None:
            np.testing.assert_array_equal(given.candidates, shortlist.candidates)
    evaluated = tmp_path / "scores"
    pair = ["--source", str(folder / "test.sources.txt"), "--reference", str(folder / "test.references.txt")]
    options = ["--output-dir", str(evaluated), *(["--shortlist"] if library() else [])]
    assert main(["evaluate", str(folder), *pair, *options]) == 0
    translations = (evaluated / "test.references.translations.txt").read_text()
    assert translations == (folder / "test.hypotheses.txt").read_text()
    card = (folder / "model" / "README.md").read_text()
    assert ("with the lexical shortlist (`residual-hf evaluate --shortlist`" in card) == (library() is not None)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert {*tokenizer.all_special_ids} <= {*shortlist.frequent} and len(used) == 2
    (green,), (grün,) = (tokenizer(text, add_special_tokens=False).input_ids[-1:] for text in ("green", "grün"))
    assert grün in {*shortlist.frequent, shortlist.candidates[green, 0]}
    assert any(text.isupper() for corpus in read for text in corpus.sources) == stream
    average_run(folder, tmp_path / "average", 2)
    assert load_shortlist(tmp_path / "average", ResidualConfig.from_pretrained(tmp_path / "average"))
    for model in (folder / "model", tmp_path / "average"):
        assert "shortlist=True" in (model / "README.md").read_text()


def test_a_run_without_kernels_keeps_the_shortlist_for_those_that_have(run, monkeypatch, caplog):
    recipe, folder = run
    monkeypatch.setattr("residual_hf.generation.decode.missing_support", lambda model: "no compiler")
    train(changed(recipe, "decoding", shortlist=True), resume=True)
    assert "scores are without the shortlist: shortlist: only with the native kernels: no compiler" in caplog.text
    assert (folder / "model" / "shortlist.safetensors").is_file()
