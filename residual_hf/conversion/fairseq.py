"""Convert state dicts of fairseq and its forks: names and layouts of parameters."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from residual_hf.checkpoint_checks import check_differences
from residual_hf.data.task import task_of
from residual_hf.model.configuration_residual import ResidualConfig

# version numbers, buffers, and the second copy of weights that fairseq 0.12 keeps for a fused inference kernel
IGNORED = re.compile(
    r"(\.version|_float_tensor|embed_positions\.weights)$"
    r"|^(encoder|decoder)\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)

LAYER = r"(encoder|decoder)\.layers\.(\d+)\."
OURS = r"model.\1.layers.\2."
# official name (projections separate) -> our name; the first match counts
RENAMES = [
    (r"(encoder|decoder)\.(embed_tokens|embed_positions)\.weight", r"model.\1.\2.weight"),
    (r"encoder\.(?:subsample|conv)\.conv_layers\.(\d+)\.(\w+)", r"model.encoder.embed_tokens.convs.\1.\2"),
    (r"(encoder|decoder)\.layernorm_embedding\.(\w+)", r"model.\1.embed_norm.\2"),
    (r"decoder\.(?:output_projection\.weight|embed_out)", "lm_head.weight"),
    (r"decoder\.output_projection\.bias", "lm_head.bias"),
    (r"(encoder|decoder)\.layer_norm\.(\w+)", r"model.\1.boundary.norm.\2"),
    (LAYER + r"(self_attn|encoder_attn)\.([qkv])_proj_weight", OURS + r"\3.\4_proj.weight"),
    (LAYER + r"(self_attn|encoder_attn)\.(\w+_proj)\.(\w+)", OURS + r"\3.\4.\5"),
    (LAYER + r"(?:ffn\.)?(fc[12])\.(\w+)", OURS + r"ffn.\3.\4"),
    (LAYER + r"(self_attn|encoder_attn)_layer_norm\.(\w+)", OURS + r"\3_residual.norm.\4"),
    (LAYER + r"final_layer_norm\.(\w+)", OURS + r"ffn_residual.norm.\3"),
    # adaptive input and softmax of language models
    (r"decoder\.embed_tokens\.embeddings\.(\d+)\.0\.weight", r"model.decoder.embed_tokens.bands.\1.table.weight"),
    (r"decoder\.embed_tokens\.embeddings\.(\d+)\.1\.weight", r"model.decoder.embed_tokens.bands.\1.projection.weight"),
    (r"decoder\.adaptive_softmax\.head\.word_proj\.weight", "lm_head.table.weight"),
    (r"decoder\.adaptive_softmax\.head\.class_proj\.weight", "lm_head.band_scores.weight"),
    (r"decoder\.adaptive_softmax\.tail\.(\d+)\.0\.weight", r"lm_head.bands.\1.projection.weight"),
    (r"decoder\.adaptive_softmax\.tail\.(\d+)\.2\.weight", r"lm_head.bands.\1.table.weight"),
    # Transformer-Clinic: Admin's omega, ReZero's gate
    (LAYER + r"(?:attention|self)_ratio_change", OURS + "self_attn_residual.omega"),
    (LAYER + r"encoder_ratio_change", OURS + "encoder_attn_residual.omega"),
    (LAYER + r"fc_ratio_change", OURS + "ffn_residual.omega"),
    (LAYER + r"rezero_weight", OURS + "self_attn_residual.alpha"),
    # fairseq's NormFormer flags; torchscale's sub-LN
    (LAYER + r"c_attn", OURS + "self_attn.inner.output.0.weight"),
    (LAYER + r"attn_ln\.(\w+)", OURS + r"self_attn.inner.output.1.\3"),
    (LAYER + r"(?:ffn\.)?ffn_layernorm\.(\w+)", OURS + r"ffn.inner.inner.\3"),
    (LAYER + r"w_resid", OURS + "ffn_residual.w"),
    (LAYER + r"self_attn\.inner_attn_ln\.(\w+)", OURS + r"self_attn.inner.heads.\3"),
    (r"(encoder|decoder)\.(shift|scale)0\.(\w+)", r"model.\1.boundary.\2.\3"),  # Fixup
]  # fmt: skip
for stack, parts in {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}.items():
    layer, ours = rf"{stack}\.layers\.(\d+)\.", rf"model.{stack}.layers.\1."
    for number, part in enumerate(parts):  # DLCL's norms, Fixup's shifts and scales: numbered in the order of use
        RENAMES.append((rf"{layer}layer_norms\.{number}\.(\w+)", rf"{ours}{part}_residual.norm.\2"))
        RENAMES.append((rf"{layer}(shift|scale){number}\.(\w+)", rf"{ours}{part}_residual.\2.\3"))
    RENAMES.append((rf"{layer}shift{len(parts)}\.(\w+)", rf"{ours}ffn.inner.pre_activation.\2"))
    RENAMES.append((rf"{layer}shift{len(parts) + 1}\.(\w+)", rf"{ours}ffn.inner.inner.\2"))
UNUSED = {"t_fixup": re.compile(r"encoder_attn_residual\.norm\.")}  # part of the state dict, but never called


def rename_parameter(name: str) -> str | None:
    """Our name of an official parameter (projections separate), or None if there is none."""
    for pattern, replacement in RENAMES:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return None


def split_parameter(name: str, tensor: Tensor, config: ResidualConfig) -> Iterator[tuple[str, Tensor]]:
    """A parameter of fairseq as those that have a place of their own here: q, k and v (in this order) of a fused
    projection, the layers of DLCL's history, and tokens and bands of an adaptive softmax.
    """
    fused = re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name)
    history = re.fullmatch(r"(encoder|decoder)\.history\.(?:weight|layer_norms\.(\d+)\.(\w+))", name)
    if fused:
        for projection, part in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3, dim=0), strict=True):
            yield f"{fused[1]}.{projection}.{fused[2]}", part.clone()
    elif history:
        yield from split_history(tensor, config, *history.groups())
    elif name == "decoder.adaptive_softmax.head.weight":
        first = (config.adaptive_cutoffs or [len(tensor)])[0]
        yield "decoder.adaptive_softmax.head.word_proj.weight", tensor[:first].clone()
        yield "decoder.adaptive_softmax.head.class_proj.weight", tensor[first:].clone()
    elif re.fullmatch(r"decoder\.adaptive_softmax\.tail\.\d+\.0\.weight", name) and not config.tie_word_embeddings:
        yield name, tensor.T.clone()
    else:
        yield name, tensor


def split_history(
    tensor: Tensor, config: ResidualConfig, stack: str, number: str | None, part: str
) -> Iterator[tuple[str, Tensor]]:
    """DLCL's weights (L+1, L+1, 1) of a stack as one row per layer, or the `part` of a norm under our name."""
    layers, top, depth = f"model.{stack}.layers", f"model.{stack}.boundary", config.of(stack).layers
    if number is None:
        for row in range(depth):
            yield f"{layers}.{row}.self_attn_residual.mix.weight", tensor[row, : row + 1, 0].clone()
        yield f"{top}.mix.weight", tensor[depth, :, 0].clone()
    elif config.of(stack).ln_mode == "dlcl_pre":
        yield f"{layers}.{int(number) - 1}.ffn_residual.output_norm.{part}", tensor
    elif int(number) == depth:
        yield f"{top}.norm.{part}", tensor
    else:
        yield f"{layers}.{number}.self_attn_residual.mix_norm.{part}", tensor


def convert_fairseq_state_dict(state_dict: Mapping[str, Tensor], config: ResidualConfig) -> dict[str, Tensor]:
    """Convert weights under fairseq's names to the state dict of the model of a config: a
    `ResidualForConditionalGeneration`, a `ResidualForSpeechSeq2Seq`, or a `ResidualForCausalLM`.

    Projections may be fused or separate. Buffers without a counterpart are dropped, as is the copy of a tied output
    matrix.

    Raises `InputError` for parameters that are unknown, missing, or of another shape than the config requires.
    """
    converted: dict[str, Any] = {}
    unknown = []
    unused = UNUSED.get(config.of("decoder").ln_mode) if "decoder" in config.stacks else None
    kept = (item for item in state_dict.items() if not IGNORED.search(item[0]))
    for name, tensor in chain.from_iterable(split_parameter(*item, config) for item in kept):
        ours = name if name.startswith("model.") else rename_parameter(name)
        if ours is None:
            unknown.append(name)
        elif unused is None or not unused.search(ours):
            converted[ours] = tensor
    encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    if len(config.token_stacks) == 2 and config.share_encoder_decoder_embeddings:
        converted.setdefault(decoder, converted.get(encoder))  # a checkpoint may store a tied table under any name
    if config.tie_word_embeddings and not config.adaptive_cutoffs:
        converted["lm_head.weight"] = converted.get(decoder, converted.get("lm_head.weight"))
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in task_of(config).model(config).state_dict().items()}
    modes = " and ".join(dict.fromkeys(own.ln_mode for own in config.stack_configs))
    found = {name: tensor.shape for name, tensor in converted.items()}
    check_differences(
        f"the weights are not those of the settings, with ln_mode {modes}",
        missing=expected.keys() - found.keys(),
        unknown=[*unknown, *(found.keys() - expected.keys())],
        mismatched=[(k, found[k], shape) for k, shape in expected.items() if found.get(k, shape) != shape],
    )
    return converted
