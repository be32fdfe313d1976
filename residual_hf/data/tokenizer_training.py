# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Training subword tokenizers that lose no text: decoding what was encoded gives every text back, character for character.

How that is reached, with the `tokenizers` library:

- No Unicode normalisation. Characters that training did not see become UTF-8 bytes (`byte_fallback`, or byte-level
  BPE, which knows nothing else).
- The mark "▁" stands for a space and is put before the first word. As Metaspace leaves it out where the text begins
  with a space already, a leading space is doubled first. A "▁" of the text itself is escaped by noncharacters (code
  points that Unicode keeps free for internal use), and so is the escape character.
- Pre-tokens hold letters, digits or neither, so that no entry such as `</s>` or `<0x0A>` can come out of text; with
  `split_special_tokens` a literal `</s>`, or the HTML tag `<s>`, is plain text too.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from residual_hf.data.text_files import iter_lines
from residual_hf.data.tokenizer import SPECIAL_TOKENS, append_eos, wrap_tokenizer
from residual_hf.errors import InputError

logger = logging.getLogger(__name__)

MODELS = ("bpe", "byte_bpe", "unigram")

_MARK = "▁"
_ESCAPE = "\ufdd0"
_ESCAPED_ESCAPE = "\ufdd0\ufdd1"
_ESCAPED_MARK = "\ufdd0\ufdd2"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def train_tokenizer(
    texts: Iterable[str | Path],
    *,
    vocab_size: int,
    model: str = "bpe",
    language_tags: Sequence[str] = (),
    min_frequency: int | None = None,
    max_token_length: int | None = None,
    character_coverage: float = 1.0,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer whose ids 0 to 3 are `<s> <pad> </s> <unk>` and which ends every sequence with `</s>`.

    Pass the texts of both languages for a joint vocabulary; for one vocabulary per language train two tokenizers and
    join them with `ResidualTokenizer.from_pair`. The same texts in the same order give the same tokenizer.

    Args:
        texts: sentences; a `pathlib.Path` among them stands for the lines of that text file (plain or gzip).
        vocab_size: number of entries, all told. Small corpora may yield fewer, which is logged.
        model: "bpe" (Sennrich et al. 2016; words marked by "▁"), "byte_bpe" (on UTF-8 bytes, Radford et al. 2019) or
            "unigram" (Kudo 2018, as SentencePiece has it).
        language_tags: such as `<2de>`; their ids follow the special tokens. They are found in text as it is encoded
            (see `prefix_language_tag`) and, being part of that text, are not dropped by `skip_special_tokens`.
        min_frequency: how often a pair must occur to be merged; 2 by default, BPE only.
        max_token_length: most characters of an entry (bytes for "byte_bpe"); by default no limit for BPE and 16 for
            unigram.
        character_coverage: share of the characters of the texts that get entries; the rarest beyond it are left to
            bytes, as SentencePiece does. Below 1 the texts are held in memory. Not for "byte_bpe".
        model_max_length: the tokens that the model can take, for `truncation=True`.

    Raises:
        InputError: a value that is not allowed, no text, or a vocabulary too small for the alphabet of the texts.
    """
    reserved = _check(texts, model, vocab_size, language_tags, min_frequency, max_token_length, character_coverage)
    sentences = _sentences(texts)
    if character_coverage < 1:
        sentences = _without_rare_characters(list(sentences), character_coverage)
    if model != "byte_bpe":
        sentences = _counting_alphabet(sentences, vocab_size - len(reserved))

    tokenizer = _untrained(model)
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(reserved),
        "show_progress": sys.stderr.isatty(),
    }
    if model == "unigram":
        if max_token_length is not None:
            options["max_piece_length"] = max_token_length
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        if model == "byte_bpe":
            options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            min_frequency=2 if min_frequency is None else min_frequency, max_token_length=max_token_length, **options
        )
    tokenizer.train_from_iterator(sentences, trainer=trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        logger.warning(
            "vocab_size: %d asked for, but the texts support only %d entries", vocab_size, tokenizer.get_vocab_size()
        )
    return wrap_tokenizer(_finished(tokenizer, model, language_tags), model_max_length)


def _check(
    texts: Any,
    model: str,
    vocab_size: int,
    language_tags: Sequence[str],
    min_frequency: int | None,
    max_token_length: int | None,
    character_coverage: float,
) -> tuple[str, ...]:
    """Check the arguments of `train_tokenizer`; returns the entries that the vocabulary begins with."""
    if model not in MODELS:
        raise InputError(f"model: {model!r}; allowed are {', '.join(MODELS)}")
    if isinstance(texts, (str, Path)):
        raise InputError(f"texts: one {type(texts).__name__}; allowed is a sequence of texts or paths")
    if isinstance(language_tags, str):
        raise InputError(f"language_tags: {language_tags!r} is one text; allowed is a sequence of tags")
    for tag in language_tags:
        if not re.fullmatch(r"<[^\s<>]*\w[^\s<>]*>", tag) or tag in SPECIAL_TOKENS + _BYTES:
            raise InputError(f"language_tags: {tag!r}; allowed are tags such as <2de>, not {' '.join(SPECIAL_TOKENS)}")
        if list(language_tags).count(tag) > 1:
            raise InputError(f"language_tags: {tag!r} is given twice")
    for name, value in (("min_frequency", min_frequency), ("max_token_length", max_token_length)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{name}: {value!r}; allowed is a whole number from 1 on")
    if model == "unigram" and min_frequency is not None:
        raise InputError(f"min_frequency: {min_frequency}; a unigram model has none")
    if not 0 < character_coverage <= 1:
        raise InputError(f"character_coverage: {character_coverage!r}; allowed is a share above 0, up to 1")
    if model == "byte_bpe" and character_coverage < 1:
        raise InputError(f"character_coverage: {character_coverage}; byte_bpe always covers all characters")
    reserved = (*SPECIAL_TOKENS, *language_tags, *(() if model == "byte_bpe" else _BYTES))
    least = len(SPECIAL_TOKENS) + len(language_tags) + len(_BYTES)
    if type(vocab_size) is not int or vocab_size <= least:
        raise InputError(
            f"vocab_size: {vocab_size!r}; allowed is more than {least} (special tokens, language tags and 256 bytes)"
        )
    return reserved


def _sentences(texts: Iterable[str | Path]) -> Iterator[str]:
    empty = True
    for number, text in enumerate(texts):
        if isinstance(text, Path):
            for line in iter_lines(text):
                empty = empty and not line.strip()
                yield line
        elif isinstance(text, str):
            empty = empty and not text.strip()
            yield text
        else:
            raise InputError(f"texts: item {number} is {text!r}; allowed are texts and pathlib.Path")
    if empty:
        raise InputError("texts: no text in them, nothing to train a tokenizer on")


def _counting_alphabet(sentences: Iterable[str], room: int) -> Iterator[str]:
    """Pass the sentences on and fail after the last if their alphabet does not fit into `room` entries."""
    alphabet: set[str] = set()
    for sentence in sentences:
        alphabet.update(sentence)
        yield sentence
    size = len(alphabet | {_MARK, *(_ESCAPED_MARK if _MARK in alphabet else "")} - {" "})
    if size > room:
        raise InputError(
            f"vocab_size: too small by {size - room}, as the texts hold {len(alphabet)} different characters; raise it, "
            "lower character_coverage or choose the model byte_bpe"
        )


def _without_rare_characters(sentences: list[str], coverage: float) -> Iterator[str]:
    """The sentences with a space in place of each of the rarest characters, which are `1 - coverage` of all at most."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence)
    allowance = (1 - coverage) * counts.total()
    rare = {}
    for character in sorted(counts, key=lambda c: (counts[c], c)):
        allowance -= counts[character]
        if allowance < 0:
            break
        rare[ord(character)] = " "
    return (sentence.translate(rare) for sentence in sentences)


def _word_pattern(space: str) -> Regex:
    """Letters with their marks, digits or other characters, each with one `space` before it; or a lone space."""
    letters, digits = r"\p{L}\p{M}", r"\p{N}"
    return Regex(f"{space}?[{letters}]+|{space}?[{digits}]+|{space}?[^{space}{letters}{digits}]+|{space}")


def _untrained(model: str) -> Tokenizer:
    if model == "byte_bpe":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(_word_pattern(" "), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>") if model == "bpe" else models.Unigram())
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(_ESCAPE, _ESCAPED_ESCAPE),
                normalizers.Replace(_MARK, _ESCAPED_MARK),
                normalizers.Replace(Regex(r"\A "), "  "),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(_MARK, prepend_scheme="first"),
                pre_tokenizers.Split(_word_pattern(_MARK), "isolated"),
            ]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Metaspace(_MARK, prepend_scheme="first"),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Replace(_ESCAPED_MARK, _MARK),
                decoders.Replace(_ESCAPED_ESCAPE, _ESCAPE),
            ]
        )
    tokenizer.post_processor = append_eos()
    return tokenizer


def _finished(tokenizer: Tokenizer, model: str, language_tags: Sequence[str]) -> Tokenizer:
    """What trainers cannot be told: bytes are no tokens of the text, tags are, and unigram scores must not vary."""
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = model != "byte_bpe"
    if model == "unigram":
        state["model"]["vocab"] = _settled(state["model"]["vocab"], state["added_tokens"])
    kept = []
    for token in state["added_tokens"]:
        if token["content"] in language_tags:
            kept.append(token | {"special": False, "normalized": True})
        elif token["content"] in SPECIAL_TOKENS:
            kept.append(token)
    state["added_tokens"] = kept
    return Tokenizer.from_str(json.dumps(state))


def _settled(vocab: list[list[Any]], reserved: list[Any]) -> list[list[Any]]:
    """The unigram entries with scores that are the same in every run.

    The trainer goes through the characters that lost their entry in the hash table's order, which is random, and gives
    them back one at the lowest score plus 0.0001, 0.0002 and so on; here all get the lowest. Its sums differ between
    runs by rounding (1e-14), too, so scores are rounded to 6 decimals.
    """
    head, pieces = vocab[: len(reserved)], vocab[len(reserved) :]
    lowest = min(score for _, score in pieces)
    highest_given_back = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    settled = [
        [piece, round(lowest if len(piece) == 1 and score <= highest_given_back else score, 6)]
        for piece, score in pieces
    ]
    return head + sorted(settled, key=lambda entry: (-entry[1], entry[0]))
