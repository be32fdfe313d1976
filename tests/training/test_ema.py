import json

import pytest
import torch
from safetensors.torch import load_file
from support.recipes import changed, make_recipe
from support.trainers import make_model, make_trainer
from transformers import TrainerCallback

from residual_hf.base.errors import InputError
from residual_hf.runs.run import train
from residual_hf.training.ema import EMA_FILE

NAME = "model.decoder.layers.1.ffn.fc1.weight"


class Weights(TrainerCallback):
    """Remembers a weight after every update."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.seen.append(model.get_parameter(NAME).detach().clone())


def test_average_follows_its_equation_and_is_what_is_evaluated(tmp_path):
    model = make_model()
    expected = model.get_parameter(NAME).detach().clone()
    trainer = make_trainer(tmp_path, model, ema_decay=0.4, lr=1e-2, max_updates=6, eval_every=6)
    weights = Weights()
    trainer.add_callback(weights)
    trainer.train()
    for step, weight in enumerate(weights.seen, start=1):
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
    assert torch.allclose(trainer.ema.average[NAME], expected, atol=1e-7)

    nll = trainer.evaluate()["eval_nll"]
    assert torch.equal(model.get_parameter(NAME), weights.seen[-1])  # its own weights are back
    own = make_trainer(tmp_path / "own", model).evaluate()["eval_nll"]
    trainer.ema.apply()
    averaged = make_trainer(tmp_path / "averaged", model).evaluate()["eval_nll"]
    assert nll == averaged != own


def test_a_trainer_ends_with_the_average_of_the_best_checkpoint(tmp_path):
    """Which is the first one: the learning rate is too high."""
    settings = {"ema_decay": 0.4, "lr": 5.0, "max_updates": 3, "eval_every": 1, "divergence_factor": 0}
    trainer, again = (make_trainer(tmp_path, make_model(), **settings) for _ in range(2))
    trainer.train()
    again.train(resume_from_checkpoint=True)
    assert trainer.state.best_global_step == 1
    for ended in (trainer, again):
        assert ended.evaluate()["eval_nll"] == trainer.state.best_metric
    trainer.save_model(str(tmp_path / "model"))
    saved = load_file(tmp_path / "model" / "model.safetensors")[NAME]
    average = load_file(f"{trainer.state.best_model_checkpoint}/{EMA_FILE}")[NAME]
    assert torch.equal(saved, average) and not torch.equal(trainer.model.get_parameter(NAME), average)
    assert not (tmp_path / "model" / EMA_FILE).exists()


def test_a_run_ends_in_the_average_and_resumes_to_the_same(tmp_path):
    settings = {"ema_decay": 0.9, "eval_every": 4, "eval_bleu": False}
    train(make_recipe(tmp_path / "whole", max_updates=12, **settings))
    first = make_recipe(tmp_path / "parts", max_updates=8, **settings)
    train(first)
    train(changed(first, "training", max_updates=12), resume=True)
    models = [load_file(tmp_path / name / "run" / "model" / "model.safetensors") for name in ("whole", "parts")]
    best = json.loads((tmp_path / "whole/run/checkpoints/checkpoint-12/trainer_state.json").read_text())
    average = load_file(f"{best['best_model_checkpoint']}/{EMA_FILE}")
    for name, value in average.items():
        if name in models[0]:
            assert torch.equal(models[0][name], value) and torch.equal(models[1][name], value), name


def test_a_checkpoint_without_average_is_refused(tmp_path):
    make_trainer(tmp_path, make_model(), max_updates=2, eval_every=2).train()
    trainer = make_trainer(tmp_path, make_model(), max_updates=4, eval_every=2, ema_decay=0.9)
    with pytest.raises(InputError, match="training.ema_decay: .*checkpoint-2/ema.safetensors: .*No such file"):
        trainer.train(resume_from_checkpoint=True)
