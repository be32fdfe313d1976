"""Convert the settings of a fairseq checkpoint (argparse or OmegaConf) to a `ResidualConfig`."""

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from residual_hf.base.errors import InputError, input_errors
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.options import shortened

from .fairseq_settings import ACTIVATIONS, CLINIC

SUPPORTED = (
    "transformer (Post- and Pre-LN, also of Admin, B2T and T-Fixup), transformer_iwslt_*, transformer_wmt_*, "
    "transformer_vaswani_*, transformer_align, resi_dual, dlcl_transformer*, simple_dlcl_transformer*, transformer_lm*"
)
LANGUAGE_MODEL = re.compile(r"transformer_lm(_\w+)?")
ARCHITECTURES = re.compile(
    r"transformer(_(iwslt|wmt\d*|vaswani|align|tiny|toy|prenorm|postnorm|t2t|base|big|deep)(_\w+)?)?"
    r"|resi_dual(_\w+)?|(simple_)?dlcl_transformer(_\w+)?"
)
REFUSED = re.compile(  # what changes the function of a model, but not the names and shapes of its weights
    r"layer_wise_attention|cross_self_attention|quant_noise_(pq|scalar)|((en|de)coder_)?xformers_att_config"
    r"|plot_stability|normalize_(embed|learned_weight)|history_window_size|weight_type|multihead_attention_dropout"
    r"|no_inner_layer_norm|decay_inner_residual|subln|deepnorm|add_bos_token"
    r"|represent_length_by_(lrpe|ldpe)|merge_src_tgt_embed"
    r"|(en|de)coder_(layers_to_keep|history_type|langtok)"
)
HARMLESS = {  # values of refused settings that have no effect
    "history_window_size": -1,
    "weight_type": "scalar",
    "encoder_history_type": "learnable_dense",
    "decoder_history_type": "learnable_dense",
}
DEFAULT_POSITIONS = 1024
SIDES = ("source", "target")


def build_config(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ResidualConfig:
    """The configuration of a checkpoint, from `model_settings` and its weights (under fairseq's names).

    Settings that contradict the shapes or names of weights are left to `convert_fairseq_state_dict`.

    Raises `InputError` for what is not supported, or contradicts the values of weights.
    """
    architecture = settings["arch"]
    is_language_model = LANGUAGE_MODEL.fullmatch(architecture)
    if not (is_language_model or ARCHITECTURES.fullmatch(architecture)):
        raise InputError(f"arch: {shortened(repr(architecture))} in the checkpoint; supported are {SUPPORTED}")
    _refuse(settings)
    fields = _language_model(settings, weights) if is_language_model else _translation_model(settings, weights)
    with input_errors("checkpoint: ", ValueError, TypeError, StrictDataclassError):
        return ResidualConfig(**fields)


def _translation_model(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    tables = {stack: _table(weights, stack) for stack in ("encoder", "decoder")}
    return {
        "vocab_size": tables["encoder"].shape[0],
        "decoder_vocab_size": tables["decoder"].shape[0],
        "d_model": settings["encoder_embed_dim"],
        **_size(settings, weights, "encoder"),
        **_size(settings, weights, "decoder"),
        **_embeddings(settings, tables, weights),
        **_common(settings, *tables),
        "source_lang": settings["source_lang"],
        "target_lang": settings["target_lang"],
        **_modes(settings),
    }


def _language_model(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a `transformer_lm`, a decoder without cross-attention."""
    mode, options = _mode("decoder", settings)
    without_norm = bool(settings["no_decoder_final_norm"]) and mode in ("pre_ln", "normformer")
    return {
        "is_decoder_only": True,
        "d_model": settings["decoder_embed_dim"],
        **_size(settings, weights, "decoder"),
        **_common(settings, "decoder"),
        **_vocabulary(settings, weights),
        "encoder_layerdrop": 0.0,
        "max_position_embeddings": settings["max_target_positions"]
        or settings["tokens_per_sample"]
        or DEFAULT_POSITIONS,
        "ln_mode": mode,
        "ln_mode_options": options or None,
        "final_norm": not without_norm,
    }


def _vocabulary(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Size of the vocabulary of a language model, its bands if they are adaptive, and whether weights are tied."""
    cutoffs = {side: _cutoffs(settings, f"adaptive_{side}_cutoff") for side in ("input", "softmax")}
    if not settings["adaptive_input"]:
        cutoffs["input"] = None
    if not any(cutoffs.values()):
        tied = bool(settings["share_decoder_input_output_embed"])
        return {"vocab_size": len(_table(weights, "decoder")), "tie_word_embeddings": tied}
    factors = {side: settings[f"adaptive_{side}_factor"] for side in cutoffs}
    if len(set(cutoffs.values())) > 1 or len(set(factors.values())) > 1:
        shown = [",".join(map(str, bands or ("none",))) for bands in cutoffs.values()]
        raise InputError(
            f"adaptive_input_cutoff, adaptive_softmax_cutoff: {' and '.join(shown)} in the checkpoint; input and "
            "softmax must be adaptive with the same bands and factors"
        )
    tables = [
        tensor for name, tensor in weights.items() if re.fullmatch(r"decoder\.embed_tokens\..*\.0\.weight", name)
    ]
    return {
        "vocab_size": sum(len(table) for table in tables),
        "adaptive_cutoffs": list(cutoffs["softmax"] or ()),
        "adaptive_factor": factors["input"],
        "adaptive_softmax_dropout": settings["adaptive_softmax_dropout"],
        "tie_word_embeddings": bool(settings["tie_adaptive_weights"] and settings["tie_adaptive_proj"]),
    }


def _cutoffs(settings: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """The limits of the bands, which fairseq 0.9 has as text."""
    given = settings[name]
    if not isinstance(given, str):
        return given or None
    with input_errors(f"{name}: {shortened(given)!r} in the checkpoint: ", ValueError):
        return tuple(map(int, given.strip("[]").split(",")))


def _refuse(settings: Mapping[str, Any]) -> None:
    """Raise `InputError` for settings of `REFUSED` that have an effect."""
    for name, value in settings.items():
        if REFUSED.fullmatch(str(name)) and value and value != "None" and value != HARMLESS.get(name):
            allowed = repr(HARMLESS[name]) if name in HARMLESS else "off"
            raise InputError(f"{name}: {shortened(repr(value))} in the checkpoint; supported is {allowed}")


def _table(weights: Mapping[str, Tensor], stack: str) -> Tensor:
    """The token embeddings of a stack, (tokens, d_model)."""
    name = f"{stack}.embed_tokens.weight"
    if name not in weights or weights[name].ndim != 2:
        raise InputError(f"checkpoint: {name} is no matrix; adaptive and character inputs are not supported")
    return weights[name]


def _size(settings: Mapping[str, Any], weights: Mapping[str, Tensor], stack: str) -> dict[str, int]:
    numbers = {found[1] for name in weights if (found := re.match(rf"{stack}\.layers\.(\d+)\.", name))}
    layers = settings[f"{stack}_layers"]
    if layers != len(numbers):
        raise InputError(f"{stack}_layers: {layers} in the checkpoint, but weights of {len(numbers)} layers")
    return {
        f"{stack}_layers": layers,
        f"{stack}_ffn_dim": settings[f"{stack}_ffn_embed_dim"],
        f"{stack}_attention_heads": settings[f"{stack}_attention_heads"],
    }


def _embeddings(
    settings: Mapping[str, Any], tables: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    shared = bool(settings["share_all_embeddings"])
    tied = shared or bool(settings["share_decoder_input_output_embed"])
    if shared and not tables["encoder"].equal(tables["decoder"]):
        raise InputError("share_all_embeddings: True in the checkpoint, but the tables of encoder and decoder differ")
    output = weights.get("decoder.output_projection.weight", weights.get("decoder.embed_out"))
    if tied and output is not None and not output.equal(tables["decoder"]):
        raise InputError("share_decoder_input_output_embed: True in the checkpoint, but the output matrix differs")
    return {
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "max_position_embeddings": max(settings[f"max_{side}_positions"] or DEFAULT_POSITIONS for side in SIDES),
    }


def _common(settings: Mapping[str, Any], *stacks: str) -> dict[str, Any]:
    """Fields of translation and language models: rates, activation function, embeddings and their positions."""
    names = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
    rates = {name: settings[name] for name in names}
    rates["activation_dropout"] = rates["activation_dropout"] or settings["relu_dropout"] or 0.0
    positions = "learned" if any(settings[f"{stack}_learned_pos"] for stack in stacks) else "sinusoidal"
    return {
        **rates,
        "activation_function": ACTIVATIONS[settings["activation_fn"]],
        "scale_embedding": not settings["no_scale_embedding"],
        "embedding_norm": bool(settings["layernorm_embedding"]),
        "position_embedding_type": "none" if settings["no_token_positional_embeddings"] else positions,
    }


def _modes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`ln_mode` and its options: one mode for both stacks if they agree, else one for each."""
    encoder, encoder_options = _mode("encoder", settings)
    decoder, decoder_options = _mode("decoder", settings)
    fields: dict[str, Any] = {"ln_mode": encoder, "decoder_ln_mode": decoder if decoder != encoder else None}
    if encoder == decoder and encoder_options == decoder_options:
        return fields | {"ln_mode_options": encoder_options or None}
    return fields | {
        "encoder_ln_mode_options": encoder_options or None,
        "decoder_ln_mode_options": decoder_options or None,
    }


def _mode(stack: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The mode of a stack and its options."""
    architecture = settings["arch"]
    pre_norm = bool(settings[f"{stack}_normalize_before"])
    if architecture.startswith("resi_dual"):
        short = stack[:3]
        scale, weight = settings[f"{short}_res_input_norm_scale"], settings[f"{short}_alpha"]
        options = {"dual_scale": scale, "main_scale": weight}
        return "resi_dual", {name: value for name, value in options.items() if value not in (None, 1)}
    if "dlcl" in architecture:
        return ("dlcl_pre" if pre_norm else "dlcl_post"), {}
    edge, no_norm, clinic = settings["residual_bottom_to_top"], settings["no_layer_norm"], settings["init_type"]
    if edge and no_norm:
        return "b2t_no_ln", {"stack_norm": True} if pre_norm else {}
    post_ln = {  # the first that is chosen counts
        "residual_bottom_to_top (B2T)": edge and "b2t",
        "no_layer_norm without residual_bottom_to_top": no_norm and "xskip",  # of weight 1: x + a, and no norm
        "dont_use_layernorm (T-Fixup)": settings["dont_use_layernorm"] and "t_fixup",
        f"init_type {clinic!r} (Transformer-Clinic)": CLINIC[clinic or "default"],
    }
    for owner, mode in post_ln.items():
        if mode and pre_norm:
            raise InputError(f"{stack}_normalize_before: True in the checkpoint, must be False with {owner}")
        if mode:
            return mode, {}
    if not pre_norm:
        return "post_ln", {}
    parts = ("scale_attn", "scale_fc", "scale_heads", "scale_resids")
    if stack == "decoder" and any(settings[part] for part in parts):  # all of them but the last, or the weights differ
        return "normformer", {"scale_residual": bool(settings["scale_resids"])}
    return "pre_ln", {}
