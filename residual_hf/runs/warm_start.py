"""Starting from a trained model (`model.from`): its weights with another `ln_mode`, vocabulary or dropout."""

import copy
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from residual_hf.base.errors import InputError, input_errors
from residual_hf.checkpoint import load_checkpoint
from residual_hf.checkpoint_checks import target_size
from residual_hf.conversion.change_mode import change_ln_mode
from residual_hf.conversion.fold import refuse_untied
from residual_hf.conversion.transformers_models import OF_PIPELINES, from_transformers
from residual_hf.data.tokenizer import backend_of
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import STACKS
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.options import refusal
from residual_hf.model.translation_inputs import languages_of, separate_target_vocabulary

from .recipe import checked_config

logger = logging.getLogger(__name__)

BYTE = re.compile("<0x[0-9A-F]{2}>")

MODES = tuple(f"{stack}ln_mode{kind}" for stack in ("", "encoder_", "decoder_") for kind in ("", "_options"))
RATES = tuple(f.name for f in fields(ResidualConfig) if f.metadata.get("may_change"))


@dataclass(frozen=True)
class Start:
    """A trained model, its tokenizer, and the parameters that a new `ln_mode` has added."""

    model: ResidualForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    added: frozenset[str] = frozenset()


def load_start(source: str, fields: Mapping[str, Any], model_class: Any = ResidualForConditionalGeneration) -> Start:
    """The model to start from, with the modes in `fields`.

    Args:
        source: model folder or name on the Hub.
        fields: of the config, as in a recipe. Modes must keep the logits, see `change_ln_mode`; dropout and the other
            rates are free; all other fields must have the values of the model.
        model_class: that of the task.

    Raises `InputError` for a model that cannot be loaded, is of another family, or cannot have these fields.
    """
    model, tokenizer = load_checkpoint(source, classes=(model_class,))
    if not isinstance(model, model_class):
        model = converted(model, tokenizer, source)
    if not isinstance(model, model_class):
        raise InputError(f"model.from: {source} is a {type(model).__name__}, must be a {model_class.__name__}")
    values = model.config.to_dict()
    for name, value in fields.items():
        own = values.get(ResidualConfig.attribute_map.get(name, name))
        if name not in (*MODES, *RATES) and value != own:
            raise InputError(f"{refusal(f'model.{name}', value, repr(own))} as in {source} (model.from)")
    changes = {name: value for name, value in fields.items() if name in (*MODES, *RATES) and value is not None}
    kept = {} if "ln_mode" in changes else {f"{name}_ln_mode": model.config.of(name).ln_mode for name in STACKS}
    target = checked_config(
        ResidualConfig, {**dict.fromkeys(MODES), "ln_mode": model.config.ln_mode, **kept, **changes}
    )
    changed = with_modes_of(target, changes, model)
    added = {name for name, _ in changed.named_parameters()} - {name for name, _ in model.named_parameters()}
    tables = {name for name in added if "embed_" in name or name.startswith("lm_head.")}  # separated by a change
    return Start(changed, tokenizer, frozenset(added - tables))


def converted(model: Any, tokenizer: Any, source: str) -> ResidualForConditionalGeneration:
    """A model of another family as one of this package, with the same logits."""
    source_lang, target_lang = languages_of(model.config, tokenizer)
    starts = {getattr(each, "decoder_start_token_id", None) for each in (model.config, model.generation_config)}
    first = tokenizer.eos_token_id if starts == {None} else None  # of mBART, whose language replaces it
    with input_errors(f"model.from: {source}: "):
        ours = from_transformers(model, source_lang=source_lang, target_lang=target_lang, decoder_start_token_id=first)
    logger.info("%s: converted from a %s, with the same logits", source, type(model).__name__)
    return ours


def with_modes_of(
    target: ResidualConfig, changes: Mapping[str, Any], model: ResidualForConditionalGeneration
) -> ResidualForConditionalGeneration:
    """The model with the modes of a config that are among the changes, and the same logits.

    Raises `InputError` naming the possible modes.
    """
    for stack in model.config.stacks:
        before = model.config.of(stack).ln_mode
        mode, options = target.of(stack).ln_mode, vars(target.of(stack).options)
        if mode == before and not changes.keys() & {"ln_mode_options", f"{stack}_ln_mode_options"}:
            continue
        with input_errors("model."):
            model = change_ln_mode(model, mode, options, stack=stack)
        if mode != before:
            logger.info("%s: changed from %s to %s, with the same logits", stack, before, mode)
    return model


def start_config(start: Start, tokenizer: PreTrainedTokenizerBase, fields: Mapping[str, Any]) -> ResidualConfig:
    """The config of a starting model with other fields; its decoder keeps a first token such as `<pad>`.

    The prompts of BART's pipelines are not kept: the text that a model is trained on has none.
    """
    config, old = start.model.config, start.tokenizer
    roles = {getattr(old, f"{name}_id"): getattr(tokenizer, f"{name}_id") for name in ("bos_token", "pad_token")}
    first = roles.get(config.decoder_start_token_id, fields["decoder_start_token_id"])
    values = config.to_dict()
    for name in OF_PIPELINES:
        if (own := values.pop(name, None)) is not None:
            logger.warning("model.from: its %s of %r is not kept: training reads no prompts", name, own)
    return type(config)(**{**values, **fields, "decoder_start_token_id": first})


@torch.no_grad()
def with_vocabulary(
    start: Start, tokenizer: PreTrainedTokenizerBase, config: ResidualConfig
) -> ResidualForConditionalGeneration:
    """A model of `config` with the weights of a starting model and the vocabulary of another tokenizer.

    A token that the old tokenizer knows keeps its embedding. Any other gets the mean embedding of the tokens into
    which the old one divides it (fast vocabulary transfer, Gee et al. 2022), or a random one if there are none.
    """
    model, old, new = start.model, start.tokenizer, tokenizer
    made = type(model)(config)
    known, wanted = ({side: tokens_of(each, side).items() for side in ("source", "target")} for each in (old, new))
    if config.adaptive_cutoffs and known != wanted:
        raise InputError("tokenizer: another vocabulary, must be that of model.from, whose adaptive_cutoffs sort it")
    extended = [side for side in known if known[side] <= wanted[side]]  # tags may have been added
    if "target" in extended:
        made.generation_config = copy.deepcopy(model.generation_config)
    own = made.state_dict()
    tables = {"source": "model.encoder.embed_tokens.weight", "target": "model.decoder.embed_tokens.weight"}
    rows = {"lm_head.weight": "target", "lm_head.bias": "target"} | {name: side for side, name in tables.items()}
    trained = model.state_dict()
    refuse_untied(model, made)
    made.load_state_dict({name: tensor if name in rows else trained[name] for name, tensor in own.items()})
    pieces = {side: _pieces(old, new, side) for side in tables}
    for name, side in rows.items():
        if name in own and name in trained:
            if side in extended:  # also the rows that no token names, such as those of codes of languages
                least = min(len(own[name]), len(trained[name]))
                own[name][:least] = trained[name][:least]
            for row, ids in pieces[side].items():
                if ids and not (side in extended and ids == [row]):
                    own[name][row] = trained[name][ids].mean(0)
    kept = sum(len(ids) == 1 for ids in pieces["target"].values())
    logger.info("vocabulary: %d of %d target tokens are those of the model", kept, len(pieces["target"]))
    return made


def tokens_of(tokenizer: Any, side: str) -> dict[str, int]:
    """The tokens of a side, `"source"` or `"target"`, with their ids."""
    if (backend := backend_of(tokenizer, side)) is None:
        target = separate_target_vocabulary(tokenizer) if side == "target" else None
        return target or tokenizer.get_vocab()
    size = target_size(tokenizer) if side == "target" else len(tokenizer)
    return {token: row for token, row in backend.get_vocab().items() if row < size}


def _pieces(old: PreTrainedTokenizerBase, new: PreTrainedTokenizerBase, side: str) -> dict[int, list[int]]:
    """For the id of each token of a new vocabulary, its ids in the old one; empty if it is unknown."""
    backend, known, tokens = backend_of(old, side), tokens_of(old, side), tokens_of(new, side)
    special = {
        getattr(new, name): getattr(old, f"{name}_id")
        for name in ("bos_token", "pad_token", "eos_token", "unk_token")
        if getattr(new, name) is not None and getattr(old, name) is not None
    }
    unknown, added = old.unk_token_id, new.get_added_vocab()
    before, now = alphabet(backend, known), alphabet(backend_of(new, side), tokens)

    def divide(token: str) -> list[int]:
        if token in special:
            return [special[token]]
        if token not in added and backend is not None and before != now:
            text = text_of(token, now)
            if "\ufffd" in text or BYTE.fullmatch(token):  # a part of a character
                return []
            token = as_token(text, before)
            whole = f"{token}{getattr(backend.model, 'end_of_word_suffix', None) or ''}"
            token = whole if text.startswith(" ") and whole in known else token
        if token in known:
            return [known[token]]
        if token in added:
            return []
        if backend is None:
            raise InputError(
                f"tokenizer: must be that of model.from, as a {type(old).__name__} cannot divide {token!r}"
            )
        found = [piece.id for piece in backend.model.tokenize(token)]
        return [] if unknown in found else found

    return {row: divide(token) for token, row in tokens.items()}


def alphabet(backend: Tokenizer | None, vocabulary: Iterable[str]) -> str:
    """How tokens are spelled: `"bytes"` as symbols, words that begin with `"▁"`, or `"words"` as they are."""
    if backend is not None and "ByteLevel" in f"{backend.pre_tokenizer} {backend.decoder}":
        return "bytes"
    return "▁" if any(token.startswith("▁") for token in vocabulary) else "words"


def text_of(token: str, spelling: str) -> str:
    """The text of a token, with a space before the begin of a word."""
    if spelling == "bytes":
        return str(decoders.ByteLevel().decode([token]))
    return token.replace("▁", " ") if spelling == "▁" else f" {token.removesuffix('@@').removesuffix('</w>')}"


def as_token(text: str, spelling: str) -> str:
    """The token with a text; that of a word without its begin if the spelling does not mark it."""
    if spelling == "bytes":
        symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        return "".join(symbol for symbol, _ in symbols)
    return text.replace(" ", "▁") if spelling == "▁" else text.strip()
