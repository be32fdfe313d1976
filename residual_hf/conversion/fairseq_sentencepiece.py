# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""SentencePiece models (unigram, BPE) over a fairseq dictionary as fast tokenizers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from residual_hf.conversion.moses import char_class
from residual_hf.data.tokenizer import SPECIAL_TOKENS, append_eos
from residual_hf.errors import InputError

UNK = SPECIAL_TOKENS[3]
MARK = "\ufdd0"  # begins names of entries that no text reaches
RUN = "\ufdd1"  # stands for several unknown characters in a row, which SentencePiece hands on as one piece
# text may hold the names of special tokens and bytes; a cut inside keeps it from being taken for them
NO_NAME = pre_tokenizers.Split(Regex(r"(?<=<)(?=(?:/?s|pad|unk|0x[0-9A-F]{2})>)"), "isolated")
UNKNOWN_PENALTY = 10.0  # SentencePiece's: an unknown character scores that much less than the worst piece
NORMAL, USER_DEFINED, BYTE = 1, 4, 6
UNIGRAM, BPE = 1, 2


@dataclass
class SentencePieceModel:
    """What a `.model` file says: pieces with score and type, and how text is normalised."""

    pieces: dict[str, tuple[float, int]] = field(default_factory=dict)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


def read_sentencepiece(path: str | Path) -> SentencePieceModel:
    """Read a `.model` file. Raises `InputError` for another file, or a model of words or characters."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(Path(path).expanduser().read_bytes()):
            if number == 1:
                piece = {1: b"", 2: 0.0, 3: NORMAL, **dict(_fields(value))}
                model.pieces[piece[1].decode("utf-8")] = (piece[2], piece[3])
            elif number == 2:
                trainer = dict(_fields(value))
                model.model_type = trainer.get(3, UNIGRAM)
                model.byte_fallback = bool(trainer.get(35, 0))
            elif number == 3:
                normalizer = dict(_fields(value))
                model.charsmap = normalizer.get(2, b"")
                model.add_dummy_prefix = bool(normalizer.get(3, 1))
                model.remove_extra_whitespaces = bool(normalizer.get(4, 1))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError, IndexError, struct.error, AttributeError, TypeError) as error:
        raise InputError(f"{path}: not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise InputError(f"{path}: not a SentencePiece model, there are no pieces in it")
    if model.model_type not in (UNIGRAM, BPE):
        raise InputError(f"{path}: a SentencePiece model of words or characters; supported are unigram and bpe")
    return model


def sentencepiece_backend(dictionary: Sequence[str], path: str | Path) -> Tokenizer:
    """SentencePiece over a dictionary; pieces that the dictionary lacks have ids from `len(dictionary)` on."""
    model = read_sentencepiece(path)
    cuts = {piece: score for piece, (score, kind) in model.pieces.items() if kind in (NORMAL, USER_DEFINED)}
    unknown = min(cuts.values()) - UNKNOWN_PENALTY
    last = {token: number for number, token in enumerate(dictionary)}  # an overwritten token counts last
    vocab: dict[str, float] = dict.fromkeys(SPECIAL_TOKENS, 0.0)
    for number, token in enumerate(dictionary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        strange = not any(character in cuts for character in token)  # SentencePiece hands these on as they are
        reached = last[token] == number and token not in vocab and (token in model.pieces or strange)
        vocab[token if reached else f"{MARK}{token}{number}"] = cuts.get(token, unknown * len(token) * strange)
    for piece, (_, kind) in model.pieces.items():
        if kind in (NORMAL, USER_DEFINED, BYTE):
            vocab.setdefault(piece, cuts.get(piece, 0.0))
    tokenizer = Tokenizer(_unigram(vocab, model) if model.model_type == UNIGRAM else _bpe(vocab, cuts, model))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    runs = _unknown_runs(dictionary, cuts, model) if not model.byte_fallback else []
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


def _unigram(vocab: dict[str, float], model: SentencePieceModel) -> models.Unigram:
    return models.Unigram(list(vocab.items()), unk_id=SPECIAL_TOKENS.index(UNK), byte_fallback=model.byte_fallback)


def _bpe(vocab: dict[str, float], cuts: dict[str, float], model: SentencePieceModel) -> models.BPE:
    """SentencePiece joins the two neighbours whose union scores best, whatever the two are."""
    merges = [
        (-score, piece[:cut], piece[cut:])
        for piece, score in cuts.items()
        for cut in range(1, len(piece))
        if piece[:cut] in cuts and piece[cut:] in cuts
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
        yield normalizers.Replace(Regex(r"\A "), "  ")  # Metaspace leaves the prefix out where a space begins


def _unknown_runs(
    dictionary: Sequence[str], cuts: dict[str, float], model: SentencePieceModel
) -> Iterator[normalizers.Normalizer]:
    """Unknown characters in a row become one unknown character, unless the dictionary has just this row."""
    known = char_class(" ▁" + "".join(piece for piece in cuts if len(piece) == 1))
    runs = [token for token in dictionary if len(token) > 1 and not any(character in cuts for character in token)]
    spared = "|".join(map(re.escape, runs)) if model.model_type == UNIGRAM else ""
    but = rf"(?!(?:{spared})(?![^{known}]))" if spared else ""
    yield normalizers.Replace(Regex(rf"(?<![^{known}]){but}[^{known}]{{2,}}"), RUN)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a protocol-buffers message: integers, floats, or bytes."""
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
                raise ValueError("it is cut off")
            yield number, message[position : position + size]
            position += size
        else:
            raise ValueError(f"wire type {wire_type} in it")
