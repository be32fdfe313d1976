"""Translations of an encoded corpus, and log-probabilities of given translations: what `residual-hf score` writes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from residual_hf.base.errors import InputError
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.pair_reader import aligned_lines
from residual_hf.data.shortlist import Shortlist
from residual_hf.data.text_files import LineReader, iter_lines
from residual_hf.model.alignment import padded
from residual_hf.model.evaluation_mode import evaluation_mode
from residual_hf.model.length_limits import end_tokens

from .decode import sequence_log_probs
from .generation_settings import DecodingSettings, SearchRequest
from .translator import Translator, check_sentences

WINDOW = 1000  # pairs


def translate_corpus(
    model: Any,
    tokenizer: Any,
    corpus: EncodedCorpus,
    sentences: Sequence[str],
    settings: DecodingSettings | None = None,
    shortlist: Shortlist | None = None,
) -> list[str]:
    """Translations as of `Translator.translate` for `sentences`, which are encoded as the sources of a corpus.

    Several processes share the work and get the same list. `sentences` of recordings are empty. A model with language
    tags on the target side translates into the language of each label.
    """
    translator = Translator(model, tokenizer, settings, shortlist)
    inputs = translator.inputs
    texts: dict[int, str] = {}
    tagged = model.config.language_tags == "target"
    by_tag: dict[int | None, list[int]] = {}
    for row in range(len(corpus)):
        by_tag.setdefault(int(corpus[row]["labels"][0]) if tagged else None, []).append(row)
    for tag, rows in by_tag.items():
        request = SearchRequest(generate_arguments={"forced_bos_token_id": tag} if tagged else {}, shared=True)
        texts |= {row: kept for row in rows if (kept := inputs.kept(sentences[row]))}
        rows = [row for row in rows if row not in texts]
        sources: list[Any] = [corpus.source(row) for row in rows]
        for place, row in enumerate(rows):
            if inputs.lowers(sentences[row]):
                ((sources[place],), _) = translator.encode([sentences[row]])
        found = translator.translate_encoded(sources, [sentences[row] for row in rows], request)
        texts |= {row: best.text for row, (best,) in zip(rows, found, strict=True)}
    return [texts[row] for row in range(len(corpus))]


class TranslationScore(NamedTuple):
    """The sum of the log-probabilities (natural) of a translation's tokens, and their number, with its end.

    A tag of the target language has probability 1 and is not counted; a search counts it in the length of a
    hypothesis.
    """

    log_prob: float
    tokens: int


@torch.no_grad()
def score_translations(
    translator: Translator,
    sentences: Sequence[str],
    translations: Sequence[str],
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    first: int = 1,
    skip_long: bool = False,
) -> list[TranslationScore]:
    """The score of each translation of a sentence, for filtering of pairs and for rescoring of n-best lists.

    Args:
        first: the number of the first pair, for errors.
        skip_long: a pair that is longer than the model reads has the score NaN of 0 tokens; else it is an error.

    Raises `InputError` for a text that is longer than the model reads unless `skip_long`, or a language that it does
    not have.
    """
    check_sentences(sentences)
    check_sentences(translations)
    model, inputs = translator.model, translator.inputs
    pad, start = model.config.pad_token_id, model.generation_config.decoder_start_token_id
    end, *_ = end_tokens(model.generation_config)
    sources, arguments = translator.encode(sentences, source_lang, target_lang)
    first_token = arguments.get("forced_bos_token_id", model.generation_config.forced_bos_token_id)
    tag = [] if first_token is None else [first_token]
    read = [inputs.as_written(text, source) for source, text in zip(sentences, translations, strict=True)]
    targets = [[*tag, *ids, end] for ids in inputs.target_ids(read)]
    lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    found: dict[int, TranslationScore] = {}
    for row, length in enumerate(lengths):
        if inputs.positions is not None and length > inputs.positions:
            if not skip_long:
                most = f"the model reads at most {inputs.positions}: remove the pair, or give skip_long (--skip-long)"
                raise InputError(f"pair {first + row} has {length} tokens, but {most}")
            found[row] = TranslationScore(math.nan, 0)
    rows = sorted({*range(len(lengths))} - found.keys(), key=lengths.__getitem__)
    while rows:
        count = max(1, translator.settings.max_tokens // max(1, lengths[rows[-1]]))
        batch, rows = rows[-count:], rows[:-count]
        ids, mask = (each.to(model.device) for each in padded([sources[row] for row in batch], pad))
        sequences = padded([[start, *targets[row]] for row in batch], pad)[0].to(model.device)
        written = torch.tensor([len(targets[row]) for row in batch], device=model.device)
        encoder = {"input_ids": ids, "attention_mask": mask}
        with evaluation_mode(model):
            sums = sequence_log_probs(model, encoder, sequences, written, forced=len(tag)).tolist()
        tokens = [len(targets[row]) - len(tag) for row in batch]
        found |= zip(batch, map(TranslationScore, sums, tokens), strict=True)
    return [found[row] for row in range(len(lengths))]


def read_pairs(table: Path | None, source: Path | None, translation: Path | None) -> Iterator[tuple[str, str]]:
    """Pairs from two files with as many lines, or from a table of a source, a tab and a translation."""
    if source is not None and translation is not None:
        yield from aligned_lines(LineReader(source), LineReader(translation))
        return
    for number, line in enumerate(iter_lines(table), start=1):
        cells = line.split("\t")
        if len(cells) != 2:
            raise InputError(f"{table or 'standard input'}: line {number} must be a source, a tab and a translation")
        yield cells[0], cells[1]


def scored(translator: Translator, pairs: Iterable[tuple[str, str]], **options: Any) -> Iterator[str]:
    """Lines of the sum of log-probabilities, a tab and the number of tokens, for each pair, in constant memory."""
    rest, first = iter(pairs), 1
    while window := list(islice(rest, WINDOW)):
        sentences, translations = ([pair[side] for pair in window] for side in (0, 1))
        found = score_translations(translator, sentences, translations, first=first, **options)
        first += len(window)
        yield from (f"{score.log_prob:.4f}\t{score.tokens}" for score in found)
