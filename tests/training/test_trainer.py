import copy
import json
import os
import re

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from safetensors.torch import load_file
from support.trainers import Words, make_corpus, make_model, make_trainer
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments

from residual_hf import BranchWarmupCallback
from residual_hf.base.errors import InputError
from residual_hf.data.batching import TokenBudgetSampler
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.evaluation.scorer import Scorer
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.scoring import translate_corpus
from residual_hf.losses.label_smoothing import smoothed_cross_entropy
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.training.trainer import train_sampler


def test_evaluation_is_the_mean_over_all_target_tokens(tmp_path):
    model, data = make_model(), make_corpus(20, seed=1)
    metrics = make_trainer(tmp_path, model).evaluate()
    smoothed = nll = tokens = 0.0
    for row in (data[i] for i in range(len(data))):
        ids, labels = (torch.tensor(row[name]).long()[None] for name in ("input_ids", "labels"))
        with torch.no_grad():
            decoder_input = model.prepare_decoder_input_ids_from_labels(labels)
            sums = smoothed_cross_entropy(model(ids, decoder_input_ids=decoder_input).logits, labels)
        smoothed, nll, tokens = smoothed + sums.smoothed, nll + sums.nll, tokens + sums.tokens
    assert metrics["eval_nll"] == pytest.approx(float(nll / tokens), rel=1e-5)
    assert metrics["eval_loss"] == pytest.approx(float(smoothed / tokens), rel=1e-5)


def test_workers_are_no_part_of_the_process_group(tmp_path):
    """`torchrun` ends a group; the main process saves a checkpoint, for which it needs them."""
    trainer = make_trainer(tmp_path, make_model(), num_workers=1)
    trainer.data_collator = lambda rows: torch.tensor([os.getpgrp()])
    groups = {int(group) for group in trainer.get_train_dataloader()}
    assert len(groups) == 1 and os.getpgrp() not in groups


def test_the_log_has_the_padding_of_the_batches(tmp_path, caplog):
    trainer = make_trainer(tmp_path, make_model(), pad_to_multiple_of=8)
    with caplog.at_level("INFO", logger="residual_hf"):
        masks = [batch["attention_mask"] for batch in trainer.get_train_dataloader()]
    padding = 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    assert (
        float(re.search(r"source_padding ([\d.]+)", caplog.text)[1]) == pytest.approx(padding, abs=0.005) and padding
    )


def test_evaluation_leaves_dropout_off_and_the_mode_as_it_was(tmp_path):
    trainer = make_trainer(tmp_path, make_model(dropout=0.5))
    trainer.model.train()
    first, second = trainer.evaluate(), trainer.evaluate()
    assert first["eval_nll"] == second["eval_nll"]
    assert trainer.model.training


def test_evaluation_has_the_autocast_of_training_before_it_too(tmp_path):
    """As where a finished run is scored again."""
    trainer = make_trainer(tmp_path, make_model())
    trainer.accelerator.state._mixed_precision, trainer.accelerator.native_amp = "bf16", True
    with trainer.inference():
        kind = trainer.accelerator.device.type
        assert torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


def test_accumulated_batches_give_the_update_of_the_whole(tmp_path):
    """One update over two batches equals the update from the sum of their losses over all their tokens."""
    model = make_model()
    reference = copy.deepcopy(model)
    trainer = make_trainer(
        tmp_path, model, max_updates=1, update_freq=2, warmup_updates=0, lr=1e-2, optimizer="adamw", eps=1.0
    )
    batches = list(trainer.get_train_dataloader())[:2]
    trainer.train()

    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1.0, weight_decay=1e-4)
    tokens = sum(int(batch["labels"].ne(-100).sum()) for batch in batches)
    for batch in batches:
        labels = batch.pop("labels")
        (smoothed_cross_entropy(reference(**batch).logits, labels).smoothed / tokens).backward()
    optimizer.step()
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_saved_models_use_the_cache(tmp_path, checkpointing):
    """`Trainer` sets `use_cache: false` in the config of the model that it trains."""
    options = {"max_updates": 2, "eval_every": 1, "gradient_checkpointing": checkpointing}
    trainer = make_trainer(tmp_path / "ours", make_model(), **options)
    trainer.train()
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "plain"), max_steps=1, gradient_checkpointing=checkpointing, report_to="none", use_cpu=True
    )
    plain = Seq2SeqTrainer(
        make_model(), arguments, train_dataset=trainer.train_dataset, data_collator=trainer.data_collator
    )
    plain.train()
    plain.save_model()
    for folder in (tmp_path / "ours" / "checkpoint-1", tmp_path / "plain" / "checkpoint-1", tmp_path / "plain"):
        assert "use_cache" not in json.loads((folder / "config.json").read_text())
        assert ResidualConfig.from_pretrained(folder).use_cache
        assert GenerationConfig.from_pretrained(folder).use_cache


def test_learning_rates_are_fairseqs(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), max_updates=6, warmup_updates=3, lr=0.3, warmup_init_lr=0.0)
    trainer.train()
    rates = [record["learning_rate"] for record in trainer.state.log_history if "learning_rate" in record]
    # Transformers logs the rate of the update that is about to come
    assert rates[:2] == pytest.approx([0.1, 0.2]) or rates[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert any(rate == pytest.approx(0.3) for rate in rates)
    assert any(rate == pytest.approx(0.3 * (3 / 5) ** 0.5) for rate in rates)


def test_another_call_of_train_begins_with_another_schedule(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), schedule="linear")
    trainer.train()
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    assert trainer.state.max_steps == 4
    assert any(not torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())


def test_a_run_within_its_warm_up_is_named(tmp_path, caplog):
    trainer = make_trainer(tmp_path, make_model(), max_updates=None, max_epochs=1, warmup_updates=4000)
    trainer.create_optimizer_and_scheduler(7)
    assert "training.warmup_updates: 4000 given, but the run has 7 updates: lr is not reached" in caplog.text
    caplog.clear()
    trainer = make_trainer(tmp_path, make_model(), max_updates=None, max_epochs=1, warmup_updates=6)
    trainer.create_optimizer_and_scheduler(7)
    assert not caplog.text


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "fp32"), ("fp16", "fp32"), ("bf16", "bf16")])
def test_a_compiled_training_on_a_cpu_records_the_precision_that_it_has(tmp_path, precision, expected):
    assert make_trainer(tmp_path, make_model(), compile=True, precision=precision).precision == expected
    assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")


def test_scores_of_translations_are_reported(tmp_path):
    valid = make_corpus(6, seed=2)
    references = [" ".join(map(str, valid[n]["labels"][:-1])) for n in range(6)]
    scorer = Scorer(ParallelCorpus([""] * 6, references, "valid"))
    decoding = DecodingSettings(num_beams=2, max_length_b=5, max_length_a=0.0)
    seen = []

    def score(model, corpus):
        seen.append(translate_corpus(model, Words(), corpus, [""] * 6, decoding))
        return scorer.figures(seen[-1])

    trainer = make_trainer(tmp_path, make_model(), valid=valid, score=score)
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_bleu"] <= 100 and 0 <= metrics["eval_chrf"] <= 100
    assert len(seen[0]) == 6 and all(len(line.split()) <= 5 for line in seen[0])
    trainer.score = lambda model, corpus: scorer.figures(references)
    assert trainer.evaluate()["eval_bleu"] == pytest.approx(100)


def test_evaluation_does_not_change_what_training_logs(tmp_path):
    entries = []
    for every in (1, 4):
        trainer = make_trainer(tmp_path / str(every), make_model(), log_every=4, eval_every=every)
        trainer.train()
        entries.append([entry["nll"] for entry in trainer.state.log_history if "loss" in entry])
    assert entries[0] == entries[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_lowers_the_loss(tmp_path, precision):
    trainer = make_trainer(
        tmp_path, make_model(), precision=precision, max_updates=60, warmup_updates=5, lr=2e-2, eval_every=60
    )
    before = trainer.evaluate(make_corpus())["eval_nll"]
    trainer.train()
    assert trainer.evaluate(make_corpus())["eval_nll"] < before - 0.3


def test_admin_is_profiled_before_the_first_update_and_not_on_resuming(tmp_path, caplog):
    model = make_model(ln_mode="admin")
    fresh = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, model, max_updates=4, eval_every=2, lr=1e-3)
    batch = next(iter(trainer.get_train_dataloader()))
    caplog.set_level("INFO")
    trainer.train()
    assert caplog.text.count("epoch: ") == 1
    profile = model.config.admin_profile
    assert profile == pytest.approx(fresh.profile_admin(batch))
    saved = ResidualConfig.from_pretrained(tmp_path / "checkpoint-2")
    assert saved.admin_profile == profile

    again = make_trainer(tmp_path, make_model(ln_mode="admin"), max_updates=4, eval_every=2, lr=1e-3)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.model.config.admin_profile == profile
    for a, b in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_branch_warmup_counts_updates_and_continues_after_a_resume(tmp_path):
    def weights(folder, step):
        return load_file(tmp_path / folder / f"checkpoint-{step}" / "model.safetensors")

    def trainer(folder, **fields):
        model = make_model(ln_mode="post_ln", branch_warmup={"schedule": "linear", "updates": 3})
        return make_trainer(tmp_path / folder, model, update_freq=2, eval_every=2, keep_last=2, **fields)

    straight = trainer("straight")
    straight.train()
    name = "model.decoder.layers.1.branch_warmup.updates"
    assert [int(weights("straight", step)[name]) for step in (2, 4)] == [2, 4]
    best = int(straight.state.best_model_checkpoint.rpartition("-")[2])
    assert int(straight.model.get_buffer(name)) == best
    resumed = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    assert "train_samples_per_second" not in resumed.state.log_history[-1], "of which batches have any number"
    torch.testing.assert_close(weights("resumed", 4), weights("straight", 4), rtol=0, atol=0)
    other = make_trainer(tmp_path / "other", make_model(ln_mode="post_ln"))
    with pytest.raises(InputError, match="checkpoint-2: its model has branch_warmup .*, the one to train None"):
        other.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))


def test_branch_warmup_in_another_trainer(tmp_path):
    model = make_model(ln_mode="branch_norm")
    row = {"input_ids": [5, 6, 2], "labels": [7, 8, 2]}
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=3, gradient_accumulation_steps=2, use_cpu=True, report_to="none", save_strategy="no"
    )
    Seq2SeqTrainer(model, arguments, train_dataset=[row] * 16, callbacks=[BranchWarmupCallback()]).train()
    assert [int(warmup.updates) for warmup in branch_warmups(model)] == [3, 3, 3]
    model = make_model(ln_mode="branch_norm")
    make_trainer(tmp_path / "own", model, callbacks=[BranchWarmupCallback()]).train()
    assert [int(warmup.updates) for warmup in branch_warmups(model)] == [4, 4, 4]


def test_early_stopping_counts_on_after_a_resume(tmp_path):
    """Three evaluations without a better one end the run, one of them before it was interrupted."""

    def stopping(folder, **settings):
        model = make_model()
        rate = {"lr": 1e-9, "warmup_updates": 0, "warmup_init_lr": 0.0}
        trainer = make_trainer(folder, model, eval_every=2, keep_last=9, **rate, **settings)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=1.0))
        return trainer

    whole = stopping(tmp_path / "whole", max_updates=40)
    whole.train()
    stopping(tmp_path / "parts", max_updates=4).train()
    resumed = stopping(tmp_path / "parts", max_updates=40)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == whole.state.global_step == 8
    assert resumed.state.best_metric == whole.state.best_metric


def test_one_of_several_processes_resumes_in_the_order_of_the_epoch(tmp_path):
    """Transformers and accelerate do not tell the sampler the epoch where they skip batches for a process."""
    trainer = make_trainer(tmp_path, make_model(), max_updates=14, eval_every=14)
    trainer.train()  # 14 updates are more than one epoch
    epoch = int(trainer.state.epoch)
    assert epoch == 1
    in_order = list(train_sampler(trainer.train_dataset, trainer.settings, 1))
    resumed = make_trainer(tmp_path, make_model(), max_updates=15, eval_every=15)
    resumed.train(resume_from_checkpoint=True)
    loader = prepare_data_loader(
        DataLoader(resumed.train_dataset, batch_sampler=resumed.get_train_dataloader().batch_sampler, collate_fn=list),
        num_processes=2,
        process_index=1,
        put_on_device=False,
    )
    first = next(iter(skip_first_batches(loader, 1)))
    expected = TokenBudgetSampler(
        resumed.train_dataset.source_lengths, resumed.train_dataset.target_lengths, 60, seed=1, order="length_bucketed"
    )
    expected.set_epoch(1)
    rows = list(expected)[3]
    assert rows != in_order[3]
    assert [row["labels"].tolist() for row in first] == [resumed.train_dataset[i]["labels"].tolist() for i in rows]
