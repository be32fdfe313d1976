"""Translates the texts of many requests in common batches, in one thread that owns models and tokenizers."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from residual_hf.generation.checks import suspicions
from residual_hf.generation.generation_settings import SearchRequest
from residual_hf.generation.markup import LONGEST_SENTENCE
from residual_hf.generation.translator import Hypothesis, Translator
from residual_hf.model.fingerprint import unchanged

from .layout import Found, TextLayout, Texts

logger = logging.getLogger(__name__)

SECOND_SEARCH = 4  # candidates that replace a translation with one of these suspicions
SEARCHED_AGAIN = {"repetition", "copy"}
SHORT_TEXT = 2000
"""Characters of a text whose sentences may be found in the thread that translates, and of the longest sentence."""
Encoder = Callable[[str], tuple[list[int], dict[str, Any]]]


class ClosingError(Exception):
    """The server is shutting down."""


@dataclass(eq=False)
class Request:
    """Texts to translate; `future` gives a `Translation` of each.

    Attributes:
        sentences: if there are any, each with whether it needs its alignment, `future` gives a `Found` of each.
        translator: replaces the one for the languages.
        encoded: the function that has encoded the sentences, if one has.
    """

    given: Texts
    target: str
    sentences: Sequence[tuple[str, bool]] = ()
    translator: Translator | None = None
    encoded: Encoder | None = None
    future: Future[list[Any]] = field(default_factory=Future, init=False)
    layout: TextLayout | None = field(default=None, init=False)
    parts: "list[_Sentence]" = field(default_factory=list, init=False)

    @property
    def characters(self) -> int:
        return sum(map(len, [text for text, _ in self.sentences] or self.given.texts))


class _Search(NamedTuple):
    """The translator and the request that the sentences of one batch share; `again`: a second search."""

    translator: Translator
    request: SearchRequest
    again: bool = False


@dataclass(eq=False)
class _Sentence:
    request: Request
    text: str
    ids: list[int]
    search: _Search
    hypotheses: list[Hypothesis] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)


class Metrics:
    """Prometheus metrics of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "residual_hf", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status", ["path", "status"], **common)
        self.seconds = Histogram("request_seconds", "Time to answer", ["path"], **common)
        self.characters = Counter("characters", "Characters of translated texts and documents", **common)
        accepted = "Translations accepted but not answered"
        self.waiting = Gauge("waiting_requests", accepted, multiprocess_mode="livesum", **common)
        sizes = 1, 2, 4, 8, 16, 32, 64, 128, 256
        self.batch_sentences = Histogram("batch_sentences", "Sentences in a batch", buckets=sizes, **common)
        self.batch_seconds = Histogram("batch_seconds", "Time to translate a batch", **common)
        self.flags = Counter("flagged_sentences", "Suspicious translations by kind", ["flag"], **common)


class Batcher:
    """Collects sentences while the model is busy, then translates those of similar length together.

    The sentence that has waited longest is always in the next batch. A translation does not depend on its batch.
    At most `max_queue` requests wait or are in progress.
    """

    def __init__(self, translators: Mapping[tuple[str, str], Translator], *, max_queue: int, metrics: Metrics):
        self.translators, self.max_queue, self.metrics = translators, max_queue, metrics
        self._new: list[Request] = []
        self._open: set[Request] = set()
        self._waiting: list[_Sentence] = []
        self._closing = False
        self._changed = threading.Condition()
        self._encoding = threading.Lock()  # of threads that share a `reader`, whose languages are state
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._seconds_per_request = 1.0

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def retry_after(self) -> int:
        """Seconds after which a refused request may be accepted."""
        return max(1, round(self._seconds_per_request))

    def submit(self, request: Request) -> Future[list[Any]]:
        """Accept a request. Cancelling the future drops what has not been translated.

        Raises `queue.Full`, or `ClosingError` after `close` and after an error that ended the thread.
        """
        with self._changed:
            if self._closing or not self.alive:
                raise ClosingError
            if len(self._open) >= self.max_queue:
                raise queue.Full
            self._open.add(request)
            self._new.append(request)
            self.metrics.waiting.set(len(self._open))
            self._changed.notify()
        accepted = time.monotonic()
        request.future.add_done_callback(lambda _: self._forget(request, time.monotonic() - accepted))
        return request.future

    def close(self) -> None:
        """Refuse new requests, finish the accepted ones and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _forget(self, request: Request, seconds: float) -> None:
        with self._changed:
            self._open.discard(request)
            self._seconds_per_request += 0.1 * (seconds - self._seconds_per_request)
            self.metrics.waiting.set(len(self._open))

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                for translator in self.translators.values():
                    stack.enter_context(unchanged(translator.model))
                while self._accept_new():
                    self._translate_batch()
        finally:  # an error: nobody waits forever
            for request in list(self._open):
                _fail(request, RuntimeError("the translating thread ended"))

    def _accept_new(self) -> bool:
        """Wait for something to translate; False when there will be nothing more."""
        with self._changed:
            while not self._new and not self._waiting and not self._closing:
                self._changed.wait()
            new, self._new = self._new, []
        for request in new:
            try:
                self._prepare(request)
            except BaseException as error:  # also a panic in Rust
                logger.exception("a request could not be prepared")
                _fail(request, error)
        return bool(new or self._waiting or not self._closing)

    def encoder(self, request: Request) -> Encoder:
        """Encodes sentences of a request, each once, in any thread."""
        reader = self.translator_of(request).reader

        @cache
        def encoded(sentence: str) -> tuple[list[int], dict[str, Any]]:
            with self._encoding:
                (ids,), arguments = reader.encode([sentence], request.given.source, request.target)
            return ids, arguments

        return encoded

    def fits(self, request: Request, encoded: Encoder) -> Callable[[str], bool]:
        """Tells whether the model of a request reads a sentence."""
        positions = self.translator_of(request).inputs.positions
        longest = min(LONGEST_SENTENCE, positions or LONGEST_SENTENCE)
        return lambda sentence: len(sentence) <= SHORT_TEXT and len(encoded(sentence)[0]) <= longest

    def translator_of(self, request: Request) -> Translator:
        return request.translator or self.translators[request.given.source, request.target]

    def _prepare(self, request: Request) -> None:
        translator = self.translator_of(request)
        encoded, sentences = request.encoded or self.encoder(request), request.sentences
        if not sentences:
            request.layout = TextLayout(request.given, self.fits(request, encoded))
            sentences = request.layout.sentences
        searches: dict[bool, _Search] = {}  # the arguments depend on the languages only
        for text, aligned in sentences:
            ids, arguments = encoded(text)
            if aligned not in searches:
                count = 1 + request.given.alternatives
                asked = SearchRequest(
                    num_return_sequences=count, scores=True, alignments=aligned, generate_arguments=arguments
                )
                searches[aligned] = _Search(translator, asked)
            request.parts.append(_Sentence(request, text, ids, searches[aligned]))
        self._waiting += request.parts
        _finish(request)  # if there is nothing to translate in it

    def _next_batch(self) -> list[_Sentence]:
        """The oldest sentence and those closest to it in length, as many as the batch may hold."""
        self._waiting = [sentence for sentence in self._waiting if not sentence.request.future.done()]
        if not self._waiting:
            return []
        oldest = self._waiting[0]
        settings = oldest.search.translator.settings
        budget = settings.max_tokens // max(settings.num_beams, oldest.search.request.num_return_sequences)
        similar = [sentence for sentence in self._waiting if sentence.search == oldest.search]
        similar.sort(key=lambda sentence: abs(len(sentence.ids) - len(oldest.ids)))
        widths = accumulate((len(sentence.ids) for sentence in similar), max)
        fitting = sum(rows * width <= budget for rows, width in enumerate(widths, start=1))
        batch = similar[: max(1, fitting)]  # the oldest is the first of those with its length
        chosen = set(batch)
        self._waiting = [sentence for sentence in self._waiting if sentence not in chosen]
        return batch

    def _translate_batch(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        search, sources = batch[0].search, ([sentence.ids for sentence in batch], [each.text for each in batch])
        self.metrics.batch_sentences.observe(len(batch))
        try:
            with self.metrics.batch_seconds.time():
                found = search.translator.translate_encoded(*sources, search.request)
            for sentence, hypotheses in zip(batch, found, strict=True):
                self._take(sentence, hypotheses)
        except BaseException as error:
            logger.exception("a batch could not be translated")
            for sentence in batch:
                _fail(sentence.request, error)
            return
        for request in dict.fromkeys(sentence.request for sentence in batch):
            _finish(request)

    def _take(self, sentence: _Sentence, hypotheses: list[Hypothesis]) -> None:
        """Keep the result of a search. The first suspicious one is searched again, without repetitions."""
        search = sentence.search
        glossary = search.translator.glossary
        found = [({*suspicions(sentence.text, each.text, glossary)}, each) for each in hypotheses]
        serious = found[0][0] & SEARCHED_AGAIN
        if serious and not search.again:
            sentence.flags = serious
            count = max(search.request.num_return_sequences, SECOND_SEARCH)
            shortest = min(4, search.translator.model.generation_config.no_repeat_ngram_size or 4)
            arguments = search.request.generate_arguments | {"no_repeat_ngram_size": shortest}
            request = replace(search.request, num_return_sequences=count, generate_arguments=arguments)
            sentence.search = _Search(search.translator, request, again=True)
            self._waiting.append(sentence)
            return
        usual = [(flags, hypothesis) for flags, hypothesis in found if not flags & SEARCHED_AGAIN]
        chosen = (usual if search.again and usual else found)[: 1 + sentence.request.given.alternatives]
        sentence.hypotheses = [hypothesis for _, hypothesis in chosen]
        sentence.flags |= chosen[0][0]
        for flag in sentence.flags:
            self.metrics.flags.labels(flag).inc()


def _finish(request: Request) -> None:
    """Give a request its result, if all of its sentences are translated."""
    if not all(sentence.hypotheses for sentence in request.parts):
        return
    try:
        found = [Found(sentence.hypotheses, sentence.flags) for sentence in request.parts]
        result = found if request.layout is None else request.layout.joined(found)
    except BaseException as error:
        logger.exception("the translations of a request could not be joined")
        _fail(request, error)
    else:
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(result)


def _fail(request: Request, error: BaseException) -> None:
    if not request.future.done() and request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)
