"""The page of `export --to web` in Node and Chromium, against the kernels of Python in int8."""

import copy
import json
import shutil
import subprocess
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conversion.test_export import OURS, PAIR, TOKENIZER, noisy_model, saved
from generation.test_long_text import SPACES
from huggingface_hub import ModelCard
from support.browser import browser, needs_browser, served
from support.native_library import needs_kernels
from support.single_stacks import causal
from support.tiny_translator import SENTENCES, tiny_tokenizer
from tokenizers import pre_tokenizers

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.cli import main
from residual_hf.conversion import to_web
from residual_hf.conversion.export import export
from residual_hf.conversion.fairseq_tokenizer import fairseq_tokenizer
from residual_hf.conversion.moses import MosesRules
from residual_hf.conversion.to_web import WebTarget
from residual_hf.data.data_settings import TOKENIZER_KINDS, TokenizerSettings
from residual_hf.data.shortlist import Shortlist
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.generation.decode import search
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.translator import Translator
from residual_hf.model.placeholders import PLACEHOLDER_TOKENS, SPAN
from residual_hf.model.translation_inputs import TranslationInputs
from residual_hf.native import structures
from residual_hf.native.image import KERNELS

NODE = shutil.which("node")
pytestmark = [
    needs_kernels,
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(not KERNELS.exists(), reason="kernels.wasm was not built: ziglang is not installed"),
]
SCRIPT = Path(__file__).parents[1] / "support" / "translate.mjs"
FIELDS = {
    "hybrid": {"encoder_ln_mode": "admin", "decoder_ln_mode": "pre_ln"},
    "embedding norm": {"ln_mode": "pre_ln", "embedding_norm": True, "activation_function": "gelu"},
    "fix_norm": {"ln_mode": "post_ln", "fix_norm": True, "output_bias": True, "scale_embedding": False},
    "no positions": {"ln_mode": "pre_ln", "position_embedding_type": "none", "layer_norm_eps": 1e-2},
    "all tokens": {"ln_mode": "post_ln", "position_counting": "all_tokens", "position_embedding_type": "learned"},
    "rms_norm": {"ln_mode": "pre_ln", "norm_type": "rms_norm"},
    "swish": {"ln_mode": "resi_dual", "activation_function": "silu", "encoder_layers": 3},
}
CASES = {name: {"ln_mode": name} for name in OURS} | FIELDS
QUICK = {"post_ln", "resi_dual", "mhc", "normformer", "realformer", "sub_ln", *FIELDS}


def in_node(*requests):
    """What Node makes of requests, see `translate.mjs`."""
    process = subprocess.run([NODE, SCRIPT], input=json.dumps(requests), capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def site_of(folder, tokenizer=TOKENIZER, length=10, **fields):
    """A model whose tables are of float16, as those of the page to which it is exported, and its page."""
    model = noisy_model(tokenizer, **fields)
    model.generation_config.max_length_a, model.generation_config.max_length_b = 0.0, length
    site = folder / "site"
    site.mkdir()
    WebTarget().write(model, tokenizer, site)
    tokenizer.save_pretrained(site)
    return model, tokenizer, site


def in_int8(model, tokenizer, beams=1):
    return Translator(model, tokenizer, DecodingSettings.of_model(model, {"num_beams": beams, "dtype": "int8"}))


def found_by_python(model, tokenizer, sources, beams, shortlist=None):
    """The translations of token ids by the kernels of Python."""
    settings = replace(in_int8(model, tokenizer, beams).settings, shortlist=shortlist is not None)
    return [best[0].ids for best in search(model, sources, settings, shortlist=shortlist)]


def random_sources(count, longest=12):
    numbers = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, longest, (count,), generator=numbers).tolist()
    return [[*torch.randint(4, 90, (length,), generator=numbers).tolist(), 2] for length in lengths]


SOURCES, BEAMS = random_sources(12), (1, 4)


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(set(CASES) - QUICK, marks=pytest.mark.slow)], ids=["some", "rest"]
)
def test_the_ids_are_those_of_the_kernels_of_python(tmp_path_factory, names):
    exported = {name: site_of(tmp_path_factory.mktemp("web"), **CASES[name]) for name in sorted(names)}
    sites = [str(site) for *_, site in exported.values()]
    results = iter(in_node(*({"site": site, "ids": SOURCES, "beams": beams} for site in sites for beams in BEAMS)))
    for name, (model, *_) in exported.items():
        for beams in BEAMS:
            assert next(results)["ids"] == found_by_python(model, TOKENIZER, SOURCES, beams), (name, beams)


def test_200_sentences_have_the_ids_of_the_kernels_of_python(tmp_path):
    model, tokenizer, site = site_of(tmp_path, ln_mode="resi_dual", d_model=48, length=12)
    sources = random_sources(200, longest=40)
    (found,) = in_node({"site": str(site), "ids": sources, "beams": 5})
    expected = found_by_python(model, tokenizer, sources, 5)
    assert sum(ours == theirs for ours, theirs in zip(found["ids"], expected, strict=True)) >= 199  # a tie


def test_more_tokens_than_positions_are_refused(tmp_path):
    *_, site = site_of(tmp_path, ln_mode="post_ln", max_position_embeddings=16)
    (found,) = in_node({"site": str(site), "ids": [[*range(4, 20), 2]]})
    assert found == {"error": "ids: 17 given, the model reads at most 16"}


def test_translations_have_the_least_length_of_the_model(tmp_path):
    model, tokenizer, site = site_of(tmp_path, ln_mode="resi_dual", output_bias=True)
    model.lm_head.bias.data[[tokenizer.eos_token_id, tokenizer.pad_token_id]] = torch.tensor([100.0, -100.0])
    model.generation_config.min_length = 6
    WebTarget().write(model, tokenizer, site)
    results = in_node(*({"site": str(site), "ids": SOURCES, "beams": beams} for beams in BEAMS))
    for beams, result in zip(BEAMS, results, strict=True):
        assert {*map(len, result["ids"])} == {5}
        assert result["ids"] == found_by_python(model, tokenizer, SOURCES, beams)


@pytest.mark.parametrize("fields", [{}, {"output_bias": True, "d_model": 48}, {"forced": 5}], ids=str)
def test_a_shortlist_leaves_the_same_tokens_as_in_python(tmp_path, fields):
    forced = fields.pop("forced", None)
    model, tokenizer, site = site_of(tmp_path, ln_mode="resi_dual", **fields)
    model.generation_config.forced_bos_token_id = forced
    WebTarget().write(model, tokenizer, site)
    candidates = np.random.default_rng(1).integers(-1, len(TOKENIZER), (len(TOKENIZER), 12)).astype(np.int32)
    shortlist, requests = Shortlist(candidates, np.arange(2, 9, dtype=np.int32)), []
    WebTarget().write_shortlist(shortlist, model, tokenizer, site)
    for beams in BEAMS:
        requests += [{"site": str(site), "ids": SOURCES, "beams": beams, "shortlist": use} for use in (True, False)]
    results = iter(in_node(*requests))
    for beams in BEAMS:
        found, unlisted = next(results)["ids"], next(results)["ids"]
        assert found == found_by_python(model, TOKENIZER, SOURCES, beams, shortlist)
        assert found != unlisted


TEXTS = [
    *SENTENCES,
    *("", " ", "12 % (34)", "<b>", "&nbsp;", "two cats 😀 sleep", "😀👍🏽 a dog"),
    *("two cats😀sleep", "😀: a dog sleeps", "(😀) two cats", "a dog (😀) sleeps. 👍🏽 Two cats", "“😀”"),
    *("%ix%i cats", "{0}x{1} dogs", "%d%% of 5 %2"),
    *("TWO CATS SLEEP. A DOG RUNS", "two  cats", " two cats ", "</s> cats <s>"),
    "two\u00a0cats {name} https://a.org/x sleep",
    "a" + "𠮷" * 150,
    "zwei Katzen schlafen " * 30,
]


@pytest.mark.parametrize(
    "fields",
    [
        {"source_lang": "en", "target_lang": "de"},
        {"placeholders": True},
        {"source_lang": "de", "target_lang": "de"},
        {"source_lang": "tr", "target_lang": "en", "split": True},
    ],
    ids=str,
)
def test_texts_are_translated_as_by_the_translator(tmp_path, fields):
    tokenizer = tiny_tokenizer(*(PLACEHOLDER_TOKENS if "placeholders" in fields else ()))
    tokenizer.split_special_tokens = fields.pop("split", False)
    model, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln", **fields)
    (found,) = in_node({"site": str(site), "texts": TEXTS, "encode": TEXTS[:-2], "options": {"split": False}})
    translator = in_int8(model, tokenizer)
    assert found["encoded"] == translator.encode(TEXTS[:-2])[0]
    expected = translator.translate(TEXTS, long="split")
    for text, ours, theirs in zip(TEXTS, expected, found["texts"], strict=True):
        if "placeholders" not in fields or not SPAN.search(text):  # the translator searches again for lost spans
            assert ours == theirs, text


PIECES = [
    *("two cats", "TWO CATS", "I'M HERE. İSTANBUL", "ΣΊΣΥΦΟΣ IŞIK", "42", "1,234.56 №", "ΑΣ Nº ᲥᲐᲠᲗᲣᲚᲘ"),
    *("😀", "👍🏽 ❤️", "e\u0301 ②", "ß ʰ"),
    *("{name}", "{n, plural, one {# a} other {b}}", "%1$s 50 % %d", "https://a.org/x_(y).", "me@a-b.org", "<b>x</b>"),
    *("@:link.to $t(x)", "{{ x }} <%= y %>", "日本 http://a.jp日本", "กข", ":path", "<ph1>", "…"),
]


@pytest.mark.parametrize("placeholders", [False, True])
@pytest.mark.parametrize("pair", [("en", "de"), ("tr", "az"), (None, None)])
def test_texts_are_read_and_restored_as_in_python(tmp_path, placeholders, pair):
    fields = dict(zip(("source_lang", "target_lang"), pair, strict=True), placeholders=placeholders)
    model, tokenizer, site = site_of(tmp_path, tiny_tokenizer(*PLACEHOLDER_TOKENS), ln_mode="post_ln", **fields)
    texts = [space.join(parts) for parts in product(PIECES, repeat=2) for space in (" ", "")]
    translation = "Ein <ph1> iß (<ph2>), <ph1>." if placeholders else "Ein iß, <b>nur eins</b>."
    (found,) = in_node({"site": str(site), "read": [(text, translation) for text in texts]})
    inputs = TranslationInputs(model.config, tokenizer)
    for text, own in zip(texts, found["read"], strict=True):
        assert own == [inputs.edited(text).text, inputs.kept(text), inputs.restored(translation, text).text], text


def test_sentences_of_a_text_keep_the_space_between_them(tmp_path):
    model, tokenizer, site = site_of(tmp_path, ln_mode="post_ln", source_lang="en", target_lang="de")
    text = "two cats sleep.  A small dog runs!\n\nMr. Cat sleeps.\n"
    (found,) = in_node({"site": str(site), "texts": [text]})
    parts = in_int8(model, tokenizer).translate(["two cats sleep.", "A small dog runs!", "Mr. Cat sleeps."])
    assert found["texts"] == [f"{parts[0]}  {parts[1]}\n\n{parts[2]}\n"]


def test_sentences_do_not_end_within_an_address_or_a_message(tmp_path):
    fields = {"ln_mode": "post_ln", "source_lang": "en", "target_lang": "de", "placeholders": True}
    model, tokenizer, site = site_of(tmp_path, **fields)
    texts = ["two https://e.org/a?b=cats&c=dog run", "{n, plural, one {A cat. It runs.} other {# cats.}} sleep"]
    (found,) = in_node({"site": str(site), "texts": texts})
    assert found["texts"] == in_int8(model, tokenizer).translate(texts)


def test_the_space_between_sentences_is_that_of_python(tmp_path):
    *_, site = site_of(tmp_path, ln_mode="post_ln")
    (found,) = in_node({"site": str(site), "spaces": [row[:-1] for row in SPACES]})
    assert found["spaces"] == [row[-1] for row in SPACES]


def test_separate_vocabularies(tmp_path):
    fields = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    fields["decoder_vocab_size"] = len(TOKENIZER) + 2
    model, tokenizer, site = site_of(tmp_path, PAIR, ln_mode="pre_ln", **fields)
    (found,) = in_node({"site": str(site), "texts": SENTENCES})
    assert found["texts"] == in_int8(model, tokenizer).translate(SENTENCES)


@pytest.mark.parametrize("side", ["source", "target"])
def test_languages_are_chosen_by_their_tags(tmp_path, side):
    tokenizer = tiny_tokenizer("<2de>", "<2en>")
    model, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln", language_tags=side)
    requests = ({"site": str(site), "texts": SENTENCES, "options": {"to": code}, "beams": 2} for code in ("en", "xx"))
    found, wrong, missing = in_node(*requests, {"site": str(site), "texts": SENTENCES})
    assert missing == {"error": "to: missing, must be one of de, en"}
    assert found["languages"] == {"source": None, "targets": ["de", "en"]}
    assert found["texts"] == in_int8(model, tokenizer, 2).translate(SENTENCES, target_lang="en")
    assert wrong == {"error": "to: xx given, must be one of de, en"}


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZER_KINDS if kind != "pretokenized"])
def test_tokenizers_of_every_kind_encode_alike(tmp_path, kind):
    lines = [*SENTENCES, "Ein Café für 1.234 Ünïcode-Leute!", "don't  stop"] * 9
    tokenizer = train_tokenizer(lines, TokenizerSettings(kind=kind, vocab_size=330), model_max_length=64)
    _, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln")
    texts = [*lines[:6], "unknown ñ 漢字 and ▁", "e\u0301 ﬁ Ａ", "tab\there"]
    (found,) = in_node({"site": str(site), "encode": texts})
    assert found["encoded"] == [tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte_bpe"])
def test_what_follows_a_placeholder_without_a_space_is_encoded_alike(tmp_path, kind):
    settings, marks = TokenizerSettings(kind=kind, vocab_size=360), {"language_tags": PLACEHOLDER_TOKENS}
    texts = ["In 2024, it", "12.50 (now)", "<b>File</b>, then %s."]
    tokenizer = train_tokenizer([*texts, *SENTENCES] * 9, settings, **marks, model_max_length=64)
    model, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln", placeholders=True)
    (found,) = in_node({"site": str(site), "encode": texts})
    assert found["encoded"] == Translator(model, tokenizer).encode(texts)[0]


def test_the_tokenizer_of_a_fairseq_model_encodes_alike(tmp_path):
    codes, dictionary = tmp_path / "codes", tmp_path / "dict.txt"
    codes.write_text("#version: 0.2\nt w\ntw o</w>\nc a\nca t\ncat s</w>\n")
    dictionary.write_text("two 9\ncats 8\nca@@ 5\nt 3\no 2\n")
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    _, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln")
    texts = ["two cats", "cat two  cats", "x two"]
    (found,) = in_node({"site": str(site), "encode": texts})
    assert found["encoded"] == Translator(noisy_model(tokenizer), tokenizer).encode(texts)[0]
    assert found["encoded"][0] == tokenizer("two cats")["input_ids"] == [4, 5, 2]


def test_tokenizers_that_no_browser_can_run_are_refused(tmp_path):
    dictionary, codes = tmp_path / "dict.txt", tmp_path / "codes"
    dictionary.write_text("two 9\ncats 8\n▁ 7\nt 5\n")
    codes.write_text("#version: 0.2\nt w\ntw o</w>\n")
    options = {"model_prefix": tmp_path / "m", "vocab_size": 60, "minloglevel": 2, "hard_vocab_limit": False}
    lines = iter([*SENTENCES, "two cats"] * 20)
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    trainer.train(sentence_iterator=lines, normalization_rule_name="nmt_nfkc_cf", **options)
    rules = MosesRules("en", hyphens=True, escape=True)
    refused = {
        "pretokenized text": fairseq_tokenizer(dictionary, dictionary),
        "with Moses": fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes, source_rules=rules),
        "folds case": fairseq_tokenizer(dictionary, dictionary, sentencepiece=tmp_path / "m.model"),
    }
    splits = {"Whitespace": pre_tokenizers.Whitespace(), "UnicodeScripts": pre_tokenizers.UnicodeScripts()}
    splits |= {"Split MergedWithNext": pre_tokenizers.Split("a", "merged_with_next")}
    splits |= {"the inverse of Split Isolated": pre_tokenizers.Split("a", "isolated", invert=True)}
    for step, splitter in splits.items():
        refused[f"a tokenizer with {step} given"] = other = copy.deepcopy(TOKENIZER)
        other.backend_tokenizer.pre_tokenizer = splitter
    for message, tokenizer in refused.items():
        with pytest.raises(InputError, match=message):
            WebTarget().write(noisy_model(tokenizer), tokenizer, tmp_path)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc"])
def test_sentencepiece_of_fairseq_reads_all_characters_as_in_python(tmp_path, rule):
    texts = ["ශ්\u200dරී ලංකාව", "می\u200cروم", "a\tb\u200bc", "２～３ ﬁ", "ｶﾞﾝﾊﾟ", "e\u0301 ½ ﷺ", "\ufeffx\u2028y"]
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    options = {"model_prefix": tmp_path / "m", "vocab_size": 90, "minloglevel": 2, "hard_vocab_limit": False}
    trainer.train(sentence_iterator=iter(texts * 9), normalization_rule_name=rule, character_coverage=1.0, **options)
    pieces = [line.rsplit("\t", 1)[0] for line in (tmp_path / "m.vocab").read_text().split("\n")[3:-1]]
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("".join(f"{piece} 1\n" for piece in pieces if piece.split() == [piece]))
    tokenizer = fairseq_tokenizer(dictionary, dictionary, sentencepiece=tmp_path / "m.model")
    _, tokenizer, site = site_of(tmp_path, tokenizer, ln_mode="post_ln")
    (found,) = in_node({"site": str(site), "encode": texts})
    assert found["encoded"] == [tokenizer(text)["input_ids"] for text in texts]


def test_lines_end_behind_abbreviations(tmp_path):
    model, tokenizer, site = site_of(tmp_path, ln_mode="post_ln", source_lang="en", target_lang="de")
    text = "two cats etc.\nVitamin B.\nA small dog runs"
    (found,) = in_node({"site": str(site), "texts": [text]})
    assert found["texts"] == ["\n".join(in_int8(model, tokenizer).translate(text.splitlines()))]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.bin", lambda content: content[:-9], "bytes, must have"),
        ("model.bin", None, "cannot be read"),
        ("tokenizer.json", lambda content: content[:-9], "tokenizer.json is damaged"),
        ("shortlist.bin", lambda content: content[:-2], "shortlist.bin is damaged"),
        ("shortlist.bin", lambda content: content[:9], "shortlist.bin is damaged"),
        ("shortlist.bin", None, "shortlist.bin cannot be read"),
        ("kernels.wasm", lambda content: content[:-9], "kernels.wasm cannot run here"),
        ("model.json", lambda content: content.replace(b'"interface": ', b'"interface": 1'), "of different versions"),
        ("model.json", lambda content: content.replace(b'"format": ', b'"format": 1'), "reload the page without its"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, change, message):
    model, tokenizer, site = site_of(tmp_path, ln_mode="post_ln")
    shortlist = Shortlist(np.full((len(TOKENIZER), 1), 3, np.int32), np.arange(4, dtype=np.int32))
    WebTarget().write_shortlist(shortlist, model, tokenizer, site)
    (site / name).unlink() if change is None else (site / name).write_bytes(change((site / name).read_bytes()))
    (found,) = in_node({"site": str(site), "shortlist": True})
    assert message in found["error"]


class Cache(SimpleHTTPRequestHandler):
    """Answers with what it had for an address before, unless a client asks for what is there now."""

    answers: dict[str, bytes] = {}

    def do_GET(self):
        file = Path(self.translate_path(self.path))
        if "max-age=0" in self.headers.get("Cache-Control", "") or self.path not in self.answers:
            self.answers[self.path] = file.read_bytes()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answers[self.path])

    def log_message(self, *arguments):
        pass


def test_a_cache_with_the_files_of_another_export_is_passed_by(tmp_path):
    *_, site = site_of(tmp_path, ln_mode="post_ln")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Cache, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    request = {"site": str(site), "address": f"http://127.0.0.1:{server.server_port}", "ids": SOURCES, "beams": 4}
    in_node(request)
    tokenizer = tiny_tokenizer("cats")
    model = noisy_model(tokenizer, ln_mode="post_ln")
    WebTarget().write(model, tokenizer, site)
    tokenizer.save_pretrained(site)
    (found,) = in_node(request | {"encode": ["two cats"]})
    server.shutdown()
    assert found["encoded"] == [tokenizer("two cats")["input_ids"]]
    assert found["ids"] == found_by_python(model, tokenizer, SOURCES, 4)


def test_the_report_is_of_the_search_of_the_page(tmp_path):
    model, found = noisy_model(), []
    for name, settings in {"plain": {}, "other": {"forced_bos_token_id": 9, "no_repeat_ngram_size": 2}}.items():
        model.generation_config.update(**settings)
        save_checkpoint(model, TOKENIZER, tmp_path / name)
        found.append(export(tmp_path / name, "web", tmp_path / f"site of {name}"))
    assert found[0] == found[1] and found[0].identical > 0


def test_command(tmp_path, capsys):
    model, site = saved(tmp_path / "model", ln_mode="resi_dual", source_lang="en", target_lang="de"), tmp_path / "site"
    (tmp_path / "text").write_text("\n".join(SENTENCES))
    arguments = ["--to", "web", "--output-dir", str(site), "--verify-with", str(tmp_path / "text")]
    assert main(["export", str(model), *arguments]) == 0
    assert "of 4 translations identical in int8" in capsys.readouterr().out
    assert json.loads((site / "export.json").read_text())["dtype"] == "int8"
    assert ModelCard.load(site / "README.md").data.to_dict()["sdk"] == "static"
    assert (site / "model.bin").stat().st_size == json.loads((site / "model.json").read_text())["image"]["size"]
    page = (site / "index.html").read_text()
    assert "<title>Translate en to de</title>" in page and "--accent: light-dark" in page and "page.css" not in page


def test_refusals(tmp_path, monkeypatch):
    alone = save_checkpoint(causal(ln_mode="post_ln", vocab_size=len(TOKENIZER)), TOKENIZER, tmp_path / "alone")
    model = saved(tmp_path / "model", ln_mode="post_ln")
    summarizer = saved(tmp_path / "summarizer", ln_mode="post_ln", source_lang="en", target_lang="en")
    for other in (alone, summarizer):
        with pytest.raises(InputError, match="only for a translation model"):
            export(other, "web", tmp_path / "site")
    with pytest.raises(InputError, match="'float32' given, must be one of int8"):
        export(model, "web", tmp_path / "site", dtype="float32")
    monkeypatch.setattr(to_web, "KERNELS", tmp_path / "kernels.wasm")
    with pytest.raises(InputError, match="kernels.wasm was not built.*pip install ziglang"):
        export(model, "web", tmp_path / "site")
    for name in ("native.h", "search.c", "kernels.wasm"):  # as in a clone
        (tmp_path / name).touch()
    monkeypatch.setattr(structures, "HEADER", tmp_path / "native.h")
    with pytest.raises(InputError, match="kernels.wasm does not match the C sources next to it: run"):
        export(model, "web", tmp_path / "site")


MESSAGE, RESULT = (f"document.getElementById('{name}').textContent" for name in ("message", "result"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_translates_what_is_typed(tmp_path, page, width):
    model, tokenizer, site = site_of(tmp_path, ln_mode="resi_dual", source_lang="en", target_lang="de")
    with served(site) as address:
        page.open(address, width)
        page.wait_for(f"{MESSAGE}.startsWith('Ready')")
        page.value("document.getElementById('beams').value = 1; document.getElementById('text').focus()")
        page.call("Input.insertText", text="two cats sleep. A small dog runs!")
        page.wait_for("!document.getElementById('copy').disabled")
    parts = in_int8(model, tokenizer).translate(["two cats sleep.", "A small dog runs!"])
    assert page.value(RESULT) == " ".join(parts)
    assert page.value("[source.textContent, target.textContent, text.lang]") == ["English", "German", "en"]
    assert page.value("document.documentElement.scrollWidth") == width
    columns = page.value("getComputedStyle(document.querySelector('.pair')).gridTemplateColumns.split(' ').length")
    assert columns == (1 if width == 390 else 2)


@needs_browser
def test_a_text_that_is_cleared_is_no_longer_translated(tmp_path, page):
    *_, site = site_of(tmp_path, ln_mode="post_ln")
    with served(site) as address:
        page.open(f"{address}#{'two%20cats%20sleep.%20' * 2000}", 800)
        page.wait_for(f"{MESSAGE}.startsWith('Translating') && {RESULT}")
        page.value("document.getElementById('clear').click()")
        page.wait_for(f"{MESSAGE} === '' && copy.disabled && !document.querySelector('[aria-busy]')", 5)


@needs_browser
def test_a_link_opens_the_page_with_a_text(tmp_path, page):
    model, tokenizer, site = site_of(tmp_path, ln_mode="post_ln")
    with served(site) as address:
        page.open(f"{address}?#50% & 1+1%3D2", 800)
        page.wait_for("document.getElementById('text').value === '50% & 1+1=2'", 5)
        page.open(f"{address}#two%20cats", 800)
        page.wait_for("!document.getElementById('copy').disabled")
        page.value("Object.defineProperty(navigator, 'clipboard', {}); document.getElementById('copy').click()")
        page.wait_for(f"{MESSAGE} === 'Copied.'", 5)
    assert page.value(RESULT) == in_int8(model, tokenizer).translate("two cats")


@needs_browser
@pytest.mark.parametrize("name", ["model.bin", "worker.js", "tokenizers.js", "model.json"])
def test_the_page_names_a_missing_file_or_says_that_one_is_missing(tmp_path, page, name):
    *_, site = site_of(tmp_path, ln_mode="post_ln")
    (site / name).unlink()
    with served(site) as address:
        page.open(address, 800)
        message = page.wait_for(f"document.getElementById('message').className && {MESSAGE}")
    assert name in message if name.startswith("model") else message == "A file of this page cannot be loaded."
