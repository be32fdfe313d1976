# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text, HTML, Markdown and subtitles."""

from __future__ import annotations

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("markdown_it", reason="the extra [documents] is not installed")

from support.documents import UpperCase, rewritten, upper_cased

from residual_hf.base.errors import InputError
from residual_hf.documents import document, translation
from residual_hf.documents.formats import read_document

MARKDOWN = """---
title: front matter
---
# A title #

> two **bold
> words** and [a link](http://x.de/a_(b) "its title") or <http://y.z> \\*so\\* &amp; ~~old~~{two}
> hard `code` end[^1]

- [ ] one
  item
- an ![image](i.png) here

| a | b |
|---|:-:|
| c \\| d | `e` f |

```python
code
```
<div>block</div>

Another
=======

[^1]: a *note* here
"""
UPPER_CASE = """---
title: front matter
---
# A TITLE #

> TWO **BOLD WORDS** AND [A LINK](http://x.de/a_(b) "its title") OR <http://y.z> \\*SO\\* &amp; ~~OLD~~{two}
> HARD `code` END[^1]

- [ ] ONE ITEM
- AN ![image](i.png) HERE

| A | B |
|---|:-:|
| C \\| D | `e` F |

```python
code
```
<div>block</div>

ANOTHER
=======

[^1]: A *NOTE* HERE
"""
SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
<i>a sentence of</i>
two other lines

2
00:00:03,000 --> 00:00:04,000
- {\\an8}hello & you
- hi
"""
CAPTIONS = """WEBVTT - title

NOTE a comment

STYLE
::cue { color: red }

first
00:01.000 --> 00:02.000 align:start
<v Ann>you &amp; <c.loud>me
"""


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one line\n\n 2. two\r\nlast", "ONE LINE\n\n 2. TWO\r\nLAST"),
        ("a.md", MARKDOWN.replace("{two}", "  "), UPPER_CASE.replace("{two}", "  ")),
        ("b.md", "a * b\n\n1986\\. was good\n", "A * B\n\n1986\\. WAS GOOD\n"),
        (
            "a.srt",
            SUBTITLES,
            SUBTITLES.replace("a sentence of</i>", "A SENTENCE OF</i>")
            .replace("two other lines", "TWO OTHER LINES")
            .replace("hello & you", "HELLO & YOU")
            .replace("hi", "HI"),
        ),
        (
            "c.md",
            "[![a](a.svg)](b) ![c](c) text ![d](d) `e` ![f](f) ![g](g) **h** ![i](i)\n",
            "[![a](a.svg)](b) ![c](c) TEXT ![d](d) `e` ![f](f) ![g](g) **H** ![i](i)\n",
        ),
        (
            "d.md",
            "- [x] so $a*b*c_1\\,$ for $5 or $10\n\n> an $x\n> \\in y$ end\n\nsum\n$$\na\n= b\n$$\ntext $$c$$\n",
            "- [x] SO $a*b*c_1\\,$ FOR $5 OR $10\n\n> AN $x\n> \\in y$ END\n\nSUM\n$$\na\n= b\n$$\nTEXT $$c$$\n",
        ),
        (
            "f.md",
            "+++\ntitle = 'x'\n+++\n> [!NOTE]\n> so\n\n:::tip Title\nin\n:::\n\n!!! note \"y\"\n    text\n\n"
            'term\n:  what\n\n*[AB]: short\n[[_TOC_]]\n--8<-- "a.md"\n',
            "+++\ntitle = 'x'\n+++\n> [!NOTE]\n> SO\n\n:::tip Title\nIN\n:::\n\n!!! note \"y\"\n    TEXT\n\n"
            'TERM\n:  WHAT\n\n*[AB]: short\n[[_TOC_]]\n--8<-- "a.md"\n',
        ),
        (
            "g.md",
            'a <!-- kept --> b <?php x ?> <span title="a > b">c</span><br>d\n',
            'A <!-- kept --> B <?php x ?> <span title="a > b">C</span><br>D\n',
        ),
        (
            "c.srt",
            '1 --> 2\n<font color="red" face="A">one two three</font>\n{\\an8}four five six\n',
            '1 --> 2\n<font color="red" face="A">ONE TWO THREE</font>\n{\\an8}FOUR FIVE SIX\n',
        ),
        (
            "b.vtt",
            "1:00 --> 2:00\n<v A>one</v>\n<v B>two\xa0x</v>\n",
            "1:00 --> 2:00\n<v A>ONE</v>\n<v B>TWO\xa0X</v>\n",
        ),
        ("b.html", "<p>to {{ name }}, %s</p>", "<p>TO {{ name }}, %s</p>"),
        (
            "h.md",
            '# a {#b .c}\n\n[d](e){:target="_blank" rel="f"} [g]{.h i=1} :a_b: :+1: at 1:20:3 a: b: c {j k}\n',
            '# A {#b .c}\n\n[D](e){:target="_blank" rel="f"} [G]{.h i=1} :a_b: :+1: AT 1:20:3 A: B: C {J K}\n',
        ),
        (
            "i.md",
            "a[^1]\n\n[^1]: b\n\n    c\n\n    - d\n\n            code\n[^2]: e\n[^3]: f\n\ng\n",
            "A[^1]\n\n[^1]: B\n\n    C\n\n    - D\n\n            code\n[^2]: E\n[^3]: F\n\nG\n",
        ),
        ("e.md", "- {{ n }}, www.a.b[^1] end\n", "- {{ n }}, www.a.b[^1] END\n"),
        (
            "b.srt",  # no empty line between the cues
            "1\n00:00:01,000 --> 00:00:02,000\none\n2\n00:00:02,000 --> 00:00:03,000\ntwo -->\n",
            "1\n00:00:01,000 --> 00:00:02,000\nONE\n2\n00:00:02,000 --> 00:00:03,000\nTWO -->\n",
        ),
        ("d.srt", "1\r1 --> 2\rone\rtwo\r\r", "1\n1 --> 2\nONE\nTWO\n\n"),
        ("a.txt", "one\rtwo\r", "ONE\nTWO\n"),
        ("c.txt", "one      two\n   three  four\n", "ONE      TWO\n   THREE  FOUR\n"),
        ("c.vtt", "WEBVTT - title\n\n", "WEBVTT - title\n\n"),
        (
            "d.vtt",
            "WEBVTT\nX: y\n\nSTYLE\n::cue {color: red}\n\nNOTE a\nb\n",
            "WEBVTT\nX: y\n\nSTYLE\n::cue {color: red}\n\nNOTE a\nb\n",
        ),
        (
            "e.vtt",  # a blank line ends a cue
            "WEBVTT\n\n1:00 --> 2:00\none\n\nNOTE two\n\nid\n2:00 --> 3:00\nthree\n",
            "WEBVTT\n\n1:00 --> 2:00\nONE\n\nNOTE two\n\nid\n2:00 --> 3:00\nTHREE\n",
        ),
        (
            "f.vtt",
            "1:00 --> 2:00\nthe <ruby>owl<rt>aul</rt></ruby> and <ruby>fox<rt>x</ruby> call\n",
            "1:00 --> 2:00\nTHE <ruby>OWL<rt>aul</rt></ruby> AND <ruby>FOX<rt>x</rt></ruby> CALL\n",
        ),
        (
            "e.srt",
            "1\n1 --> 2\none\n\ntwo\n \n3 of them\n\n2\n2 --> 3\n\nfour\n\n3 --> 4\nfive\n",
            "1\n1 --> 2\nONE\n\nTWO\n \n3 OF THEM\n\n2\n2 --> 3\n\nFOUR\n\n3 --> 4\nFIVE\n",
        ),
        (
            "f.srt",
            "1\n1 --> 2\nthe owl\\Ncalls\n3 --> 4\n- a \\N- b\n5 --> 6\nopen C:\\new\\hno\n",
            "1\n1 --> 2\nTHE OWL\nCALLS\n3 --> 4\n- A\n- B\n5 --> 6\nOPEN C:\\NEW\xa0NO\n",
        ),
        (
            "g.srt",
            "1 --> 2\n<ruby>owl<rp>(</rp><rt>aul</rt></ruby> s\n",
            "1 --> 2\n<ruby>OWL<rp>(</rp><rt>aul</rt></ruby> S\n",
        ),
        ("p.md", "the <ruby>owl<rt>aul</rt></ruby> calls\n", "THE <ruby>OWL<rt>aul</rt></ruby> CALLS\n"),
        (
            "j.md",
            "see [[Page one]], [[Page one#b|the page]] and ![[a.png|300]] or \\[[x]\n",
            "SEE [[Page one]], [[Page one#b|THE PAGE]] AND ![[a.png|300]] OR \\[[X]\n",
        ),
        ("k.md", "a\r\n\r\n$$\r\na\r\n- b\r\n$$\r\n", "A\r\n\r\n$$\r\na\r\n- b\r\n$$\r\n"),
        ("n.md", "- a\n\tb <https://x.de/a%20b>\n", "- A B <https://x.de/a%20b>\n"),
        ("o.md", "run <code>ls -l</code> now\n", "RUN <code>ls -l</code> NOW\n"),
        ("q.md", "> a  \r\n> b\\\r\n> c\r\n", "> A  \r\n> B\\\r\n> C\r\n"),
        ("l.md", "# a\r\r\n\r\r\nb\rc\r\n", "# A\r\r\n\r\r\nB C\r\n"),
        ("m.md", "\ufeff# a *b*\n", "\ufeff# A *B*\n"),
        ("b.txt", "\ufeffone\n", "ONE\n"),
        ("a.vtt", CAPTIONS, CAPTIONS.replace("you", "YOU").replace("me\n", "ME\n")),
        (
            "a.html",
            "<p title='x'>a &amp; <b>b</b><br/>c<!-- d --></p>",
            "<p title='x'>A &amp; <b>B</b><br/>C<!-- d --></p>",
        ),
    ],
)
def test_only_text_changes(tmp_path, monkeypatch, name, content, expected):
    (tmp_path / name).write_bytes(content.encode())
    assert upper_cased(monkeypatch, tmp_path / name).read_bytes().decode() == expected
    assert rewritten(monkeypatch, tmp_path / name).read_bytes().decode().upper() == expected.upper()


def test_emphasis_without_words_leaves_no_marks(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("er **rief** mich **an _jetzt_** [so](b)\n")
    opened = read_document(path)
    empty = [each if isinstance(each, str) else each._replace(pieces=[]) for each in opened.blocks[0]]
    nested = [
        each if isinstance(each, str) else each._replace(pieces=["", each._replace(pieces=[])]) for each in empty
    ]
    for block in (empty, nested):
        opened.write(path, [block])
        assert "*" not in path.read_text() and "](b)" in path.read_text()


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_attributes_of_kramdown_stay(tmp_path, monkeypatch, end):
    text = "text\n{: .note }\n\n* a list\n{:toc}\n\n> quote\n> {: #id }\n\n[TOC]\n".replace("\n", end)
    (tmp_path / "a.md").write_bytes(text.encode())
    expected = text.replace("text", "TEXT").replace("a list", "A LIST").replace("quote", "QUOTE")
    assert upper_cased(monkeypatch, tmp_path / "a.md").read_bytes().decode() == expected


def test_marks_of_tasks_are_no_text(tmp_path):
    (tmp_path / "a.md").write_text("- [ ] one [x] two\n- three\n")
    first, second = read_document(tmp_path / "a.md").blocks
    assert first[0].content[0] == "[ ] " and first[1:] == ["one [x] two"] and second == ["three"]


def test_web_pages_keep_their_encoding(tmp_path, monkeypatch):
    page = '<meta charset="iso-8859-1"><p>\u00fcber {}</p>'
    (tmp_path / "a.html").write_bytes(page.format("x").encode("latin-1"))
    assert upper_cased(monkeypatch, tmp_path / "a.html").read_bytes() == page.format("X").replace(
        "\u00fcber", "\u00dcBER"
    ).encode("latin-1")


def test_pages_of_ascii_are_written_in_the_encoding_that_they_name(tmp_path, monkeypatch):
    page = '<meta charset="iso-8859-1"><p>a &uuml; &lArr;</p>'
    (tmp_path / "a.html").write_text(page)
    written = upper_cased(monkeypatch, tmp_path / "a.html").read_bytes()
    assert written == '<meta charset="iso-8859-1"><p>A \u00dc &#8656;</p>'.encode("cp1252")


@pytest.mark.parametrize(
    ("page", "written"),
    [
        ("<p>gr&ouml;&szlig;er</p>", "<p>GR&#214;SSER</p>"),
        ("<p>größer</p><!--ö--><script>'ö'</script>", "<p>GR&#214;SSER</p><!--ö--><script>'ö'</script>"),
        ("\ufeff<p>größer</p>", "\ufeff<p>GRÖSSER</p>"),
        ("<meta charset=utf-8><p>gr&ouml;&szlig;er</p>", "<meta charset=utf-8><p>GRÖSSER</p>"),
        ("<p>größer &lArr;</p>".encode("cp1252"), "<p>GRÖSSER &#8656;</p>".encode("cp1252")),
    ],
)
def test_pages_that_name_no_encoding_have_character_references(tmp_path, monkeypatch, page, written):
    page, written = (text.encode() if isinstance(text, str) else text for text in (page, written))
    (tmp_path / "a.html").write_bytes(page)
    assert upper_cased(monkeypatch, tmp_path / "a.html").read_bytes() == written
    (tmp_path / "a.xhtml").write_text("<p>größer</p>", encoding="utf-8")  # UTF-8 by definition
    assert upper_cased(monkeypatch, tmp_path / "a.xhtml").read_text("utf-8") == "<p>GRÖSSER</p>"


def test_what_the_model_reads_of_subtitles(tmp_path):
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n1:00 --> 2:00\nThe <ruby>owl<rt>aul</rt></ruby> calls.\n")
    (tmp_path / "a.srt").write_text("1 --> 2\nThe owl\\Ncalls.\n")
    for name in ("a.vtt", "a.srt"):
        assert translation.NumberedDocument(tmp_path / name).text == "The owl calls."


def test_the_language_of_a_page_is_that_of_its_translation(tmp_path, monkeypatch):
    page = (
        '<!DOCTYPE html><html xml:lang="{0}-GB" lang=\'{0}\'><p title="set lang=en" LANG=fr>OUI <i lang={0}>A</i> '
        '<code lang=en>x</code> <a hreflang="en">B</a></p><p translate=no lang=en>name</p></html>'
    )
    (tmp_path / "a.html").write_text(page.format("en"))
    assert upper_cased(monkeypatch, tmp_path / "a.html").read_text() == page.format("de").replace("de-GB", "de")
    monkeypatch.delattr(UpperCase.model.config, "source_lang")
    assert upper_cased(monkeypatch, tmp_path / "a.html", overwrite=True).read_text() == page.format("en")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.html", "<!--" * 200, "a tag or comment that begins at character 1 has no end"),
        ("a.html", "<p>x</p><script>a<b</script>" + "<a b='" * 201, "that begins at character 29 has no end"),
        ("a.md", b"a\xff", "not UTF-8 at byte 2"),
        ("a.txt", "a\0b", "has NUL characters, must be text"),
        ("a.html", "<p>text</p>".encode("utf-16-le"), "has NUL characters, must be text"),
        ("a.html", b"<meta charset=ascii><p>\xff", "not ASCII at byte 24"),
        ("a.html", b"<meta charset=hex><p>\xff", "a.html: names the unknown encoding hex, and is not UTF-8"),
        ("a.xhtml", b"<?xml version='1.0' encoding='x-user'?><p>\xff", "names the unknown encoding x-user"),
        ("a.html", b"<meta charset=undefined><p>\xff", "not UNDEFINED at byte 28"),
        ("a.srt", "x" * 200, "has more than 0 MiB"),
        ("b.srt", "some text\n", "b.srt: no line has the times of a subtitle, such as 00:01:02,500 --> "),
        ("a.vtt", "WEBVTT\n\nsome text\n", "a.vtt: no line has the times of a subtitle"),
        ("gone.md", None, "no such file: .*gone.md"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr(document, "LARGEST_TEXT", 199 if name == "a.srt" else 2000)
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_document(tmp_path / name)


def test_work_is_bounded(tmp_path, monkeypatch, caplog):
    """Deep nesting, and a paragraph of so many elements that their places would take long to find."""
    (tmp_path / "a.srt").write_text("1 --> 2\n" + "<b>" * 500 + "x" + "</b>" * 500 + "\n")
    expected = (tmp_path / "a.srt").read_text().replace("x", "X")
    assert upper_cased(monkeypatch, tmp_path / "a.srt").read_text() == expected
    monkeypatch.setattr(translation, "MOST_ELEMENTS", 10)
    (tmp_path / "a.md").write_text("*a* " * 11 + "\n\nb\n")
    assert upper_cased(monkeypatch, tmp_path / "a.md").read_text() == "*a* " * 11 + "\n\nB\n"
    assert "a.md: 1 paragraphs of more than 10 elements stay" in caplog.text
