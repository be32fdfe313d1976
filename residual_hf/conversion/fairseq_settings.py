"""The settings of a fairseq checkpoint (argparse or OmegaConf): their names, types, ranges and defaults."""

import dataclasses
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any, Literal

from residual_hf.base.errors import InputError, InputSettings, fields_of
from residual_hf.model.options import from_mapping

Flag = Literal[False, True, None]  # fairseq takes None, and the numbers that equal them, for these

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

ModelSettings: Any = make_dataclass(  # the settings that are read, with fairseq's defaults for those that are absent
    "ModelSettings",
    [
        ("arch", str),
        *((name, str | None, None) for name in ("task", "source_lang", "target_lang")),
        *fields_of(int, "encoder_embed_dim decoder_embed_dim", 512, minimum=1),
        *fields_of(int, "encoder_layers decoder_layers", 6, minimum=1),
        *fields_of(int, "encoder_ffn_embed_dim decoder_ffn_embed_dim", 2048, minimum=1),
        *fields_of(int, "encoder_attention_heads decoder_attention_heads", 8, minimum=1),
        *fields_of(int, "max_source_positions max_target_positions tokens_per_sample", minimum=1),
        *fields_of(str, "activation_fn", "relu", choices=ACTIVATIONS),
        *fields_of(float, "dropout attention_dropout activation_dropout", 0.0, minimum=0, below=1),
        *fields_of(float, "encoder_layerdrop decoder_layerdrop", 0.0, minimum=0, below=1),
        *fields_of(float, "relu_dropout", minimum=0, below=1),
        *fields_of(Flag, "encoder_normalize_before decoder_normalize_before layernorm_embedding", False),
        *fields_of(Flag, "encoder_learned_pos decoder_learned_pos no_token_positional_embeddings", False),
        *fields_of(Flag, "no_scale_embedding share_all_embeddings share_decoder_input_output_embed", False),
        *fields_of(Flag, "no_decoder_final_norm", False),
        # adaptive input and softmax
        *fields_of(Flag, "adaptive_input tie_adaptive_weights tie_adaptive_proj", False),
        *((name, str | tuple[int, ...] | None, None) for name in ("adaptive_input_cutoff", "adaptive_softmax_cutoff")),
        *fields_of(float, "adaptive_input_factor adaptive_softmax_factor", 4.0, minimum=1, maximum=1_000),
        *fields_of(float, "adaptive_softmax_dropout", 0.0, minimum=0, below=1),
        # ResiDual, B2T, T-Fixup, Transformer-Clinic, NormFormer
        *fields_of(float, "enc_res_input_norm_scale dec_res_input_norm_scale enc_alpha dec_alpha"),
        *fields_of(Flag, "residual_bottom_to_top no_layer_norm dont_use_layernorm", False),
        *fields_of(str, "init_type", choices=CLINIC),
        *fields_of(Flag, "scale_attn scale_fc scale_heads scale_resids", False),
    ],
    bases=(InputSettings,),
    frozen=True,
)
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
