# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Transformers' own tests, imported from the folder `TRANSFORMERS_TESTS`, and what they ask of a model family."""

from __future__ import annotations

import os
import sys
import types
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import residual_hf
from residual_hf import ResidualConfig

ABSENT = {  # from the source distribution, which has only the files at the top of the folder: they add no tests then
    "tests.exporters.test_export": "ExportTesterMixin",
    "tests.generation.test_utils": "GenerationTesterMixin",
}
FAMILIES = {  # fields of the config, and classes
    "encoder_decoder": ({}, ("ResidualModel", "ResidualForConditionalGeneration")),
    "decoder": ({"is_decoder_only": True}, ("ResidualModel", "ResidualForCausalLM")),
    "encoder": (
        {"is_encoder_only": True},
        ("ResidualModel", "ResidualForMaskedLM", "ResidualForSequenceClassification"),
    ),
    "speech": ({"conv_channels": 16, "num_mel_bins": 6, "max_source_positions": 64}, ("ResidualForSpeechSeq2Seq",)),
}
EAGER_ONLY = "passes scores of attention from layer to layer, which only eager attention computes, and refuses others"
NO_TOKENS = "expects `input_ids`: the tests of Speech2Text in Transformers replace or skip it too"
DEVIATIONS = {  # the tests of a mode or a family that it does not pass, and why it should not
    "speech": dict.fromkeys(
        ("test_inputs_embeds", "test_resize_embeddings_untied", "test_resize_tokens_embeddings"), NO_TOKENS
    ),
    "realformer": {
        "test_can_set_attention_dynamically": EAGER_ONLY,
        "test_sdpa_can_dispatch_non_composite_models": EAGER_ONLY,
    },
}


def import_tests() -> types.ModuleType:
    """`test_modeling_common` of Transformers. Skips the calling module if `TRANSFORMERS_TESTS` is not set."""
    folder = os.environ.get("TRANSFORMERS_TESTS")
    if not folder:
        pytest.skip("set TRANSFORMERS_TESTS to the folder `tests` of Transformers' source", allow_module_level=True)
    package = types.ModuleType("tests")
    package.__path__ = [folder]
    sys.modules["tests"] = package
    for name, mixin in ABSENT.items():
        if not Path(folder, *name.split(".")[1:]).with_suffix(".py").exists():
            sys.modules[name] = types.ModuleType(name)
            setattr(sys.modules[name], mixin, type(mixin, (), {}))
    common = import_module("tests.test_modeling_common")
    # the tables that models in Transformers are in; from the name of its class follows which labels a model takes
    common.MODEL_MAPPING_NAMES.setdefault("residual", "ResidualModel")
    names = {"residual": "ResidualForConditionalGeneration", "residual_speech": "ResidualForSpeechSeq2Seq"}
    common.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.update(names)
    return common


class ModelTester:
    """Makes the tiny configs and inputs that the tests of a family (of stacks) and a mode use."""

    batch_size, seq_length, encoder_seq_length, decoder_seq_length = 5, 7, 7, 7
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 50, 32, 2, 4
    is_training = True

    def __init__(self, family: str, mode: str):
        self.family, self.mode = family, mode
        if family == "speech":
            self.encoder_seq_length = 2  # of 7 frames

    def get_config(self) -> ResidualConfig:
        stacks = ["encoder", "decoder"] if self.family == "speech" else self.family.split("_")
        heads = {f"{stack}_attention_heads": self.num_attention_heads for stack in stacks}
        return ResidualConfig(
            ln_mode=self.mode,
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            max_position_embeddings=128,
            **heads,
            **{f"{stack}_layers": self.num_hidden_layers for stack in stacks},
            **{f"{stack}_ffn_dim": 37 for stack in stacks},
            **FAMILIES[self.family][0],
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[ResidualConfig, dict[str, Any]]:
        ids = torch.randint(3, self.vocab_size, (2, self.batch_size, self.seq_length))
        inputs = {"input_ids": ids[0], "attention_mask": torch.ones_like(ids[0])}
        if self.family == "speech":
            inputs["input_features"] = torch.randn(*inputs.pop("input_ids").shape, 6)
        if self.family in ("encoder_decoder", "speech"):
            inputs |= {"decoder_input_ids": ids[1], "decoder_attention_mask": torch.ones_like(ids[1])}
        return self.get_config(), inputs


def make_test(family: str, mode: str, *mixins: type) -> type:
    """A test case of one family and mode: the tests of `mixins`, without `DEVIATIONS`."""
    classes = tuple(getattr(residual_hf, name) for name in FAMILIES[family][1])
    members: dict[str, Any] = {
        "__module__": "test_models",
        "all_model_classes": classes,
        "is_encoder_decoder": family in ("encoder_decoder", "speech"),
        "setUp": lambda self: setattr(self, "model_tester", ModelTester(family, mode)),
    }
    for test, reason in (DEVIATIONS.get(mode, {}) | DEVIATIONS.get(family, {})).items():
        members[test] = unittest.skip(reason)(lambda self: None)
    return type(f"Test_{family}_{mode}", (*mixins, unittest.TestCase), members)
