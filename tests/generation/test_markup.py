# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest

pytest.importorskip("sentencex", reason="needs the extra 'serve'")

from residual_hf.generation.html_text import HTMLText, visible_text
from residual_hf.generation.markup import Document

LAYOUT = "# Title\n\n  - Hello Dr. Smith.  How are you? \r\n  - Fine!\n\n----\n\t3.14 \n"


class document:
    """A text, or HTML with `markup`, whose sentences can be replaced."""

    def __init__(self, text, fits=lambda sentence: True, *, markup=False, language="en"):
        self.html = HTMLText(text) if markup else None
        self.document = Document(self.html.blocks if markup else [[text]], language, fits)
        self.sentences, self.aligned = self.document.sentences, self.document.aligned

    def join(self, translations, alignments=None):
        blocks = self.document.join(translations, alignments)
        return self.html.render(blocks) if self.html else "".join(blocks[0])


def test_layout_numbers_and_markers_stay_outside_sentences():
    found = document(LAYOUT)
    assert found.sentences == ["Title", "Hello Dr. Smith.", "How are you?", "Fine!"]
    assert found.join(found.sentences) == LAYOUT
    assert found.join("ABCD") == "# A\n\n  - B  C \r\n  - D\n\n----\n\t3.14 \n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\n ",
        "...",
        "世界。你好。",
        "a\u2028b",
        "Plan B\u00a0. Gut.",
        "C\u3000.\u202f.",
        "🙂 x",
        "- ",
        "a" * 1000,
    ],
)
@pytest.mark.parametrize("markup", [False, True])
def test_any_text_keeps_its_layout(text, markup):
    found = document(text, lambda sentence: len(sentence) <= 10, markup=markup)
    assert found.join(found.sentences) == text
    assert all(len(sentence) <= 10 for sentence in found.sentences)


def test_long_sentences_are_split_at_spaces():
    words = " ".join(f"word{i}" for i in range(100))
    parts = document(words, lambda sentence: len(sentence) <= 60).sentences
    assert " ".join(parts) == words and max(map(len, parts)) <= 60 and len(parts) < 20


def test_html_keeps_tags_entities_code_and_untranslated_elements():
    source = (
        '<!doctype html><p class="a">Ham &amp; eggs.</p><!-- c --><br/><code>x &lt; y</code> is '
        '<script>if (a < b) {}</script><b translate="no">Name<b>x</b></b> and &lt;more&gt;<?p?>'
    )
    found = document(source, markup=True)
    assert found.sentences == ["Ham & eggs.", "x < y is Namex and <more>"]
    expected = source.replace("Ham &amp; eggs.", "A &lt; B").replace("and &lt;more&gt;", "AND &lt;MORE&gt;")
    assert found.join(["A < B", "x < y is Namex AND <MORE>"]) == expected


def test_elements_without_an_end_tag_end_nothing():
    source = '<IMG translate="no" src="x"><P>Guten Tag!</P ><br translate="no">Ja.<![CDATA[x y]]>'
    found = document(source, markup=True)
    assert found.sentences == ["Guten Tag!", "Ja."] and found.join(found.sentences) == source


@pytest.mark.parametrize(
    ("source", "sentences"),
    [
        ("<li translate=no>Foo bar<li>Second item</ul><p>The rest", ["Second item", "The rest"]),
        ("<ul><li translate='NO'>Foo bar</ul><p>The rest", ["The rest"]),
        ("<div translate=no><p>a b<p>c d</div>The rest", ["The rest"]),
        ("<li translate=no>a<ul><li>b c</li></ul></li>The rest", ["The rest"]),
        ("<tr><td translate=no>a b<tr><td>c d", ["c d"]),
        ("If a < b then c is small.", ["If a < b then c is small."]),
    ],
)
def test_elements_may_lack_their_end_tag(source, sentences):
    assert document(source, markup=True).sentences == sentences


def test_markup_that_is_no_section_is_text():
    found = document("a <![x b", markup=True)
    assert found.join(found.sentences) == "a &lt;![x b"


def test_text_that_is_not_translated_stays_escaped():
    source = "<textarea>&lt;/textarea&gt;&lt;img onerror=x&gt;</textarea><script>a < b"
    assert document(source, markup=True).join([]) == source


def test_sentences_have_spaces_between_them_as_their_language_writes():
    chinese, english = "你好。我很好。", "Hello. I am fine."
    assert document(chinese, language="zh").join(["Hello.", "I am fine."]) == english
    assert document(english).join(["你好。", "我很好。"]) == chinese
    assert document(chinese, language="zh").join(["你好。", "我很好。"]) == chinese
    assert document(english).join(["สวัสดีครับ", "ผมสบายดี"]) == "สวัสดีครับ ผมสบายดี"


def test_visible_text_has_neither_markup_nor_code():
    source = '<p class="intro">Guten Tag!</p><script>return the(element)</script><code>for the</code> Ja &amp; nein'
    assert visible_text(source).split() == ["Guten", "Tag!", "Ja", "&", "nein"]
