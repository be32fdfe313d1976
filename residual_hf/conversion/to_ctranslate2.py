"""Export to CTranslate2: models that are Post-LN, Pre-LN or Peri-LN, or fold into one of them.

CTranslate2 has one class for each architecture. A stack maps to its options: `pre_norm` False is Post-LN, True is
Pre-LN, and `pre_post_layer_norm` is Peri-LN (the layers of Gemma 2 and T5Gemma).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from residual_hf.base.errors import input_errors, refuse_if
from residual_hf.base.files import write_atomically
from residual_hf.checkpoint_checks import target_size
from residual_hf.data.shortlist import Shortlist
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import get_ln_mode
from residual_hf.model.embeddings import SinusoidalPositions, first_position, positions_padding
from residual_hf.model.translation_inputs import separate_target_vocabulary

from .exported_model import ExportTarget, Model, Sentences
from .fold import fold

PRE_AND_POST = ("sandwich_ln", "peri_ln")
PLAIN = ("post_ln", "pre_ln", *PRE_AND_POST)
NORMS = ("layer_norm", "rms_norm")
ACTIVATIONS = {  # of Transformers, by their names in CTranslate2
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


class CTranslate2Target(ExportTarget):
    """A folder that `ctranslate2.Translator` loads, or `ctranslate2.Generator` for a decoder alone.

    Weights are stored in float32 or int8.
    """

    requires = ("ctranslate2",)
    dtypes = ("float32", "int8")

    def plain_mode(self, mode: str) -> str | None:
        plain = mode if mode in PLAIN else get_ln_mode(mode).folds_into
        return plain if plain in PLAIN else None

    def check(self, config: ResidualConfig) -> None:
        modes, norms = f"{', '.join(PLAIN)} or a mode that folds into one of them", " or ".join(NORMS)
        function, functions, ends = config.activation_function, ", ".join(ACTIVATIONS), config.eos_token_id
        problems: dict[str, Any] = {}
        for own in config.stack_configs:
            wrong_mode, wrong_norm = self.plain_mode(own.ln_mode) is None, own.norm_type not in NORMS
            problems[f"ln_mode: the {own.stack} is {own.ln_mode!r}, must be {modes}"] = wrong_mode
            problems[f"norm_type: the {own.stack} has {own.norm_type!r}, must be {norms}"] = wrong_norm
        problems |= {
            f"activation_function: {function!r} given, must be one of {functions}": function not in ACTIVATIONS,
            "adaptive_cutoffs: given, must be None": config.adaptive_cutoffs,
            f"eos_token_id: {ends} given, must be one token": not isinstance(ends, int),
        }
        refuse_if(
            {f"{problem} for CTranslate2; --to onnx and --to torch allow it": so for problem, so in problems.items()}
        )

    def write(self, model: Model, tokenizer: Any, folder: Path) -> None:
        save_spec(model, tokenizer, folder, quantization=None)

    def quantize(self, model: Model, tokenizer: Any, folder: Path) -> None:
        save_spec(model, tokenizer, folder, quantization="int8")

    def write_shortlist(self, shortlist: Shortlist, model: Model, tokenizer: Any, folder: Path) -> None:
        """Write a vocabulary mapping: lines of a source token, a tab and target tokens; no source token: of all."""
        source, target = vocabularies(tokenizer, model.config)
        lists = zip(["", *source], [shortlist.frequent, *shortlist.candidates], strict=True)
        lines = (f"{token}\t{' '.join(target[i] for i in ids if i >= 0)}\n" for token, ids in lists)
        write_atomically(folder / "vmap.txt", "".join(lines))

    def translate(self, model: Model, tokenizer: Any, folder: Path, sources: Sentences, limit: int) -> Sentences:
        import ctranslate2

        source_tokens, target_tokens = vocabularies(tokenizer, model.config)
        texts = [[source_tokens[i] for i in source] for source in sources]
        if not model.config.is_encoder_decoder:
            results = ctranslate2.Generator(str(folder), compute_type="default").generate_batch(
                texts, max_batch_size=32, max_length=limit, include_prompt_in_result=False
            )
            return [result.sequences_ids[0] for result in results]
        ids = {token: number for number, token in enumerate(target_tokens)}
        results = ctranslate2.Translator(str(folder), compute_type="default").translate_batch(
            texts, beam_size=1, max_batch_size=32, min_decoding_length=0, max_decoding_length=limit, max_input_length=0
        )
        return [[ids[token] for token in result.hypotheses[0]] for result in results]


def save_spec(model: Model, tokenizer: Any, folder: Path, *, quantization: str | None) -> None:
    from ctranslate2.specs import transformer_spec

    with input_errors("", ValueError):  # a scale of 0, or one that no norm can take
        model = fold(model, [own.stack for own in model.config.stack_configs if own.ln_mode not in PLAIN])
    config, is_alone = model.config, not model.config.is_encoder_decoder
    options: dict[str, Any] = {"external_pre_post_encoder_layers": config.of("decoder").ln_mode in PRE_AND_POST}
    if is_alone:
        options = {
            "with_encoder_attention": False,
            "ffn_glu": config.gated_ffn,
            "no_final_norm": not config.final_norm,
        }
        if config.position_embedding_type == "rotary":
            options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rope_theta}
    decoder = stack_spec(model, "decoder", transformer_spec.TransformerDecoderSpec, **options)
    decoder.projection.weight = array(model.output_weight)
    if model.lm_head.bias is not None:
        decoder.projection.bias = array(model.lm_head.bias)
    source_tokens, target_tokens = vocabularies(tokenizer, config)
    if is_alone:
        spec: Any = transformer_spec.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target_tokens)
    else:
        encoder = stack_spec(model, "encoder", transformer_spec.TransformerEncoderSpec)
        spec = transformer_spec.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(target_tokens)
        spec.config.decoder_start_token = target_tokens[config.decoder_start_token_id]
        spec.config.add_source_bos = spec.config.add_source_eos = False  # the tokenizer adds them
    spec.config.bos_token = tokenizer.bos_token or target_tokens[config.decoder_start_token_id]
    spec.config.eos_token = target_tokens[cast(int, config.eos_token_id)]
    spec.config.unk_token = tokenizer.unk_token or target_tokens[config.pad_token_id]
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def stack_spec(model: Model, name: str, make: Callable[..., Any], **options: Any) -> Any:
    """The specification of a stack without the output projection; `make` is its class."""
    from ctranslate2.specs import common_spec

    config, stack = model.config, model.model.get_submodule(name)
    spec = make(
        config.of(name).layers,
        getattr(config, f"{name}_attention_heads"),
        pre_norm=config.of(name).ln_mode != "post_ln",
        pre_post_layer_norm=config.of(name).ln_mode in PRE_AND_POST,
        rms_norm=config.of(name).norm_type == "rms_norm",
        layernorm_embedding=config.embedding_norm,
        activation=common_spec.Activation[ACTIVATIONS[config.activation_function]],
        **options,
    )
    table = stack.embed_tokens
    tokens = spec.embeddings[0] if name == "encoder" else spec.embeddings
    tokens.weight = array(nn.functional.normalize(table.weight, dim=-1) if table.fix_norm else table.weight)
    spec.scale_embeddings = table.scale != 1.0
    if config.position_embedding_type != "rotary":
        spec.position_encodings.encodings = position_table(stack.embed_positions, config)
    if config.embedding_norm:
        fill_norm(spec.layernorm_embedding, stack.embed_norm)
    if spec.pre_norm and config.final_norm:
        fill_norm(spec.layer_norm, stack.boundary.norm)
    for target, layer in zip(spec.layer, stack.layers, strict=True):
        fill_self_attention_and_ffn(target, layer)
        if getattr(layer, "encoder_attn", None) is not None:
            fill_cross_attention(target, layer.encoder_attn, layer.encoder_attn_residual)
    return spec


def position_table(positions: SinusoidalPositions | nn.Embedding | None, config: ResidualConfig) -> np.ndarray:
    """Position vectors of the first, second, ... token; zeros without positions, which CTranslate2 does not know."""
    if positions is None:
        return np.zeros((config.max_position_embeddings, config.d_model), dtype=np.float32)
    table = positions.weight if isinstance(positions, nn.Embedding) else positions.table
    return array(table[first_position(positions_padding(config)) :])


def fill_self_attention_and_ffn(spec: Any, layer: Any) -> None:
    attention, ffn = layer.self_attn, layer.ffn
    fill_linear(spec.self_attention.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    fill_linear(spec.self_attention.linear[1], attention.out_proj)
    fill_linear(spec.ffn.linear_0, ffn.fc1 if ffn.gate is None else ffn.gate)
    if ffn.gate is not None:
        fill_linear(spec.ffn.linear_0_noact, ffn.fc1)
    fill_linear(spec.ffn.linear_1, ffn.fc2)
    if hasattr(layer.ffn_residual, "output_norm"):
        fill_norm(spec.input_layer_norm, layer.self_attn_residual.norm)
        fill_norm(spec.post_attention_layer_norm, layer.self_attn_residual.output_norm)
        fill_norm(spec.pre_feedforward_layer_norm, layer.ffn_residual.norm)
        fill_norm(spec.post_feedforward_layer_norm, layer.ffn_residual.output_norm)
    else:
        fill_norm(spec.self_attention.layer_norm, layer.self_attn_residual.norm)
        fill_norm(spec.ffn.layer_norm, layer.ffn_residual.norm)


def fill_cross_attention(spec: Any, attention: Any, connection: Any) -> None:
    fill_linear(spec.attention.linear[0], attention.q_proj)
    fill_linear(spec.attention.linear[1], attention.k_proj, attention.v_proj)
    fill_linear(spec.attention.linear[2], attention.out_proj)
    if hasattr(connection, "output_norm"):
        fill_norm(spec.external_pre_encoder_attention_layer_norm, connection.norm)
        fill_norm(spec.external_post_encoder_attention_layer_norm, connection.output_norm)
    else:
        fill_norm(spec.attention.layer_norm, connection.norm)


def fill_linear(spec: Any, *linears: nn.Linear) -> None:
    """One matrix from the rows of several."""
    spec.weight = np.concatenate([array(linear.weight) for linear in linears])
    spec.bias = np.concatenate([array(linear.bias) for linear in linears])


def fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = array(norm.weight)
    if getattr(norm, "bias", None) is not None:
        spec.beta = array(norm.bias)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().contiguous().numpy().copy()


def vocabularies(tokenizer: Any, config: ResidualConfig) -> tuple[list[str], list[str]]:
    """The tokens of source and target; rows of the embeddings without a token get a name that no text has."""
    source: Sequence[str | None]
    target: Sequence[str | None]
    if (target_ids := separate_target_vocabulary(tokenizer)) is not None:
        names = [{number: token for token, number in ids.items()} for ids in (tokenizer.encoder, target_ids)]
        source, target = ([found.get(row) for row in range(max(found) + 1)] for found in names)
    else:
        own = {"use_source_tokenizer": True} if hasattr(tokenizer, "target_vocab_size") else {}
        source = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))), **own)
        target = tokenizer.convert_ids_to_tokens(list(range(target_size(tokenizer))))
    return complete(source, config.vocab_size), complete(target, config.decoder_vocab_size)


def complete(tokens: Sequence[str | None], size: int) -> list[str]:
    named = [*tokens[:size], *[None] * (size - len(tokens))]
    return [f"<row {number}>" if token is None else token for number, token in enumerate(named)]
