"""Convert models of Transformers with identical logits: Marian, M2M100, NLLB, BART, mBART, FSMT and Speech2Text.

They are Post-LN or Pre-LN; `change_ln_mode` changes the result to modes that contain these.
"""

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    Speech2TextConfig,
)

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.names import check_repository
from residual_hf.checkpoint import check_model_output
from residual_hf.checkpoint_checks import check_implementations, load_tokenizer
from residual_hf.data.task import task_of
from residual_hf.hub.plain_card import save_with_card
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import STACKS
from residual_hf.model.embeddings import SinusoidalPositions, build_positions
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.translation_inputs import languages_of

from .fairseq import convert_fairseq_state_dict


@dataclass(frozen=True)
class Architecture:
    """Properties of a model class that its config does not contain."""

    ln_mode: str
    position_embedding_type: str
    position_counting: str
    embedding_norm: bool = False
    unused_positions: int = 0  # leading rows of a learned table that no token uses


ARCHITECTURES = {
    "MarianMTModel": Architecture("post_ln", "sinusoidal_marian", "all_tokens"),
    "FSMTForConditionalGeneration": Architecture("post_ln", "sinusoidal", "real_tokens"),
    "M2M100ForConditionalGeneration": Architecture("pre_ln", "sinusoidal", "real_tokens"),  # NLLB too
    "BartForConditionalGeneration": Architecture("post_ln", "learned", "all_tokens", True, 2),
    "MBartForConditionalGeneration": Architecture("pre_ln", "learned", "all_tokens", True, 2),
    "Speech2TextForConditionalGeneration": Architecture("pre_ln", "sinusoidal", "real_tokens"),
}
SAME_FIELDS = (
    *("encoder_ffn_dim", "decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads"),
    *("activation_function", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id"),
)
OF_SPEECH = ("conv_channels", "conv_kernel_sizes", "max_source_positions")
OF_PIPELINES = ("prefix", "task_specific_params")  # prompts and settings of tasks, such as BART's of summarization
RATES = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")


@torch.no_grad()
def from_transformers(
    model: PreTrainedModel | str | os.PathLike,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    decoder_start_token_id: int | None = None,
) -> ResidualForConditionalGeneration:
    """Convert a translation or speech model of Transformers; the logits are the same up to rounding.

    Args:
        model: a loaded model of a class in `ARCHITECTURES`, which is not modified, or a folder or name on the Hub.
        source_lang, target_lang: languages of the model, for pipelines and cards.
        decoder_start_token_id: replaces that of the model. For mBART models without one, give the id of the target
            language code.

    Raises `InputError` for another class, quantised weights, or a config value that `ResidualConfig` does not support.
    """
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model)
    architecture = architecture_of(model)
    fields = config_fields(model, architecture)
    fields |= {name: value for name in OF_PIPELINES if (value := getattr(model.config, name, None)) is not None}
    if decoder_start_token_id is not None:
        fields["decoder_start_token_id"] = decoder_start_token_id
    try:
        config = ResidualConfig(**fields, source_lang=source_lang, target_lang=target_lang)
    except (StrictDataclassError, ValueError) as error:
        raise InputError(f"{type(model).__name__}: {error.__cause__ or error}") from error
    converted = task_of(config).model._from_config(config, dtype=model.dtype)
    converted.load_state_dict(convert_weights(model, architecture, config))
    converted.generation_config = copy.deepcopy(model.generation_config)
    if decoder_start_token_id is not None or converted.generation_config.decoder_start_token_id is None:
        converted.generation_config.decoder_start_token_id = config.decoder_start_token_id
    converted.generation_config._from_model_config = False  # with it, fields of this package are lost at loading
    return converted.to(model.device).train(model.training)


def convert_transformers(name: str | os.PathLike, output_dir: str | os.PathLike, overwrite: bool = False) -> Path:
    """Convert a folder or Hub name with `from_transformers` and save the model with its tokenizer.

    Raises `InputError` as `from_transformers` does, and for a model or tokenizer that cannot be loaded.
    """
    output_dir = Path(output_dir)
    check_model_output(output_dir, overwrite=overwrite, inputs=[os.fspath(name)])
    model = load_model(name)
    tokenizer = load_tokenizer(os.fspath(name), name, trust_remote_code=False)
    source_lang, target_lang = languages_of(model.config, tokenizer)
    converted = from_transformers(model, source_lang=source_lang, target_lang=target_lang)
    origin = f"The weights are converted from the {type(model).__name__} {name}."
    if tokenizer.mask_token_id == converted.config.vocab_size:  # without a row, a `<mask>` in a text must be text
        tokenizer = load_tokenizer(os.fspath(name), name, trust_remote_code=False, split_special_tokens=True)
    if converted.config.reads_speech:
        tokenizer = load(AutoProcessor, name)
    return save_with_card(converted, tokenizer, output_dir, origin, overwrite=overwrite)


def load_model(name: str | os.PathLike) -> PreTrainedModel:
    check_repository(os.fspath(name), os.fspath(name))
    try:
        reads_speech = PreTrainedConfig.get_config_dict(name)[0].get("model_type") == Speech2TextConfig.model_type
    except OSError:  # `load` says why
        reads_speech = False
    auto_class = AutoModelForSpeechSeq2Seq if reads_speech else AutoModelForSeq2SeqLM
    return load(auto_class, name, dtype=torch.float32)  # those of half precision cannot be trained


def load(auto_class: Any, name: str | os.PathLike, **options: Any) -> Any:
    with input_errors(f"{name}: {auto_class.__name__} cannot load it: ", Exception):
        check_implementations(PreTrainedConfig.get_config_dict(name)[0], name)
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)


def architecture_of(model: Any) -> Architecture:
    name = type(model).__name__
    if name not in ARCHITECTURES:
        raise InputError(
            f"model: a {name} given, must be one of {', '.join(ARCHITECTURES)}. Other classes differ in more than the "
            "ln_mode (relative positions, experts, other attention) or have no cross-attention. Merge adapters first "
            "(merge_and_unload)"
        )
    quantised = sorted({str(p.dtype) for p in model.parameters() if not p.is_floating_point()})
    if quantised or getattr(model, "hf_quantizer", None) is not None:
        raise InputError(f"model: quantised weights ({', '.join(quantised)}); load the model without quantisation")
    return ARCHITECTURES[name]


def config_fields(model: PreTrainedModel, architecture: Architecture) -> dict[str, Any]:
    """The fields of `ResidualConfig`; table sizes and tying are read from the weights."""
    source, encoder, decoder = model.config, model.model.encoder, model.model.decoder
    start = source.decoder_start_token_id
    if start is None:
        start = model.generation_config.decoder_start_token_id
    speech: dict[str, Any] = {}
    if isinstance(source, Speech2TextConfig):
        if source.pad_token_id == 0:  # the number of frames in the mask that its positions are made of
            raise InputError("pad_token_id: 0 given, must be another: frames have no positions in such a model")
        speech = {name: getattr(source, name) for name in OF_SPEECH}
        speech["num_mel_bins"] = source.input_feat_per_channel * source.input_channels
    positions = source.max_target_positions if speech else source.max_position_embeddings
    table = (decoder if speech else encoder).embed_tokens
    return {
        **{name: getattr(source, name) for name in SAME_FIELDS},
        **{name: getattr(source, name) or 0.0 for name in RATES},
        **speech,
        "max_position_embeddings": positions,
        "vocab_size": table.num_embeddings,
        "decoder_vocab_size": decoder.embed_tokens.num_embeddings,
        "share_encoder_decoder_embeddings": table.weight is decoder.embed_tokens.weight,
        "tie_word_embeddings": output_projection(model).weight is decoder.embed_tokens.weight,
        "output_bias": output_bias(model) is not None,
        "d_model": source.d_model,
        "scale_embedding": bool(source.scale_embedding),
        "encoder_layers": len(encoder.layers),
        "decoder_layers": len(decoder.layers),
        "ln_mode": architecture.ln_mode,
        "layer_norm_eps": encoder.layers[0].final_layer_norm.eps,
        "position_embedding_type": architecture.position_embedding_type,
        "position_counting": architecture.position_counting,
        "embedding_norm": architecture.embedding_norm,
        "decoder_start_token_id": start,
    }


def output_projection(model: PreTrainedModel) -> nn.Linear:
    return model.lm_head if hasattr(model, "lm_head") else model.model.decoder.output_projection


def output_bias(model: PreTrainedModel) -> Tensor | None:
    """The bias (vocabulary,) that a model adds to its logits, or None if it has none or only zeros."""
    bias = getattr(model, "final_logits_bias", None)
    return bias[0] if bias is not None and bias.any() else None


def convert_weights(model: PreTrainedModel, architecture: Architecture, config: ResidualConfig) -> dict[str, Tensor]:
    """The weights under the names of this package; after `model.` the layers have fairseq's names."""
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in model.model.state_dict().items()
        if name != "shared.weight" and ".embed_positions." not in name
    }
    weights["decoder.output_projection.weight"] = output_projection(model).weight
    if config.output_bias:
        weights["decoder.output_projection.bias"] = output_bias(model)
    for stack in STACKS:
        positions = model.model.get_submodule(stack).embed_positions
        table = positions.weights if hasattr(positions, "weights") else positions.weight
        if architecture.position_embedding_type == "learned":
            weights[f"{stack}.embed_positions.weight"] = table[architecture.unused_positions :]
        elif not is_table_of_class(table, config, stack):
            kind = config.position_embedding_type
            raise InputError(f"model: its position table is not the {kind} one of its class")
    return convert_fairseq_state_dict(weights, config)


def is_table_of_class(table: Tensor, config: ResidualConfig, stack: str) -> bool:
    positions = build_positions(config.of(stack))
    assert isinstance(positions, SinusoidalPositions)
    rows = min(len(positions.table), len(table))
    return torch.allclose(table[:rows].float().cpu(), positions.table[:rows], atol=1e-2)  # of half precision
