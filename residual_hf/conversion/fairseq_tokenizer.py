# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""fairseq's dictionary and what was run in front of it (Moses, subword-nmt, SentencePiece) as one fast tokenizer.

subword-nmt cuts "loading" into `lo@@ ad@@ ing` and fairseq looks these up. Inside the tokenizer the same pieces are
`lo`, `ad` and `ing</w>`, as the codes have them, under the ids of the dictionary. Pieces that the codes can make, but
that the dictionary lacks, take part in merging under ids behind those of the dictionary; what is left of them when a
word is done is `<unk>` (`known_tokens` of `ResidualTokenizer`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from residual_hf.conversion.moses import MosesRules
from residual_hf.data.text_files import iter_lines
from residual_hf.data.tokenizer import SPECIAL_TOKENS, append_eos, pretokenized_tokenizer, wrap_tokenizer
from residual_hf.errors import InputError
from residual_hf.model.tokenization_residual import ResidualTokenizer

UNK = SPECIAL_TOKENS[3]
JOINER, END = "@@", "</w>"
OVERWRITE = "#fairseq:overwrite"


def read_dictionary(path: str | Path) -> list[str]:
    """The tokens of a fairseq `dict.txt` by id, the special ones first. A token that is there twice counts last.

    Raises `InputError` naming file and line for a line that is not "token count", optionally followed by
    `#fairseq:overwrite`, and for a token that is there twice without that mark.
    """
    tokens = list(SPECIAL_TOKENS)
    known = set(tokens)
    for number, line in enumerate(iter_lines(path), start=1):
        entry = line.rstrip()
        overwrite = entry.endswith(f" {OVERWRITE}")
        token, _, count = entry.removesuffix(f" {OVERWRITE}").rpartition(" ")
        if not token or not count.isdecimal():
            raise InputError(f"{path}: line {number} is {line!r}; allowed are a token, one space and its count")
        if token in known and not overwrite:
            raise InputError(f"{path}: line {number}: the token {token!r} is there twice, without {OVERWRITE}")
        tokens.append(token)
        known.add(token)
    if len(tokens) == len(SPECIAL_TOKENS):
        raise InputError(f"{path}: empty, no token in it")
    return tokens


def read_codes(path: str | Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt (`#version: 0.2`) or fastBPE (with counts), first to last, each once.

    Raises `InputError` naming file and line for another version or form.
    """
    merges: dict[tuple[str, str], None] = {}
    versioned = False
    for number, line in enumerate(iter_lines(path), start=1):
        if number == 1 and line.startswith("#version:"):
            version = line.removeprefix("#version:").strip()
            if version != "0.2":
                raise InputError(f"{path}: #version {version}; supported is 0.2 (subword-nmt from 0.3 on)")
            versioned = True
            continue
        if not line.strip(" "):
            continue
        parts = line.strip(" ").split(" ")
        counted = len(parts) == 3 and parts[2].isdecimal() and not versioned
        if not counted and not (versioned and len(parts) == 2):
            raise InputError(
                f"{path}: line {number} is {line!r}; supported are codes of subword-nmt with the first line "
                "#version: 0.2 and two symbols a line, or of fastBPE with two symbols and a count"
            )
        merges.setdefault((parts[0], parts[1]))
    if not merges:
        raise InputError(f"{path}: empty, no merge in it")
    return list(merges)


def fairseq_tokenizer(
    source_dict: str | Path,
    target_dict: str | Path,
    *,
    bpe_codes: str | Path | None = None,
    sentencepiece: str | Path | None = None,
    source_rules: MosesRules | None = None,
    target_rules: MosesRules | None = None,
) -> PreTrainedTokenizerFast:
    """The tokenizer of a fairseq model: text to the ids that fairseq gives it, `</s>` at the end, and back.

    One vocabulary if the dictionaries are equal, else a `ResidualTokenizer` of two. Without codes and without a
    SentencePiece model the text is taken as segmented already.

    Args:
        bpe_codes: subword-nmt's or fastBPE's, for both languages.
        sentencepiece: a `.model` file, for both languages.
        source_rules, target_rules: Moses normalisation and tokenisation in front; needs `bpe_codes`.

    Raises:
        InputError: a file that cannot be read as what it should be, or arguments that exclude each other.
    """
    if bpe_codes is not None and sentencepiece is not None:
        raise InputError("bpe_codes, sentencepiece: both given; allowed is one of them")
    if (source_rules or target_rules) and bpe_codes is None:
        raise InputError("moses: given without bpe_codes; text that is segmented already cannot be tokenised again")
    dictionaries = [read_dictionary(path) for path in (source_dict, target_dict)]
    if bpe_codes is None and sentencepiece is None:
        sides = [pretokenized_tokenizer(path) for path in (source_dict, target_dict)]
    elif bpe_codes is not None:
        merges = read_codes(bpe_codes)
        rules = (source_rules, target_rules)
        sides = [wrap_tokenizer(bpe_backend(d, merges, r)) for d, r in zip(dictionaries, rules, strict=True)]
    else:
        from residual_hf.conversion.fairseq_sentencepiece import sentencepiece_backend

        sides = [wrap_tokenizer(sentencepiece_backend(d, sentencepiece)) for d in dictionaries]
    source, target = sides
    known = [len(dictionary) for dictionary in dictionaries]
    complete = all(len(side) == number for side, number in zip(sides, known, strict=True))
    if complete and source.backend_tokenizer.to_str() == target.backend_tokenizer.to_str():
        return source
    return ResidualTokenizer.from_pair(source, target, known_tokens=None if complete else known)


def bpe_backend(
    dictionary: Sequence[str], merges: Sequence[tuple[str, str]], rules: MosesRules | None = None
) -> Tokenizer:
    """subword-nmt over a dictionary; symbols that the dictionary lacks have ids from `len(dictionary)` on."""
    vocab = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for number, token in enumerate(dictionary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        vocab[_symbol(token)] = number
    vocab |= _shadowed(vocab, dictionary)
    for left, right in merges:
        for symbol in (left, right, left + right):
            vocab.setdefault(symbol, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, list(merges), unk_token=UNK, end_of_word_suffix=END))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    steps = [decoders.BPEDecoder(suffix=END)]
    if rules is not None:
        tokenizer.normalizer = normalizers.Sequence(rules.normalizers())
        steps += [decoders.Fuse(), *rules.decoders()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = append_eos()
    return tokenizer


def _symbol(token: str) -> str:
    """A token of the dictionary as the codes write it: `lo@@` is `lo`, `truck` is `truck</w>`."""
    if token.endswith(JOINER) and token != JOINER:
        return token.removesuffix(JOINER)
    return token + END


def _shadowed(vocab: dict[str, int], dictionary: Sequence[str]) -> dict[str, int]:
    """Names for ids whose token the dictionary overwrites later on: there are rows for them, but no text."""
    taken = set(vocab.values())
    return {f"{dictionary[i]}\ufdd0{i}{END}": i for i in range(len(dictionary)) if i not in taken}


def shows_aggressive_hyphens(dictionary: Sequence[str]) -> bool:
    """Was the training text tokenised with `-a`? Then hyphens inside words are tokens of their own, `@-@`."""
    return "@-@" in dictionary


def shows_escapes(dictionary: Sequence[str]) -> bool:
    """Was the training text escaped (`&apos;`), as Moses' tokenizer does unless told otherwise?"""
    return any(re.fullmatch(r"&(amp|apos|quot|lt|gt|#91|#93|#124);\w*(@@)?", token) for token in dictionary)
