# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Parameter names of fairseq and its forks to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

ATTENTIONS = ("self_attn", "encoder_attn")
# version marks, buffers, and the second copy of a layer's weights that fairseq 0.12 keeps for a fused inference kernel
IGNORED = re.compile(
    r"(\.version|_float_tensor|embed_positions\.weights)$"
    r"|^(encoder|decoder)\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)

# official name inside a layer or stack -> ours; fused projections are split before
RENAMES = [
    (r"^(encoder|decoder)\.embed_tokens\.weight$", r"model.\1.embed_tokens.weight"),
    (r"^(encoder|decoder)\.embed_positions\.weight$", r"model.\1.embed_positions.weight"),
    (r"^decoder\.(output_projection\.weight|embed_out)$", r"lm_head.weight"),
    (r"^(encoder|decoder)\.layer_norm\.(\w+)$", r"model.\1.boundary.norm.\2"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.(self_attn|encoder_attn)\.(\w+)\.(\w+)$", r"model.\1.layers.\2.\3.\4.\5"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.(fc[12])\.(\w+)$", r"model.\1.layers.\2.ffn.\3.\4"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.(self_attn|encoder_attn)_layer_norm\.(\w+)$",
     r"model.\1.layers.\2.\3_residual.norm.\4"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.final_layer_norm\.(\w+)$", r"model.\1.layers.\2.ffn_residual.norm.\3"),
]  # fmt: skip


def rename_parameter(name: str) -> str | None:
    """Our name of an official parameter (projections separate), or None where there is none."""
    for pattern, replacement in RENAMES:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name)
    return None


def split_fused_projections(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`in_proj_weight` (3d, d) and `in_proj_bias` (3d,) to those of q, k and v, in that order."""
    split = {}
    for name, tensor in state_dict.items():
        fused = re.match(r"^(.*)\.in_proj_(weight|bias)$", name)
        if fused is None:
            split[name] = tensor
            continue
        for projection, part in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3, dim=0), strict=True):
            split[f"{fused[1]}.{projection}.{fused[2]}"] = part.clone()
    return split


def convert_fairseq_state_dict(state_dict: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Weights under fairseq's names to the state dict of `ResidualForConditionalGeneration(config)`.

    Projections may be fused or separate; an output matrix that fairseq stores beside the table it is tied to, and
    buffers without a counterpart, are dropped. Raises `ValueError` naming the parameters that are left over, missing
    or of another shape than the config asks for.
    """
    converted: dict[str, Tensor] = {}
    unknown = []
    named = {name: tensor for name, tensor in state_dict.items() if not IGNORED.search(name)}
    for name, tensor in split_fused_projections(named).items():
        ours = rename_parameter(name)
        if ours is None:
            unknown.append(name)
        else:
            converted[ours] = tensor
    _tie(converted, config)
    _check(converted, unknown, config)
    return converted


def _tie(converted: dict[str, Tensor], config: Any) -> None:
    """Complete the copies of tied tables, from whichever name the checkpoint stored them under."""
    encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    if config.share_encoder_decoder_embeddings:
        converted.setdefault(decoder, converted.get(encoder))
    if config.tie_word_embeddings:
        converted["lm_head.weight"] = converted.get(decoder, converted.get("lm_head.weight"))


def _check(converted: Mapping[str, Tensor], unknown: list[str], config: Any) -> None:
    import torch

    from ..model.modeling_residual import ResidualForConditionalGeneration

    with torch.device("meta"):
        expected = ResidualForConditionalGeneration(config).state_dict()
    missing = sorted(set(expected) - set(converted))
    unknown = sorted(unknown + list(set(converted) - set(expected)))
    shapes = [
        f"{name}: {tuple(converted[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in converted and converted[name].shape != expected[name].shape
    ]
    problems = [
        f"{what}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        for what, names in (("missing", missing), ("unknown", unknown), ("wrong shape", shapes))
        if names
    ]
    if problems:
        raise ValueError("the state dict does not fit the config; " + "; ".join(problems))
