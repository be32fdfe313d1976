"""The settings of a fairseq checkpoint (argparse or OmegaConf): their names, types, ranges and defaults."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.model.options import from_mapping, option

Flag = Literal[False, True, None]  # fairseq takes None, and the numbers that equal them, for these
Cutoffs = str | tuple[int, ...] | None

# sections of TransformerConfig and the prefix of their settings on the command line
NESTED = {"encoder": "encoder_", "decoder": "decoder_", "quant_noise": "quant_noise_"}

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_pytorch_tanh",
    "gelu_accurate": "gelu_pytorch_tanh",
    "tanh": "tanh",
    "linear": "linear",
    "swish": "silu",
    "silu": "silu",
}
CLINIC = {  # --init-type of Transformer-Clinic
    "default": None,
    "looklinear": None,
    "adaptive": "admin",
    "adaptive-profiling": "admin",
    "deepnet": "deep_norm",
    "rezero": "rezero",
    "rezero_postln": "rezero_post_ln",
}


@dataclass(frozen=True)
class ModelSettings(InputSettings):
    """The settings that are read, with the defaults of fairseq for those that are absent."""

    arch: str
    task: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    encoder_embed_dim: int = option(512, minimum=1)
    decoder_embed_dim: int = option(512, minimum=1)
    encoder_layers: int = option(6, minimum=1)
    decoder_layers: int = option(6, minimum=1)
    encoder_ffn_embed_dim: int = option(2048, minimum=1)
    decoder_ffn_embed_dim: int = option(2048, minimum=1)
    encoder_attention_heads: int = option(8, minimum=1)
    decoder_attention_heads: int = option(8, minimum=1)
    max_source_positions: int | None = option(None, minimum=1)
    max_target_positions: int | None = option(None, minimum=1)
    tokens_per_sample: int | None = option(None, minimum=1)
    activation_fn: str = option("relu", choices=ACTIVATIONS)
    dropout: float = option(0.0, minimum=0, below=1)
    attention_dropout: float = option(0.0, minimum=0, below=1)
    activation_dropout: float = option(0.0, minimum=0, below=1)
    relu_dropout: float | None = option(None, minimum=0, below=1)
    encoder_layerdrop: float = option(0.0, minimum=0, below=1)
    decoder_layerdrop: float = option(0.0, minimum=0, below=1)
    encoder_normalize_before: Flag = False
    decoder_normalize_before: Flag = False
    encoder_learned_pos: Flag = False
    decoder_learned_pos: Flag = False
    no_token_positional_embeddings: Flag = False
    no_scale_embedding: Flag = False
    layernorm_embedding: Flag = False
    share_all_embeddings: Flag = False
    share_decoder_input_output_embed: Flag = False
    no_decoder_final_norm: Flag = False
    # adaptive input and softmax
    adaptive_input: Flag = False
    adaptive_input_cutoff: Cutoffs = None
    adaptive_softmax_cutoff: Cutoffs = None
    adaptive_input_factor: float = option(4.0, minimum=1, maximum=1_000)
    adaptive_softmax_factor: float = option(4.0, minimum=1, maximum=1_000)
    adaptive_softmax_dropout: float = option(0.0, minimum=0, below=1)
    tie_adaptive_weights: Flag = False
    tie_adaptive_proj: Flag = False
    # ResiDual, B2T, T-Fixup, Transformer-Clinic, NormFormer
    enc_res_input_norm_scale: float | None = None
    dec_res_input_norm_scale: float | None = None
    enc_alpha: float | None = None
    dec_alpha: float | None = None
    residual_bottom_to_top: Flag = False
    no_layer_norm: Flag = False
    dont_use_layernorm: Flag = False
    init_type: str | None = option(None, choices=CLINIC)
    scale_attn: Flag = False
    scale_fc: Flag = False
    scale_heads: Flag = False
    scale_resids: Flag = False


KNOWN = {field.name for field in dataclasses.fields(ModelSettings)}


def model_settings(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the model under the names of the command line, from plain `cfg` or `args` of a checkpoint.

    Settings of the task (`task`, `source_lang`, `max_source_positions`, ...) are included where the model has none.
    Those of `ModelSettings` are all there and have their types.

    Raises `InputError` if there are none.
    """
    config, arguments = checkpoint.get("cfg"), checkpoint.get("args")
    if isinstance(config, Mapping) and isinstance(config.get("model"), Mapping):
        task = config["task"] if isinstance(config.get("task"), Mapping) else {}
        model = config["model"]
        settings = {**task, **{name: model[name] for name in model if model[name] is not None or name not in task}}
        settings["arch"] = settings.get("arch") or model.get("_name")
        settings["task"] = task.get("_name", settings.get("task"))
    elif isinstance(arguments, Mapping):
        settings = dict(arguments)
    else:
        raise InputError(
            "checkpoint: neither args (fairseq 0.9) nor cfg.model (from 0.10 on) found; its fields are "
            f"{', '.join(map(str, checkpoint))}"
        )
    for name, prefix in NESTED.items():
        if isinstance(settings.get(name), Mapping):
            nested = settings.pop(name)
            settings |= {f"{prefix}{key}": value for key, value in nested.items() if not str(key).startswith("_")}
    known = from_mapping(ModelSettings, {name: settings[name] for name in KNOWN & settings.keys()}, "checkpoint: ")
    return settings | vars(known)
