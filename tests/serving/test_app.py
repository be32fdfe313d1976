"""The server over loopback, as its clients see it."""

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from support.browser import browser, needs_browser
from support.processes import VERB, free_port, run_forked, wait_for
from support.tiny_translator import SENTENCES, coded_tokenizer, save_tiny, tiny_model

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("libretranslatepy")

import libretranslatepy
from support.server import Server, tiny_translator

from residual_hf.base.errors import InputError
from residual_hf.data.glossary import Glossary
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.html_text import visible_text
from residual_hf.generation.translator import Translator
from residual_hf.serving import translations
from residual_hf.serving.app import create_app, serve
from residual_hf.serving.languages import Languages
from residual_hf.serving.server_settings import ServerSettings

KEY = "a secret"
FIELDS = b"".join(
    b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % field
    for field in ((b"source", b"de"), (b"target", b"en"))
)
FIELDS += b"--x--\r\n"
FORM = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--\r\n'


@pytest.fixture(scope="module")
def german():
    return tiny_translator(source_lang="de", target_lang="en")


@pytest.fixture(scope="module")
def server(german):
    server = Server(Languages({"german": german}), char_limit=300)
    yield server
    server.close()


@pytest.fixture(scope="module")
def several(german, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"other\n\n{KEY}\n")
    tagged = tiny_translator("<2de>", "<2fr>", language_tags="source")
    server = Server(Languages({"german": german, "tagged": tagged}, sources=["en"]), api_keys=keys)
    yield server
    server.close()


@needs_browser
def test_a_page_copies_without_https(server, tmp_path):
    with browser(tmp_path) as page:
        page.open(f"{server.url}?q=zwei", 800)
        page.wait_for("!document.getElementById('copy').disabled")
        page.value("Object.defineProperty(navigator, 'clipboard', {}); document.getElementById('copy').click()")
        page.wait_for("document.getElementById('message').textContent === 'Copied.'", 5)


def test_a_client_of_libretranslate_works_unchanged(server, german):
    client = libretranslatepy.LibreTranslateAPI(server.url)
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]
    assert client.translate(SENTENCES[0], "de", "en") == german.translate([SENTENCES[0]])[0]
    assert client.translate(SENTENCES[0], "auto", "en") == client.translate(SENTENCES[0], "de", "en")
    for text, language in (("Der Hund & die Katze schlafen", "de"), ("The dog & the cat are asleep", "en")):
        likely, unlikely = client.detect(text)
        assert likely["language"] == language and likely["confidence"] > 50 > 5 > unlikely["confidence"]


def test_text_in_the_target_language_stays(server):
    text = "The dog & the cat are asleep."
    for source in ("en", "auto"):
        status, _, answer = server.translate(text, source=source)
        assert status == 200 and answer["translatedText"] == text and "route" not in answer
    assert answer["detectedLanguage"]["language"] == "en"


def test_html_without_markup_is_text(server, german):
    first, second = german.translate(SENTENCES[:2])
    text = f"{SENTENCES[0]}\n{SENTENCES[1]}"
    assert server.translate(text, format="html")[2]["translatedText"] == f"{first}\n{second}"
    assert server.translate("12 &amp; 34\n&lt;", format="html")[2]["translatedText"].startswith("12 &amp; 34")


def test_clients_know_the_api_by_its_title(server):
    assert server.request("spec")[2]["info"]["title"] == "LibreTranslate"


def test_lists_alternatives_and_layout(server, german):
    first, second = german.translate(SENTENCES[:2])
    status, _, answer = server.translate([f"- {SENTENCES[0]}\n\n* {SENTENCES[1]}", "12"], alternatives=1)
    assert status == 200
    assert answer["translatedText"] == [f"- {first}\n\n* {second}", "12"]
    assert answer["alternatives"][1] == []
    assert all(len(s) == 1 + len(a) for s, a in zip(answer["scores"], answer["alternatives"], strict=True))
    assert all(len(server.translate(SENTENCES[0], alternatives=one)[2]["scores"]) == 2 for one in (1, 1.0, "1"))
    assert answer["flags"] == [[], []] and "detectedLanguage" not in answer
    assert server.translate(["", SENTENCES[0]])[2]["translatedText"] == ["", first]


def test_alignments_and_word_scores_are_of_each_text_as_a_whole(server, german):
    text = f"- {SENTENCES[0]}\n\n* {SENTENCES[1]}"
    status, _, answer = server.translate(text, alternatives=1, alignments=True)
    texts = [answer["translatedText"], *answer["alternatives"]]
    assert status == 200 and len(answer["alignments"]) == len(answer["wordScores"]) == len(texts)
    (first,), (second,) = german.hypotheses(SENTENCES[:2], alignments=True)
    read, written = len(SENTENCES[0].split()) + 2, len(first.text.split()) + 2  # with the bullets
    links = [(s + 1, t + 1) for s, t in first.alignment.links]
    links += [(s + read, t + written) for s, t in second.alignment.links]
    assert answer["alignments"][0] == " ".join(f"{s}-{t}" for s, t in sorted(links))
    scores = [1, *first.alignment.word_scores, 1, *second.alignment.word_scores]
    assert answer["wordScores"][0] == pytest.approx(scores, abs=1e-5)
    status, _, answer = server.translate([SENTENCES[0], ""], alignments=True)
    assert len(answer["alignments"]) == 2 and answer["alignments"][1] == [""] and answer["wordScores"][1] == [[]]
    assert server.translate("x", alignments=True, format="html")[0] == 400


def test_inline_tags_come_back_around_their_words(server, german):
    first, *words = SENTENCES[0].split()
    marked = f"<p>\n{first} <b class=a>{words[0]}\t<i>{' '.join(words[1:])}</i></b></p>"
    status, _, answer = server.translate(marked, format="html")
    assert status == 200 and visible_text(answer["translatedText"]).split() == german.translate(SENTENCES[0]).split()
    tags = ["<p>", "<b class=a>", "<i>", "</i>", "</b>", "</p>"]
    assert re.findall("<.*?>", answer["translatedText"]) == tags


def test_html_and_forms(server, german):
    (expected,) = german.translate([SENTENCES[0]])
    assert server.translate(f"<p>{SENTENCES[0]}</p>", format="html")[2]["translatedText"] == f"<p>{expected}</p>"
    parts = {"q": SENTENCES[0], "source": "de", "target": "en", "alternatives": "0", "format": "text"}
    form = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in parts.items())
    status, _, answer = server.request("translate", (form + "--x--\r\n").encode(), "multipart/form-data; boundary=x")
    assert status == 200 and answer["translatedText"] == expected
    query = urllib.parse.urlencode({"q": SENTENCES[0], "source": "de", "target": "en", "api_key": ""})
    status, _, answer = server.request(f"translate?{query}", b"", "", "POST")
    assert status == 200 and answer["translatedText"] == expected
    assert server.translate(SENTENCES[0], api_key=None, format=None)[2]["translatedText"] == expected


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"q": 5}, 400, "q: Input should be a valid string"),
        *(({"q": nothing}, 400, "Invalid request: missing q parameter") for nothing in ("", [])),
        ({"q": "x" * 301}, 400, "Invalid request: request (301) exceeds text limit (300)"),
        ({"q": ["xxx"] * 101}, 400, "Invalid request: request (303) exceeds text limit (300)"),
        ({"q": [""] * 501}, 400, "Invalid request: request (501) exceeds text limit (500)"),
        ({"q": "x" * 100_000}, 413, "more than 69136 bytes"),
        ({"source": "xx"}, 400, "xx is not supported"),
        ({"target": "zz"}, 400, "zz is not supported"),
        ({"source": "en", "target": "de"}, 400, "German (de) is not available as a target language from English (en)"),
        *(({side: None}, 400, f"Invalid request: missing {side} parameter") for side in ("source", "target")),
        ({"format": "pdf"}, 400, "pdf format is not supported"),
        ({"alternatives": 6}, 400, "Invalid request: alternatives parameter must be <= 5"),
        *(
            ({"alternatives": n}, 400, "Invalid request: alternatives parameter is not a number")
            for n in (True, "abc")
        ),
        ({"glossary": {"Hund": ""}}, 400, "glossary: ['Hund', ''] given, must be a term and its translation"),
        ({"glossary": "Hund"}, 400, "glossary: line 1 must be a term and its translation, with a tab, a semicolon"),
        ({"glossary": {"Hund": "x" * 300}}, 400, "request (305) exceeds text limit (300)"),
        ({"glossary": dict.fromkeys(map(str, range(1001)), "x")}, 400, "glossary: 1001 terms given"),
    ],
)
def test_bad_requests_are_answered_in_the_words_of_libretranslate(server, fields, status, message):
    code, _, answer = server.translate(**({"q": "x"} | fields))
    assert code == status and message in answer["error"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        *((body, "application/json", 400) for body in (b"{", b"\xff\xfe", b"[]", b'["not", "a", "dict"]')),
        (b'{"q": "\\ud800", "source": "de", "target": "en"}', "application/json", 400),
        (b"q=%FF%FE", "application/x-www-form-urlencoded", 400),
        *(
            (text + b"&source=de&target=en", "application/x-www-form-urlencoded", 400)
            for text in (b"q=%FF", b"q=\xff", b"q=a&q=b")
        ),
        (FORM[:-7] + FIELDS, "multipart/form-data; boundary=x", 400),
        (b"nonsense", "multipart/form-data; boundary=x", 400),
        (b"nonsense", "multipart/form-data", 400),
        (FORM, "multipart/form-data; boundary=x; charset=undefined", 400),
        (b"q", "text/plain", 415),
        (b"", "", 400),
        (b'{"q": "a", "source": "de", "target": "en"}', "", 400),
    ],
)
def test_malformed_bodies_are_errors_of_the_client(server, body, content_type, status):
    code, _, answer = server.request("translate", body, content_type)
    assert code == status and set(answer) == {"error"}


def test_unknown_paths_and_methods_and_queries_that_are_not_utf_8(server):
    for query, status in (("%FF", 400), ("%C3%BC", 200)):
        assert server.request(f"translate?q={query}&source=de&target=en", b"", "")[0] == status
    assert server.request("nowhere")[::2] == (404, {"error": "Not Found"})
    assert server.request("translate", method="PUT")[::2] == (405, {"error": "Method Not Allowed"})


def test_several_models_detection_and_keys(several):
    client = libretranslatepy.LibreTranslateAPI(several.url, KEY)
    found = {language["code"]: language["targets"] for language in client.languages()}
    assert found == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": []}
    assert [guess["language"] for guess in client.detect("Zwei Katzen schlafen auf dem Sofa")][0] == "de"
    _, _, answer = several.translate("two cats sleep in the park", source="auto", target="fr", api_key=KEY)
    assert answer["detectedLanguage"]["language"] == "en"
    markup = '<p class="the cat and the dog">Zwei Katzen schlafen</p><script>if (the) return of the function</script>'
    _, _, answer = several.translate(markup, source="auto", target="en", format="html", api_key=KEY)
    assert answer["detectedLanguage"]["language"] == "de"
    assert several.translate("x", source="fr", target="de", api_key=KEY)[0] == 400
    query = urllib.parse.urlencode({"api_key": KEY})
    body = {"q": "two cats", "source": "en", "target": "de"}
    assert several.request(f"translate?{query}", body)[0] == 200
    form = urllib.parse.urlencode(body).encode()
    assert several.request(f"translate?{query}", form, "application/x-www-form-urlencoded")[0] == 200
    for key in ("", "wrong", "ü"):
        assert several.translate("x", api_key=key)[0] == 403
    assert several.request("frontend/settings")[2]["keyRequired"] is True


GERMAN, ENGLISH = "Zwei Katzen schlafen auf dem Sofa", "Two cats sleep in the park"


@pytest.mark.parametrize("most", [GERMAN, ENGLISH])
def test_each_text_of_a_list_is_read_in_its_own_language_and_a_word_in_that_of_the_list(several, most):
    texts = [f"{GERMAN}.", f"{ENGLISH}.", "Hund", most, f"{most} today"]
    _, _, answer = several.translate(texts, source="auto", api_key=KEY)
    read = [language["language"] for language in answer["detectedLanguage"]]
    assert read == ["de", "en", *["de" if most == GERMAN else "en"] * 3]
    alone = [several.translate(text, source=source, api_key=KEY)[2] for text, source in zip(texts, read, strict=True)]
    assert answer["translatedText"] == [each["translatedText"] for each in alone] and "route" not in answer
    assert answer["translatedText"][0] != texts[0] and answer["translatedText"][1] == texts[1]
    _, _, answer = several.translate([GERMAN, ENGLISH], source="auto", target="fr", api_key=KEY)
    assert answer["route"] == [["de", "en", "fr"], ["en", "fr"]]


def test_a_form_may_be_as_long_as_the_limit_says(german):
    server = Server(Languages({"german": german}), char_limit=200_000)
    fields = {"q": "日" * 150_000, "source": "xx", "target": "en"}  # 1.3 MB in percent encoding
    form = urllib.parse.urlencode(fields).encode()
    _, _, answer = server.request("translate", form, "application/x-www-form-urlencoded")
    assert "xx" in answer["error"]
    server.close()


def test_a_glossary_is_prepared_beside_the_other_requests(server, monkeypatch):
    threads = []

    def prepare(rows):
        threads.append(threading.current_thread())
        return Glossary(rows)

    monkeypatch.setattr(translations, "Glossary", prepare)
    assert server.translate("Hund", glossary={"Hund": "cat"})[0] == 200
    assert threads and server.thread not in threads


def test_what_the_tests_of_libretranslate_ask_of_paths_and_methods(server):
    status, _, spec = server.request("spec")
    assert status == 200 and "/translate" in spec["paths"]
    assert [server.request(path, b"", "", "POST")[0] for path in ("spec", "languages", "health")] == [405] * 3
    assert server.request("detect", method="GET")[0] == 405
    with urlopen(Request(f"{server.url}health", method="HEAD")) as answer:
        assert answer.status == 200 and int(answer.headers["Content-Length"]) > 0 and answer.read() == b""
    assert server.request("detect", b"", "")[::2] == (400, {"error": "Invalid request: missing q parameter"})
    _, _, found = server.request("detect", {"q": ["Der Hund schläft im Garten", "Das ist eine Katze"]})
    assert found[0]["language"] == "de" and found[0]["confidence"] > 50
    assert server.request("translate", b"[]")[2] == {"error": "Invalid JSON format"}


def test_two_models_translate_by_way_of_the_language_between(several, german):
    english = german.translate(SENTENCES[0])
    _, _, expected = several.translate(english, source="en", target="fr", api_key=KEY)
    assert "route" not in expected
    status, _, answer = several.translate(SENTENCES[0], source="de", target="fr", api_key=KEY)
    assert status == 200 and answer["route"] == ["de", "en", "fr"]
    assert answer["translatedText"] == expected["translatedText"]
    _, _, answer = several.translate([SENTENCES[0]], target="fr", alternatives=1, api_key=KEY)
    assert answer["route"] == ["de", "en", "fr"] and len(answer["alternatives"][0]) == 1
    listed = {language["code"]: language.get("via") for language in several.request("languages")[2]}
    assert listed == {"de": {"fr": "en"}, "en": None, "fr": None}
    for more in ({"alignments": True}, {"glossary": {"Hund": "chien"}}):
        status, _, answer = several.translate(SENTENCES[0], target="fr", api_key=KEY, **more)
        assert status == 400 and "de to en to fr, a translation of a translation" in answer["error"]


@pytest.mark.parametrize(
    ("served", "asked", "route"),
    [
        ([("en-GB", "fr-FR")], ("en", "fr"), ["en-GB", "fr-FR"]),
        ([("en", "fr")], ("en-GB", "fr_CA"), ["en", "fr"]),
        ([("en-US", "de"), ("en", "de"), ("en-GB", "de")], ("en-GB", "de"), ["en-GB", "de"]),
        ([("en-US", "de"), ("en", "de")], ("en-GB", "de"), ["en", "de"]),
        ([("eng_Latn", "de")], ("English", "German"), ["eng_Latn", "de"]),
        ([("gaa", "en"), ("ga", "en")], ("ga", "en"), ["ga", "en"]),
        ([("en", "zh-Hans")], ("en", "zh-CN"), ["en", "zh-Hans"]),
        ([("en", "zh-Hans")], ("en", "zh-TW"), None),
        ([("en", "zh-Hant"), ("en", "pt-BR")], ("en", "zt"), ["en", "zh-Hant"]),
        ([("en", "de"), ("de", "fr")], ("en-US", "fr"), ["en", "de", "fr"]),
        ([("de", "pt-BR"), ("de", "en"), ("en", "pt-PT")], ("de", "pt-PT"), ["de", "en", "pt-PT"]),
        ([("de", "en"), ("en", "de")], ("de", "de"), ["de"]),
        ([("de", "en"), ("en", "fr"), ("fr", "es")], ("de", "es"), None),
    ],
)
def test_routes_are_those_of_the_nearest_languages(served, asked, route):
    languages = Languages.__new__(Languages)
    languages.translators = dict.fromkeys(served)
    languages.sources, languages.targets = map(list, zip(*served, strict=True))
    if route is None:
        with pytest.raises(InputError, match="is not supported|not available as a target"):
            languages.route(*asked)
    else:
        assert languages.route(*asked) == route


def test_text_in_another_region_of_the_target_language_is_translated_if_a_model_does(server):
    languages = Languages.__new__(Languages)
    languages.translators = {("pt-BR", "pt-PT"): None, ("de", "pt-PT"): None}
    languages.sources, languages.targets = ["pt-BR", "de"], ["pt-PT"]
    languages.detect = lambda text: [{"language": "pt-BR", "confidence": 99.0}]
    assert languages.choose("auto", "pt-PT", "")[0] == ["pt-BR", "pt-PT"]
    languages.translators = {("de", "pt-PT"): None}
    assert languages.choose("auto", "Portuguese", "")[0] == ["Portuguese"]


def test_a_request_has_a_glossary_of_its_own(server):
    term, wanted = SENTENCES[0].split()[2], "cats"
    _, _, plain = server.translate(SENTENCES[0])
    assert wanted not in plain["translatedText"]
    for glossary in ({term: wanted}, f"{term}\t{wanted}\n", f"{term};{wanted}"):
        _, _, answer = server.translate(SENTENCES[0], glossary=glossary)
        assert wanted in answer["translatedText"]
    assert server.translate(SENTENCES[0])[2] == plain


def test_languages_are_detected_without_their_regions():
    regional = tiny_translator("<2de>", language_tags="source")
    detect = Languages({"regional": regional}, ["pt-BR", "eng_Latn", "pt-PT"]).detect
    assert detect("Os dois gatos dormem no sofá")[0]["language"] == "pt-BR"
    assert [guess["language"] for guess in detect("two cats sleep on the sofa")] == ["eng_Latn", "pt-BR", "de"]


@pytest.mark.parametrize(
    ("sources", "text", "likeliest"),
    [
        (["ar", "de"], "Ja", "de"),
        (["sr", "de"], "OK", "de"),
        (["sr", "de"], "Kontakt", "de"),
        (["hi", "sr"], "OK", "en"),
        (["fr", "de"], "Menu", "fr"),
        (["de", "fr"], "Menu", "de"),
        (["de", "sr"], "Mačka spava na krevetu", "sr"),
        (["de", "sr"], "Мачка спава на кревету", "sr"),
        (["de", "sr_Latn"], "Dobar dan", "sr_Latn"),
        (["de", "ja", "zho_Hans"], "東京タワー", "ja"),
        (["de", "ja", "zho_Hans"], "我们今天去公园", "zho_Hans"),
        (["de", "ko"], "안녕 OK", "ko"),
        (["de", "ar"], "123", "de"),
    ],
)
def test_languages_of_other_scripts_are_not_those_of_a_word(sources, text, likeliest):
    languages = Languages({"one": tiny_translator(target_lang="en")}, sources)
    assert languages.detect(text)[0]["language"] == likeliest
    assert languages.choose("auto", "en", text)[0][0] == likeliest


def test_a_tokenizer_that_adds_codes_gets_both_languages(tmp_path):
    tokenizer = coded_tokenizer(tmp_path)
    model = tiny_model(tokenizer, vocab_size=max(tokenizer.lang_code_to_id.values()) + 1)
    coded = Translator(model, tokenizer, DecodingSettings(num_beams=2, max_length_a=0, max_length_b=5))
    with pytest.raises(InputError, match="does not know the languages 'de' to 'xx'"):
        Languages({"coded": coded}, ["de"], "xx")
    server = Server(Languages({"coded": coded}, ["de"], "en"))
    (expected,) = coded.translate([SENTENCES[0]], source_lang="de", target_lang="en")
    assert server.translate(SENTENCES[0])[2]["translatedText"] == expected
    server.close()


def test_health_metrics_and_page(server):
    server.translate("Hund")
    assert server.request("health")[2] == {"status": "ok"}
    assert 'residual_hf_requests_total{path="/translate",status="200"}' in server.request("metrics")[2]
    status, headers, page = server.request("")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|https?:", page)  # nothing from elsewhere
    settings = server.request("frontend/settings")[2]
    assert settings["charLimit"] == 300 and settings["language"]["target"] == {"code": "en", "name": "English"}


class Slow:
    """A translator that waits for `free`."""

    def __init__(self, translator):
        self.model, self.tokenizer, self.settings = translator.model, translator.tokenizer, translator.settings
        self.inputs, self.reader, self.glossary = translator.inputs, translator.reader, translator.glossary
        self.translator, self.free = translator, threading.Event()

    def translate_encoded(self, *args, **kwargs):
        self.free.wait(30)
        if self.translator is None:
            raise RuntimeError("a secret path")
        return self.translator.translate_encoded(*args, **kwargs)


def test_full_queue_timeout_and_internal_error(german):
    slow = Slow(german)
    server = Server(Languages({"slow": slow}), max_queue=1, timeout=0.5)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.translate("Hund"), range(4)))
    assert sorted(status for status, _, _ in answers) == [429, 429, 429, 504]
    assert all(int(headers["Retry-After"]) >= 1 for status, headers, _ in answers if status == 429)
    slow.translator = None
    slow.free.set()
    assert server.translate("Hund")[::2] == (500, {"error": "Internal server error"})
    server.close()


def test_a_client_that_disconnects_frees_its_place_in_the_queue(german):
    slow = Slow(german)
    server = Server(Languages({"slow": slow}), max_queue=1)
    body = json.dumps({"q": "Hund", "source": "de", "target": "en"})
    gone = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2].strip("/")))
    gone.request("POST", "/translate", body, {"Content-Type": "application/json"})
    server.wait_for("\nresidual_hf_waiting_requests 1.0")
    gone.close()
    server.wait_for("\nresidual_hf_waiting_requests 0.0")
    slow.free.set()
    assert server.translate("Hund")[0] == 200
    with socket.create_connection((gone.host, gone.port)) as upload:
        upload.sendall(b"POST /translate HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    server.wait_for('residual_hf_requests_total{path="/translate",status="499"} 2.0')
    server.close()


def test_many_clients_get_what_a_single_one_gets(server):
    texts = [f"{a} {b}" for a in SENTENCES for b in SENTENCES] * 5
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(server.translate, texts))
    assert {status for status, _, _ in together} == {200}
    alone = {text: server.translate(text)[2] for text in set(texts)}
    assert [answer for _, _, answer in together] == [alone[text] for text in texts]


def answers(url):
    try:
        return urlopen(f"{url}/metrics").status == 200
    except URLError:
        return False


@pytest.mark.skipif(os.name != "posix", reason="needs SIGTERM")
def test_sigterm_answers_accepted_requests(tmp_path):
    save_tiny(tmp_path / "model", source_lang="de", target_lang="en")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ("serve", tmp_path / "model", "--port", port, "--num-beams", "5")
    body = json.dumps({"q": [" ".join(SENTENCES)] * 40, "source": "de", "target": "en"}).encode()
    with ThreadPoolExecutor(2) as pool:
        program = pool.submit(run_forked, "-c", VERB, *command, cwd=tmp_path, check=False)
        pid = int(wait_for(tmp_path / "pid", program))
        while not answers(url):
            assert not program.done(), program.result().stderr
            time.sleep(0.01)
        send = Request(f"{url}/translate", body, {"Content-Type": "application/json"})
        future = pool.submit(urlopen, send, timeout=60)
        while not future.done() and b"\nresidual_hf_waiting_requests 1.0" not in urlopen(f"{url}/metrics").read():
            time.sleep(0.01)
        os.kill(pid, signal.SIGTERM)
        answer = json.load(future.result())
        done = program.result(timeout=30)
    assert len(answer["translatedText"]) == 40
    assert done.returncode in (0, -signal.SIGTERM)
    assert url in done.stderr and "Traceback" not in done.stderr


def test_settings_and_languages_are_checked_before_the_start(german, tmp_path, refused):
    unknown = tiny_translator()
    with pytest.raises(InputError, match="--source-lang: missing, required because the config of a names none"):
        Languages({"a": unknown})
    assert list(Languages({"a": unknown}, ["de"], "English").translators) == [("de", "en")]
    with pytest.raises(InputError, match="a: source and target language are 'en', but a server translates"):
        Languages({"a": unknown}, ["en"], "en")
    terms = Translator(unknown.model, unknown.tokenizer, glossary=Glossary([("Hund", "dog")]))
    assert Languages({"a": terms}, ["de", "fr"], "en").targets == ["en"]
    with pytest.raises(InputError, match="--glossary: given for en and de, must be for one"):
        Languages({"a": terms, "german": tiny_translator(source_lang="en", target_lang="de")}, ["de"], "en")
    (tmp_path / "keys").write_text("secret\n", encoding="utf-8-sig")
    settings = ServerSettings(api_keys=tmp_path / "keys")
    assert settings.read_keys() == [b"secret"]
    (tmp_path / "keys").write_text("secret\n", encoding="utf-16")
    with pytest.raises(InputError, match="the file looks like UTF-16"):
        ServerSettings(api_keys=tmp_path / "keys")
    (tmp_path / "keys").write_text("\n")  # a worker that starts now would be open to all
    with pytest.raises(InputError, match="a file with one key per line"):
        create_app(Languages({"a": terms}, ["de"], "en"), settings)
    refused("port: 70000 given", "serve", "nowhere", "--port", "70000")
    for path in ("mt", "/mt/", "/m t"):
        refused(f"--root-path: {path!r} given, must be a path such as /mt", "serve", "nowhere", "--root-path", path)
    refused("a file with one key per line", "serve", "nowhere", "--api-keys", tmp_path / "none")
    for host in ("300.1.1.1", "203.0.113.7"):
        with pytest.raises(InputError, match=f"--host {host} --port 0: cannot be listened on: "):
            serve(lambda: pytest.fail("loaded"), ServerSettings(host=host, port=0))


def test_an_interrupted_start_is_no_success():
    def load():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(load, ServerSettings(port=0))
