"""Convert fairseq's dictionary and its preprocessing (Moses, subword-nmt, SentencePiece) to one fast tokenizer.

subword-nmt segments "loading" as `lo@@ ad@@ ing`, which fairseq looks up in the dictionary. Inside the tokenizer the
same pieces are `lo`, `ad` and `ing</w>`, as in the codes, with the ids of the dictionary. Pieces that the codes can
produce but the dictionary lacks take part in merging, with ids after those of the dictionary; those that remain at the
end become `<unk>` (`known_tokens` of `ResidualTokenizer`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from residual_hf.base.errors import InputError
from residual_hf.data.text_files import iter_lines
from residual_hf.data.tokenizer import (
    SPECIAL_TOKENS,
    append_eos,
    pretokenized_tokenizer,
    read_dictionary,
    wrap_tokenizer,
)
from residual_hf.model.tokenization_residual import ResidualTokenizer

from .fairseq_sentencepiece import read_sentencepiece, sentencepiece_backend
from .moses import MosesRules

UNK = SPECIAL_TOKENS[3]
JOINER, END = "@@", "</w>"


def read_codes(path: str | Path) -> list[tuple[str, str]]:
    """Read the merges of subword-nmt (`#version: 0.2`) or fastBPE (with counts) in order, without repetitions."""
    merges: dict[tuple[str, str], None] = {}
    versioned = False
    for number, line in enumerate(iter_lines(path), start=1):
        parts = line.strip(" ").split(" ")
        if number == 1 and line.startswith("#version:"):
            version = line.removeprefix("#version:").strip()
            if version != "0.2":
                raise InputError(f"{path}: #version {version}, must be 0.2 (subword-nmt 0.3 or newer)")
            versioned = True
        elif parts != [""]:
            if not (len(parts) == 2 if versioned else len(parts) == 3 and parts[2].isdecimal()):
                kinds = "subword-nmt (first line #version: 0.2, two symbols per line) or fastBPE (and a count)"
                raise InputError(f"{path}: line {number} is {line!r}; codes must be those of {kinds}")
            merges.setdefault((parts[0], parts[1]))
    if not merges:
        raise InputError(f"{path}: the file has no merges")
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
    """The tokenizer of a fairseq model. It produces the ids of fairseq, with `</s>` at the end.

    It has one vocabulary if the dictionaries are equal, and is a `ResidualTokenizer` with two otherwise. The files are
    those of `convert_fairseq_checkpoint`; `source_rules` and `target_rules`, of Moses, require `bpe_codes`.
    """
    if bpe_codes is not None and sentencepiece is not None:
        raise InputError("bpe_codes, sentencepiece: both given, must be one of them")
    if (source_rules or target_rules) and bpe_codes is None:
        raise InputError("moses: given without bpe_codes, but segmented text cannot be tokenized again")
    dictionaries = [read_dictionary(path) for path in (source_dict, target_dict)]
    tokens = {token.removesuffix(JOINER) for own in dictionaries for token in own[len(SPECIAL_TOKENS) :]}
    if sentencepiece is not None:
        model = read_sentencepiece(sentencepiece)
        if not tokens & {piece.piece for piece in model.pieces}:
            raise InputError(f"{sentencepiece}: none of its pieces is a token of a dictionary: that of another model")
        sides = [wrap_tokenizer(sentencepiece_backend(d, model)) for d in dictionaries]
    elif bpe_codes is None:
        sides = [pretokenized_tokenizer(path) for path in (source_dict, target_dict)]
    else:
        merges = read_codes(bpe_codes)
        if not any((left + right).removesuffix(END) in tokens for left, right in merges):  # one side may be in words
            raise InputError("bpe_codes: no merge makes a token of a dictionary: those of another model, or of GPT-2")
        rules = (source_rules, target_rules)
        sides = [wrap_tokenizer(bpe_backend(d, merges, r)) for d, r in zip(dictionaries, rules, strict=True)]
    source, target = sides
    known = [len(dictionary) for dictionary in dictionaries]
    complete = all(len(side) == number for side, number in zip(sides, known, strict=True))
    if complete and source.backend_tokenizer.to_str() == target.backend_tokenizer.to_str():
        return source
    return ResidualTokenizer.from_pair(source, target, known_tokens=None if complete else known)


def bpe_backend(
    dictionary: Sequence[str], merges: Sequence[tuple[str, str]], rules: MosesRules | None = None
) -> Tokenizer:
    """subword-nmt with the ids of a dictionary; symbols that it lacks have ids from `len(dictionary)` on."""
    vocab = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for number, token in enumerate(dictionary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        is_joined = token.endswith(JOINER) and token != JOINER  # `lo@@` is `lo` in the codes, `truck` is `truck</w>`
        vocab[token.removesuffix(JOINER) if is_joined else token + END] = number
    taken = set(vocab.values())  # the model has rows for overwritten tokens too, but no text maps to them
    vocab |= {f"{dictionary[i]}\ufdd0{i}{END}": i for i in range(len(dictionary)) if i not in taken}
    for left, right in merges:
        for symbol in (left, right, left + right):
            vocab.setdefault(symbol, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, list(merges), unk_token=UNK, end_of_word_suffix=END))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    steps: list[Any] = [decoders.BPEDecoder(suffix=END)]
    if rules is not None:
        tokenizer.normalizer = normalizers.Sequence(rules.normalizers())
        steps += [decoders.Fuse(), *rules.decoders()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = append_eos()
    return tokenizer
