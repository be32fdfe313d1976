"""LibreTranslate's HTTP API for models of this package, with a web page."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from hmac import compare_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from residual_hf._version import __version__
from residual_hf.base.errors import InputError
from residual_hf.base.files import read_page
from residual_hf.data.language_names import language_name
from residual_hf.generation.html_text import visible_text

from .batcher import Batcher, Metrics
from .files import FORMATS, DocumentFolder, file_routes
from .http_limits import check_address, request_limit, uvicorn_config
from .languages import Languages
from .layout import SAMPLE
from .messages import (
    ERRORS,
    MAX_TEXTS,
    DetectBody,
    Detection,
    Error,
    Language,
    TranslateAnswer,
    TranslateBody,
    documented,
    read,
)
from .server_settings import ServerSettings
from .translations import Translations
from .workers import serve_in_workers

SWITCH_INTERVAL = 0.0005  # seconds after which reading requests yields to translating; Python's default is 0.005
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


def create_app(languages: Languages, settings: ServerSettings, documents: Path | None = None) -> FastAPI:
    """The ASGI application. Its lifespan starts and drains the thread that translates.

    `documents`: folder of translated documents, if several processes serve them.
    """
    metrics = Metrics()
    batcher = Batcher(languages.translators, max_queue=settings.max_queue, metrics=metrics)
    translations = Translations(batcher, settings)
    listed = [Language(**language) for language in languages.listed()]
    keys = settings.read_keys()
    kept = DocumentFolder(documents)
    can_read_documents = all(map(find_spec, ("lxml", "polib", "markdown_it", "translate")))
    page = read_page(Path(__file__).with_name("page.html"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await asyncio.to_thread(batcher.close)
        translations.close()
        kept.close()

    app = FastAPI(
        title="residual_hf",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    limits = {"/translate_file": request_limit(settings) + settings.file_bytes}
    app.add_middleware(Guard, limit=request_limit(settings), limits=limits, metrics=metrics)
    for kind in (StarletteHTTPException, InputError, Exception):
        app.add_exception_handler(kind, answer_error)

    def check_key(given: str, where: str = "api_key") -> None:
        """Raise `HTTPException` for a wrong key."""
        if keys and not any(compare_digest(given.encode(), key) for key in keys):
            raise HTTPException(403, "Invalid API key" if given else f"An API key is required ({where})")

    def check(body: DetectBody | TranslateBody) -> list[str]:
        """The texts of a request. Raises `HTTPException` for a wrong key or too much text."""
        check_key(body.api_key)
        texts = [body.q] if isinstance(body.q, str) else body.q
        terms = body.glossary.items() if isinstance(body, TranslateBody) else ()
        length = sum(map(len, texts)) + sum(len(term) + len(translation) for term, translation in terms)
        for size, most in ((len(texts), MAX_TEXTS), (length, settings.char_limit)):
            if size > most:
                raise HTTPException(400, f"Invalid request: request ({size}) exceeds text limit ({most})")
        return texts

    app.include_router(
        file_routes(languages, settings, kept, translations, check_key), responses=ERRORS | {507: {"model": Error}}
    )

    @app.post("/translate", response_model_exclude_none=True, **documented(TranslateBody, languages, settings))
    async def translate(request: Request) -> TranslateAnswer:
        body = await read(request, TranslateBody)
        texts = check(body)
        samples: Iterable[str] = [text[:SAMPLE] for text in texts]
        if body.format == "html" and body.source == "auto":
            samples = map(visible_text, samples)  # in the thread
        chosen = await asyncio.to_thread(languages.choose_each, body.source, body.target, samples)
        routes, detected = map(list, zip(*chosen, strict=True))
        results = await translations.of_texts(texts, body, routes, request)
        answer: dict[str, list[Any]] = {
            "translatedText": [result.texts[0] for result in results],
            "flags": [result.flags for result in results],
        }
        if body.source == "auto":
            answer["detectedLanguage"] = detected
        if body.alternatives:
            answer["alternatives"] = [result.texts[1:] for result in results]
            answer["scores"] = [result.scores for result in results]
        if body.alignments:
            answer["alignments"] = [result.alignments for result in results]
            answer["wordScores"] = [result.word_scores for result in results]
        given = [[each["language"] if each else body.source, body.target] for each in detected]
        is_given = all(route in (pair, pair[1:]) for route, pair in zip(routes, given, strict=True))
        is_one = all(route == routes[0] for route in routes)
        found: dict[str, Any] = {} if is_given else {"route": routes[0] if is_one else routes}
        found |= answer if isinstance(body.q, list) else {name: values[0] for name, values in answer.items()}
        return TranslateAnswer(**found)

    @app.post("/detect", **documented(DetectBody, languages, settings))
    async def detect(request: Request) -> list[Detection]:
        text = "\n".join(check(await read(request, DetectBody)))
        return [Detection(**found) for found in await asyncio.to_thread(languages.detect, text)]

    @app.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, Any]:
        described = app.openapi()
        return described | {"info": described["info"] | {"title": "LibreTranslate"}}  # by which clients know the API

    @app.get("/languages", response_model_exclude_none=True)
    async def list_languages() -> list[Language]:
        return listed

    @app.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        source, target = ({"code": c, "name": language_name(c)} for c in next(iter(languages.translators)))
        return {
            "apiKeys": bool(keys),
            "keyRequired": bool(keys),
            "charLimit": settings.char_limit,
            "frontendTimeout": 500,
            "suggestions": False,
            "filesTranslation": can_read_documents,
            "supportedFilesFormat": FORMATS if can_read_documents else [],
            "language": {"source": source, "target": target},
        }

    @app.get("/health", responses={503: {"model": Error}})
    async def health() -> dict[str, str]:
        if not batcher.alive:
            raise HTTPException(503, "The translating thread ended")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
    async def show_metrics() -> Response:
        registry = metrics.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:  # of all workers
            MultiProcessCollector(registry := CollectorRegistry())
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app


def serve(load: Callable[[], Languages], settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then answer the accepted requests and return, within `settings.timeout` + 5 s.

    `load`: called in each process; with several workers, it can be pickled.
    """
    check_address(settings)
    if settings.workers > 1:
        serve_in_workers(partial(loaded_app, load, settings), settings)
        return
    server = uvicorn.Server(uvicorn_config(loaded_app(load, settings), settings))
    with suppress(KeyboardInterrupt):  # SIGTERM and SIGINT, which uvicorn passes on when it is done
        server.run()


def loaded_app(load: Callable[[], Languages], settings: ServerSettings, documents: Path | None = None) -> FastAPI:
    sys.setswitchinterval(SWITCH_INTERVAL)
    return create_app(load(), settings, documents)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, StarletteHTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
    if isinstance(error, InputError):
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"error": "Internal server error"}, 500)  # uvicorn logs the error


class Guard:
    """Middleware that counts and times requests, reads HEAD as GET and answers 413 to more than `limit` bytes.

    `limits`: other limits by path.
    """

    def __init__(self, app: ASGIApp, limit: int, limits: dict[str, int], metrics: Metrics):
        self.app, self.limit, self.limits, self.metrics = app, limit, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # of whose answer uvicorn sends no content
            scope = {**scope, "method": "GET"}
        start, received, status = time.perf_counter(), 0, 500
        limit = self.limits.get(scope["path"].removeprefix(scope["root_path"]), self.limit)

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, f"The request has more than {limit} bytes")
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, limited, watched)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
