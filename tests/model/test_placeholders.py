"""Spans that come through a translation unchanged."""

import pytest
import torch
from support.tiny_translator import tiny_model, tiny_tokenizer

from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.generation import translator as translator_module
from residual_hf.generation.decode import Candidate
from residual_hf.generation.translator import Translator
from residual_hf.model.pipeline_translation import TranslationPipeline
from residual_hf.model.placeholders import (
    PLACEHOLDER,
    PLACEHOLDER_TOKENS,
    EditedText,
    masked,
    masked_pair,
    restored,
    with_emoji,
    without_emoji,
)
from residual_hf.model.translation_inputs import TranslationInputs

TEXTS = [
    "zwei {name} %1$s %s <x id='1'/> https://a.org/b?c=1, x.y@z.de (1,234.56) und {name}",
    "{a}{b}",
    "B52 aus den 1990ern <ph3> %%",
    " {x} ",
    "ein kleiner Hund",
]


@pytest.fixture(scope="module")
def copying():
    """A translator whose model was trained with placeholders and, as far as tests replace its search, copies."""
    tokenizer = tiny_tokenizer(*PLACEHOLDER_TOKENS)
    return Translator(tiny_model(tokenizer, placeholders=True), tokenizer)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (TEXTS[0], "zwei <ph1> <ph2> <ph3> <ph4> <ph5>, <ph6> (1,<ph7>.<ph8>) und <ph1>"),
        (TEXTS[1], "<ph1><ph2>"),
        (TEXTS[2], "B<ph1> aus den <ph2>ern <ph3> <ph4>"),
        (TEXTS[4], TEXTS[4]),
    ],
)
def test_spans_become_tokens_and_come_back(text, read):
    edited = masked(text)
    assert edited.text == read and restored(read, edited).text == text
    assert edited.inverse().text == text


@pytest.mark.parametrize(
    "span",
    [
        "{n, plural, offset:1 =0 {none of {x}} one {# file} other {# files}}",
        "{n, plural, one {{m, plural, one {{s, select, a {of {x}} other {}}} other {}}} other {}}",
        "{when, date, short}",
        "{{ user.name | upper }}",
        "{{#if is_new}}",
        "{{{raw}}}",
        "{%- if x == 3 -%}",
        "{# a remark #}",
        "<%= @name %>",
        "%{count}",
        "{ $user }",
        "%'d",
        "%1$'.10d",
        "%,.2f",
        ":count",
        "$t(menu:open, {'count': 2})",
        "@:message.hello",
        "@.lower:{'a b'}",
        "%5.2lf",
        "%#@files@",
        "%1$#@files@",
        "%arg",
        "%<PRIu64>",
        "%%",
        "https://de.wikipedia.org/wiki/Köln_(Stadt)",
        "www.a.org/b?c=(1)&d",
    ],
)
def test_a_span_is_found_whole(span):
    for text in (f"A ({span}), b", f"„{span}“.", f"看{span}。好"):
        assert PLACEHOLDER.findall(text) == [span]


@pytest.mark.parametrize("span", ["support@example.com", "https://a.org", ":count", "%d", "%<name>s", "@:a.b"])
def test_a_span_ends_where_a_word_without_spaces_begins(span):
    for text in (f"请联系{span}获取帮助", f"お{span}まで", f"메일{span}으로"):
        assert PLACEHOLDER.findall(text) == [span]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("%ds ago", ["%d"]),
        ("%dx%d", ["%d", "%d"]),
        ("%dpx, %.2fkm, %1$smal", ["%d", "%.2f", "%1$s"]),
        ("%d%%", ["%d", "%%"]),
        ("%s%d", ["%s", "%d"]),
        ("%date% and %name%", ["%date%", "%name%"]),
        ("100%sicher, 5 %ige", []),
        ("%n of %L1 in %L12, 50%n", ["%n", "%L1", "%L12"]),
        ("%ix%i, %ux%u, %lldx%lld", ["%i", "%i", "%u", "%u", "%lld", "%lld"]),
        ("%ih%im, %dmin%dsec", ["%i", "%i", "%d", "%d"]),
        ("%nmal %L1mal %imal %xmal %cmal", ["%n", "%L1", "%i", "%x", "%c"]),
        ("%-10sDatei %+dPixel %#xmal %hhdmal", ["%-10s", "%+d", "%#x", "%hhd"]),
        ("a%1b%2 %1%2 %1mal %1%", ["%1", "%2", "%1", "%2", "%1", "%1%"]),
        ("%5dpx, %1days", ["%5dpx", "%1"]),
        ("%50 indirim, %100 pamuk, %3,5 arttı", []),
        ("%name%s %file%list", ["%name%", "%file%"]),
        ("100%-ige, 100 %-ige, 9 %nicht, a %change", []),
    ],
)
def test_formats_of_printf_may_touch_letters(text, spans):
    assert PLACEHOLDER.findall(text) == spans


@pytest.mark.parametrize(
    "text", ["{Hello, world}", "100 %", "see {that one} now", "(www)", "a}} b {{", "a:b :) 1:name :smile:"]
)
def test_other_text_is_none(text):
    assert not PLACEHOLDER.findall(text)


@pytest.mark.parametrize(
    "emoji",
    [
        "😊",
        "👩\u200d👩\u200d👧\u200d👦",
        "👍🏽",
        "🇩🇪",
        "1️⃣",
        "❤️",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "👩\u200d⚕️",
        "🏳️\u200d🌈",
        "⭐",
        "☺",
        "✔\ufe0e",
        "★",
        "☎️",
        "🤷🏻\u200d♀️",
        "#️⃣",
        "👁️\u200d🗨️",
        "🧑🏾\u200d❤️\u200d💋\u200d🧑🏻",
        "🦉🐻",
    ],
)
def test_emoji_are_kept_beside_the_words_that_they_are_beside(emoji):
    source, translation = "the owl {}calls the bear", "die Eule {}ruft den Bären an"
    for text, expected in (
        (source.format(f"{emoji} "), translation.format(f"{emoji} ")),
        (f"{emoji} {source}.", f"{emoji} {translation}."),
        (f"{source} {emoji}.", f"{translation} {emoji}."),
        (f"{source}{emoji}", f"{translation}{emoji}"),
        (f"{source}. {emoji}", f"{translation}. {emoji}"),
    ):
        text, expected = text.replace("{}", ""), expected.replace("{}", "")
        read = without_emoji(text)
        assert read.text == source.replace("{}", "") + "." * ("." in text)
        written = translation.replace("{}", "") + "." * ("." in text)
        assert with_emoji(written, read).text == expected and with_emoji(read.text, read).text == text
    assert without_emoji(emoji).text == emoji and not without_emoji("a → # 12 © № z").edits
    written = "Hallo {{ name }}, wie geht es dir?"
    read = without_emoji(f"Hello {emoji} {{{{ name }}}}, how are you?")
    assert with_emoji(written, read).text == f"Hallo {emoji} {{{{ name }}}}, wie geht es dir?"


@pytest.mark.parametrize(
    ("text", "read", "translation", "restored"),
    [
        ("The owl🎉calls.", "The owl calls.", "Die Eule ruft.", "Die Eule🎉ruft."),
        ("The owl 🎉calls.", "The owl calls.", "Die Eule ruft.", "Die Eule 🎉ruft."),
        ("The owl🎉 calls.", "The owl calls.", "Die Eule ruft.", "Die Eule🎉 ruft."),
        ("Hi!🎉Bye", "Hi! Bye", "Hallo! Ade", "Hallo!🎉Ade"),
        ("Hi 🎉 (owl)", "Hi (owl)", "Hi (Eule)", "Hi 🎉 (Eule)"),
        ("🦉: The owl", "The owl", "Die Eule", "🦉: Die Eule"),
        ("🦉 – the owl", "the owl", "die Eule", "🦉 – die Eule"),
        ("(🦉) The owl", "The owl", "Die Eule", "(🦉) Die Eule"),
        ("(🦉🐻): The owl", "The owl", "Die Eule", "(🦉🐻): Die Eule"),
        ("The owl (🦉) calls.", "The owl calls.", "Die Eule ruft.", "Die Eule (🦉) ruft."),
        ("The owl (🦉).", "The owl.", "Die Eule.", "Die Eule (🦉)."),
        ("The owl🦉, calls", "The owl, calls", "Die Eule, ruft", "Die Eule🦉, ruft"),
        ("Great job 😀!", "Great job!", "बहुत अच्छा काम है!", "बहुत अच्छा काम है 😀!"),
    ],
)
def test_a_model_reads_what_stands_there_without_the_emoji(text, read, translation, restored):
    edited = without_emoji(text)
    assert edited.text == read and with_emoji(translation, edited).text == restored


def test_a_translator_does_not_read_emoji(monkeypatch):
    tokenizer = tiny_tokenizer()
    translator = Translator(tiny_model(tokenizer), tokenizer)
    monkeypatch.setattr(translator_module, "search", copy)
    text = "zwei 👩‍⚕️ Katzen schlafen 🇩🇪"
    ((found,),) = translator.hypotheses([text], alignments=True)
    assert found.text == text and tokenizer.unk_token_id not in translator.encode([text])[0][0]
    assert len(found.alignment.word_scores) == 5


def test_numbered_tags_are_spans():
    assert masked("<0>text</0> <1/> < 2> <3").text == "<ph1>text<ph2> <ph3> < 2> <3"


def test_they_come_back_in_any_order_without_tokens_of_the_model():
    edited = masked(" ".join(map(str, range(10, 22))))
    assert edited.text.endswith("<ph10> 20 21")
    assert restored("<ph2> <ph1>", masked("{x} {y}")).text == "{y} {x}"
    assert restored("<ph1>, <ph9>!", masked("{x}")).text == "{x}, !"
    assert restored("<ph1> <ph1> a <ph1>", masked("{x} {x} b")).text == "{x} {x} a "


def test_a_pair_has_tokens_where_both_sides_have_the_span_as_often():
    pair = masked_pair("In 1999 {x} and 2001", "2001 {x} {x} 1999", learned=True)
    source, target = (side.text.split() for side in pair)
    assert source[1] in PLACEHOLDER_TOKENS and source[1] == target[3] and source[4] == target[0] != source[1]
    assert "{x}" in source and target[1:3] == ["{x}", "{x}"]
    evaluated = [side.text for side in masked_pair("{x} and 2001", "nothing but {y} {x}", learned=False)]
    assert evaluated == ["<ph1> and <ph2>", "nothing but {y} <ph1>"]


def test_digits_of_other_scripts_are_text():
    """The other side mostly has those of ASCII, so that they were no spans in training."""
    assert masked("売上は２０２３年, ٢٠٢٣, 2023").text == "売上は２０２３年, ٢٠٢٣, <ph1>"


def test_in_training_all_tokens_are_used():
    sources = [masked_pair(f"{{x}} {word}", "{x}", learned=True)[0].text for word in map(chr, range(97, 197))]
    assert {source.split()[0] for source in sources} == set(PLACEHOLDER_TOKENS)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram"])
def test_tokenizers_keep_tokens_and_the_text_around_them(kind):
    settings = TokenizerSettings(kind=kind, vocab_size=330)
    tokenizer = train_tokenizer(TEXTS * 3, settings, language_tags=PLACEHOLDER_TOKENS)
    for text in TEXTS:
        edited = masked(text)
        ids = tokenizer(edited.text)["input_ids"]
        assert set(tokenizer.convert_ids_to_tokens(ids)) >= {edit.new for edit in edited.edits}
        assert restored(tokenizer.decode(ids, skip_special_tokens=True), edited).text == text.strip()


def copy(model, sources, *arguments, **options):
    return [[Candidate(list(source[:-1]))] for source in sources]


def test_a_translator_restores_them_with_alignments(copying, monkeypatch):
    monkeypatch.setattr(translator_module, "search", copy)
    text = "zwei {name} und https://a.org {name}"
    ((found,),) = copying.hypotheses([text], alignments=True)
    assert found.text.split()[1::2] == ["{name}", "https://a.org"] and found.text.endswith(" {name}")
    assert (found.alignment.source, found.alignment.target) == (text, found.text)
    (part,) = found.alignment.parts
    spans = [text[slice(*span)].strip() for span in part.source.tolist()]
    assert spans.count("{name}") == 2 and spans.count("https://a.org") == 1
    assert [found.text[slice(*span)].strip() for span in part.target.tolist()].count("{name}") == 2
    assert len(found.alignment.word_scores) == len(found.text.split())


def test_a_translator_searches_for_those_that_are_missing(copying):
    for text in (TEXTS[0].replace("1,234.56", "1999"), "{x} zwei"):
        best = copying.translate(text, num_return_sequences=2)
        spans = [text[edit.start : edit.end] for edit in masked(text).edits]
        assert all(span in found for span in spans for found in best)
    assert all("<ph" not in found for found in best)


def test_a_pipeline_restores_them(copying, monkeypatch):
    def echo(input_ids, **arguments):
        return torch.cat((torch.full_like(input_ids[:, :1], 2), input_ids), dim=1)

    monkeypatch.setattr(copying.model, "generate", echo)
    translate = TranslationPipeline(model=copying.model, tokenizer=copying.tokenizer)
    for options in ({}, {"batch_size": 2}):
        results = translate(["zwei {a} {b}", "{x} und"], return_alignments=True, **options)
        assert [result["translation_text"].split()[-1] for result in results] == ["{b}", "und"]
        assert all("<ph" not in result["translation_text"] for result in results)
        assert len(results[0]["word_scores"]) == 3


def test_a_model_that_was_trained_without_reads_the_text_as_it_is():
    tokenizer = tiny_tokenizer(*PLACEHOLDER_TOKENS)
    inputs = TranslationInputs(tiny_model(tokenizer).config, tokenizer)
    assert inputs.edited("{x}") == EditedText("{x}") and inputs.restored("<ph1>", "{x}").text == "<ph1>"
