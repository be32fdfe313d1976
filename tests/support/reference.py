"""Outputs of the official implementations, stored in tests/fixtures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from residual_hf.conversion import convert_fairseq_state_dict
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

HERE = Path(__file__).parents[1]
SHARED = HERE.parent.parent / "shared"
FIXTURES = HERE / "fixtures"


class Fixture:
    """One official model with its inputs and outputs."""

    def __init__(self, name: str):
        self.settings: dict[str, Any] = {"fixture": name, **json.loads((FIXTURES / f"{name}.json").read_text())}
        with np.load(FIXTURES / f"{name}.npz") as arrays:
            self.arrays = {key: arrays[key] for key in arrays.files}

    def group(self, prefix: str) -> dict[str, torch.Tensor]:
        return {k[len(prefix) :]: torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith(prefix)}

    def output(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.arrays[f"output/{name}"])

    @property
    def source(self) -> torch.Tensor:
        return torch.from_numpy(self.arrays["input/src_tokens"])

    @property
    def decoder_input(self) -> torch.Tensor:
        return torch.from_numpy(self.arrays["input/prev_output_tokens"])

    @property
    def target(self) -> torch.Tensor:
        return torch.from_numpy(self.arrays["input/target"])

    def config(self, **overrides: Any) -> ResidualConfig:
        s = self.settings
        mode: dict[str, Any] = {"ln_mode": s["ln_mode"]}
        if s["fixture"] == "hybrid_post_encoder_pre_decoder":
            names = {False: "post_ln", True: "pre_ln"}
            mode = {
                "ln_mode": names[s["encoder_normalize_before"]],
                "decoder_ln_mode": names[s["decoder_normalize_before"]],
            }
        elif s["ln_mode"] == "normformer":  # the flags exist in the decoder only
            mode["encoder_ln_mode"] = "pre_ln"
            mode["ln_mode_options"] = {"scale_residual": True}
        if "res_input_norm_scale" in s:
            mode["ln_mode_options"] = {"dual_scale": s["res_input_norm_scale"]}
            mode["encoder_ln_mode_options"] = {"main_scale": s["enc_alpha"]}
            mode["decoder_ln_mode_options"] = {"main_scale": s["dec_alpha"]}
        fields = {
            "vocab_size": s["vocab_size"],
            "d_model": s["d_model"],
            "encoder_layers": s["encoder_layers"],
            "decoder_layers": s["decoder_layers"],
            "encoder_ffn_dim": s["encoder_ffn_dim"],
            "decoder_ffn_dim": s["decoder_ffn_dim"],
            "encoder_attention_heads": s["heads"],
            "decoder_attention_heads": s["heads"],
            "share_encoder_decoder_embeddings": s["shared_embeddings"],
            "tie_word_embeddings": s["shared_embeddings"],
            "max_position_embeddings": 64,
            "activation_function": s["activation"],
            "scale_embedding": s["embed_scale"] != 1.0,
            "position_embedding_type": "none" if s["positions"] == "none" else "sinusoidal",
        }
        return ResidualConfig(**{**fields, **mode, **overrides})

    def model(self, attn_implementation: str = "sdpa", **overrides: Any) -> ResidualForConditionalGeneration:
        config = self.config(**overrides)
        model = ResidualForConditionalGeneration._from_config(config, attn_implementation=attn_implementation)
        model.load_state_dict(convert_fairseq_state_dict(self.group("weight/"), config))
        return model.eval()
