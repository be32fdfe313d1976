# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Training subword tokenizers that lose no text: decoding gives back what was encoded, character for character.

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

import io
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
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
            "unigram" (Kudo 2018), trained by SentencePiece.
        language_tags: such as `<2de>`; their ids follow the special tokens. A tag in a text is encoded
            as its id, and as part of the text it is not dropped by `skip_special_tokens`.
        min_frequency: how often a pair must occur to be merged; 2 by default, BPE only.
        max_token_length: most characters of an entry (bytes for "byte_bpe"); by default no limit for BPE and 16 for
            unigram.
        character_coverage: share of the characters of the texts that get entries; the rarest beyond it are left to
            bytes, as SentencePiece does. Not for "byte_bpe".
        model_max_length: the tokens that the model can take, for `truncation=True`.

    Raises:
        InputError: a value that is not allowed, no text, or a vocabulary too small for the alphabet of the texts.
    """
    reserved = _check(texts, model, vocab_size, language_tags, min_frequency, max_token_length, character_coverage)
    sentences: Iterable[str] = _sentences(texts)
    if character_coverage < 1:
        sentences = _without_rare_characters(list(sentences), character_coverage)
    if model != "byte_bpe":
        sentences = _counting_alphabet(sentences, vocab_size - len(reserved))

    if model == "unigram":
        trained = _train_unigram(list(sentences), vocab_size, reserved, max_token_length)
    else:
        trained = _train_bpe(sentences, vocab_size, reserved, model, min_frequency, max_token_length)
    tokenizer = _around(trained, model)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in language_tags])
    if tokenizer.get_vocab_size() < vocab_size:
        logger.warning("vocab_size %d: the texts support only %d entries", vocab_size, tokenizer.get_vocab_size())
    return wrap_tokenizer(tokenizer, model_max_length)


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
            f"vocab_size: too small by {size - room}, as the texts hold {len(alphabet)} different characters; "
            "raise it, lower character_coverage or choose byte_bpe"
        )


def _without_rare_characters(sentences: list[str], coverage: float) -> Iterator[str]:
    """The sentences with spaces for the rarest characters, as many as fit into a share of `1 - coverage`."""
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


def _train_bpe(
    sentences: Iterable[str],
    vocab_size: int,
    reserved: Sequence[str],
    model: str,
    min_frequency: int | None,
    max_token_length: int | None,
) -> models.BPE:
    tokenizer = _around(models.BPE(), model)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(reserved),
        min_frequency=2 if min_frequency is None else min_frequency,
        max_token_length=max_token_length,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if model == "byte_bpe" else [],
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(sentences, trainer=trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in trained["merges"]]
    return models.BPE(trained["vocab"], merges, unk_token=SPECIAL_TOKENS[3], byte_fallback=model == "bpe")


def _train_unigram(
    sentences: Iterable[str], vocab_size: int, reserved: Sequence[str], max_token_length: int | None
) -> models.Unigram:
    """Train with SentencePiece itself.

    The unigram trainer of `tokenizers` (0.23) takes its candidates from the list of different words, so that a word
    which is part of no other word never becomes an entry, however frequent (the same text then takes 6 to 48 % more
    tokens in our trials), and its scores differ in every run.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError("model: unigram needs the library sentencepiece: pip install sentencepiece") from error
    unsupported = dict.fromkeys(map(ord, "\0\t\n\u2585"), " ")  # SentencePiece leaves out sentences with these
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(sentence.translate(unsupported) for sentence in sentences),
        model_writer=written,
        model_type="unigram",
        vocab_size=vocab_size - len(reserved) + 1,  # its own <unk> is left out below
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentencepiece_length=16 if max_token_length is None else max_token_length,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=1 << 20,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=16,  # fixed, as the sums depend on it
        minloglevel=0 if sys.stderr.isatty() else 2,
    )
    learned = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [(learned.id_to_piece(i), learned.get_score(i)) for i in range(1, learned.get_piece_size())]
    return models.Unigram([(token, 0.0) for token in reserved] + pieces, unk_id=3, byte_fallback=True)


def _word_pattern(space: str) -> Regex:
    """Letters with their marks, digits or other characters, each with one `space` before it; or a lone space."""
    letters, digits = r"\p{L}\p{M}", r"\p{N}"
    return Regex(f"{space}?[{letters}]+|{space}?[{digits}]+|{space}?[^{space}{letters}{digits}]+|{space}")


def _around(trained: models.Model, model: str) -> Tokenizer:
    """A model with all that goes before and after it."""
    tokenizer = Tokenizer(trained)
    tokenizer.post_processor = append_eos()
    if model == "byte_bpe":
        split = pre_tokenizers.Split(_word_pattern(" "), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
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
    return tokenizer
