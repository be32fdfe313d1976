"""The text of a language model as blocks of tokens, with the breaks of fairseq (`sample_break_mode`)."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from residual_hf.base.errors import InputError
from residual_hf.model.options import refusal

from .corpus import ParallelCorpus
from .data_settings import DataSettings
from .encoding import IGNORED, EncodedCorpus, encode, encode_corpus
from .pipeline import Preparation, PreparedData, first_pairs, get_tokenizer, joined_subwords, mix
from .sample_checks import warn_about_unknown_tokens
from .tokenizer import ends_text

Packing = Callable[[EncodedCorpus], EncodedCorpus]


def prepare_text(given: Preparation) -> PreparedData:
    """As `prepare`, for the text of a language model."""
    texts, data, folder = given.texts, given.data, given.folder
    processes, positions = PartialState(), given.config.max_position_embeddings
    longest = min(positions, given.max_tokens or positions)
    references = {name: corpora for name, corpora in texts.items() if name != "train"}
    encoded: dict[str, EncodedCorpus] = {}
    with processes.main_process_first():
        sample = first_pairs(data, given.seed) if data.stream else texts["train"]
        tokenizer = get_tokenizer(given, sample, ends=False)
        for name, corpora in {**references, **texts}.items():  # the long one last
            packing = packing_of(data, longest, 0 if name == "train" else given.context_window)
            parts = encode_texts(corpora, tokenizer, packing, name=name, cache_dir=folder / "cache")
            encoded[name] = EncodedCorpus.joined(parts)
            if name == "train":
                encoded[name] = mix(encoded[name], [len(part) for part in parts], data, given.seed)
    if processes.is_main_process:
        warn_about_unknown_tokens(encoded, tokenizer)
    lengths = np.array([longest]) if data.stream else encoded["train"].source_lengths
    return PreparedData(tokenizer, encoded, joined_subwords(references, tokenizer), lengths)


def block_encoder(
    data: DataSettings, tokenizer: Any, *, positions: int, max_tokens: int, seed: int
) -> Callable[[Iterable[ParallelCorpus]], EncodedCorpus]:
    """A function that encodes the text of a stream."""
    return partial(encode_chunks, tokenizer=tokenizer, packing=packing_of(data, min(positions, max_tokens)))


def packing_of(data: DataSettings, longest: int, context: int = 0) -> Packing:
    """A function that packs lines into examples of at most `longest` tokens."""
    return partial(pack, block_size=data.block_size or longest, break_mode=data.sample_break_mode, context=context)


def encode_texts(
    corpora: Iterable[ParallelCorpus], tokenizer: Any, packing: Packing, *, name: str, cache_dir: Path | None = None
) -> list[EncodedCorpus]:
    """The blocks of each corpus. Arguments as in `encode_corpus`; `packing` is a `pack` with its options.

    Raises `InputError` for a tokenizer that does not separate lines by `</s>`, or adds anything else to them.
    """
    found, end = tokenizer("")["input_ids"], tokenizer.eos_token_id
    if found != [end]:
        raise InputError(f"tokenizer: a blank line has the tokens {found}, must be {[end]}, the end of the line")
    options: dict[str, Any] = {"name": name, "cache_dir": cache_dir, "sides": ("source",)}
    return [packing(ended(encode_corpus(corpus, tokenizer, **options), tokenizer)) for corpus in corpora]


def encode_chunks(chunks: Iterable[ParallelCorpus], tokenizer: Any, packing: Packing) -> EncodedCorpus:
    """The blocks of corpora that are read in chunks; no block has text of two corpora."""
    corpora = groupby(chunks, key=lambda chunk: chunk.name)
    encoded = (ended(encode(text, tokenizer, sides=("source",)), tokenizer) for _, text in corpora)
    return EncodedCorpus.joined([packing(lines) for lines in encoded])


def ended(lines: EncodedCorpus, tokenizer: Any) -> EncodedCorpus:
    """The lines with `</s>` at the end of each; the tokenizer of a converted model writes it at the beginning."""
    if ends_text(tokenizer):
        return lines
    return EncodedCorpus({**lines.arrays, "source_ids": np.roll(lines.arrays["source_ids"], -1)})


def pack(lines: EncodedCorpus, block_size: int, break_mode: str, *, context: int = 0) -> EncodedCorpus:
    """Divide encoded lines into blocks of at most `block_size` tokens.

    The first token of a block is the one before it, from which a model predicts the second; before the first line it
    is `</s>`. Every token thus is predicted once, except for blank lines with `"complete_doc"`. A line that does not
    fit into a block is divided.

    Args:
        lines: tokens of the lines, each with `</s>` at its end.
        break_mode: `"none"` fills blocks over lines and documents, `"complete"` with complete lines, `"complete_doc"`
            with complete lines of one document, `"eos"` makes a block of each line.
        context: tokens before those to predict that a block begins with, if the document (for `"eos"` the line) has as
            many; their labels are ignored. A block then predicts at most `block_size - 1 - context` tokens.

    Raises `InputError` for a context that leaves no token to predict.
    """
    size = block_size - 1 - context
    if size < 1 or context < 0:
        allowed = f">= 0 and < {block_size - 1} with block_size {block_size}"
        raise InputError(refusal("context_window", context, allowed))
    spans = np.array(list(_spans(lines.source_lengths, size, break_mode)), dtype=np.int64).reshape(-1, 3)
    pieces = -(-(spans[:, 1] - spans[:, 0]) // size)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin, end, first = np.repeat(spans, pieces, axis=0).T
    begin = begin + number * size
    end = np.minimum(begin + size, end)
    start = np.maximum(begin - context, first)
    lengths = end - start + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    ids = np.concatenate([lines.arrays["source_ids"][-1:], lines.arrays["source_ids"]])
    arrays = {"source_offsets": offsets, "source_ids": ids[np.repeat(start, lengths) + place]}
    if context:
        labels = np.where(place <= np.repeat(begin - start, lengths), IGNORED, arrays["source_ids"])
        arrays |= {"target_offsets": offsets, "target_ids": labels.astype(ids.dtype)}
    return EncodedCorpus(arrays)


def _spans(lengths: np.ndarray, size: int, break_mode: str) -> Iterator[tuple[int, int, int]]:
    """Begin and end of stretches of tokens, and where the context of each may begin."""
    if break_mode == "none":
        yield 0, int(lengths.sum()), 0
        return
    begin = end = document = 0
    for length in lengths.tolist():
        border = break_mode == "complete_doc" and length == 1
        if end > begin and (border or break_mode == "eos" or end + length - begin > size):
            yield begin, end, document
            begin = end
        end += length
        if border:
            begin = end
        if border or break_mode == "eos":
            document = begin
    if end > begin:
        yield begin, end, document


def predicted_tokens(blocks: EncodedCorpus) -> int:
    """The number of tokens that a model predicts."""
    labels = blocks.arrays[f"{blocks.sides[-1]}_ids"]
    return int((labels != IGNORED).sum()) - (len(blocks) if blocks.sides == ("source",) else 0)


def count_words(corpora: Iterable[ParallelCorpus], break_mode: str) -> int:
    """Words between spaces and ends of lines, as WikiText counts; without blank lines that are not predicted."""
    lines = (line for corpus in corpora for line in corpus.sources)
    return sum(len(line.split()) + 1 for line in lines if break_mode != "complete_doc" or line.strip())
