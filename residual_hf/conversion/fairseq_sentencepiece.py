# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Convert SentencePiece models (unigram, BPE) with a fairseq dictionary to fast tokenizers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded
from residual_hf.data.tokenizer import SPECIAL_TOKENS, append_eos

from .moses import char_class

UNK = SPECIAL_TOKENS[3]
MARK = "\ufdd0"  # prefix of entries that no text maps to
RUN = "\ufdd1"  # replaces several consecutive unknown characters, which are one piece in SentencePiece
# text may contain the names of special tokens and bytes; splitting inside a name prevents a match
NO_NAME = pre_tokenizers.Split(Regex(r"(?<=<)(?=(?:/?s|pad|unk|0x[0-9A-F]{2})>)"), "isolated")
UNKNOWN_PENALTY = 10.0  # SentencePiece's constant: worst score minus that of an unknown character
NORMAL, USER_DEFINED, BYTE = 1, 4, 6
UNIGRAM, BPE = 1, 2


@dataclass
class SentencePieceModel:
    """The content of a `.model` file: pieces with score and type, and how text is normalized."""

    pieces: dict[str, tuple[float, int]] = field(default_factory=dict)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


def read_sentencepiece(path: str | Path) -> SentencePieceModel:
    """Read a `.model` file.

    Raises:
        InputError: the file is not a SentencePiece model, or one of words or characters, of symbols that its users
            defined, or of text with other marks of spaces.
    """
    model, marks_words = SentencePieceModel(), True
    try:
        for number, value in _fields(expanded(path).read_bytes()):
            if number == 1:
                piece = {1: b"", 2: 0.0, 3: NORMAL, **dict(_fields(value))}
                model.pieces[piece[1].decode("utf-8")] = (piece[2], piece[3])
            elif number == 2:
                trainer = dict(_fields(value))
                model.model_type = trainer.get(3, UNIGRAM)
                model.byte_fallback = bool(trainer.get(35, 0))
                marks_words &= not trainer.get(24, 0)  # treat_whitespace_as_suffix
            elif number == 3:
                normalizer = dict(_fields(value))
                model.charsmap = normalizer.get(2, b"")
                model.add_dummy_prefix = bool(normalizer.get(3, 1))
                model.remove_extra_whitespaces = bool(normalizer.get(4, 1))
                marks_words &= bool(normalizer.get(5, 1))  # escape_whitespaces
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError, IndexError, struct.error, AttributeError, TypeError) as error:
        raise InputError(f"{path}: not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise InputError(f"{path}: not a SentencePiece model: it has no pieces")
    if model.model_type not in (UNIGRAM, BPE):
        raise InputError(f"{path}: a SentencePiece model of words or characters, must be unigram or bpe")
    if not marks_words:
        raise InputError(f"{path}: a SentencePiece model in which words do not begin with ▁")
    normal, own = ({piece for piece, (_, kind) in model.pieces.items() if kind == k} for k in (NORMAL, USER_DEFINED))
    if model.model_type == UNIGRAM:  # which finds those of known characters
        own = {piece for piece in own if not normal.issuperset(piece)}
    if own:
        raise InputError(f"{path}: a SentencePiece model with user_defined_symbols ({', '.join(sorted(own))})")
    return model


def sentencepiece_backend(dictionary: Sequence[str], path: str | Path) -> Tokenizer:
    """SentencePiece with the ids of a dictionary; pieces that it lacks have ids from `len(dictionary)` on."""
    model = read_sentencepiece(path)
    scores = {piece: score for piece, (score, kind) in model.pieces.items() if kind in (NORMAL, USER_DEFINED)}
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    last = {token: number for number, token in enumerate(dictionary)}  # the last entry of a repeated token counts
    vocab: dict[str, float] = dict.fromkeys(SPECIAL_TOKENS, 0.0)
    for number, token in enumerate(dictionary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        strange = not any(character in scores for character in token)  # SentencePiece does not segment these
        reached = last[token] == number and token not in vocab and (token in model.pieces or strange)
        vocab[token if reached else f"{MARK}{token}{number}"] = scores.get(token, unknown * len(token) * strange)
    for piece, (_, kind) in model.pieces.items():
        if kind in (NORMAL, USER_DEFINED, BYTE):
            vocab.setdefault(piece, scores.get(piece, 0.0))
    if model.model_type == UNIGRAM:
        unk_id = SPECIAL_TOKENS.index(UNK)
        tokenizer = Tokenizer(models.Unigram(list(vocab.items()), unk_id=unk_id, byte_fallback=model.byte_fallback))
    else:
        tokenizer = Tokenizer(_bpe(vocab, scores, model))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    runs = _unknown_runs(dictionary, scores, model) if not model.byte_fallback else []
    tokenizer.normalizer = normalizers.Sequence([*_normalizers(model), *runs])
    scheme = "always" if model.add_dummy_prefix else "never"
    words = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, NO_NAME])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Metaspace("▁", prepend_scheme=scheme),
            decoders.Fuse(),
            decoders.Replace(Regex(rf"{MARK}|\A +| +\z"), ""),
        ]
    )
    tokenizer.post_processor = append_eos()
    return tokenizer


def _bpe(vocab: dict[str, float], scores: dict[str, float], model: SentencePieceModel) -> models.BPE:
    """SentencePiece merges the two neighbors whose union scores best, so every split of a piece is a merge."""
    merges = [
        (-score, piece[:split], piece[split:])
        for piece, score in scores.items()
        for split in range(1, len(piece))
        if piece[:split] in scores and piece[split:] in scores
    ]
    ids = {piece: number for number, piece in enumerate(vocab)}
    pairs = [(left, right) for _, left, right in sorted(merges)]
    return models.BPE(ids, pairs, unk_token=UNK, fuse_unk=True, byte_fallback=model.byte_fallback)


def _normalizers(model: SentencePieceModel) -> Iterator[normalizers.Normalizer]:
    if model.charsmap:
        yield normalizers.Precompiled(model.charsmap)
    if model.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(" {2,}"), " ")
        yield normalizers.Replace(Regex(r"\A +| +\z"), "")
    elif model.add_dummy_prefix:
        yield normalizers.Replace(Regex(r"\A "), "  ")  # Metaspace adds no prefix before a space


def _unknown_runs(
    dictionary: Sequence[str], scores: dict[str, float], model: SentencePieceModel
) -> Iterator[normalizers.Normalizer]:
    """Replace consecutive unknown characters by one, unless the dictionary contains exactly this sequence."""
    known = char_class(" ▁" + "".join(piece for piece in scores if len(piece) == 1))
    runs = [token for token in dictionary if len(token) > 1 and not any(character in scores for character in token)]
    spared = "|".join(map(re.escape, runs)) if model.model_type == UNIGRAM else ""
    but = rf"(?!(?:{spared})(?![^{known}]))" if spared else ""
    yield normalizers.Replace(Regex(rf"(?<![^{known}]){but}[^{known}]{{2,}}"), RUN)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values (integers, floats, bytes) of the fields of a Protocol Buffers message."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(message):
        key = varint()
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            yield number, varint()
        elif wire_type in (1, 5):
            form = "<d" if wire_type == 1 else "<f"
            yield number, struct.unpack_from(form, message, position)[0]
            position += struct.calcsize(form)
        elif wire_type == 2:
            size = varint()
            if position + size > len(message):
                raise ValueError("truncated file")
            yield number, message[position : position + size]
            position += size
        else:
            raise ValueError(f"unknown wire type {wire_type}")
