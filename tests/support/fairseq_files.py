"""Small checkpoints as fairseq and its forks write them, from models of ours with random weights."""

import argparse
import re
from pathlib import Path
from typing import Any

import torch

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

WORDS = ["the", "low", "new", "er", "est", "w@@", "id@@", "lo@@", "n@@", "e@@", "t@@", "h@@", "s", "r", "@-@"]
CODES = "#version: 0.2\nl o\ne r</w>\ne s\nes t</w>\nt h\nth e</w>\nlo w</w>\nn e\nne w</w>\ni d\n"
NAMES = [  # ours to fairseq's
    (r"^model\.", ""),
    (r"\.ffn\.(fc\d)", r".\1"),
    (r"\.(self_attn|encoder_attn)_residual\.norm\.", r".\1_layer_norm."),
    (r"\.ffn_residual\.norm\.", ".final_layer_norm."),
    (r"\.boundary\.norm\.", ".layer_norm."),
    (r"\.embed_norm\.", ".layernorm_embedding."),
    (r"^lm_head\.weight", "decoder.output_projection.weight"),
    (r"^encoder(.*)\.self_attn_residual\.omega", r"encoder\1.attention_ratio_change"),
    (r"^decoder(.*)\.self_attn_residual\.omega", r"decoder\1.self_ratio_change"),
    (r"\.encoder_attn_residual\.omega", ".encoder_ratio_change"),
    (r"\.ffn_residual\.omega", ".fc_ratio_change"),
    (r"\.self_attn_residual\.alpha", ".rezero_weight"),
    (r"\.self_attn\.inner\.output\.0\.weight", ".c_attn"),
    (r"\.self_attn\.inner\.output\.1\.", ".attn_ln."),
    (r"\.ffn\.inner\.inner\.", ".ffn_layernorm."),
    (r"\.ffn_residual\.w$", ".w_resid"),
]


def random_model(**fields: Any) -> ResidualForConditionalGeneration:
    """A model of 2+3 layers whose every parameter is random, gains and gates too."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 4 + len(WORDS), "d_model": 16, "encoder_layers": 2, "decoder_layers": 3}
    widths = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "encoder_attention_heads": 2, "decoder_attention_heads": 4}
    model = ResidualForConditionalGeneration(ResidualConfig(**{**sizes, **widths, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight[1] = 0  # fairseq's padding
    return model


def fairseq_weights(model: ResidualForConditionalGeneration) -> dict[str, torch.Tensor]:
    """The state dict under fairseq's names, with its parameters and buffers."""
    weights = {}
    for name, tensor in model.state_dict().items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        weights[name] = tensor
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        weights[f"{stack}.embed_positions._float_tensor"] = torch.ones(1)
    return weights


def dlcl_weights(model: ResidualForConditionalGeneration, simple: bool) -> dict[str, torch.Tensor]:
    """As the DLCL code writes them: a history per stack, norms of sub-layers in a list."""
    weights = {}
    for name, tensor in fairseq_weights(model).items():
        parts = re.fullmatch(r"(encoder|decoder)\.(?:layers\.(\d+)|boundary|layer_norm)\.(.*)", name)
        stack = parts[1] if parts else ""
        depth = model.config.encoder_layers if stack == "encoder" else model.config.decoder_layers
        row = int(parts[2]) if parts and parts[2] else depth
        post = model.config.of(stack or "encoder").ln_mode == "dlcl_post"
        if parts and parts[3].endswith("mix.weight"):
            history = weights.setdefault(f"{stack}.history.weight", torch.zeros(depth + 1, depth + 1))
            history[row, : row + 1] = tensor
        elif parts and "mix_norm" in parts[3]:
            weights[f"{stack}.history.layer_norms.{row - simple}.{parts[3].split('.')[-1]}"] = tensor
        elif parts and "output_norm" in parts[3]:
            weights[f"{stack}.history.layer_norms.{row + 1 - simple}.{parts[3].split('.')[-1]}"] = tensor
        elif post and parts and ".layer_norm." in f".{name}":
            weights[f"{stack}.history.layer_norms.{depth - simple}.{parts[3]}"] = tensor
        else:
            weights[name] = tensor
    if not simple:
        for stack in ("encoder", "decoder"):
            weights[f"{stack}.history.weight"] = weights[f"{stack}.history.weight"].unsqueeze(-1)
    return weights


def settings_of(config: ResidualConfig, **flags: Any) -> dict[str, Any]:
    """The model's settings as the command line writes them."""
    settings = {
        "arch": "transformer",
        "activation_fn": config.activation_function,
        "dropout": config.dropout,
        "share_all_embeddings": config.share_encoder_decoder_embeddings,
        "share_decoder_input_output_embed": config.tie_word_embeddings,
        "no_scale_embedding": not config.scale_embedding,
        "no_token_positional_embeddings": config.position_embedding_type == "none",
        "max_source_positions": config.max_position_embeddings,
        "max_target_positions": config.max_position_embeddings,
        "adaptive_softmax_cutoff": None,
        "decoder_layerdrop": 0.2 if config.of("decoder").mode.supports_layerdrop else 0.0,
    }
    for stack in ("encoder", "decoder"):
        settings |= {
            f"{stack}_embed_dim": config.d_model,
            f"{stack}_ffn_embed_dim": getattr(config, f"{stack}_ffn_dim"),
            f"{stack}_layers": getattr(config, f"{stack}_layers"),
            f"{stack}_attention_heads": getattr(config, f"{stack}_attention_heads"),
            f"{stack}_normalize_before": config.of(stack).ln_mode in ("pre_ln", "normformer", "dlcl_pre"),
            f"{stack}_learned_pos": config.position_embedding_type == "learned",
        }
    return settings | flags


def as_args(settings: dict[str, Any]) -> dict[str, Any]:
    """fairseq 0.9: one flat argparse.Namespace."""
    namespace = argparse.Namespace(**settings, task="translation", source_lang="en", target_lang="de", save_dir="x")
    return {"args": namespace}


def as_cfg(settings: dict[str, Any]) -> dict[str, Any]:
    """fairseq 0.12: groups, the model's settings nested as TransformerConfig has them."""
    model: dict[str, Any] = {"_name": settings["arch"], "encoder": {"_name": None}, "decoder": {"_name": None}}
    for name, value in settings.items():
        stack, _, rest = name.partition("_")
        if stack in ("encoder", "decoder"):
            model[stack][rest] = value
        elif name != "arch":
            model[name] = value
    model["max_source_positions"] = "${task.max_source_positions}"
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    task["max_source_positions"] = settings["max_source_positions"]
    return {"args": None, "cfg": {"_name": None, "model": model, "task": task, "common": {"seed": 1}}}


def as_cfg_with_args(settings: dict[str, Any]) -> dict[str, Any]:
    """fairseq 0.10 to 0.12 by its command line: groups, with the old namespace as the model's."""
    flat = argparse.Namespace(**settings, _name=settings["arch"], source_lang=None, target_lang=None)
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    return {"args": None, "cfg": {"_name": None, "model": flat, "task": task}}


FORMS = {"args": as_args, "cfg": as_cfg, "cfg_with_args": as_cfg_with_args}


def write_checkpoint(
    path: Path, weights: dict[str, torch.Tensor], settings: dict[str, Any], form: str = "args", zipped: bool = True
) -> Path:
    history = [{"criterion_name": "CrossEntropyCriterion", "num_updates": 3}]
    contents = {**FORMS[form](settings), "model": weights, "optimizer_history": history, "extra_state": {"epoch": 1}}
    torch.save(contents, path, _use_new_zipfile_serialization=zipped)
    return path


def write_dictionary(path: Path, words: list[str] = WORDS) -> Path:
    path.write_text("".join(f"{word} {9999 - i}\n" for i, word in enumerate(words)), encoding="utf-8")
    return path


def write_codes(path: Path) -> Path:
    path.write_text(CODES, encoding="utf-8")
    return path
