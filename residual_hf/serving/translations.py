"""The texts and documents of requests on their way through the batcher."""

import asyncio
import math
import queue
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from fastapi import HTTPException, Request

from residual_hf.base.errors import InputError
from residual_hf.data.glossary import Glossary
from residual_hf.documents import BILINGUAL
from residual_hf.generation.demands import check_glossary_use
from residual_hf.generation.translator import Translator

from .batcher import SHORT_TEXT, Batcher, ClosingError
from .batcher import Request as Job
from .isolation import Layouts
from .layout import File, FileLayout, FileSample, Found, TextLayout, Texts, Translation
from .messages import DISCONNECTED, TranslateBody
from .server_settings import ServerSettings

MOST_LAYOUTS, MOST_OF_CLIENT = 32, 8  # long texts and documents at a time
MEMORY, OF_DOCUMENT = 2**30, 100  # bytes that the process of one of them may take: so many, and so often a document's
STARTS_WITHIN = 60  # seconds, the first of them
SHARE = 50  # sentences of one of them that are translated before those of other requests have their turn
WAIT = 0.1  # seconds until what waits for its place tries again
GROWTH = 8  # times the size of a document that its translation into a language in between may have
SHORT_TEXTS = 10_000  # characters of all texts of a request without a process
MARKUP = re.compile(r"<[A-Za-z/!]|&(?:\w+|#\w+);")
T = TypeVar("T")


class Translations:
    """Translates the texts and documents of requests.

    A text of more than `SHORT_TEXT` characters, a list of more than `SHORT_TEXTS`, or a document has a process of its
    own, see `isolation`, and its sentences take turns with those of other requests.
    """

    def __init__(self, batcher: Batcher, settings: ServerSettings):
        self.batcher, self.settings = batcher, settings
        self._threads = ThreadPoolExecutor(MOST_LAYOUTS, "layouts")  # each waits for a process
        self._clients = Counter[str]()  # with long texts and documents in progress

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    @contextmanager
    def place(self, request: Request) -> Iterator[None]:
        """A place for a long text or document. Raises `HTTPException` if all, or those of the client, are taken."""
        client = request.client.host if request.client else ""
        if sum(self._clients.values()) >= MOST_LAYOUTS or self._clients[client] >= MOST_OF_CLIENT:
            taken = "Too many long texts or documents are being translated"
            raise HTTPException(429, taken, headers={"Retry-After": "10"})
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            self._clients += Counter()  # keeps no client without any

    async def of_texts(
        self, texts: list[str], body: TranslateBody, routes: list[list[str]], request: Request
    ) -> list[Translation]:
        """The translations of texts, each by way of the languages of its route; those of one route together."""
        for route in routes:
            check_route(route, body.glossary or body.alignments)
        markup = body.format == "html" and any(map(MARKUP.search, texts))  # else lines are kept
        found: dict[int, Translation] = {}
        for way in dict.fromkeys(map(tuple, routes)):
            places = [place for place, route in enumerate(routes) if tuple(route) == way]
            translated = await self._by_way_of(way, [texts[place] for place in places], body, markup, request)
            found |= zip(places, translated, strict=True)
        return [found[place] for place in range(len(texts))]

    async def _by_way_of(
        self, route: tuple[str, ...], texts: list[str], body: TranslateBody, markup: bool, request: Request
    ) -> list[Translation]:
        flags: list[set[str]] = [set() for _ in texts]
        found = [Translation([text], [], []) for text in texts]
        for source, target in pairwise(route):
            alternatives = body.alternatives if target == route[-1] else 0
            translator = await self._with_terms(source, target, body.glossary)
            given = Texts(texts, source, markup, alternatives, body.alignments)
            job = Job(given, target, translator=translator)
            sizes = list(map(len, texts))
            if max(sizes) <= SHORT_TEXT and sum(sizes) <= SHORT_TEXTS:
                found = await self._translated(job, request)
            else:
                with ExitStack() as taken:  # a place, behind those of its client
                    await retried(lambda: taken.enter_context(self.place(request)), self.settings.timeout)
                    async with self._layout(TextLayout, given, request, job) as (sentences, join):
                        found = await join(await self._in_shares(job, sentences, request))
            texts = [each.texts[0] for each in found]
            for known, each in zip(flags, found, strict=True):
                known.update(each.flags)
        return [replace(each, flags=sorted(known)) for each, known in zip(found, flags, strict=True)]

    async def of_file(
        self, file: File, route: list[str], glossary: dict[str, str], request: Request, progress: Callable[[], Any]
    ) -> None:
        """Write the translation of a document; `progress` is called after each share of its sentences."""
        check_route(route, glossary)
        if len(route) > 2 and (kind := file.path.suffix.lower()) in BILINGUAL:
            raise InputError(f"file: {kind} keeps its original, so not with {' to '.join(route)}")
        output, between = file.output, file.path.with_name(f"between {file.path.name}")
        if len(route) == 1:
            file.path.rename(output)
        for source, target in pairwise(route):
            is_last = target == route[-1]
            file = replace(file, output=output if is_last else between, source=source, target=target)
            job = Job(Texts([], source), target, translator=await self._with_terms(source, target, glossary))
            async with self._layout(FileLayout, file, request, job) as (sentences, join):
                await join(await self._in_shares(job, sentences, request, progress))
            file.path.unlink()
            most_bytes, most_characters = GROWTH * file.most_bytes, GROWTH * file.most_characters
            file = replace(file, path=between, most_bytes=most_bytes, most_characters=most_characters)

    async def sample(self, file: File, request: Request) -> str:
        """The beginning of a document."""
        async with self._layout(FileSample, file, request) as (((text, _),), _):
            return text

    async def _with_terms(self, source: str, target: str, terms: dict[str, str]) -> Translator | None:
        """The translator with terms before its own, if there are any. Raises `InputError` if it cannot use them."""
        if not terms:
            return None
        served = self.batcher.translators[source, target]
        check_glossary_use(served.model)
        known = {} if served.glossary is None else served.glossary.targets
        rows = [(term, each) for term, targets in known.items() if term not in terms for each in targets]
        return served.with_glossary(await asyncio.to_thread(Glossary, [*terms.items(), *rows]))  # which takes long

    @asynccontextmanager
    async def _layout(
        self, layout: type[Any], given: Any, request: Request, job: Job | None = None
    ) -> AsyncIterator[tuple[Any, Callable[[list[Found]], Any]]]:
        """The sentences of a layout in a process of its own, and the function that joins their translations."""

        async def waiting(function: Callable[..., T], *arguments: Any, timeout: float = self.settings.timeout) -> T:
            future = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
            return await finished(future, request, timeout)

        fits: Callable[[str], bool] = bool
        if job is not None:
            job.encoded = self.batcher.encoder(job)  # for its shares too
            fits = self.batcher.fits(job, job.encoded)
        layouts = Layouts(layout, given, MEMORY + OF_DOCUMENT * self.settings.file_bytes, fits)
        try:
            await waiting(layouts.start, timeout=STARTS_WITHIN)
            yield await waiting(layouts.sentences), partial(waiting, layouts.joined)
        except (EOFError, ConnectionError):
            raise HTTPException(400, "The text or document needs too much memory or time to be read") from None
        finally:
            layouts.end()

    async def _in_shares(
        self, job: Job, sentences: list[tuple[str, bool]], request: Request, progress: Callable[[], Any] = lambda: None
    ) -> list[Found]:
        """The translations of sentences, between those of other requests."""
        found: list[Found] = []
        for start in range(0, len(sentences), SHARE):
            share = replace(job, sentences=sentences[start : start + SHARE])
            found += await self._translated(share, request, patient=start > 0)
            progress()
        return found

    async def _translated(self, job: Job, request: Request, *, patient: bool = False) -> list[Any]:
        """The result of a job. It waits for its place in the queue if it is patient."""
        future = await retried(partial(self._submitted, job), math.inf if patient else 0)
        found = await finished(asyncio.wrap_future(future), request, self.settings.timeout)
        self.batcher.metrics.characters.inc(job.characters)
        return found

    def _submitted(self, job: Job) -> Future[list[Any]]:
        try:
            return self.batcher.submit(job)
        except ClosingError:
            raise HTTPException(503, "The server is shutting down, or has failed (see /health)") from None
        except queue.Full:
            headers = {"Retry-After": str(self.batcher.retry_after)}
            raise HTTPException(429, "Too many requests are waiting", headers=headers) from None


def check_route(route: list[str], wanted: Any) -> None:
    """Raise `InputError` if a route has a language in between although terms or alignments are wanted."""
    if wanted and len(route) > 2:
        raise InputError(f"glossary, alignments: not with {' to '.join(route)}, a translation of a translation")


async def retried(function: Callable[[], T], seconds: float) -> T:
    """The result of a function, which is called again, for so many seconds, while it raises status 429."""
    end = time.monotonic() + seconds
    while True:
        try:
            return function()
        except HTTPException as error:
            if error.status_code != 429 or time.monotonic() >= end:
                raise
        await asyncio.sleep(WAIT)


async def finished(translation: asyncio.Future[T], request: Request, timeout: float) -> T:
    """The result of a translation, which is cancelled after `timeout` seconds or if the client disconnects."""
    client = asyncio.ensure_future(request.receive())  # after the body, it only receives that the client has gone
    waiting: set[asyncio.Future[Any]] = {translation, client}
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if translation.done():
            return translation.result()
        if client.done():
            raise HTTPException(*DISCONNECTED)
        raise HTTPException(504, f"Not translated within {timeout:g} seconds")
    finally:
        translation.cancel()
        client.cancel()
