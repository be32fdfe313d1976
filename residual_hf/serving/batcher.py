# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Translates the texts of many requests in common batches, in one thread that owns models and tokenizers."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from residual_hf.generation.checks import suspicions
from residual_hf.generation.html_text import HTMLText
from residual_hf.generation.markup import LONGEST_SENTENCE, Block, Document, plain_text
from residual_hf.generation.translator import Hypothesis, Translator
from residual_hf.model.alignment import Alignment
from residual_hf.model.fingerprint import unchanged

logger = logging.getLogger(__name__)

SECOND_SEARCH = 4  # candidates that replace a translation with one of these suspicions
SEARCHED_AGAIN = {"repetition", "copy"}


class ClosingError(Exception):
    """The server is shutting down."""


@dataclass(frozen=True)
class Translation:
    """Translations of one text.

    Attributes:
        texts: the best translation, and alternatives that differ from it.
        scores: for each of `texts` the mean over sentences of the scores of the search; empty without alternatives.
        flags: what `checks.suspicions` says of the best translations of its sentences; "repetition" and "copy" also if
            a second search replaced a translation because of them.
        alignments: for each of `texts` the links of words, in Pharaoh format; empty unless they are asked for.
        word_scores: for each of `texts` the probability of each word.
    """

    texts: list[str]
    scores: list[float]
    flags: list[str]
    alignments: list[str] = field(default_factory=list)
    word_scores: list[list[float]] = field(default_factory=list)


@dataclass(eq=False)
class Request:
    """Texts to translate, HTML with `markup`, and blocks. `future` gives one `Translation` for each text.

    If there are blocks, it gives one more, whose texts are JSON of blocks.
    """

    texts: Sequence[str]
    source: str
    target: str
    markup: bool = False
    alternatives: int = 0
    alignments: bool = False
    blocks: Sequence[Block] = ()
    future: Future[list[Translation]] = field(default_factory=Future)
    documents: list[tuple[Document, Callable[[list[Block]], str], list[_Sentence]]] = field(default_factory=list)


class _Search(NamedTuple):
    """What sentences of one batch have in common."""

    translator: Translator
    arguments: dict[str, Any]
    hypotheses: int
    aligned: bool = False
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
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests by path and status", ["path", "status"], registry=registry)
        self.seconds = Histogram("request_seconds", "Time to answer", ["path"], registry=registry)
        self.characters = Counter("characters", "Characters of translated texts", registry=registry)
        self.waiting = Gauge(
            "waiting_requests",
            "Translations accepted but not answered",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.batch_sentences = Histogram(
            "batch_sentences", "Sentences in a batch", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=registry
        )
        self.batch_seconds = Histogram("batch_seconds", "Time to translate a batch", registry=registry)
        self.flags = Counter("flagged_sentences", "Suspicious translations by kind", ["flag"], registry=registry)


class Batcher:
    """Collects sentences while the model is busy, then translates those of similar length together.

    The sentence that has waited longest is always in the next batch. A translation does not depend on its batch.

    Args:
        translators: by source and target language.
        max_queue: requests that may wait or be in progress.
    """

    def __init__(self, translators: Mapping[tuple[str, str], Translator], *, max_queue: int, metrics: Metrics):
        self.translators, self.max_queue, self.metrics = translators, max_queue, metrics
        self._new: list[Request] = []
        self._open: set[Request] = set()
        self._waiting: list[_Sentence] = []
        self._closing = False
        self._changed = threading.Condition()
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

    def submit(self, request: Request) -> Future[list[Translation]]:
        """Accept a request. Cancelling the future drops what has not been translated.

        Raises:
            queue.Full: `max_queue` requests are open.
            ClosingError: after `close`, or if the thread ended because of an error.
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

    def _prepare(self, request: Request) -> None:
        translator = self.translators[request.source, request.target]
        longest = min(LONGEST_SENTENCE, translator.inputs.positions or LONGEST_SENTENCE)

        @cache
        def encoded(sentence: str) -> tuple[list[int], _Search]:
            (ids,), arguments = translator.encode([sentence], request.source, request.target)
            return ids, _Search(translator, arguments, 1 + request.alternatives)

        def fits(sentence: str) -> bool:
            return len(encoded(sentence)[0]) <= longest

        layouts: list[tuple[Sequence[Block], Callable[[list[Block]], str]]] = []
        for text in request.texts:
            layout = HTMLText(text) if request.markup else None
            layouts.append(([[text]], _text) if layout is None else (layout.blocks, layout.render))
        if request.blocks:
            layouts.append((request.blocks, json.dumps))
        for blocks, render in layouts:
            document = Document(blocks, request.source, fits)
            sentences = [_Sentence(request, text, *encoded(text)) for text in document.sentences]
            for sentence, needed in zip(sentences, document.aligned, strict=True):
                sentence.search = sentence.search._replace(aligned=needed or request.alignments)
            request.documents.append((document, render, sentences))
            self._waiting += sentences
        _finish(request)  # if there is nothing to translate in it

    def _next_batch(self) -> list[_Sentence]:
        """The oldest sentence and those closest to it in length, as many as the batch may hold."""
        self._waiting = [sentence for sentence in self._waiting if not sentence.request.future.done()]
        if not self._waiting:
            return []
        oldest = self._waiting[0]
        settings = oldest.search.translator.settings
        budget = settings.max_tokens // max(settings.num_beams, oldest.search.hypotheses)
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
        arguments = search.arguments | ({"no_repeat_ngram_size": 4} if search.again else {})
        if search.aligned:
            arguments["aligned"] = True
        self.metrics.batch_sentences.observe(len(batch))
        try:
            with self.metrics.batch_seconds.time():
                found = search.translator.translate_encoded(*sources, search.hypotheses, scores=True, **arguments)
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
            sentence.search = search._replace(hypotheses=max(search.hypotheses, SECOND_SEARCH), again=True)
            self._waiting.append(sentence)
            return
        usual = [(flags, hypothesis) for flags, hypothesis in found if not flags & SEARCHED_AGAIN]
        chosen = (usual if search.again and usual else found)[: 1 + sentence.request.alternatives]
        sentence.hypotheses = [hypothesis for _, hypothesis in chosen]
        sentence.flags |= chosen[0][0]
        for flag in sentence.flags:
            self.metrics.flags.labels(flag).inc()


def _finish(request: Request) -> None:
    """Give a request its result, if all of its sentences are translated."""
    if not all(sentence.hypotheses for *_, sentences in request.documents for sentence in sentences):
        return
    try:
        result = [_joined(request, *found) for found in request.documents]
    except BaseException as error:
        logger.exception("the translations of a request could not be joined")
        _fail(request, error)
    else:
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(result)


def _fail(request: Request, error: BaseException) -> None:
    if not request.future.done() and request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)


def _text(blocks: list[Block]) -> str:
    return plain_text(blocks[0])


def _joined(
    request: Request, document: Document, render: Callable[[list[Block]], str], sentences: Sequence[_Sentence]
) -> Translation:
    """The k-th translation of a text has the k-th hypothesis of each sentence, or its last one."""
    found: dict[str, float] = {}
    aligned: list[Alignment] = []
    for rank in range(1 + request.alternatives):
        chosen = [sentence.hypotheses[min(rank, len(sentence.hypotheses) - 1)] for sentence in sentences]
        scores = [hypothesis.score for hypothesis in chosen if hypothesis.score is not None]
        given = [hypothesis.text for hypothesis in chosen], [hypothesis.alignment for hypothesis in chosen]
        text = render(document.join(*given))
        if text not in found:
            found[text] = sum(scores) / max(1, len(scores))
            aligned += document.aligned_texts(*given) if request.alignments else []
    flags = {flag for sentence in sentences for flag in sentence.flags}
    return Translation(
        list(found),
        list(found.values()) if request.alternatives else [],
        sorted(flags),
        [str(alignment) for alignment in aligned],
        [alignment.word_scores for alignment in aligned],
    )
