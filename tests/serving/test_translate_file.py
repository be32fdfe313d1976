"""Documents over HTTP, as LibreTranslate's clients send them."""

import errno
import multiprocessing
import os
import re
import shutil
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from urllib.request import urlopen

import pytest
from support.tiny_translator import SENTENCES

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("lxml", reason="the extra [documents] is not installed")

from support import hostile_layouts
from support.server import Server, tiny_translator

from residual_hf.documents.translation import translate_document
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.serving import files, translations
from residual_hf.serving.batcher import SHORT_TEXT
from residual_hf.serving.languages import Languages

PAGE = f"<h1>{SENTENCES[2]}</h1><p>zwei <b>Katzen</b> schlafen<img src='x'></p>" + f"<p>{SENTENCES[0]}</p>" * 60
WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:p>{}</w:p></w:document>'


@pytest.fixture(scope="module")
def german():
    return tiny_translator(source_lang="de", target_lang="en")


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


def test_a_proxy_under_a_path_has_it_in_the_url_of_a_document(german):
    server = Server(Languages({"german": german}), root_path="/mt")
    status, answer = send(server, "a.txt", SENTENCES[0].encode() + b" " * 200_000)  # too long for other requests
    assert status == 200 and answer["translatedFileUrl"].startswith(f"{server.url}mt/download_file/")
    found = server.request(answer["translatedFileUrl"].removeprefix(f"{server.url}mt/"))[2]  # as the proxy asks
    assert found.rstrip() == german.translate(SENTENCES[0])
    server.close()


def test_characters_of_texts_and_documents_are_counted(server):
    def counted():
        return float(re.search(r"^residual_hf_characters_total (\S+)", server.request("metrics")[2], re.MULTILINE)[1])

    before, text = counted(), "\n".join(SENTENCES[:3])
    assert server.translate(SENTENCES[:3], api_key="a secret")[0] == 200
    assert counted() == before + sum(map(len, SENTENCES[:3]))
    assert send(server, "a.txt", text.encode())[0] == 200 and send(server, "a.docx", b"x")[0] == 400
    assert counted() == before + 2 * sum(map(len, SENTENCES[:3]))


@pytest.mark.parametrize(
    ("name", "content", "fields", "status", "message"),
    [
        ("a.txt", b"x", {"api_key": "guess"}, 403, "Invalid API key"),
        (None, b"", {}, 400, "Invalid request: missing file parameter"),
        ("a.pdf", b"x", {}, 400, "file: 'a.pdf' given, must end in one of .txt, .html"),
        ("a.docx", b"x", {}, 400, "file: a.docx: cannot be read as a zip archive"),
        ("a.docx", word("x" * 11 * 2**20), {}, 400, "file: a.docx: has 1 files of 11 MiB unpacked, must have at most"),
        ("a.md", b"x" * 2**17, {}, 400, "file: a.md: has 131072 bytes, must have at most 104857"),
        ("a.txt", b"x" * 5001, {}, 400, "file: 5001 characters given, must be at most 5000"),
        ("a.docx", b"x" * 2 * 2**20, {}, 413, "The request has more than"),
        ("a.txt", b"zwei", {"target": "fr"}, 400, "fr is not supported"),
        ("a.txt", b"zwei", {"target": ""}, 400, "Invalid request: missing target parameter"),
    ],
)
def test_what_cannot_be_translated_is_refused(server, name, content, fields, status, message):
    found, answer = send(server, name, content, **fields)
    assert (found, answer["error"][: len(message)]) == (status, message)


def test_documents_are_limited_in_number_and_time(server, monkeypatch):
    kept = files.DocumentFolder()
    monkeypatch.setattr(files, "KEPT_FILES", 3)
    folders = [kept.new() for _ in range(5)]
    assert all(folder.exists() for folder in folders)  # in progress
    for number, folder in enumerate(folders):
        (folder / f"{files.TRANSLATED}a.txt").touch()
        os.utime(folder, (time.time() - 9 + number,) * 2)
    old = kept.new()
    (old / f"{files.TRANSLATED}a.txt").touch()
    assert kept.find(f"{old.name}.a.txt") is not None
    os.utime(old, (0, 0))
    assert kept.find(f"{old.name}.a.txt") is None and not old.exists()
    folders.append(kept.new())
    assert [folder.exists() for folder in folders] == [False, False, False, True, True, True]
    os.utime(folders[5], (0, 0))
    newest = kept.new()
    assert newest.exists() and not folders[5].exists()
    shutil.rmtree(kept.folder)  # as cleaners of temporary files do
    assert kept.new().exists()
    kept.close()
    assert not kept.folder.exists()
    for limit in ("MOST_LAYOUTS", "MOST_OF_CLIENT"):
        with monkeypatch.context() as patch:
            patch.setattr(translations, limit, 0)
            assert send(server, "a.txt", b"zwei")[0] == 429


def test_a_full_disk_is_an_answer_and_takes_no_place(server, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(translations, "MOST_LAYOUTS", 1)
    for place, name in ((files, "received"), (files.DocumentFolder, "new")) * 2:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            assert send(server, "a.txt", b"zwei") == (507, {"error": "The disk of the server is full"})
    assert send(server, "a.txt", b"zwei")[0] == 200


HEAD = b"POST /translate_file%s HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
FIELD = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'


def begun(server, body, query=b""):
    """A connection with the beginning of a large upload."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(HEAD % query + b"Content-Length: 100000\r\n\r\n" + body)
    return client


def test_the_key_is_checked_before_the_document_is_read(server):
    for body, query in ((FIELD % (b"api_key", b"guess") + FILE, b""), (FILE, b""), (FILE, b"?api_key=guess")):
        with begun(server, body, query) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 403")
    rest = b"zwei\r\n" + FIELD % (b"source", b"de") + FIELD % (b"target", b"en") + b"--x--\r\n"
    for query in ("api_key=a%20secret", "source=de&target=en&api_key=a%20secret"):
        assert server.request(f"translate_file?{query}", FILE + rest, "multipart/form-data; boundary=x")[0] == 200


def test_an_upload_is_not_ended_by_new_ones_and_one_client_does_not_take_all_places(server, monkeypatch):
    monkeypatch.setattr(translations, "MOST_OF_CLIENT", 2)
    monkeypatch.setattr(files, "KEPT_FILES", 1)
    document = send(server, "a.txt", b"zwei")[1]["translatedFileUrl"]
    with begun(server, FILE) as stranger:  # without a key: takes no place, and no place of a document
        assert stranger.recv(100).startswith(b"HTTP/1.1 403")
    with begun(server, b""):
        time.sleep(0.2)
        assert urlopen(document).status == 200
    key = FIELD % (b"api_key", b"a secret")
    early, *others = [begun(server, key + FILE) for _ in range(4)]
    assert [client.recv(100)[:12] for client in others[1:]] == [b"HTTP/1.1 429"] * 2
    early.settimeout(0.5)
    with pytest.raises(TimeoutError):
        early.recv(100)
    for client in (early, *others):
        client.close()
    server.wait_for('path="/translate_file",status="499"')
    assert send(server, "a.txt", b"zwei")[0] == 200


def chunked(data, size):
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("lines", [b"1a\r\n", b"0\r\n", b"0\r\n\r\n", b"ff;x\r\n"])
def test_chunks_are_not_confused_with_the_lines_of_a_document(server, lines):
    fields = b"".join(FIELD % field for field in ((b"api_key", b"a secret"), (b"source", b"de"), (b"target", b"en")))
    body = fields + FILE + lines * 12_000 + b"\r\n--x--\r\n"
    for size in (8192, 100):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(HEAD % b"" + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = chunked(body, size)
            for start in range(0, len(sent), 10_000):  # as they come over a network
                time.sleep(0.005)
                client.sendall(sent[start : start + 10_000])
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 400") and b"characters given, must be at most 5000" in answer


@pytest.mark.parametrize("layout", ["FileLayout", "TextLayout"])
def test_what_takes_too_long_stops_nobody_else(german, monkeypatch, layout):
    monkeypatch.setattr(translations, layout, hostile_layouts.Slow)
    server = Server(Languages({"german": german}), timeout=2, char_limit=10_000)
    long = partial(server.translate, "zwei Katzen " * 300)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(partial(send, server, "a.html", PAGE.encode()) if layout == "FileLayout" else long)
        while not slow.done():
            start = time.monotonic()
            assert server.request("health")[0] == 200 and server.translate("zwei")[0] == 200
            assert time.monotonic() - start < 3
    assert slow.result()[0] == 504
    while multiprocessing.active_children():
        time.sleep(0.01)
    server.close()


@pytest.mark.parametrize(
    ("layout", "status", "message"),
    [
        ("Dead", 400, "The text or document needs too much memory or time to be read"),
        ("Large", 400, "cannot be read within the limits of the server (MemoryError)"),
        ("Full", 507, "The disk of the server is full"),
        ("Broken", 500, "Internal server error"),
    ],
)
def test_what_goes_wrong_in_a_process_is_an_error_of_its_document(server, monkeypatch, layout, status, message):
    monkeypatch.setattr(translations, "FileLayout", getattr(hostile_layouts, layout))
    assert send(server, "a.txt", b"zwei") == (status, {"error": message})
    assert server.request("health")[0] == 200


def test_a_long_text_is_translated_as_short_ones_are(german, monkeypatch):
    server = Server(Languages({"german": german}), char_limit=10_000)
    text = "".join(f"- {sentence}\n\n" for sentence in SENTENCES * 25)
    found = {sentence: german.translate(sentence) for sentence in SENTENCES}
    status, _, answer = server.translate([text, SENTENCES[0]], alternatives=1)
    assert status == 200 and len(text) > SHORT_TEXT
    assert answer["translatedText"] == ["".join(f"- {found[s]}\n\n" for s in SENTENCES * 25), found[SENTENCES[0]]]
    assert len(answer["scores"][0]) == 1 + len(answer["alternatives"][0])
    monkeypatch.setattr(translations, "MOST_OF_CLIENT", 1)
    with ThreadPoolExecutor(3) as pool:  # which wait for each other
        again = [each[2]["translatedText"] for each in pool.map(server.translate, [text] * 3)]
    assert again == answer["translatedText"][:1] * 3
    marked = "".join(f"<p>{sentence}</p>\n" for sentence in SENTENCES * 25)
    _, _, answer = server.translate(marked, format="html")
    assert answer["translatedText"] == "".join(f"<p>{found[sentence]}</p>\n" for sentence in SENTENCES * 25)
    server.close()


def test_a_document_goes_by_way_of_another_language(german):
    french = tiny_translator(source_lang="en", target_lang="fr")
    server = Server(Languages({"german": german, "french": french}))
    status, answer = send(server, "a.html", f"<p>{SENTENCES[0]}</p>".encode(), target="fr")
    assert status == 200
    with urlopen(answer["translatedFileUrl"]) as found:
        assert french.translate(german.translate(SENTENCES[0])) in found.read().decode()
    status, answer = send(server, "a.po", b'msgid "zwei"\nmsgstr ""\n', target="fr")  # keeps the German for the second
    assert status == 400 and "file: .po keeps its original, so not with de to en to fr" in answer["error"]
    server.close()


def test_processes_share_a_folder_of_documents(tmp_path):
    first, second = files.DocumentFolder(tmp_path), files.DocumentFolder(tmp_path)
    path = first.new() / f"{files.TRANSLATED}text.txt"
    path.write_text("x")
    first.close()
    assert second.find(first.name_of(path)) == path
