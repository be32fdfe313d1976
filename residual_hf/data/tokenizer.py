# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers as this package has them: special tokens, language tags, and text that is segmented already."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from residual_hf.data.text_files import iter_lines
from residual_hf.errors import InputError

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, as in fairseq's dictionaries


def wrap_tokenizer(tokenizer: Tokenizer, model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of the `tokenizers` library with `SPECIAL_TOKENS` declared, as Transformers has it.

    Special tokens that stand literally in a text (`<s>` is an HTML tag) are taken as text; pass
    `split_special_tokens=False` in a call to have them read as special tokens.
    """
    bos, pad, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def append_eos() -> processors.TemplateProcessing:
    """The post-processor that ends a sequence with `</s>` and adds nothing else, as fairseq and Marian do."""
    eos = SPECIAL_TOKENS[2]
    return processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, SPECIAL_TOKENS.index(eos))]
    )


def pretokenized_tokenizer(
    dict_path: str | Path, *, remove_bpe_joiner: bool = True, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """The tokenizer for text that is segmented already, with the ids of a fairseq dictionary.

    Tokens are what stands between spaces; what the dictionary lacks is `<unk>`; `</s>` is appended. Decoding joins
    tokens with single spaces and, with `remove_bpe_joiner`, glues what subword-nmt cut ("cot@@ ton" to "cotton").

    Args:
        dict_path: fairseq's `dict.txt`, one "token count" a line; the ids follow the special tokens', from 4 on.

    Raises:
        InputError: a line of another form or a token that is there twice, naming file and line.
    """
    vocab = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for number, line in enumerate(iter_lines(dict_path), start=1):
        token, _, count = line.rpartition(" ")
        if not token or " " in token or not count.isdecimal():
            raise InputError(f"{dict_path}: line {number} is {line!r}; allowed are a token, one space and its count")
        if token in vocab:
            raise InputError(f"{dict_path}: line {number}: the token {token!r} has the id {vocab[token]} already")
        vocab[token] = len(vocab)
    if len(vocab) == len(SPECIAL_TOKENS):
        raise InputError(f"{dict_path}: empty, no token in it")

    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL_TOKENS[3]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.post_processor = append_eos()
    if remove_bpe_joiner:
        # WordPiece puts a space before every token but the first and those with its prefix; no token holds a space.
        spaced = decoders.WordPiece(prefix=" ", cleanup=False)
        tokenizer.decoder = decoders.Sequence([spaced, decoders.Fuse(), decoders.Replace(Regex(r"@@( |\z)"), "")])
    return wrap_tokenizer(tokenizer, model_max_length)
