"""The scripts of examples/images on squares of two colours."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import points
import pytest
from PIL import Image
from support.example_scripts import ROOT, run
from support.processes import run_here
from transformers import AutoModelForImageClassification, pipeline

from residual_hf.base.errors import InputError
from residual_hf.model.branch_warmup import BranchWarmup
from residual_hf.model.profiling import admin_connections

TRAIN = ROOT / "examples" / "images" / "train.py"


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squares") / "parquet"  # the name of a loader of datasets
    for split, count in (("train", 12), ("test", 4)):
        for name in ("red", "blue"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                colour = (255 - 9 * i, 9 * i, 0) if name == "red" else (0, 9 * i, 255 - 9 * i)
                Image.new("RGB", (8, 8), colour).save(folder / split / name / f"{i}.png")
    return folder


def test_a_run_goes_on_and_leaves_a_model_and_its_figures(squares, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(squares.parent)
    options = ("--data", squares.name, "--output", tmp_path / "rskip", "--depth", 8, "--ln-mode", "rskip_ln")
    run("images/train.py", *options, "--epochs", 1)
    first = json.loads((tmp_path / "rskip" / "result.json").read_text())
    assert len(first["errors"]) == 1 and first["error"] in (0, 12.5, 25, 37.5, 50, 62.5, 75, 87.5, 100)
    record = tmp_path / "rskip" / "options.json"
    stopped = run_here(TRAIN, *options, "--epochs", 3).returncode
    assert stopped == f"train.py: --output {tmp_path / 'rskip'}: has a run with --epochs 1"
    record.write_text(json.dumps({**json.loads(record.read_text()), "--epochs": 3}))  # as if it was interrupted
    assert "test error" in run("images/train.py", *options, "--epochs", 3)
    result = json.loads((tmp_path / "rskip" / "result.json").read_text())
    assert result["errors"][0] == first["error"] and len(result["errors"]) == 3
    assert result["ln_mode"] == "rskip_ln" and result["seed"] == 1 and result["parameters"] == 75_218
    (answer, _) = pipeline("image-classification", model=str(tmp_path / "rskip"))(Image.new("RGB", (30, 20), "blue"))
    assert answer["label"] in ("red", "blue")

    stopped = run_here(TRAIN, *options[:4], "--depth", 14, "--ln-mode", "rskip_ln").returncode
    assert stopped == f"train.py: --output {tmp_path / 'rskip'}: has a run with another network or other classes"

    record.write_text(json.dumps({k: v for k, v in json.loads(record.read_text()).items() if k != "--epochs"}))
    stopped = run_here(TRAIN, *options, "--seed", 2).returncode  # the epochs of an older record are not known
    assert stopped == f"train.py: --output {tmp_path / 'rskip'}: has a run with --seed 1"

    monkeypatch.setattr(points, "to_pictures", lambda *arguments: {})
    drawn = run("images/figures.py", "--data", squares, "--runs", tmp_path / "rskip", "--output", tmp_path / "out")
    assert "rskip_ln, seed 1: mean effective scale of the middle stage" in drawn
    assert not (tmp_path / "out" / "skip-cifar-4.csv").exists()  # no losses in three updates
    rows = (tmp_path / "out" / "skip-cifar-3.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["gradient of the output of blocks", "effective scale"]


@pytest.mark.parametrize("mode", ["branch_norm", "admin"])
def test_modes_that_need_a_start_get_it(mode, squares, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    network = ("--depth", 8, "--ln-mode", mode)
    run("images/train.py", "--data", squares, "--output", tmp_path / "run", *network, "--epochs", 1)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    if mode == "admin":
        assert len(model.config.admin_profile) == len(admin_connections(model))
    else:
        assert all(part.updates == 1 for part in model.modules() if isinstance(part, BranchWarmup))


def test_data_that_cannot_be_used_is_named(squares, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    read = runpy.run_path(str(TRAIN.with_name("pictures.py")))["read"]
    folder = Path(shutil.copytree(squares, tmp_path / "images"))
    image = folder / "train" / "red" / "0.png"

    Image.new("L", (9, 7)).save(image)
    with pytest.raises(InputError, match=r"train/red/0.png: 7 x 9, but the first is 8 x 8: set --image-size"):
        read(folder)
    splits, names = read(folder, 6)
    assert splits["train"][0].shape == (24, 3, 6, 6) and names == ["blue", "red"]
    Image.new("I;16", (8, 8), 20_000).save(image)
    with pytest.raises(InputError, match="train/red/0.png: has more than 8 bits a channel; convert it"):
        read(folder)
    image.write_bytes(b"not an image")
    (folder / "test" / "blue" / "1.png").write_bytes(image.read_bytes()[:5])
    with pytest.raises(InputError) as error:
        read(folder)
    bad = [line.partition(": ")[0][-14:] for line in str(error.value).splitlines()]
    assert bad == ["rain/red/0.png", "est/blue/1.png"] and "not an image, or damaged: " in str(error.value)
    (folder / "train" / "green").mkdir()
    with pytest.raises(InputError, match="images: no images in train of green"):
        read(folder)
    shutil.rmtree(folder / "test")
    with pytest.raises(InputError, match="images: needs the splits train and test, has train"):
        read(folder)
    for split in ("train", "test"):
        (folder / split / "blue").mkdir(parents=True, exist_ok=True)
        shutil.copy(squares / split / "blue" / "0.png", folder / split / "blue")
    shutil.rmtree(folder / "train" / "red")
    with pytest.raises(InputError, match="images: needs images of two classes or more, has the columns image"):
        read(folder)
    with pytest.raises(InputError, match="--data nowhere: no folder of images, and no dataset on the Hub: "):
        read("nowhere")


def test_another_architecture(squares, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    vit = {
        "architecture": "vit",
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_ffn_dim": 16,
        "encoder_attention_heads": 2,
    }
    config = json.dumps({**vit, "image_size": 12})
    options = ("--data", squares, "--output", tmp_path / "vit", "--ln-mode", "pre_ln", "--config", config)
    run("images/train.py", *options, "--epochs", 2)
    (answer, _) = pipeline("image-classification", model=str(tmp_path / "vit"))(Image.new("RGB", (30, 20), "blue"))
    assert answer["label"] in ("red", "blue")
    model = json.loads((tmp_path / "vit" / "config.json").read_text())
    assert (
        model["ln_mode"] == "pre_ln" and model["image_size"] == 12 and model["id2label"] == {"0": "blue", "1": "red"}
    )
    deep = run_here(TRAIN, *options, "--depth", 20).returncode
    assert deep == "train.py: depth: 20 given, but a 'vit' has encoder_layers"


def test_mistakes_in_options_are_found_before_the_data(tmp_path, monkeypatch):
    def stopped(*options):
        return run_here(TRAIN, "--data", "nowhere", "--output", tmp_path, *options).returncode

    assert stopped("--depth", 21) == "train.py: depth must be 6n + 2 (20, 32, 44, 56, 110 ...), not 21"
    assert stopped("--ln-mode", "rskip_nl").startswith("train.py: unknown ln_mode 'rskip_nl'")
    assert stopped("--epochs", 0) == "train.py: --epochs must be at least 1, not 0"
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert stopped().endswith("is not installed: pip install 'residual_hf[images]'")


def test_rows_of_a_table_train_once_each(tmp_path, monkeypatch):
    trained = []

    def train(command, **options):
        values = dict(zip(command[2::2], command[3::2], strict=False))
        trained.append(values)
        error = 10.0 * len(trained)
        (Path(values["--output"]) / "result.json").write_text(
            json.dumps({"error": error, "epochs": 4, "data": "cifar", "bf16": False})
        )
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", train)
    options = ("3", "--data", "cifar", "--output", tmp_path, "--depth", 20, "--epochs", 4)
    run("images/tables.py", *options, "--seeds", 1)
    table = run("images/tables.py", *options, "--seeds", 1, 2)
    assert [values["--seed"] for values in trained] == ["1"] * 4 + ["2"] * 4
    assert trained[2]["--ln-mode"] == "xskip_ln"
    assert json.loads(trained[2]["--ln-mode-options"]) == {"skip_scale": 1, "branch_scale": 2}
    assert "| LN(x + 2F) | 24.98 | 50.00 | 30.00 70.00 |" in table.splitlines()
    assert table.strip() == (tmp_path / "table3.md").read_text().strip()
    stopped = run_here(ROOT / "examples/images/tables.py", *options[:-1], 5, "--seeds", 1).returncode
    assert stopped.endswith("result.json: epochs 4, not 5: use another --output")
    stopped = run_here(ROOT / "examples/images/tables.py", *options, "--seeds", 1, "--bf16").returncode
    assert stopped.endswith("result.json: bf16 False, not True: use another --output")


def test_a_row_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **options: SimpleNamespace(returncode=1))
    script = ROOT / "examples" / "images" / "tables.py"
    failed = run_here(script, "3", "--data", "cifar", "--output", tmp_path, "--seeds", 1).returncode
    assert failed.startswith("0.5x + F, seed 1: train.py failed, see ") and failed.endswith("log.txt")
