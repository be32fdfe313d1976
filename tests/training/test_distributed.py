"""Two processes on the CPU (gloo) train as one process that accumulates two batches."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file
from support import ROOT, distributed_run
from support.files import read_json_lines
from support.processes import free_port, run_forked
from support.recipes import make_recipe

from residual_hf.base.files import read_json

SCRIPT = Path(distributed_run.__file__)
AS_GPUS = Path(distributed_run.__file__).with_name("launched_as_gpus.py")

SIMCUT = {"simcut": 3.0, "simcut_rate": 1 - 1e-9}  # lacks all embeddings: the passes differ alike in every process
RUNS = {
    "ddp": {},
    "simcut": {"settings": SIMCUT, "arguments": {"gradient_checkpointing": True}},
    "r_drop": {"settings": {"r_drop": 5.0}, "model": {"dropout": 0.1}},
    "admin": {"model": {"ln_mode": "admin", "dropout": 0.1, "encoder_layerdrop": 0.5}},
}


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """Folder and figures of `RUNS` in two processes, which then train a recipe, and what they print."""
    folder = tmp_path_factory.mktemp("two")
    recipe = make_recipe(folder, max_updates=12, eval_every=6)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.as_dict()))
    done = run_forked(SCRIPT, folder, json.dumps(RUNS), processes=2)
    figures = next(line for line in done.stdout.splitlines() if line.startswith("FIGURES"))
    return folder, json.loads(figures.removeprefix("FIGURES")), done.stderr


@pytest.mark.parametrize("name", ["ddp", "simcut", "r_drop"])
def test_two_processes_equal_two_accumulated_batches(name, in_two_processes, tmp_path):
    settings = RUNS[name].get("settings", {})
    one = distributed_run.train(tmp_path, settings | {"update_freq": 2}, model=RUNS[name].get("model"))
    folder, two = in_two_processes[0] / name, in_two_processes[1][name]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert len(two["loss"]) == 6
    for figure in ("loss", "nll", "grad_norm", "eval_nll"):
        assert two[figure] == pytest.approx(one[figure], rel=1e-4 if figure == "nll" else 1e-5), figure
    assert two["translations"] == one["translations"]
    assert not settings or two["loss"][0] > two["nll"][0] + 0.1
    compare_diagnostics(*(read_json_lines(place / "diagnostics.jsonl") for place in (tmp_path, folder)))
    gradients, others = (load_file(place / "gradient.safetensors") for place in (tmp_path, folder))
    assert gradients.keys() == others.keys()
    assert max(gradient.abs().max() for gradient in gradients.values()) > 1e-3
    for weight, gradient in gradients.items():
        assert (gradient - others[weight]).abs().max() < 1e-6, weight


def compare_diagnostics(lines, others):
    """Losses, gradients, updates and activations of both processes are as of one."""
    assert len(lines) == len(others) > 6
    for line, other in zip(lines, others, strict=True):
        assert line.keys() == other.keys()
        for name, values in line.items():
            if name in ("losses", "grad_norms"):
                assert other[name] == pytest.approx(values, rel=1e-4)
            elif name in ("sublayers", "activations"):
                numbers = [[v for v in row.values() if isinstance(v, float)] for row in values]
                assert [[v for v in row.values() if isinstance(v, float)] for row in other[name]] == [
                    pytest.approx(row, rel=1e-3) for row in numbers
                ]


def test_processes_share_one_profile(in_two_processes, tmp_path):
    """Admin is profiled by itself before the first update, with dropout, to the same values everywhere. Each process
    then drops layers of its own."""
    alone = distributed_run.train(tmp_path, {"update_freq": 2}, **RUNS["admin"])["admin_profile"]
    assert len(set(alone)) > 3
    assert in_two_processes[1]["admin"]["admin_profile"] == alone


def test_the_command_makes_one_run_of_all_processes(in_two_processes):
    check_run(in_two_processes[0] / "run")


def check_run(run):
    """One folder, one tokenizer, one log, one table of scores, whatever the number of processes."""
    assert read_json(run / "run.json")["processes"] == 2
    assert read_json(run / "metrics.json")["test"]["bleu"]["value"] >= 0
    assert len((run / "test.hypotheses.txt").read_text().splitlines()) == 9
    assert [r["step"] for r in read_json_lines(run / "metrics.jsonl") if "eval_bleu" in r] == [6, 12]
    assert (run / "model" / "model.safetensors").exists()
    assert not list(run.rglob("*.tmp"))


def test_processes_refuse_a_folder_that_is_not_empty(in_two_processes):
    folder, _, errors = in_two_processes
    assert "exists and is not empty; use --overwrite" in errors
    assert [r["step"] for r in read_json_lines(folder / "run" / "metrics.jsonl") if "eval_bleu" in r] == [6, 12]


def accelerate(config, folder, command, **environment):
    """`residual-hf train` of the small recipe by a file of examples/launch, in two processes."""
    diagnostics = None if "deepspeed" in config else {"every": 4}
    recipe = make_recipe(folder, max_updates=12, eval_every=6, diagnostics=diagnostics)
    recipe.model["branch_warmup"] = {"schedule": "linear", "updates": 8}  # which counts in a buffer
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.as_dict()))
    config_file = str(ROOT / "examples/launch" / config)
    launcher = ["accelerate.commands.launch", "--config_file", config_file, "--num_processes", "2"]
    launcher += ["--main_process_port", free_port()]
    # in the repository its package would be imported before an installed one, which has the native kernels
    run_forked("-m", *launcher, *command, "train", folder / "recipe.yaml", cwd=folder, **environment)
    return folder / "run"


def evaluations(run):
    return [r["eval_nll"] for r in read_json_lines(run / "metrics.jsonl") if "eval_nll" in r]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return accelerate("cpu.yaml", tmp_path_factory.mktemp("cpu"), ["-m", "residual_hf_cli"])


@pytest.mark.slow  # two new processes that import PyTorch; those of `in_two_processes` are copies of one that has
def test_accelerate_launches_the_command(launched):
    check_run(launched)


@pytest.mark.slow
def test_fsdp2_splits_the_weights_and_trains_the_same_model(launched, tmp_path):
    run = accelerate("fsdp2.yaml", tmp_path, [str(AS_GPUS)])
    assert (run / "checkpoints" / "checkpoint-12" / "pytorch_model_fsdp_0").is_dir()  # else it was DDP
    assert evaluations(run) == pytest.approx(evaluations(launched), rel=1e-5)
    compare_diagnostics(*(read_json_lines(folder / "diagnostics.jsonl") for folder in (launched, run)))
    assert (run / "test.hypotheses.txt").read_text() == (launched / "test.hypotheses.txt").read_text()
    search, expected = (read_json(folder / "model" / "generation_config.json") for folder in (run, launched))
    assert search == expected and expected["num_beams"] == 2
    full, expected = (load_file(folder / "model" / "model.safetensors") for folder in (run, launched))
    assert {n: w.shape for n, w in full.items()} == {n: w.shape for n, w in expected.items()}
    for name, weight in expected.items():
        assert (full[name] - weight).abs().max() < 1e-4, name


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_zero2_trains_the_same_model(launched, tmp_path):
    run = accelerate("deepspeed_zero2.yaml", tmp_path, [str(AS_GPUS)], DS_ACCELERATOR="cpu")
    assert list((run / "checkpoints" / "checkpoint-12").glob("global_step*"))  # else it was DDP
    assert evaluations(run) == pytest.approx(evaluations(launched), rel=1e-5)
