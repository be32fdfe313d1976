"""Transformers' own tests, imported from the folder `TRANSFORMERS_TESTS`, and what they ask of a model family."""

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
from residual_hf import ResidualConfig, ResidualImageConfig

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
IMAGE_CLASSES = ("ResidualImageModel", "ResidualForImageClassification")
IMAGES = {
    "resnet": {"depth": 8, "d_model": 16},
    "vit": {"architecture": "vit", "image_size": 8, "d_model": 32, "encoder_layers": 2, "encoder_ffn_dim": 37},
}
EAGER_ONLY = "passes scores of attention from layer to layer, which only eager attention computes, and refuses others"
NOT_TOKENS = "asks for a table of tokens; Transformers' own models of images have a test of their own here"
NO_TOKENS = "expects `input_ids`: the tests of Speech2Text in Transformers replace or skip it too"
COUNTED_TWICE = (
    "makes a batch twice, also in the running means of batch norms, and is refused: `supports_...` is False"
)
DEVIATIONS = {  # the tests of a mode or a family that it does not pass, and why it should not
    "speech": dict.fromkeys(
        ("test_inputs_embeds", "test_resize_embeddings_untied", "test_resize_tokens_embeddings"), NO_TOKENS
    ),
    "resnet": {
        "test_model_get_set_embeddings": NOT_TOKENS,
        "test_num_layers_is_small": "allows two layers, and the smallest ResNet has a block in each of three stages",
        "test_gradient_checkpointing_enable_disable": COUNTED_TWICE,
        "test_peft_gradient_checkpointing_enable_disable": COUNTED_TWICE,
        "test_training_gradient_checkpointing": COUNTED_TWICE,
        "test_training_gradient_checkpointing_use_reentrant_false": COUNTED_TWICE,
        "test_training_gradient_checkpointing_use_reentrant_true": COUNTED_TWICE,
    },
    "vit": {"test_model_get_set_embeddings": NOT_TOKENS},
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
    common.MODEL_MAPPING_NAMES.setdefault("residual_image", "ResidualImageModel")
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


class ImageTester:
    """The same for an architecture of images. The sizes of a ResNet are those of its first stage."""

    batch_size, is_training, num_attention_heads = 5, True, 8

    def __init__(self, architecture: str, mode: str):
        self.architecture, self.mode = architecture, mode
        sizes = {"resnet": (64, 4, 3), "vit": (4, 32, 2)}[architecture]
        self.seq_length, self.hidden_size, self.num_hidden_layers = sizes

    def get_config(self) -> ResidualImageConfig:
        return ResidualImageConfig(ln_mode=self.mode, **IMAGES[self.architecture])

    def prepare_config_and_inputs_for_common(self) -> tuple[ResidualImageConfig, dict[str, Any]]:
        return self.get_config(), {"pixel_values": torch.rand(self.batch_size, 3, 8, 8)}


def make_test(family: str, mode: str, *mixins: type) -> type:
    """A test case of one family and mode: the tests of `mixins`, without `DEVIATIONS`."""
    names = IMAGE_CLASSES if family in IMAGES else FAMILIES[family][1]
    tester = ImageTester if family in IMAGES else ModelTester
    members: dict[str, Any] = {
        "__module__": "test_models",
        "all_model_classes": tuple(getattr(residual_hf, name) for name in names),
        "is_encoder_decoder": family in ("encoder_decoder", "speech"),
        "has_attentions": family != "resnet",
        "test_resize_embeddings": family not in IMAGES,
        "setUp": lambda self: setattr(self, "model_tester", tester(family, mode)),
    }
    for test, reason in {**DEVIATIONS.get(mode, {}), **DEVIATIONS.get(family, {})}.items():
        members[test] = unittest.skip(reason)(lambda self: None)
    return type(f"Test_{family}_{mode}", (*mixins, unittest.TestCase), members)
