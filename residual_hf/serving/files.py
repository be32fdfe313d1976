"""`/translate_file` and `/download_file` of LibreTranslate's API: documents whose layout stays."""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from residual_hf.base.files import NO_SPACE
from residual_hf.documents import DOCUMENTS

from .http_limits import request_limit
from .languages import Languages
from .layout import File
from .messages import DISCONNECTED, terms
from .server_settings import ServerSettings
from .translations import Translations

FORMATS = (".txt", *DOCUMENTS)
FIELDS = ("source", "target", "glossary", "api_key")
KEPT_FILES, KEPT_SECONDS = 100, 3600
TRANSLATED = "translated "
LONGEST_NAME = 60  # characters, of up to four bytes: file systems allow 255 bytes


class FileAnswer(BaseModel):
    """`translatedFileUrl`: where to get the document, for an hour."""

    translatedFileUrl: str


class DocumentFolder:
    """A temporary folder of documents. The oldest are deleted after `KEPT_SECONDS`, and translated ones if there are
    `KEPT_FILES`.

    `shared`: an existing folder for several processes.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.folder = self.shared = shared

    def new(self) -> Path:
        """An empty folder for one document."""
        self.folder = self.folder or Path(mkdtemp(prefix="residual_hf_"))
        self.folder.mkdir(mode=0o700, exist_ok=True)  # a cleaner of temporary files may have deleted it
        times, old = [], time.time() - KEPT_SECONDS
        for folder in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process has deleted it
                changed = folder.stat().st_mtime
                if changed < old or any(folder.glob(f"{TRANSLATED}*")):  # others are being translated
                    times.append((changed, folder))
        times.sort()
        too_many = len(times) - KEPT_FILES
        for number, (changed, folder) in enumerate(times):
            if number <= too_many or changed < old:
                shutil.rmtree(folder, ignore_errors=True)
        new = self.folder / token_urlsafe(16)
        new.mkdir()
        return new

    def find(self, name: str) -> Path | None:
        """The translated document with this name, as of `name_of`; None if there is none."""
        found = self.folder.glob(f"*/{TRANSLATED}*") if self.folder else ()
        path = next((path for path in found if self.name_of(path) == name), None)
        if path is not None and path.parent.stat().st_mtime < time.time() - KEPT_SECONDS:
            shutil.rmtree(path.parent, ignore_errors=True)
            return None
        return path

    def name_of(self, path: Path) -> str:
        return f"{path.parent.name}.{path.name.removeprefix(TRANSLATED)}"

    def close(self) -> None:
        if self.folder is not None and not self.shared:
            shutil.rmtree(self.folder, ignore_errors=True)


def file_routes(
    languages: Languages,
    settings: ServerSettings,
    kept: DocumentFolder,
    translations: Translations,
    check_key: Callable[..., None],
) -> APIRouter:
    """The routes for documents. `check_key` raises `HTTPException` for a wrong API key."""
    router = APIRouter()

    async def translate(request: Request) -> Path:
        """The translation of the document that a client sends."""
        with ExitStack() as place, ExitStack() as undo:

            def begin(fields: dict[str, Any]) -> None:
                check_key(str(fields.get("api_key", "")), "api_key, before file or in the query")
                place.enter_context(translations.place(request))

            def new() -> Path:
                folder = kept.new()
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                return folder

            path, fields = await received(request, new, request_limit(settings), begin)
            output = path.with_name(f"{TRANSLATED}{path.name}")
            file = File(path, output, settings.file_bytes, settings.file_char_limit)
            text = await translations.sample(file, request) if fields["source"] == "auto" else ""
            route, _ = await asyncio.to_thread(languages.choose, fields["source"], fields["target"], text)
            await translations.of_file(
                file, route, terms(fields["glossary"]) or {}, request, partial(os.utime, path.parent)
            )
            undo.pop_all()
        return output

    @router.post("/translate_file", openapi_extra={"requestBody": described(languages)})
    async def translate_file(request: Request) -> FileAnswer:
        try:
            output = await translate(request)
        except ClientDisconnect:
            raise HTTPException(*DISCONNECTED) from None
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise HTTPException(507, "The disk of the server is full") from None
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


class Form(MultiPartParser):
    """A form with one file. `begin` is called with the fields before it, when it begins."""

    begin: Callable[[dict[str, Any]], None]

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is not None:
            self.begin(dict(self.items))


async def received(
    request: Request, new: Callable[[], Path], largest: int, begin: Callable[[dict[str, Any]], None]
) -> tuple[Path, dict[str, str]]:
    """Save the document of a request in a new folder; returns its path and the other fields.

    Args:
        new: makes the folder. It may delete documents of others, so that only a request without a fault calls it.
        largest: most bytes of a field.
        begin: called, before the document is read, with the fields in the query and before the document.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "Content-Type: must be multipart/form-data with a file")
    query = dict(request.query_params)
    form = Form(request.headers, request.stream(), max_files=1, max_fields=10, max_part_size=largest)
    form.begin = lambda fields: begin(query | {name: value for name, value in fields.items() if value})
    try:
        found = await form.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None
    try:
        fields = {name: str(found.get(name) or query.get(name) or "") for name in FIELDS}
        upload = found.get("file")
        if not isinstance(upload, UploadFile):
            begin(fields)
            raise HTTPException(400, "Invalid request: missing file parameter")
        given = (upload.filename or "").replace("\\", "/").rpartition("/")[2]
        name = re.sub(r"[^\w.() -]", "_", given)[-LONGEST_NAME:]
        if not name.lower().endswith(FORMATS):
            raise HTTPException(400, f"file: {name!r} given, must end in one of {', '.join(FORMATS)}")
        for field in ("source", "target"):
            if not fields[field]:
                raise HTTPException(400, f"Invalid request: missing {field} parameter")
        path = new() / name
        with path.open("xb") as file:
            await asyncio.to_thread(shutil.copyfileobj, upload.file, file)
    finally:
        await found.close()
    return path, fields


def described(languages: Languages) -> dict[str, Any]:
    """The body of a request for the documentation of the API."""
    properties: dict[str, Any] = {name: {"type": "string"} for name in FIELDS}
    properties["source"]["enum"], properties["target"]["enum"] = ["auto", *languages.sources], languages.targets
    properties["file"] = {"type": "string", "format": "binary", "description": f"a document: {', '.join(FORMATS)}"}
    schema = {"type": "object", "properties": properties, "required": ["file", "source", "target"]}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
