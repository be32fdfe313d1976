# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Documents over HTTP, as LibreTranslate's clients send them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import time
import zipfile
from io import BytesIO
from urllib.request import urlopen

import pytest
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("lxml", reason="the extra [documents] is not installed")

from fastapi import HTTPException
from support.server import Server

from residual_hf.documents.translation import translate_document
from residual_hf.generation.generation_settings import DecodingSettings, StreamSettings
from residual_hf.generation.translator import Translator
from residual_hf.serving import files
from residual_hf.serving.languages import Languages

PAGE = f"<h1>{SENTENCES[2]}</h1><p>zwei <b>Katzen</b> schlafen<img src='x'></p>" + f"<p>{SENTENCES[0]}</p>" * 60
WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:p>{}</w:p></w:document>'


@pytest.fixture(scope="module")
def german():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, source_lang="de", target_lang="en")
    model.generation_config.no_repeat_ngram_size = 3
    return Translator(model, tokenizer, DecodingSettings(num_beams=2, max_tokens=500, max_length_a=1, max_length_b=5))


@pytest.fixture(scope="module")
def server(german, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("a secret\n")
    server = Server(Languages({"german": german}), api_keys=keys, file_size=1, file_char_limit=5000)
    yield server
    server.close()


def send(server, name, content, **fields):
    """Status and answer of a request with a document."""
    fields = {"source": "de", "target": "en", "api_key": "a secret"} | fields
    parts = [f'name="{field}"\r\n\r\n{value}'.encode() for field, value in fields.items()]
    parts += [f'name="file"; filename="{name}"\r\n\r\n'.encode() + content] if name else []
    head = b"--x\r\nContent-Disposition: form-data; "
    body = b"".join(head + part + b"\r\n" for part in parts) + b"--x--\r\n"
    status, _, answer = server.request("translate_file", body, "multipart/form-data; boundary=x")
    return status, answer


def word(text):
    with zipfile.ZipFile(packed := BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", WORD.format(text))
    return packed.getvalue()


def test_a_document_is_translated_and_fetched(server, german, tmp_path):
    (tmp_path / "in.html").write_text(PAGE)
    translate_document(lambda: german, StreamSettings(), tmp_path / "in.html", tmp_path / "out.html")
    status, answer = send(server, "dir/my page é.HTML", PAGE.encode(), source="auto")
    assert status == 200 and answer["translatedFileUrl"].startswith(f"{server.url}download_file/")
    with urlopen(answer["translatedFileUrl"]) as found:
        assert found.read().decode() == (tmp_path / "out.html").read_text()
        assert found.headers["Content-Disposition"] == "attachment; filename*=UTF-8''my%20page%20%C3%A9.HTML"
        assert found.headers["Content-Type"] == "application/octet-stream"
    status, _ = send(server, f"{'文' * 90}.txt", b"zwei")
    assert status == 200
    assert server.request("download_file/x.html")[0] == 404
    settings = server.request("frontend/settings")[2]
    assert settings["filesTranslation"] is True and {".docx", ".txt"} <= {*settings["supportedFilesFormat"]}
    page = server.request("")[2]
    assert '<input id="file" type="file">' in page and 'fetch("translate_file"' in page
    schema = server.request("openapi.json")[2]["paths"]["/translate_file"]["post"]
    assert "multipart/form-data" in schema["requestBody"]["content"] and "413" in schema["responses"]


@pytest.mark.parametrize(
    ("name", "content", "fields", "status", "message"),
    [
        ("a.txt", b"x", {"api_key": "guess"}, 403, "Invalid API key"),
        (None, b"", {}, 400, "file: missing"),
        ("a.pdf", b"x", {}, 400, "file: 'a.pdf' given, must end in one of .txt, .html"),
        ("a.docx", b"x", {}, 400, "file: a.docx: cannot be read as a zip archive"),
        ("a.docx", word("x" * 11 * 2**20), {}, 400, "file: a.docx: has 1 files of 11 MiB unpacked, must have at most"),
        ("a.md", b"x" * 2**17, {}, 400, "file: a.md: has 131072 bytes, must have at most 104857"),
        ("a.txt", b"x" * 5001, {}, 400, "file: 5001 characters given, must be at most 5000"),
        ("a.docx", b"x" * 2 * 2**20, {}, 413, "The request has more than"),
        ("a.txt", b"zwei", {"target": "fr"}, 400, "de to fr is not supported, only de to en"),
    ],
)
def test_what_cannot_be_translated_is_refused(server, name, content, fields, status, message):
    found, answer = send(server, name, content, **fields)
    assert (found, answer["error"][: len(message)]) == (status, message)


def test_shares_of_a_document_are_limited_in_blocks_and_characters():
    short, long = [["a"]] * 120, [["x" * 90], ["y" * 90], ["z" * 900]]
    assert [len(share) for share in files.shares(short, 5000)] == [50, 50, 20]
    assert [len(share) for share in files.shares(long, 200)] == [2, 1]


def test_documents_are_limited_in_number_and_time(server, monkeypatch):
    kept = files.DocumentFolder()
    monkeypatch.setattr(files, "KEPT_FILES", 3)
    folders = [kept.new() for _ in range(5)]
    for number, folder in enumerate(folders[2:]):
        os.utime(folder, (time.time() - number, time.time() - number))
    assert [folder.exists() for folder in folders] == [False, False, True, True, True]
    os.utime(folders[2], (0, 0))
    newest = kept.new()
    assert newest.exists() and not folders[2].exists()
    shutil.rmtree(kept.folder)  # as cleaners of temporary files do
    assert kept.new().exists()
    kept.close()
    assert not kept.folder.exists()
    monkeypatch.setattr(files, "MOST_DOCUMENTS", 0)
    assert send(server, "a.txt", b"zwei")[0] == 429
    assert server.request("translate_file", b"", "application/json")[0] == 429


def test_a_full_disk_is_an_answer_and_takes_no_place(server, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "MOST_DOCUMENTS", 1)
    for place, name in ((files, "received"), (files.DocumentFolder, "new")) * 2:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            assert send(server, "a.txt", b"zwei") == (507, {"error": "The disk of the server is full"})
    assert send(server, "a.txt", b"zwei")[0] == 200


def test_clients_that_are_slow_to_send_a_document_do_not_keep_others_out(server, monkeypatch):
    monkeypatch.setattr(files, "MOST_DOCUMENTS", 2)
    head = b"POST /translate_file HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    for client in slow:
        client.sendall(head + b"Content-Length: 1000\r\n\r\n--x\r\n")
    assert slow[0].recv(100).startswith(b"HTTP/1.1 429")
    assert send(server, "a.txt", b"zwei")[0] == 200
    assert slow[1].recv(100).startswith(b"HTTP/1.1 429")
    for client in slow:
        client.close()


def test_documents_that_arrive_at_once_replace_different_slow_ones(german, tmp_path, monkeypatch):
    active, most = [], []

    async def receive(request, folder, check_key):
        active.append(request)
        most.append(len(active))
        try:
            await asyncio.sleep(5 if request == "slow" else 0)
            raise HTTPException(400, "read")
        finally:
            active.remove(request)

    async def answers():
        slow = [asyncio.create_task(post("slow")) for _ in range(2)]
        await asyncio.sleep(0.1)
        return await asyncio.gather(*slow, post("fast"), post("fast"), return_exceptions=True)

    monkeypatch.setattr(files, "received", receive)
    monkeypatch.setattr(files, "MOST_DOCUMENTS", 2)
    unused = dict.fromkeys(("check_key", "choose", "translated"))
    languages, kept = Languages({"german": german}), files.DocumentFolder(tmp_path)
    post = files.file_routes(languages, None, kept, **unused).routes[0].endpoint
    assert [answer.status_code for answer in asyncio.run(answers())] == [429, 429, 400, 400]
    assert max(most) == 2


def test_processes_share_a_folder_of_documents(tmp_path):
    first, second = files.DocumentFolder(tmp_path), files.DocumentFolder(tmp_path)
    path = first.new() / f"{files.TRANSLATED}text.txt"
    path.write_text("x")
    first.close()
    assert second.find(first.name_of(path)) == path
