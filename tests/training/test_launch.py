"""Unsupported options of `accelerate launch` are refused before any work."""

from datetime import timedelta

import pytest
import torch

from residual_hf.base import processes
from residual_hf.base.errors import InputError
from residual_hf.training import launch
from residual_hf.training.launch import check_launch, use_one_gpu
from residual_hf.training.training_settings import TrainingSettings

EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"


@pytest.mark.parametrize(
    ("environment", "settings", "named"),
    [
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, {}, "fsdp_version"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, {"ema_decay": 0.9}, "training.ema_decay"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {}, "training.precision: .*fp32.*bf16"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {"ema_decay": 0.9}, "training.ema_decay"),
    ],
)
def test_refused(monkeypatch, environment, settings, named):
    check_launch(TrainingSettings(max_updates=1, **settings))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=named):
        check_launch(TrainingSettings(max_updates=1, **settings))


@pytest.mark.parametrize("setting", [{"report_to": ("nowhere",)}, {"deepspeed": "missing.json"}], ids=str)
def test_what_is_missing_here_is_refused_where_a_run_starts(setting):
    with pytest.raises(InputError, match=rf"^training\.{next(iter(setting))}: .* given, must be"):
        check_launch(TrainingSettings(max_updates=1, **setting))


def test_the_launcher_may_say_what_the_recipe_says(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    check_launch(TrainingSettings(max_updates=1, precision="bf16"))


def test_processes_wait_for_the_features_of_long_corpora(monkeypatch):
    monkeypatch.setattr(processes, "PartialState", lambda **options: options)
    assert processes.this_process()["timeout"] >= timedelta(hours=2)


def test_processes_on_cpus_know_of_each_other(monkeypatch):
    monkeypatch.setattr(processes, "PartialState", lambda **options: options["cpu"])
    for kind, world, on_cpu, expected in (
        (None, 1, False, True),
        ("cuda", 2, False, False),
        ("cuda", 2, True, True),
        ("mps", 1, False, False),
        ("mps", 2, False, True),
    ):
        accelerator = kind and torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda found=accelerator, **options: found)
        monkeypatch.setenv("WORLD_SIZE", str(world))
        assert processes.this_process(on_cpu=on_cpu) == expected


def test_one_process_trains_on_one_gpu(tmp_path, caplog):
    arguments = TrainingSettings(max_updates=1).to_arguments(str(tmp_path))
    assert arguments.device is not None  # counts the GPUs
    arguments._n_gpu = 2
    use_one_gpu(arguments)
    assert arguments.n_gpu == 1 and "torchrun --nproc-per-node 2" in caplog.text


@pytest.mark.parametrize(("code", "backend"), [(1, "nccl"), (0, "nccl"), (1, "gloo")])
def test_an_error_does_not_wait_for_other_processes(code, backend, monkeypatch):
    done = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: done.append("destroyed"))
    monkeypatch.setattr(launch.os, "_exit", lambda code: done.append(code))
    launch.shutdown_process_group(code)
    assert done[0] == (1 if (code, backend) == (1, "nccl") else "destroyed")


def test_every_process_has_the_weights_that_fsdp_shards(monkeypatch):
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", EFFICIENT: "true"}.items():
        monkeypatch.setenv(name, value)
    check_launch(TrainingSettings(max_updates=1))
    assert launch.os.environ[EFFICIENT] == "False"
