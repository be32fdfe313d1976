"""Translation of text with a model and its tokenizer."""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm

from residual_hf.base.errors import InputError, input_errors
from residual_hf.checkpoint import SHORTLIST, load_checkpoint
from residual_hf.data.glossary import Glossary
from residual_hf.data.language_names import codes_of, variants
from residual_hf.data.shortlist import Shortlist, load_shortlist
from residual_hf.data.text_files import in_batches
from residual_hf.model.alignment import AlignedTokens, Alignment, align, of_originals
from residual_hf.model.constraints import beams_for
from residual_hf.model.decoding import NO_PHRASES
from residual_hf.model.evaluation_mode import evaluation_mode
from residual_hf.model.options import refusal
from residual_hf.model.translation_inputs import TranslationInputs, beginning, languages_of

from .decode import Candidate, check_shortlist_use, move_in_precision, search, to_text
from .demands import DemandedPhrases, check_glossary_use, finds_phrases
from .generation_settings import DecodingSettings, SearchRequest
from .long_text import space_between, split_text, too_long

logger = logging.getLogger(__name__)


class Hypothesis(NamedTuple):
    """A translation, its score (see `decode.Candidate`), and its alignment with the source if that is wanted."""

    text: str
    score: float | None
    alignment: Alignment | None = None


class SentencePart(NamedTuple):
    """A part of a sentence, in most cases all of it, and the space that follows it in the sentence."""

    ids: list[int]
    text: str
    space: str = ""


class Translator:
    """Translates sentences in batches of similar length, with any encoder-decoder that `from_pretrained` loads.

    Terms of a `glossary` are annotated in the source for a model that was trained with one (`data.glossary`). For
    others, a sentence whose translation lacks some is searched again for translations with all of them, see
    `residual_hf.model.constraints`; samples are not. So are placeholders that a model trained with them leaves out.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: DecodingSettings | None = None,
        shortlist: Shortlist | None = None,
        glossary: Glossary | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or DecodingSettings()
        self.shortlist = shortlist
        self.inputs = TranslationInputs(model.config, tokenizer)
        self.glossary = glossary
        self.constrained = glossary is not None and not getattr(model.config, "term_tags", False)
        if glossary is not None:
            self.inputs.terms = glossary.kept if self.constrained else glossary.annotations

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str | None = None,
        trust_remote_code: bool = False,
        glossary: str | Path | None = None,
        **settings: Any,
    ) -> "Translator":
        """Load a model that was saved with its tokenizer.

        Args:
            name: folder of a model or of a run, or name on the Hub.
            device: by default a GPU if there is one; under `torchrun`, the one of this process.
            glossary: file of lines "term<TAB>translation".
            settings: fields of `DecodingSettings`; None keeps the default. All except `max_tokens` and `shortlist`
                default to the generation config of the model, if it has them.

        Raises `InputError` for a model that is damaged or of a newer version, and for a device, shortlist or glossary
        that cannot be used.
        """
        DecodingSettings.given(settings)  # checked first
        terms = None if glossary is None else Glossary.read(glossary)
        model, tokenizer = load_checkpoint(name, trust_remote_code=trust_remote_code)
        decoding = DecodingSettings.of_model(model, settings)
        move_in_precision(model, device, decoding.dtype, requested=settings.get("dtype") is not None)
        shortlist = None
        if decoding.shortlist:
            check_shortlist_use(model)
            shortlist = load_shortlist(name, model.config)
            if shortlist is None:
                raise InputError(
                    f"shortlist: {name} has no {SHORTLIST}; to make one, set decoding.shortlist: true in the recipe "
                    "of its run, and run residual-hf train --resume"
                )
        if terms is not None:
            check_glossary_use(model)
        return cls(model, tokenizer, decoding, shortlist, terms)

    @cached_property
    def reader(self) -> "Translator":
        """The same with a tokenizer of its own, whose language and side are state, to encode in other threads."""
        return self._with(copy.deepcopy(self.tokenizer), self.glossary)

    def with_glossary(self, glossary: Glossary) -> "Translator":
        """The same with other terms, also in its `reader`."""
        own = self._with(self.tokenizer, glossary)
        own.reader = self._with(self.reader.tokenizer, glossary)
        return own

    def _with(self, tokenizer: Any, glossary: Glossary | None) -> "Translator":
        return Translator(self.model, tokenizer, self.settings, self.shortlist, glossary)

    def translate(
        self,
        sentences: str | Iterable[str],
        *,
        num_return_sequences: int = 1,
        source_lang: str | None = None,
        target_lang: str | None = None,
        long: str = "error",
        on_long: Callable[[int, int], Any] = lambda position, tokens: None,
        progress: bool = False,
        **generate_arguments: Any,
    ) -> Any:
        """Translate sentences.

        Args:
            num_return_sequences: number of different translations of a sentence.
            source_lang, target_lang: languages, required by models of several.
            long, on_long: see `SearchRequest`.
            generate_arguments: further arguments of `model.generate`, such as `do_sample=True`, before the settings.

        Returns:
            A translation for one sentence, a list in the order of the sentences for several. With
            `num_return_sequences` above 1 each translation is a list, best first unless sampled. Empty sentences have
            empty translations; sentences without letters are their own (see `TranslationInputs.kept`).

        Raises:
            InputError: a language is missing or not one of the model, or a sentence is too long.
        """
        single = isinstance(sentences, str)
        sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        with tqdm(desc="translating", unit=" sentences", total=len(sentences), disable=not progress) as bar:
            request = SearchRequest(source_lang, target_lang, num_return_sequences, long, on_long=on_long)
            request = replace(request, generate_arguments=generate_arguments, progress=bar.update)
            found = self.answer(sentences, request)
        results: list[Any] = [[hypothesis.text for hypothesis in best] for best in found]
        if num_return_sequences == 1:
            results = [text for (text,) in results]
        return results[0] if single else results

    def hypotheses(self, sentences: Sequence[str], count: int = 1, **asked: Any) -> list[list[Hypothesis]]:
        """The `count` best translations of each sentence with their scores, best first.

        `asked`: fields of `SearchRequest`, and further arguments of `model.generate`. Errors are those of `translate`.
        """
        return self.answer(sentences, SearchRequest.of(num_return_sequences=count, **{"scores": True, **asked}))

    def answer(self, sentences: Sequence[str], request: SearchRequest) -> list[list[Hypothesis]]:
        """The translations of each sentence that a request asks for, best first.

        The beam size is at least their number, or 1 for sampling. The score of a sentence that was split is the mean
        over its parts.
        """
        check_sentences(sentences)
        languages = request.source_lang, request.target_lang
        encoded, arguments = self.encode(sentences, *languages)
        limit = self.inputs.positions
        kept = list(map(self.inputs.kept, sentences))
        read = zip(sentences, encoded, kept, strict=True)
        parts = [[SentencePart(ids, text)] if same is None else [] for text, ids, same in read]
        for i, ids in enumerate(encoded):
            if limit is not None and parts[i] and len(ids) > limit:
                request.on_long(i, len(ids))
                if request.long == "error":
                    raise too_long(f"sentence {i + 1}", len(ids), limit)
                parts[i] = self._shortened(sentences[i], request.long, limit, *languages)
        flat = [part for row in parts for part in row]
        request = replace(request, generate_arguments=arguments | request.generate_arguments)
        found = iter(self.translate_encoded([part.ids for part in flat], [part.text for part in flat], request))
        rows, count = zip(sentences, parts, kept, strict=True), request.num_return_sequences
        return [joined(row, [next(found) for _ in row], count, text, same or "") for text, row, same in rows]

    def translate_encoded(
        self, sources: Sequence[Sequence[int]], sentences: Sequence[str], request: SearchRequest
    ) -> list[list[Hypothesis]]:
        """`answer` for sentences that `encode` has encoded to `sources`, with the arguments that it returned."""
        with evaluation_mode(self.model):
            found = self._search(sources, sentences, request)
            rows = [row for row, best in enumerate(found) for _ in best]
            ids = [candidate.ids for best in found for candidate in best]
            written = to_text(self.tokenizer, ids)
            restored = [self.inputs.restored(text, sentences[row]) for text, row in zip(written, rows, strict=True)]
            alignments: Sequence[Alignment | None] = [None] * len(rows)
            if request.alignments:
                edited = [self.inputs.edited(sentences[row]) for row in rows]
                columns = [edit.text for edit in edited], written, [sources[row] for row in rows], ids
                alignments = list(map(of_originals, self._aligned(columns, request.shared), edited, restored))
        scores = [candidate.score for best in found for candidate in best]
        hypotheses = map(Hypothesis, (edit.text for edit in restored), scores, alignments)
        return [[next(hypotheses) for _ in best] for best in found]

    def _aligned(self, columns: Sequence[Sequence[Any]], shared: bool) -> list[Alignment]:
        """`align` of texts and ids in columns; processes that share the work align some of the rows each."""
        index, count = (PartialState().process_index, PartialState().num_processes) if shared else (0, 1)
        own = align(self.model, self.tokenizer, *(column[index::count] for column in columns))
        if not shared:
            return own
        found: list[Any] = [None] * len(columns[0])
        for first, part in enumerate(gather_object([own])):
            found[first::count] = part
        return found

    def _search(
        self, sources: Sequence[Sequence[int]], sentences: Sequence[str], request: SearchRequest
    ) -> list[list[Candidate]]:
        """The candidates of each source. Where one lacks terms, the search is repeated for those with all of them."""
        settings, others = self.settings.replaced_by(request.generate_arguments)
        beams = max(settings.num_beams, request.num_return_sequences)
        if request.samples:
            beams = request.generate_arguments.get("num_beams") or 1
        settings, request = replace(settings, num_beams=beams), replace(request, generate_arguments=others)
        found = search(self.model, sources, settings, request, self.shortlist)
        keeps = self.inputs.has_placeholders and finds_phrases(self.model)
        if not (self.constrained or keeps) or request.samples:
            return found
        request = replace(request, progress=lambda sentences: None)
        given = zip(sentences, sources, strict=True)
        demands = [self.demanded.demands(*pair, placeholders=keeps) for pair in given]
        phrases = [self.demanded.phrases(*row) for row in zip(demands, found, strict=True)]
        by_beams: dict[int, list[int]] = {}
        for row, own in enumerate(phrases):
            if own:
                by_beams.setdefault(max(beams, beams_for(own)), []).append(row)
        ranking: dict[str, Any] = {"scores": request.scores, "length_penalty": settings.length_penalty}
        for needed, rows in by_beams.items():
            settings = replace(settings, num_beams=needed)
            wanted = [phrases[row] for row in rows], self.demanded.letters_added
            try:
                again = search(self.model, [sources[row] for row in rows], settings, request, self.shortlist, *wanted)
            except InputError as error:
                if self.constrained or NO_PHRASES not in str(error):
                    raise
                return found  # of Transformers' loop, which asks for no placeholder
            for row, forced in zip(rows, again, strict=True):
                found[row] = self.demanded.chosen(demands[row], found[row], forced, **ranking)
        return found

    @cached_property
    def demanded(self) -> DemandedPhrases:
        glossary = self.glossary if self.constrained else None
        return DemandedPhrases(self.model, self.tokenizer, self.inputs, glossary)

    def encode(
        self, sentences: Sequence[str], source_lang: str | None = None, target_lang: str | None = None, **options: Any
    ) -> tuple[list[list[int]], dict[str, Any]]:
        """Source tokens of each sentence and the arguments of `generate` for the languages.

        Of a text that has more tokens than the model has positions, the tokens of a beginning that has more.
        """
        encoded: list[list[int]] = []
        arguments: dict[str, Any] = {}
        source_lang, target_lang = self._nearest(source_lang, 0), self._nearest(target_lang, 1)
        limit, most = self.inputs.positions or 0, self._most_characters
        with input_errors("source_lang, target_lang: ", ValueError):
            for batch in in_batches(text[:most] for text in sentences):
                inputs = self.inputs.encode(batch, source_lang, target_lang, **options)
                encoded += inputs["input_ids"]
                arguments = {k: v for k, v in inputs.items() if k == "forced_bos_token_id"}
            for i, text in enumerate(sentences):  # much of which is no token
                if most is not None and len(text) > most and len(encoded[i]) <= limit - bool(options):
                    (encoded[i],) = self.inputs.encode([text], source_lang, target_lang, **options)["input_ids"]
        return encoded, arguments

    @cached_property
    def _nearest(self) -> Callable[[str | None, int], str | None]:
        """The language of the model nearest to a source (0) or target (1), and a message: `en-GB` for `English`.

        A language that the model has not, or does not name, stays.
        """
        pairs = [languages_of(self.model.config, self.tokenizer), *self.inputs.prompts]
        known = [*zip(*pairs, strict=True)]
        if self.inputs.has_own_codes:
            known = [(*codes_of(self.tokenizer), *codes) for codes in known]
        known[1] = (*self.inputs.tags, *known[1])

        @cache
        def nearest(language: str | None, side: int) -> str | None:
            found = variants(language, filter(None, known[side])) if language else []
            if not found or found[0] == language:
                return language
            logger.warning("%s is taken as %s, the nearest language of the model", language, found[0])
            return found[0]

        return nearest

    @cached_property
    def _most_characters(self) -> int | None:
        """Characters of a text that has more tokens than the model has positions."""
        positions = self.inputs.positions
        return None if positions is None else 2 * positions * max(map(len, self.tokenizer.get_vocab()))

    def _shortened(self, sentence: str, long: str, limit: int, *languages: str | None) -> list[SentencePart]:
        """The parts to translate of a sentence that is too long."""
        if long == "skip":
            return []

        def encoded(text: str) -> list[int]:
            return self.encode([text], *languages)[0][0]

        if long == "truncate":
            ((ids,), _) = self.encode([sentence], *languages, truncation=True, max_length=limit)
            return [SentencePart(ids, beginning(sentence, limit, lambda text: len(encoded(text))))]
        parts: list[SentencePart] = []
        for part, space in split_text(sentence, lambda p: len(encoded(p)) <= limit):
            if part:
                parts.append(SentencePart(encoded(part), part, space))
            elif parts:
                parts[-1] = parts[-1]._replace(space=parts[-1].space + space)
        return parts


def joined(
    parts: list[SentencePart], found: list[list[Hypothesis]], count: int, sentence: str, kept: str
) -> list[Hypothesis]:
    """The k-th translation of a sentence has the k-th hypothesis of each part; without parts it is `kept`."""
    if not parts:
        return [Hypothesis(kept, 0.0, Alignment(sentence, kept, ()))] * count
    results = []
    for rank in zip(*found, strict=True):
        texts = [hypothesis.text for hypothesis in rank]
        pairs = zip(parts, texts, texts[1:], strict=False)
        spaces = [space_between(part.text, part.space, before, after) for part, before, after in pairs]
        spaced = list(map(str.__add__, texts, [*spaces, parts[-1].space]))
        alignment = joined_alignment(sentence, parts, spaced, rank)
        results.append(Hypothesis("".join(spaced), mean_score(rank), alignment))
    return results


def mean_score(found: Iterable[Hypothesis]) -> float | None:
    """The mean of the scores that are known; None if none is."""
    known = [hypothesis.score for hypothesis in found if hypothesis.score is not None]
    return sum(known) / len(known) if known else None


def joined_alignment(
    sentence: str, parts: Sequence[SentencePart], translations: Sequence[str], found: Sequence[Hypothesis]
) -> Alignment | None:
    """The alignment of a sentence with the joined translations of its parts, if they are aligned."""
    source = target = 0
    aligned: list[AlignedTokens] = []
    for part, translation, hypothesis in zip(parts, translations, found, strict=True):
        if hypothesis.alignment is None:
            return None
        source = sentence.index(part.text, source)
        aligned += [tokens.shifted(source, target) for tokens in hypothesis.alignment.parts]
        source, target = source + len(part.text), target + len(translation)
    return Alignment(sentence, "".join(translations), tuple(aligned))


def check_sentences(sentences: Sequence[str]) -> None:
    """Raise `InputError` unless all sentences are strings that UTF-8 can encode."""
    if isinstance(sentences, str):
        raise InputError(refusal("sentences", sentences, "a list of strings"))
    for number, text in enumerate(sentences, start=1):
        if not isinstance(text, str):
            raise InputError(refusal(f"sentence {number}", text, "a string"))
        with input_errors(f"sentence {number} has an unpaired surrogate: ", UnicodeEncodeError):
            text.encode()
