# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Every mode of the catalogue, saved, gives the same tokens where only Transformers is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from transformers import AutoModelForSeq2SeqLM, pipeline

import residual_hf  # noqa: F401  registers the Auto classes
from residual_hf.checkpoint import save_checkpoint
from residual_hf.model import catalogue, connections

LENGTH = 6
MODES = sorted(
    name
    for name, mode in connections.LN_MODES.items()
    if mode.__module__.rpartition(".")[0] == catalogue.__name__.rpartition(".")[0]
)
ABSENT = ("residual_hf", "accelerate", "datasets", "evaluate", "sacrebleu", "sentencepiece", "peft")

SCRIPT = f"""
import json, sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # where it is installed too
import torch
torch.set_num_threads(1)
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

folder, modes = sys.argv[1], sys.argv[2:]
trusted = {{"trust_remote_code": True}}
for mode in modes:
    place = folder + "/" + mode
    batch = AutoTokenizer.from_pretrained(place, **trusted)({SENTENCES!r}, padding=True, return_tensors="pt")
    model = AutoModelForSeq2SeqLM.from_pretrained(place, **trusted)
    ids = model.generate(**batch, max_new_tokens={LENGTH}).tolist()
    translate = pipeline("translation", model=place, device="cpu", **trusted)
    print(json.dumps([mode, ids, translate({SENTENCES!r}, max_new_tokens={LENGTH}, num_beams=3, batch_size=4)]))
loaded = [name for name in sys.modules if name.partition(".")[0] in {ABSENT!r} and sys.modules[name] is not None]
assert not loaded, loaded
"""


def save(mode, folder):
    """A random model whose tokens depend on its mode: parameters of the connections are away from their start."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, ln_mode=mode, encoder_layers=2, decoder_layers=2)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "residual" in name or "boundary" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return save_checkpoint(model, tokenizer, folder / mode)


def with_the_package(folder):
    batch = tiny_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    ids = model.generate(**batch, max_new_tokens=LENGTH).tolist()
    translate = pipeline("translation", model=str(folder), device="cpu")
    return [ids, translate(SENTENCES, max_new_tokens=LENGTH, num_beams=3, batch_size=4)]


def elsewhere(saved, place):
    """Mode -> tokens and texts, from one process that can import nothing but Transformers and what it needs."""
    settings = {"HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(saved), *MODES],
        cwd=place,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr
    return {mode: found for mode, *found in map(json.loads, done.stdout.splitlines())}


def test_the_whole_catalogue_is_there():
    assert len(MODES) >= 30 and {"resi_dual", "post_ln", "pre_ln", "b2t", "admin", "hyper_connections"} < {*MODES}


def test_same_tokens_without_the_package(tmp_path):
    expected = {mode: with_the_package(save(mode, tmp_path / "saved")) for mode in MODES}
    assert elsewhere(tmp_path / "saved", tmp_path) == expected
    kinds = {json.dumps(ids) for ids, _ in expected.values()}
    assert len(kinds) > len(MODES) / 2  # else one mode could stand for another unseen
