# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`/translate_file` and `/download_file` of LibreTranslate's API: documents whose layout stays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from residual_hf.base.archives import open_archive
from residual_hf.base.errors import InputError, requires
from residual_hf.base.files import NO_SPACE
from residual_hf.documents import ARCHIVES, DOCUMENTS

from .batcher import Request as TranslationRequest
from .languages import Languages
from .server_settings import ServerSettings

FORMATS = (".txt", *DOCUMENTS)
FIELDS = ("source", "target", "api_key")
MOST_DOCUMENTS = 32  # at a time
SHARE = 50  # blocks of a document that are translated before those of other requests have their turn
UNPACKED = 10  # times the allowed size that archives may have unpacked; files of text have this fraction of it
SAMPLE = 10_000  # characters whose language is detected
KEPT_FILES, KEPT_SECONDS = 100, 3600
TRANSLATED = "translated "
LONGEST_NAME = 60  # characters, of up to four bytes: file systems allow 255 bytes


class FileAnswer(BaseModel):
    """`translatedFileUrl`: where to get the document, for an hour."""

    translatedFileUrl: str


class DocumentFolder:
    """A temporary folder of documents. The oldest are deleted after `KEPT_SECONDS`, and if there are `KEPT_FILES`.

    `shared`: an existing folder for several processes.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.folder = self.shared = shared

    def new(self) -> Path:
        """An empty folder for one document."""
        self.folder = self.folder or Path(mkdtemp(prefix="residual_hf_"))
        self.folder.mkdir(mode=0o700, exist_ok=True)  # a cleaner of temporary files may have deleted it
        times = []
        for folder in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process has deleted it
                times.append((folder.stat().st_mtime, folder))
        times.sort()
        too_many = len(times) - KEPT_FILES
        for number, (changed, folder) in enumerate(times):
            if number <= too_many or changed < time.time() - KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        new = self.folder / token_urlsafe(16)
        new.mkdir()
        return new

    def find(self, name: str) -> Path | None:
        """A translated document by what `name_of` returns."""
        found = self.folder.glob(f"*/{TRANSLATED}*") if self.folder else ()
        return next((path for path in found if self.name_of(path) == name), None)

    def name_of(self, path: Path) -> str:
        return f"{path.parent.name}.{path.name.removeprefix(TRANSLATED)}"

    def close(self) -> None:
        if self.folder is not None and not self.shared:
            shutil.rmtree(self.folder, ignore_errors=True)


def file_routes(
    languages: Languages,
    settings: ServerSettings,
    kept: DocumentFolder,
    *,
    check_key: Callable[[str], None],
    choose: Callable[[str, str, str], Awaitable[tuple[Any, str]]],
    translated: Callable[[TranslationRequest, Request], Awaitable[Sequence[Any]]],
) -> APIRouter:
    """The routes for documents.

    Args:
        check_key: raises `HTTPException` for a wrong API key.
        choose: the detected languages and the source language, for source, target and text.
        translated: the results of a request.
    """
    router = APIRouter()
    too_many = HTTPException(429, "Too many documents are being translated", headers={"Retry-After": "10"})
    reading = asyncio.Lock()  # one document at a time is taken apart
    documents = 0
    uploads: list[asyncio.Task[tuple[Path, dict[str, str]]]] = []  # the oldest first

    async def uploaded(folder: Path, request: Request) -> tuple[Path, dict[str, str]]:
        """What a client sends, unless another client takes the place of one that is slow."""
        uploads.append(upload := asyncio.create_task(received(request, folder, check_key)))
        try:
            await asyncio.wait({upload})
        finally:
            upload.cancel()
            with suppress(ValueError):  # another client has its place
                uploads.remove(upload)
        if upload.cancelled():
            raise too_many
        return upload.result()

    async def patiently(job: TranslationRequest, request: Request) -> Sequence[Any]:
        while True:
            try:
                return await translated(job, request)
            except HTTPException as error:
                if error.status_code != 429:
                    raise
                await asyncio.sleep(1)

    async def translate(folder: Path, request: Request) -> Path:
        """The translation of the document that a client sends."""
        path, fields = await uploaded(folder, request)
        try:
            async with reading:
                document = await asyncio.to_thread(read, path, settings)
        except InputError as error:
            raise HTTPException(400, f"file: {str(error).replace(str(path), path.name)}") from None
        if (length := len(document.text)) > settings.file_char_limit:
            raise HTTPException(400, f"file: {length} characters given, must be at most {settings.file_char_limit}")
        _, source = await choose(fields["source"], fields["target"], document.text[:SAMPLE])
        found: list[Any] = []
        for blocks in shares(document.blocks, settings.char_limit):
            job = TranslationRequest([], source, fields["target"], blocks=blocks)
            (result,) = await (patiently if found else translated)(job, request)
            found += json.loads(result.texts[0])
            os.utime(folder)
        output = folder / f"{TRANSLATED}{path.name}"
        await asyncio.to_thread(document.write, output, found, source, fields["target"])
        path.unlink()
        return output

    @router.post("/translate_file", openapi_extra={"requestBody": described(languages)})
    async def translate_file(request: Request) -> FileAnswer:
        nonlocal documents
        if documents >= MOST_DOCUMENTS:
            if not uploads:
                raise too_many
            uploads.pop(0).cancel()
        documents += 1
        folder = None
        try:
            folder = kept.new()
            output = await translate(folder, request)
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ClientDisconnect):
                raise HTTPException(499, "The client has disconnected") from None
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise HTTPException(507, "The disk of the server is full") from None
            raise
        finally:
            documents -= 1
        return FileAnswer(translatedFileUrl=str(request.url_for("download_file", name=quote(kept.name_of(output)))))

    @router.get("/download_file/{name}", response_class=FileResponse)
    async def download_file(name: str) -> FileResponse:
        path = kept.find(name)
        if path is None:
            raise HTTPException(404, "No such file; translations are kept for an hour")
        shown = quote(path.name.removeprefix(TRANSLATED))
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{shown}", "X-Content-Type-Options": "nosniff"}
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    return router


async def received(request: Request, folder: Path, check_key: Callable[[str], None]) -> tuple[Path, dict[str, str]]:
    """The document in a request, which is saved in a folder, and the other fields of the form."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "Content-Type: must be multipart/form-data with a file")
    async with request.form(max_files=1, max_fields=10) as form:
        fields = {name: value if isinstance(value := form.get(name), str) else "" for name in FIELDS}
        check_key(fields["api_key"])
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "file: missing")
        given = (upload.filename or "").replace("\\", "/").rpartition("/")[2]
        name = re.sub(r"[^\w.() -]", "_", given)[-LONGEST_NAME:]
        if not name.lower().endswith(FORMATS):
            raise HTTPException(400, f"file: {name!r} given, must end in one of {', '.join(FORMATS)}")
        path = folder / name
        with path.open("xb") as file:
            await asyncio.to_thread(shutil.copyfileobj, upload.file, file)
    return path, fields


def shares(blocks: Sequence[Any], characters: int) -> Iterator[list[Any]]:
    """Parts of a document: at most `SHARE` blocks, and so many characters unless it is one block."""
    share: list[Any] = []
    size = 0
    for block in blocks:
        length = len(json.dumps(block, ensure_ascii=False))
        if share and (len(share) == SHARE or size + length > characters):
            yield share
            share, size = [], 0
        share.append(block)
        size += length
    if share:
        yield share


def read(path: Path, settings: ServerSettings) -> Any:
    """A document of the allowed size. Raises `InputError` for another one."""
    with requires("documents"):
        from residual_hf.documents.translation import NumberedDocument
    if path.suffix.lower() in ARCHIVES:
        with open_archive(path, UNPACKED * settings.file_bytes):
            pass
    elif path.stat().st_size > settings.file_bytes // UNPACKED:
        raise InputError(
            f"{path}: has {path.stat().st_size} bytes, must have at most {settings.file_bytes // UNPACKED}"
        )
    return NumberedDocument(path)


def described(languages: Languages) -> dict[str, Any]:
    """The body of a request for the documentation of the API."""
    properties: dict[str, Any] = {name: {"type": "string"} for name in FIELDS}
    properties["source"]["enum"], properties["target"]["enum"] = ["auto", *languages.sources], languages.targets
    properties["file"] = {"type": "string", "format": "binary", "description": f"a document: {', '.join(FORMATS)}"}
    schema = {"type": "object", "properties": properties, "required": ["file", "source", "target"]}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
