"""What `DiagnosticsCallback` measures equals what one measures by hand, and it does not change training."""

import math
import re
from statistics import median

import pytest
import torch
from support import small_sizes
from support.files import read_json_lines
from support.trainers import make_corpus, make_model, make_trainer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from residual_hf import DiagnosticsCallback
from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.probes.representations import activation_ranges, branch_share
from residual_hf.probes.sites import sublayers
from residual_hf.training import diagnostics
from residual_hf.training.diagnostics import spikes


def diagnosed(folder, every=2, model=None, **settings):
    """A trained trainer and the lines of its file."""
    trainer = make_trainer(folder, model or make_model(), **settings)
    trainer.add_callback(DiagnosticsCallback(folder, every, log=trainer.log))
    trainer.train()
    return trainer, read_json_lines(folder / "diagnostics.jsonl")


def series(lines, name):
    return [value for line in lines for value in line.get(name, ())]


def measured(lines):
    return {line["step"]: line for line in lines if "sublayers" in line}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_before_clipping_of_all_accumulated_batches(tmp_path, checkpointing):
    model = make_model()
    reference = make_model()
    if checkpointing:
        model.gradient_checkpointing_enable()
    trainer = make_trainer(tmp_path, model, max_updates=1, update_freq=2, clip_norm=1e-3, warmup_updates=0)
    batches = list(trainer.get_train_dataloader())[:2]
    trainer.add_callback(DiagnosticsCallback(tmp_path))
    trainer.train()
    tokens = sum(int(batch["labels"].ne(-100).sum()) for batch in batches)
    reference.criterion = trainer.meter
    for batch in batches:
        reference(**batch, num_items_in_batch=tokens).loss.backward()
    (line,) = measured(read_json_lines(tmp_path / "diagnostics.jsonl")).values()
    for part, row in zip(sublayers(reference), line["sublayers"], strict=True):
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in part.branch_parameters()))
        assert (row["stack"], row["layer"], row["sublayer"]) == part.place
        assert row["gradient"] == pytest.approx(norm, rel=1e-4)
    assert min(row["gradient"] for row in line["sublayers"]) > 1e-3


def test_series_equal_the_log_of_the_trainer(tmp_path):
    trainer, lines = diagnosed(tmp_path, max_updates=5, update_freq=2, clip_norm=0.1, log_every=1)
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert series(lines, "losses") == pytest.approx([entry["loss"] for entry in log], rel=1e-5)
    assert series(lines, "grad_norms") == pytest.approx([entry["grad_norm"] for entry in log], rel=1e-5)
    assert sorted(measured(lines)) == [1, 2, 4]
    figures = [entry for entry in trainer.state.log_history if "fp16_headroom" in entry]
    (*_, line), last = measured(lines).values(), figures[-1]
    for stack in ("encoder", "decoder"):
        gradients = [row["gradient"] for row in line["sublayers"] if row["stack"] == stack]
        assert last[f"{stack}_gradient_ratio"] == pytest.approx(min(gradients) / max(gradients), rel=1e-4)
    assert last["update_ratio"] == pytest.approx(median(row["update_ratio"] for row in line["sublayers"]), rel=1e-4)
    assert last["fp16_headroom"] == pytest.approx(min(row["fp16_headroom"] for row in line["activations"]), rel=1e-4)
    assert "loss_score" in last


def test_a_training_that_ends_within_an_update_leaves_no_hooks_in_use(tmp_path):
    class Stop(TrainerCallback):
        def on_substep_end(self, *arguments, **named):
            raise KeyboardInterrupt

    trainer = make_trainer(tmp_path, make_model(), update_freq=2)
    callback = DiagnosticsCallback(tmp_path)
    for each in (callback, Stop()):
        trainer.add_callback(each)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        trainer.model(**batch)
    assert len(callback.update.batches) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trainer.model.modules())


def test_figures_are_without_the_scale_of_the_loss_and_an_unknown_loss_is_1(tmp_path):
    updates = [
        diagnostics._Update(1, loss, torch.tensor([512.0]), scale=1024.0) for loss in (None, torch.tensor(2048.0))
    ]
    losses, norms = DiagnosticsCallback(tmp_path)._fetch(updates, 1)
    assert losses.tolist() == [1.0, 2.0] and norms.tolist() == [[0.5], [0.5]]


def test_activations_and_update_ratio(tmp_path):
    model = make_model(ln_mode="deep_norm")
    trainer = make_trainer(tmp_path, model, max_updates=1, warmup_updates=0, lr=1e-2, weight_decay=0.0)
    batch = next(iter(trainer.get_train_dataloader()))
    ranges = [vars(row) for row in activation_ranges(model, batch)]
    unpadded = batch | {"attention_mask": torch.ones_like(batch["input_ids"])}
    shares = [row.share for row in branch_share(model, unpadded)]
    before = [[p.detach().clone() for p in part.branch_parameters()] for part in sublayers(model)]
    trainer.add_callback(DiagnosticsCallback(tmp_path))
    trainer.train()
    (line,) = measured(read_json_lines(tmp_path / "diagnostics.jsonl")).values()
    assert len(line["activations"]) == len(ranges)
    for row, expected in zip(line["activations"], ranges, strict=True):
        assert list(row.values())[:4] == list(expected.values())[:4]
        assert list(row.values())[4:] == pytest.approx(list(expected.values())[4:], rel=1e-3)
    assert [row["branch_share"] for row in line["sublayers"]] == pytest.approx(shares, rel=0.1)
    for part, row, old in zip(sublayers(model), line["sublayers"], before, strict=True):
        new = torch.cat([p.detach().flatten() for p in part.branch_parameters()])
        old = torch.cat([p.flatten() for p in old])
        assert row["update_ratio"] == pytest.approx(((new - old).norm() / old.norm()).item(), rel=1e-3)
        share = row["branch_share"]
        assert row["bf16_bits"] == pytest.approx(8 + math.log2(share / (1 - share)), abs=1e-3)


def test_the_update_ratio_of_a_sample_is_near_that_of_all_weights(tmp_path, monkeypatch):
    """Also where entries of a bias are 16 times as frequent in the sample as those of a matrix."""
    ratios = []
    for sample in (10**6, 64):
        monkeypatch.setattr(diagnostics, "SAMPLE", sample)
        trainer = make_trainer(tmp_path, make_model(d_model=32), max_updates=1, warmup_updates=0, lr=1e-2)
        trainer.add_callback(DiagnosticsCallback(tmp_path / str(sample)))
        trainer.train()
        (line,) = measured(read_json_lines(tmp_path / str(sample) / "diagnostics.jsonl")).values()
        ratios.append([row["update_ratio"] for row in line["sublayers"]])
    assert ratios[1] == pytest.approx(ratios[0], rel=0.1)


def test_training_is_not_changed(tmp_path):
    """Also with dropout, and with the native kernels, whose fused modules cannot be observed."""
    losses = []
    for callbacks in ([DiagnosticsCallback(tmp_path, every=1)], []):
        model = make_model(dropout=0.2, d_model=32)
        trainer = make_trainer(tmp_path / str(len(losses)), model, callbacks=callbacks, lr=1e-2)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert not any(module._forward_hooks for module in model.modules())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class Poison(DiagnosticsCallback):
    """Multiplies the gain of the last norm before an update."""

    def __init__(self, *arguments, at):
        super().__init__(*arguments)
        self.at = at

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        super().on_step_begin(args, state, control, **kwargs)
        if state.global_step + 1 == self.at:
            with torch.no_grad():
                model.model.decoder.layers[1].ffn_residual.norm.weight *= 300


def test_spike_is_noted_with_layer_and_batch(tmp_path, caplog):
    settings = {"max_updates": 48, "eval_every": 48, "log_every": 16, "divergence_factor": 0.0}
    trainer = make_trainer(tmp_path, make_model(), update_freq=2, **settings)
    trainer.add_callback(Poison(tmp_path, 100, at=41))
    trainer.train()
    (line,) = [line for line in read_json_lines(tmp_path / "diagnostics.jsonl") if "alert" in line]
    assert line["step"] == line["alert"]["step"] == 41
    assert max(line["alert"]["loss_score"], line["alert"]["grad_norm_score"]) > 7
    first = line["alert"]["first"]
    assert (first["stack"], first["step"]) == ("decoder", 41)
    (folder,) = spikes(tmp_path)
    assert f"spike at update 41: score {line['alert']['loss_score']:.1f} of the loss" in caplog.text
    assert read_json(folder / "alert.json") == line["alert"]
    dump = torch.load(folder / "batch-0.pt", weights_only=True)
    assert len(dump["batches"]) == 2 and {"input_ids", "labels"} <= set(dump["batches"][0])
    torch.set_rng_state(dump["random_states"][0])


def test_resumed_run_continues_the_file(tmp_path):
    _, lines = diagnosed(tmp_path / "full", max_updates=6, eval_every=3, log_every=2)
    diagnosed(tmp_path / "parts", max_updates=6, eval_every=3, log_every=2)
    for update in (2, 5):
        (tmp_path / "parts" / "spikes" / f"update-{update}").mkdir(parents=True)
    trainer = make_trainer(tmp_path / "parts", make_model(), max_updates=6, eval_every=3, log_every=2)
    trainer.add_callback(DiagnosticsCallback(tmp_path / "parts", 2))
    trainer.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    assert [path.name for path in spikes(tmp_path / "parts")] == ["update-2"]
    resumed = read_json_lines(tmp_path / "parts" / "diagnostics.jsonl")
    assert [line["step"] for line in resumed if "losses" in line][-1] == 6
    assert series(resumed, "losses") == pytest.approx(series(lines, "losses"), rel=1e-5)
    assert measured(resumed).keys() == measured(lines).keys()


def test_summary_is_of_the_sublayers_that_were_trained(tmp_path):
    """Neither a frozen encoder nor dropped layers have vanishing gradients."""
    model = make_model(decoder_layers=4, decoder_layerdrop=0.7)
    model.get_encoder().requires_grad_(False)
    trainer, lines = diagnosed(tmp_path, model=model, max_updates=1, warmup_updates=0)
    (line,) = measured(lines).values()
    assert 0 < sum(row["gradient"] == 0 for row in line["sublayers"] if row["stack"] == "decoder") < 12
    figures = next(entry for entry in trainer.state.log_history if "update_ratio" in entry)
    assert figures["decoder_gradient_ratio"] > 0 and figures["update_ratio"] > 0
    assert "encoder_gradient_ratio" not in figures


def test_batches_are_not_those_that_r_drop_doubles(tmp_path):
    kept = []

    class Keep(DiagnosticsCallback):
        def on_step_end(self, *arguments, **kwargs):
            kept.extend(self.update.batches)
            super().on_step_end(*arguments, **kwargs)

    trainer = make_trainer(tmp_path, make_model(dropout=0.1), max_updates=1, r_drop=1.0)
    trainer.add_callback(Keep(tmp_path))
    trainer.train()
    assert torch.equal(kept[0]["input_ids"], next(iter(trainer.get_train_dataloader()))["input_ids"])


def test_other_models_and_trainers(tmp_path):
    model = BartForConditionalGeneration(BartConfig(vocab_size=40, **small_sizes(d_model=8)))
    arguments = Seq2SeqTrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    rows = [make_corpus()[row] for row in range(16)]
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, data_collator=Seq2SeqCollator(1, 2))
    trainer.add_callback(DiagnosticsCallback(tmp_path, log=trainer.log))
    trainer.train()
    (line,) = measured(read_json_lines(tmp_path / "diagnostics.jsonl")).values()
    assert [row["sublayer"] for row in line["sublayers"][2:]] == ["self_attention", "cross_attention", "feed_forward"]
    assert all(row["gradient"] > 0 for row in line["sublayers"])


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(InputError, match="every: 0 given"):
        DiagnosticsCallback(tmp_path, every=0)
    with pytest.raises(InputError, match=r"diagnostics: .* given, must be null with compile"):
        make_trainer(tmp_path, make_model(), diagnostics={"every": 10}, compile=True)


def test_a_training_after_one_that_an_error_ended_counts_each_loss_once(tmp_path):
    class Fail(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            raise MemoryError

    _, expected = diagnosed(tmp_path / "whole", every=1)
    trainer, fail = make_trainer(tmp_path, make_model()), Fail()
    trainer.add_callback(fail)
    trainer.add_callback(DiagnosticsCallback(tmp_path, 1))
    with pytest.raises(MemoryError):
        trainer.train()
    trainer.remove_callback(fail)
    trainer.train()
    found = read_json_lines(tmp_path / "diagnostics.jsonl")
    assert series(found, "losses") == pytest.approx(series(expected, "losses"), rel=1e-3)


def test_a_version_of_pytorch_without_its_hook_is_named(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.autograd.Variable, "_execution_engine")
    trainer = make_trainer(tmp_path, make_model(), max_updates=1)
    trainer.add_callback(DiagnosticsCallback(tmp_path))
    with pytest.raises(InputError, match=f"diagnostics: not available with PyTorch {re.escape(torch.__version__)}"):
        trainer.train()
