# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""LibreTranslate's HTTP API for models of this package, with a web page."""

from __future__ import annotations

import asyncio
import hmac
import os
import queue
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from residual_hf._version import __version__
from residual_hf.data.language_names import language_name
from residual_hf.generation.checks import FLAGS
from residual_hf.generation.html_text import visible_text

from .batcher import Batcher, ClosingError, Metrics, Translation
from .batcher import Request as TranslationRequest
from .files import FORMATS, DocumentFolder, file_routes
from .http_limits import check_address, request_limit, uvicorn_config
from .languages import Languages
from .server_settings import ServerSettings
from .workers import serve_in_workers

DISCONNECTED = 499, "The client has disconnected"  # status of nginx, for the metrics
SWITCH_INTERVAL = 0.0005  # seconds after which reading requests yields to translating; Python's default is 0.005
MAX_ALTERNATIVES = 5
MAX_TEXTS = 500  # in a list
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
CONTENT_TYPES = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")


def integral(value: Any) -> Any:
    """JSON has one type of number, and LibreTranslate reads text too: 2.0 and "2" are integers."""
    is_integral = value.is_integer() if isinstance(value, float) else isinstance(value, str) and value.isdecimal()
    return int(value) if is_integral else value


class RequestBody(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def drop_empty(cls, values: Any) -> Any:
        """Optional fields that are empty or null have their default, as in LibreTranslate."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if name == "q" or value not in (None, "")}


class DetectBody(RequestBody):
    q: str
    api_key: str = ""


class TranslateBody(RequestBody):
    q: str | list[str]
    source: str
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES), BeforeValidator(integral)] = 0
    alignments: bool = False
    api_key: str = ""

    @model_validator(mode="after")
    def align_text_only(self) -> TranslateBody:
        if self.alignments and self.format == "html":
            raise ValueError("alignments: only with the format text")
        return self


class Error(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 403, 413, 415, 429, 500, 503, 504)
}


class Detection(BaseModel):
    confidence: float
    language: str


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class TranslateAnswer(BaseModel):
    """Lists where `q` is a list. `scores`, `alignments` (pairs of a source and a target word, such as `0-0 1-2`) and
    `wordScores` (the probability of each word) are of the translation and of its alternatives.
    """

    translatedText: str | list[str]
    detectedLanguage: Detection | list[Detection] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    scores: list[float] | list[list[float]] | None = None
    alignments: list[str] | list[list[str]] | None = None
    wordScores: list[list[float]] | list[list[list[float]]] | None = None
    flags: list[str] | list[list[str]] = Field(description=f"suspicions about the translation: {', '.join(FLAGS)}")


Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


def create_app(languages: Languages, settings: ServerSettings, documents: Path | None = None) -> FastAPI:
    """The ASGI application. Its lifespan starts and drains the thread that translates.

    `documents`: folder of translated documents, if several processes serve them.
    """
    metrics = Metrics()
    batcher = Batcher(languages.translators, max_queue=settings.max_queue, metrics=metrics)
    keys = settings.read_keys()
    kept = DocumentFolder(documents)
    can_read_documents = all(map(find_spec, ("lxml", "polib", "markdown_it", "translate")))
    page = files("residual_hf.serving").joinpath("page.html").read_text(encoding="utf-8")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await asyncio.to_thread(batcher.close)
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
    app.add_exception_handler(StarletteHTTPException, answer_http_error)
    app.add_exception_handler(Exception, answer_error)

    def check_key(given: str) -> None:
        if keys and not any(hmac.compare_digest(given.encode(), key) for key in keys):
            raise HTTPException(403, "Invalid API key" if given else "An API key is required (api_key)")

    def check(body: DetectBody | TranslateBody) -> None:
        """Raise `HTTPException` for a wrong key or too much text."""
        check_key(body.api_key)
        if isinstance(body.q, list) and len(body.q) > MAX_TEXTS:
            raise HTTPException(400, f"q: {len(body.q)} texts given, must be at most {MAX_TEXTS}")
        length = len("".join(body.q))
        if length > settings.char_limit:
            raise HTTPException(400, f"q: {length} characters given, must be at most {settings.char_limit}")

    async def choose(source: str, target: str, text: str) -> tuple[list[dict[str, Any]] | None, str]:
        """The languages that are detected, for the source "auto", and the source that is translated."""
        detected = None
        if source == "auto":
            detected = await asyncio.to_thread(languages.detect, text)
            served = [found for found in detected if (found["language"], target) in languages.translators]
            detected = served or detected
            source = str(detected[0]["language"])
        if (source, target) not in languages.translators:
            pairs = ", ".join(f"{source} to {target}" for source, target in languages.translators)
            raise HTTPException(400, f"{source} to {target} is not supported, only {pairs}")
        return detected, source

    async def translated(job: TranslationRequest, request: Request) -> list[Translation]:
        try:
            future = batcher.submit(job)
        except queue.Full:
            headers = {"Retry-After": str(batcher.retry_after)}
            raise HTTPException(429, "Too many requests are waiting", headers=headers) from None
        except ClosingError:
            raise HTTPException(503, "The server is shutting down, or has failed (see /health)") from None
        return await finished(asyncio.wrap_future(future), request, settings.timeout)

    app.include_router(
        file_routes(languages, settings, kept, check_key=check_key, choose=choose, translated=translated),
        responses=ERRORS | {507: {"model": Error}},
    )

    @app.post("/translate", response_model_exclude_none=True, **documented(TranslateBody, languages, settings))
    async def translate(request: Request) -> TranslateAnswer:
        body = await read(request, TranslateBody)
        check(body)
        texts = [body.q] if isinstance(body.q, str) else body.q
        shown = map(visible_text, texts) if body.format == "html" and body.source == "auto" else texts
        detected, source = await choose(body.source, body.target, "\n".join(shown))
        job = TranslationRequest(texts, source, body.target, body.format == "html", body.alternatives, body.alignments)
        results = await translated(job, request)
        metrics.characters.inc(sum(map(len, texts)))
        answer: dict[str, list[Any]] = {
            "translatedText": [result.texts[0] for result in results],
            "flags": [result.flags for result in results],
        }
        if detected:
            answer["detectedLanguage"] = [detected[0]] * len(texts)
        if body.alternatives:
            answer["alternatives"] = [result.texts[1:] for result in results]
            answer["scores"] = [result.scores for result in results]
        if body.alignments:
            answer["alignments"] = [result.alignments for result in results]
            answer["wordScores"] = [result.word_scores for result in results]
        return TranslateAnswer(**(answer if isinstance(body.q, list) else {k: v[0] for k, v in answer.items()}))

    @app.post("/detect", **documented(DetectBody, languages, settings))
    async def detect(request: Request) -> list[Detection]:
        body = await read(request, DetectBody)
        check(body)
        return [Detection(**found) for found in await asyncio.to_thread(languages.detect, body.q)]

    @app.get("/languages")
    async def list_languages() -> list[Language]:
        return [Language(**language) for language in languages.listed()]

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
    """Serve until SIGTERM or SIGINT, then answer the accepted requests and return.

    `load`: called in each process; with several workers, it can be pickled.
    """
    check_address(settings)
    if settings.workers > 1:
        serve_in_workers(partial(loaded_app, load, settings), settings)
        return
    with suppress(KeyboardInterrupt):  # SIGTERM and SIGINT, which uvicorn passes on when it is done
        uvicorn.Server(uvicorn_config(loaded_app(load, settings), settings)).run()


def loaded_app(load: Callable[[], Languages], settings: ServerSettings, documents: Path | None = None) -> FastAPI:
    sys.setswitchinterval(SWITCH_INTERVAL)
    return create_app(load(), settings, documents)


def documented(body: type[BaseModel], languages: Languages, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of a route that describe its body, which `read` parses, and its errors."""
    form = body.model_json_schema()
    text = {"type": "string", "maxLength": settings.char_limit}
    form["properties"]["q"] = text
    json = form
    if body is TranslateBody:
        form["properties"]["source"]["enum"] = ["auto", *languages.sources]
        form["properties"]["target"]["enum"] = languages.targets
        texts = {"type": "array", "items": text, "maxItems": MAX_TEXTS}
        several = {"anyOf": [text, texts], "description": f"at most {settings.char_limit} characters together"}
        json = form | {"properties": form["properties"] | {"q": several}}
    content = {name: {"schema": json if name == CONTENT_TYPES[0] else form} for name in CONTENT_TYPES}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}, "responses": ERRORS}


async def read(request: Request, model: type[Body]) -> Body:
    """The JSON, form or query of a request; raises `HTTPException` that names the wrong field."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    in_query = not content_type and bool(request.query_params)
    if content_type not in CONTENT_TYPES and not in_query:
        raise HTTPException(415, f"Content-Type: {content_type!r} given, must be one of {', '.join(CONTENT_TYPES)}")
    try:
        body = await request.body()  # which `finished` expects to be read
        if content_type == "application/json":
            return model.model_validate_json(body, strict=True)
        escaped = content_type != "multipart/form-data"
        sent = request.scope["query_string"] if in_query else body
        (unquote_to_bytes(sent) if escaped else sent).decode()  # Starlette replaces what is not UTF-8
        if in_query:
            return model.model_validate(dict(request.query_params))
        async with request.form() as form:
            return model.model_validate(dict(form))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"][:1]) or "body"
        raise HTTPException(400, f"{field}: {first['msg']}") from None
    except ClientDisconnect:
        raise HTTPException(*DISCONNECTED) from None
    except UnicodeError as error:
        raise HTTPException(400, f"body: {error}") from None


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


async def answer_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "Internal server error"}, 500)  # uvicorn logs the error


class Guard:
    """Middleware that counts and times requests and answers 413 to a body of more than `limit` bytes.

    `limits`: other limits by path.
    """

    def __init__(self, app: ASGIApp, limit: int, limits: dict[str, int], metrics: Metrics):
        self.app, self.limit, self.limits, self.metrics = app, limit, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, received, status = time.perf_counter(), 0, 500
        limit = self.limits.get(scope["path"], self.limit)

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
