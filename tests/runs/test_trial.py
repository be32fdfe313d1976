import json
from types import SimpleNamespace

import pytest
import torch
from support.recipes import changed, make_recipe
from support.trainers import make_model

from residual_hf.base.errors import InputError
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.runs import trial
from residual_hf.runs.run import train
from residual_hf.runs.trial import find_max_tokens, random_batch, split_update, tokens_that_fit


def test_on_a_cpu_the_budget_grows_with_the_free_memory(monkeypatch):
    model = make_model()
    lengths = [5, 9, 20]

    def with_memory(available, **options):
        monkeypatch.setattr(trial, "available_memory", lambda: available)
        return tokens_that_fit(model, lengths, **options)

    small, large = with_memory(2**24), with_memory(2**25)
    assert small % 256 == 0 and 1.9 * small < large <= 2.1 * small + 256
    assert with_memory(2**25, sharing=2) == small
    assert with_memory(2**45) == trial.CEILING
    with pytest.raises(InputError, match="a sentence of 20 tokens does not fit into the memory of cpu"):
        with_memory(2**10)


def test_another_device_is_tried_until_it_is_full(monkeypatch):
    model = make_model().to("meta")  # no GPU, but neither is it counted like a CPU
    weights = sum(4 * parameter.numel() for parameter in model.parameters())
    empty, free = torch.empty, 2**23 + 3 * weights

    def allocate(*sizes, **options):
        if options.get("dtype") is torch.uint8 and sizes[0] > free:
            raise torch.OutOfMemoryError
        return empty(*sizes, **options)

    def run(labels, **inputs):
        if labels.numel() > 3000:
            raise torch.OutOfMemoryError
        return SimpleNamespace(loss=next(model.parameters()).sum())

    module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(total_memory=2**24))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(trial, "RESERVE", 0.5)
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(model, "forward", run)
    assert 2816 - 256 <= tokens_that_fit(model, [5, 9, 20], copies=1) <= 2816
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(InputError, match="a sentence of 20 tokens does not fit into the memory of meta"):
        tokens_that_fit(model, [5, 9, 20], copies=2)
    del module.get_device_properties  # as of MPS
    with pytest.raises(InputError, match="the memory of meta is unknown, must be a number"):
        tokens_that_fit(model, [5, 9, 20], copies=1)


def test_a_batch_is_one_that_the_model_can_read_and_write():
    config = make_model().config
    config.pad_token_id = config.vocab_size - 1  # as in Marian
    assert random_batch(config, 2, 5, torch.device("cpu"))["input_ids"].shape == (2, 5)
    config = ResidualConfig(conv_channels=8, max_position_embeddings=16)
    batch = random_batch(config, 2, 100, torch.device("cpu"))
    assert batch["input_features"].shape == (2, 100, config.num_mel_bins) and batch["labels"].shape == (2, 16)


def test_a_larger_model_gets_fewer_tokens(monkeypatch):
    monkeypatch.setattr(trial, "available_memory", lambda: 2**25)
    assert tokens_that_fit(make_model(decoder_layers=8), [8]) < 0.6 * tokens_that_fit(make_model(), [8])


def test_the_search_measures_the_loss_of_training_which_stores_no_logits(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "available_memory", lambda: 2**26)
    model = make_model()
    with_logits = tokens_that_fit(model, [8])
    found = find_max_tokens(make_recipe(tmp_path), model, [8])
    assert found > with_logits
    assert find_max_tokens(make_recipe(tmp_path, r_drop=1.0), model, [8]) == pytest.approx(found / 2, rel=0.1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # processes that share the memory
    assert find_max_tokens(make_recipe(tmp_path), model, [8]) == pytest.approx(found / 2, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "adjustable", "expected"),
    [
        ((None, 4096, 2, 8), False, (4096, 2)),
        ((32768, 4096, 1, 1), False, (4096, 8)),
        ((32768, 4096, 1, 2), False, (4096, 4)),
        ((32768, 4096, 1, 8), False, (4096, 1)),
        ((32768, 20000, 1, 1), True, (16384, 2)),
        ((32768, 65536, 1, 4), True, (8192, 1)),
    ],
)
def test_an_update_has_the_same_tokens_on_any_number_of_processes(arguments, adjustable, expected):
    assert split_update(*arguments, adjustable=adjustable) == expected


def test_tokens_that_cannot_be_divided_are_refused():
    with pytest.raises(
        InputError, match=r"tokens_per_update: 10000 .*multiple of max_tokens \(4096\) .*processes \(2\)"
    ):
        split_update(10000, 4096, 1, 2)


def test_auto_in_a_recipe_is_recorded_and_kept_on_resuming(tmp_path, monkeypatch):
    recipe = make_recipe(
        tmp_path, max_tokens="auto", tokens_per_update=600, max_updates=2, eval_every=2, eval_bleu=False
    )
    monkeypatch.setattr(trial, "PROBE", 64)
    train(recipe)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["tokens_per_update"] == 600 and record["max_tokens"] == 600
    small = changed(recipe, "training", tokens_per_update=4)
    with pytest.raises(InputError, match=r"training.tokens_per_update: 4 given, leaves batches of 4 tokens, but"):
        train(small, overwrite=True)
    monkeypatch.setattr(trial, "available_memory", lambda: 0)
    train(changed(recipe, "training", max_updates=4), resume=True)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["updates"] == 4
