"""When a run may be overwritten, and what a failure leaves of it."""

import shutil
import signal
from dataclasses import replace

import pytest
import torch
from support.files import content, write_metric
from support.recipes import SMALL, changed, make_recipe

from residual_hf.base.errors import InputError
from residual_hf.base.interrupts import SIGNALS
from residual_hf.base.lock import Lock
from residual_hf.runs import run as run_module
from residual_hf.runs.fitting import bytes_to_write
from residual_hf.runs.run import train
from residual_hf.training.trainer import ResidualTrainer
from residual_hf.training.training_settings import TrainingSettings


def test_a_run_is_overwritten_only_when_everything_is_checked(run):
    recipe, folder = run
    before = content(folder)
    text = folder.parent / "valid.de"
    lines = text.read_text().splitlines()
    text.write_text("\n".join([*lines[:2], "Hund " * 90, *lines[3:]]) + "\n")
    with pytest.raises(InputError, match=r"valid\.de: line 3"):
        train(recipe, overwrite=True)
    assert content(folder) == before
    text.write_text("\n".join(lines) + "\n")
    (folder / "notes").touch()
    assert train(changed(recipe, "training", max_updates=2), overwrite=True)["updates"] == 2
    assert not (folder / "notes").exists() and not list(folder.glob(".*"))


def test_the_disk_space_of_a_run_that_is_overwritten_counts(tmp_path):
    model, settings, checkpoints = torch.nn.Linear(100, 100), TrainingSettings(max_updates=1), tmp_path / "checkpoints"
    needed = bytes_to_write(model, settings, checkpoints)
    (tmp_path / ".replaced.x" / "checkpoints").mkdir(parents=True)
    (tmp_path / ".replaced.x" / "checkpoints" / "weights").write_bytes(bytes(1000))
    assert bytes_to_write(model, settings, checkpoints) == needed - 1000


@pytest.mark.parametrize("failing", ["freeze", "folder/..", "first batch", *(number.name for number in SIGNALS[1:])])
def test_a_run_is_kept_if_the_new_one_fails_before_its_first_update(run, failing, monkeypatch):
    recipe, folder = run
    before = content(folder)
    if failing in ("freeze", "folder/.."):
        recipe = replace(recipe, output_dir=folder / "model" / ".." if failing == "folder/.." else folder)
        with pytest.raises(InputError, match=r"training\.freeze: \* matches all parameters"):
            train(changed(recipe, "training", freeze=("*",)), overwrite=True)
    elif failing == "first batch":

        def fail(*arguments, **options):
            raise MemoryError

        monkeypatch.setattr(ResidualTrainer, "training_step", fail)
        with pytest.raises(MemoryError):
            train(recipe, overwrite=True)
    else:
        number = getattr(signal, failing)
        monkeypatch.setattr(run_module, "build_model", lambda *arguments: signal.raise_signal(number))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, overwrite=True)
    assert content(folder) == before


def test_inputs_of_a_run_are_not_overwritten(run):
    recipe, folder = run
    inside = {split: shutil.move(folder.parent / f"{split}.en", folder) for split in ("train", "valid")}
    specs = {split: (replace(getattr(recipe.data, split)[0], source=path),) for split, path in inside.items()}
    with pytest.raises(InputError, match=r"run holds the input .*train\.en, which --overwrite would delete"):
        train(changed(recipe, "data", **specs), overwrite=True)
    assert (folder / "train.en").exists()
    for path in inside.values():
        shutil.move(path, folder.parent)
    metric = write_metric(folder / "metric.py", '"predictions": text, "references": text', '"metric": 1.0')
    with pytest.raises(InputError, match=r"run holds the input .*metric\.py, which --overwrite would delete"):
        train(changed(recipe, "evaluation", metrics=(metric,)), overwrite=True)


def test_a_language_by_its_name_is_refused_at_the_start(run):
    recipe, _ = run
    read = {name: getattr(recipe.data, name) or () for name in ("train", "valid", "test")}
    specs = {name: tuple(replace(spec, target_lang="german") for spec in own) for name, own in read.items()}
    with pytest.raises(InputError, match="target_lang: 'german' given, must be a code, here 'de'"):
        train(replace(recipe, target_lang="german", data=replace(recipe.data, **specs)), overwrite=True)


def test_two_runs_cannot_use_one_folder(run):
    recipe, folder = run
    recipe = changed(recipe, "decoding", num_beams=1)  # else there is nothing to do
    before = content(folder)
    with Lock(folder / "run.lock", "output_dir"):
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(InputError, match="is in use by"):
                train(recipe, **options)
    assert content(folder) == before


def test_a_tokenizer_that_is_missing_is_named(tmp_path):
    recipe = changed(make_recipe(tmp_path, **SMALL), "tokenizer", path=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"tokenizer\.path: .*nowhere cannot be loaded"):
        train(recipe)
    with pytest.raises(InputError, match=r"tokenizer\.path: .*nowhere cannot be loaded: no such file"):
        train(changed(recipe, "tokenizer", kind="pretokenized"))
    assert not (tmp_path / "run").exists()
