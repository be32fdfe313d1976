import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from support.recipes import make_recipe
from support.trainers import make_corpus, make_model, make_trainer
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from residual_hf.cli import main
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.training.checkpoints import complete_checkpoints
from residual_hf.training.divergence import DivergenceGuard, TrainingDivergedError, first_not_finite


def test_a_loss_far_above_its_lowest_stops_the_run():
    guard, history = DivergenceGuard(3.0), [{"nll": nll, "loss": nll} for nll in (9.0, 2.0, 5.9)]
    assert guard.reason(history[-1], history[:-1]) is None
    assert guard.reason({"nll": 6.1}, history) == "nll is 6.100 and was 2.000: above divergence_factor 3"
    assert guard.reason({"loss": 6.1}, history) == "loss is 6.100 and was 2.000: above divergence_factor 3"
    assert DivergenceGuard().reason({"nll": 1e9}, [{"nll": 1.0}]) is None
    assert guard.reason({"nll": 0.4}, [{"nll": 0.04}]) is None  # as while a few sentences are learned by heart
    assert guard.reason({"nll": 0.6}, [{"nll": 0.0}]) is not None


def test_an_evaluation_that_is_not_finite_stops_the_run():
    guard, history = DivergenceGuard(4.0), [{"nll": 2.0, "loss": 2.0}]
    assert guard.reason({"eval_nll": math.nan, "eval_loss": math.nan}, history) == "eval_nll is nan"
    assert guard.reason({"eval_nll": 9.0, "eval_loss": 9.0}, history) is None


def test_a_loss_scale_at_its_minimum_stops_a_run_in_fp16():
    guard, overflow = DivergenceGuard(4.0), {"nll": 2.0, "grad_norm": math.inf}
    assert guard.reason(overflow | {"loss_scale": 2.0}, []) is None  # GradScaler skips this update
    message = "the loss scale of fp16 is 6.10352e-05, below 0.0001"
    assert guard.reason(overflow | {"loss_scale": 2.0**-14}, []).startswith(message)
    assert guard.reason(overflow, []) == "grad_norm is inf"
    state = SimpleNamespace(log_history=[{}])
    guard.on_log(SimpleNamespace(fp16=True), state, None, {"loss": 2.0, "grad_norm": math.inf})  # of a plain trainer


def test_the_guard_works_with_a_plain_trainer(tmp_path):
    model = make_model()
    with torch.no_grad():
        model.model.encoder.layers[0].ffn.fc1.bias[0] = math.nan
    corpus = [{"input_ids": [5, 6, 2], "labels": [7, 2]}] * 2
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=2, logging_steps=1, logging_nan_inf_filter=False, report_to="none", use_cpu=True
    )
    collator = Seq2SeqCollator(1, 2)
    trainer = Seq2SeqTrainer(
        model, arguments, train_dataset=corpus, data_collator=collator, callbacks=[DivergenceGuard()]
    )
    with pytest.raises(TrainingDivergedError, match="by update 1: loss is nan; the first weights that"):
        trainer.train()


def test_first_layer_that_is_not_finite_is_named():
    model = make_model()
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[2, 7]])}
    assert first_not_finite(model, batch) == "weights and outputs are still finite"
    layer = model.model.decoder.layers[1]
    with torch.no_grad():
        layer.ffn.fc2.weight.fill_(3e38)
        layer.ffn.fc1.bias.fill_(10.0)
    assert first_not_finite(model, batch).endswith("output that is not finite: model.decoder.layers.1.ffn.fc2")
    with torch.no_grad():
        model.model.encoder.layers[0].self_attn.k_proj.weight[0, 0] = math.nan
    assert first_not_finite(model, batch).endswith("not finite: model.encoder.layers.0.self_attn.k_proj.weight")


def test_training_stops_where_the_loss_is_no_number(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), train=make_corpus(), max_updates=8, eval_every=2, lr=1e-3)
    step = trainer.training_step

    def poisoned(model, inputs, *args, **kwargs):
        if trainer.state.global_step == 4:
            model.model.encoder.layers[0].ffn.fc1.bias.data[0] = math.inf
        return step(model, inputs, *args, **kwargs)

    trainer.training_step = poisoned
    with pytest.raises(TrainingDivergedError, match="diverged by update 5: .*model.encoder"):
        trainer.train()
    assert [c.name for c in complete_checkpoints(tmp_path)][-1] == "checkpoint-4"


def test_the_command_exits_with_3(tmp_path, capsys):
    recipe = make_recipe(tmp_path, lr=1e30, warmup_updates=0, log_every=1, eval_bleu=False, max_updates=20)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.as_dict()))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 3
    assert "residual-hf train: diverged by update" in capsys.readouterr().err
    assert json.loads(Path(recipe.output_dir, "run.json").read_text())["diverged"].startswith("diverged by update")
