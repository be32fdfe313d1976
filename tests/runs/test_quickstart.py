"""`residual-hf quickstart` at reduced size; CI runs it in full."""

import re
from dataclasses import replace

import pytest
import torch

from residual_hf.runs import quickstart as module
from residual_hf.runs.quickstart import one_thread, quickstart, quickstart_recipe
from residual_hf.runs.recipe import load_recipe

STAGES = (
    *("generating the corpus", "training a tokenizer", "training: update 1 to 8"),
    *("scoring the model on test", "reloading the model", "translating"),
)


@pytest.fixture
def small(monkeypatch):
    """Seconds: eight updates of a small model on 300 pairs."""

    def recipe(folder):
        made = quickstart_recipe(folder)
        return replace(
            made,
            model=made.model | {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
            tokenizer=replace(made.tokenizer, vocab_size=400),
            training=replace(made.training, max_updates=8, eval_every=8, warmup_updates=2, log_every=2),
        )

    monkeypatch.setattr(module, "SIZES", {"train": 300, "valid": 10, "test": 10})
    monkeypatch.setattr(module, "quickstart_recipe", recipe)


def test_stages_scores_and_translations_are_printed(small, tmp_path, capsys):
    folder = tmp_path / "run"
    assert quickstart(folder) is False  # eight updates are not enough
    printed, log = capsys.readouterr()
    assert re.findall("|".join(STAGES), log) == list(STAGES)
    assert re.findall(r"update (\d) of 8, .*  loss \d", log) == ["1", "2", "4", "6", "8"]
    references = (folder / "test.de").read_text(encoding="utf-8").splitlines()
    assert len(re.findall(rf"\(reference: ({'|'.join(map(re.escape, references))})\)", printed)) == 5
    assert re.search(r"BLEU \d+\.\d\d on 10 held-out sentences", printed)
    assert "FAILED: BLEU" in printed
    assert (folder / "model" / "model.safetensors").exists()
    assert load_recipe(folder / "recipe.yaml").as_dict() == module.quickstart_recipe(folder).as_dict()


def test_threads_are_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
