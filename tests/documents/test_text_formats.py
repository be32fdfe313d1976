"""Text, HTML, Markdown and subtitles."""

from functools import partial

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("markdown_it", reason="the extra [documents] is not installed")

from support.documents import UpperCase, in_upper_case, rewritten, upper_cased, upper_text, with_marks

from residual_hf.base.errors import InputError
from residual_hf.documents import document, translation
from residual_hf.documents.translation import read_document

MARKDOWN = """---
title: front matter
---
# «A title» #

> «two» **«bold»
> «words»** «and» [«a link»](http://x.de/a_(b) "its title") «or» <http://y.z> \\*«so»\\* &amp; ~~«old»~~{two}
> «hard» `code` «end»[^1]

- [ ] «one»
  «item»
- «an» ![image](i.png) «here»

| «a» | «b» |
|---|:-:|
| «c» \\| «d» | `e` «f» |

```python
code
```
<div>block</div>

«Another»
=======

[^1]: «a» *«note»* «here»
""".replace("{two}", "  ")
MARKDOWN, UPPER_CASE = with_marks(MARKDOWN)
KRAMDOWN = "«text»\n{: .note }\n\n* «a list»\n{:toc}\n\n> «quote»\n> {: #id }\n\n[TOC]\n"
MARKED = [
    ("a.txt", "«one line»\n\n 2. «two»\r\n«last»"),
    ("b.md", "«a» * «b»\n\n1986\\. «was good»\n"),
    (
        "a.srt",
        "1\n00:00:01,000 --> 00:00:02,000\n<i>«a sentence of»</i>\n«two other lines»\n\n2\n"
        "00:00:03,000 --> 00:00:04,000\n- {\\an8}«hello & you»\n- «hi»\n",
    ),
    ("c.md", "[![a](a.svg)](b) ![c](c) «text» ![d](d) `e` ![f](f) ![g](g) **«h»** ![i](i)\n"),
    (
        "d.md",
        "- [x] «so» $a*b*c_1\\,$ «for» $5 «or» $10\n\n> «an» $x\n> \\in y$ «end»\n\n«sum»\n$$\na\n= b\n$$\n"
        "«text» $$c$$\n",
    ),
    (
        "f.md",
        "+++\ntitle = 'x'\n+++\n> [!NOTE]\n> «so»\n\n:::tip Title\n«in»\n:::\n\n!!! note \"y\"\n"
        '    «text»\n\n«term»\n:  «what»\n\n*[AB]: short\n[[_TOC_]]\n--8<-- "a.md"\n',
    ),
    ("g.md", '«a» <!-- kept --> «b» <?php x ?> <span title="a > b">«c»</span><br>«d»\n'),
    ("c.srt", '1 --> 2\n<font color="red" face="A">«one two three»</font>\n{\\an8}«four five six»\n'),
    ("b.vtt", "1:00 --> 2:00\n<v A>«one»</v>\n<v B>«two»\xa0«x»</v>\n"),
    ("b.html", "<p>«to» {{ name }}, %s</p>"),
    (
        "e.html",
        "{% if a > 3 and b < 5 %}<p>«see» {{ a && b }} «item»{% if n > 1 %}«s»{% endif %}, {{ c &amp;&amp; d }}, "
        "<%= e %> «and» <% if f %>«new»<% end %> {{ g|h('<br>') }}</p>{% endif %}"
        "<p>«begins» <code>{{</code></p><p>«ends» <code>}}</code></p>\n",
    ),
    (
        "f.html",
        "<?php foreach ($a->b as $c => $d): ?><a {% if a > b %}class='c'{% endif %} href=\"<?= $a->b ?>\">«it is»</a>"
        "<?php endforeach ?><p>«5» &gt; 3 «x»</p><script>if (a && {{ b > c }}) d('</b>')</script><?php $a->b();\n",
    ),
    (
        "h.md",
        "# «a» {#b .c}\n\n"
        '[«d»](e){:target="_blank" rel="f"} [«g»]{.h i=1} :a_b: :+1: «at» 1:20:3 «a»: «b»: «c» {«j k»}\n',
    ),
    ("i.md", "«a»[^1]\n\n[^1]: «b»\n\n    «c»\n\n    - «d»\n\n            code\n[^2]: «e»\n[^3]: «f»\n\n«g»\n"),
    ("e.md", "- {{ n }}, www.a.b[^1] «end»\n"),
    ("b.srt", "1\n00:01,000 --> 00:02,000\n«one»\n2\n00:02,000 --> 00:03,000\n«two» -->\n"),  # no empty line between
    (
        "h.vtt",
        "WEBVTT\n\n1:00 --> 2:00\n \n«you»<0:00:10.000> <c>«are»</c>\n\n2:00 --> 3:00\n«here»\n \n",
    ),  # of YouTube
    (
        "u.md",
        "«a»\n\n{% highlight ruby %}\ndef b\n\n  c\n{% endhighlight %}\n\n"
        "{{< highlight go >}}\nd\n{{< /highlight >}}\n«e»\n",
    ),
    (
        "w.md",
        "{% comment %}x{% endcomment %} «now»\n\n```\n{% highlight a %}\n```\n\n«b»\n\n```\n{% endhighlight %}\n"
        "```\n\n"
        "/// «begins a comment.»\n",
    ),
    ("v.md", "/// tip | Title\n«text»\n///\n\n[^1]:\n    «b»\n\n    «c»\n"),
    ("c.txt", "«one      two»\n   «three  four»\n"),
    ("c.vtt", "WEBVTT - title\n\n"),
    ("d.vtt", "WEBVTT\nX: y\n\nSTYLE\n::cue {color: red}\n\nNOTE a\nb\n"),
    ("e.vtt", "WEBVTT\n\n1:00 --> 2:00\n«one»\n\nNOTE two\n\nid\n2:00 --> 3:00\n«three»\n"),  # a blank line ends a cue
    ("e.srt", "1\n1 --> 2\n«one»\n\n«two»\n \n3 «of them»\n\n2\n2 --> 3\n\n«four»\n\n3 --> 4\n«five»\n"),
    ("g.srt", "1 --> 2\n<ruby>«owl»<rp>(</rp><rt>aul</rt></ruby> «s»\n"),
    ("p.md", "«the» <ruby>«owl»<rt>aul</rt></ruby> «calls»\n"),
    ("j.md", "«see» [[Page one]], [[Page one#b|«the page»]] «and» ![[a.png|300]] «or» \\[[«x»]\n"),
    ("k.md", "«a»\r\n\r\n$$\r\na\r\n- b\r\n$$\r\n"),
    ("o.md", "«run» <code>ls -l</code> «now»\n"),
    ("q.md", "> «a»  \r\n> «b»\\\r\n> «c»\r\n"),
    ("m.md", "\ufeff# «a» *«b»*\n"),
    (
        "a.vtt",
        "WEBVTT - title\n\nNOTE a comment\n\nSTYLE\n::cue { color: red }\n\nfirst\n"
        "00:01.000 --> 00:02.000 align:start\n<v Ann>«you» &amp; <c.loud>«me»\n",
    ),
    ("t.md", "[«a»](b)[*«c»*](d)![i](j)[«e»](f)\n\n**[«a»][][«b»]**\n\n[a]: x\n[b]: y\n"),
    (
        "c.html",
        "<nav><a href=a>«Home»</a><a href=b>«About us»</a></nav><label>«Name»<input></label><label>«Age»</label>",
    ),
    ("r.md", KRAMDOWN),
    ("s.md", KRAMDOWN.replace("\n", "\r\n")),
    ("a.html", "<p title='x'>«a» &amp; <b>«b»</b><br/>«c»<!-- d --></p>"),
    ("d.txt", "«one»\v«two»\n\v\n«three»\v\n"),
    ("h.srt", "1 --> 2\n«one»\v«two»\n"),
]
"""Text between « and » is translated."""
REWRITTEN = [
    ("a.md", MARKDOWN, UPPER_CASE.replace("BOLD\n> WORDS", "BOLD WORDS").replace("ONE\n  ITEM", "ONE ITEM")),
    ("d.srt", "1\r1 --> 2\rone\rtwo\r\r", "1\n1 --> 2\nONE\nTWO\n\n"),
    ("a.txt", "one\rtwo\r", "ONE\nTWO\n"),
    (
        "f.vtt",
        "1:00 --> 2:00\nthe <ruby>owl<rt>aul</rt></ruby> and <ruby>fox<rt>x</ruby> call\n",
        "1:00 --> 2:00\nTHE <ruby>OWL<rt>aul</rt></ruby> AND <ruby>FOX<rt>x</rt></ruby> CALL\n",
    ),
    (
        "f.srt",
        "1\n1 --> 2\nthe owl\\Ncalls\n3 --> 4\n- a \\N- b\n5 --> 6\nopen C:\\new\\hno\n",
        "1\n1 --> 2\nTHE OWL\nCALLS\n3 --> 4\n- A\n- B\n5 --> 6\nOPEN C:\\NEW\xa0NO\n",
    ),
    ("n.md", "- a\n\tb <https://x.de/a%20b>\n", "- A B <https://x.de/a%20b>\n"),
    ("l.md", "# a\r\r\n\r\r\nb\rc\r\n", "# A\r\r\n\r\r\nB C\r\n"),
    ("b.txt", "\ufeffone\n", "ONE\n"),
    ("d.html", "<p>one\vtwo</p>", "<p>ONE TWO</p>"),
]
"""Other forms of lines and marks, and what is written."""


@pytest.mark.parametrize(
    ("name", "content", "expected"), [*((name, *with_marks(text)) for name, text in MARKED), *REWRITTEN]
)
def test_only_text_changes(tmp_path, monkeypatch, name, content, expected):
    assert upper_text(monkeypatch, tmp_path / name, content) == expected
    same = rewritten(monkeypatch, tmp_path / name).read_bytes().decode().upper()
    assert same == (content.replace("\r", "\n") if name.endswith((".srt", ".vtt")) else expected).upper()


COLUMNS = with_marks(r"«name of it»:\t«value»\t \t«it»\n\t«one»\t7\n  «-h, --help»        «show»    («help»)\n")


@pytest.mark.parametrize(
    ("name", "file"),
    [("a.txt", "{}"), ("a.json", '["{}"]'), ("a.strings", '"a" = "{}";'), ("a.po", 'msgid "{}"\nmsgstr "{}"\n')],
)
def test_columns_stay(tmp_path, monkeypatch, name, file):
    source, expected = (file.format(text, "") for text in COLUMNS)
    if name == "a.txt":
        source, expected = (text.replace(r"\t", "\t").replace(r"\n", "\n") for text in (source, expected))
    if name == "a.po":
        expected = file.format(*COLUMNS)
    (tmp_path / name).write_text(source)
    translate = partial(in_upper_case, write=lambda sentence: " ".join(sentence.upper().split()))
    assert upper_cased(monkeypatch, tmp_path / name, translate=translate).read_text() == expected


@pytest.mark.parametrize(
    ("name", "cue", "expected"),
    [
        ("a.srt", "<i>Who is there</i>\n{\\an8}A fox\n- What?\n", "<i>WHO IS THERE</i>\n{\\an8}A FOX\n- WHAT?\n"),
        ("a.srt", "<i>Who is there</i>\n{\\an8}A fox\nwalks\n", "<i>WHO IS\nTHERE</i> {\\an8}A\nFOX WALKS\n"),
        ("a.srt", "A b\n{\\pos(1,2)}\nc d\n", "A B\n{\\pos(1,2)} C\nD\n"),
        ("a.srt", "A b\n<i></i>\n  c d ", "A B\n<i></i> C\nD\n"),
        ("a.srt", "The owl calls now\\Na b\n", "THE OWL CALLS\nNOW A B\n"),
        ("a.vtt", "The owl&nbsp;calls&lrm; &amp; flies\nover it\n", "THE OWL\xa0CALLS\u200e\n&amp; FLIES OVER IT\n"),
    ],
)
def test_a_cue_keeps_its_lines(tmp_path, monkeypatch, name, cue, expected):
    start = "1\n00:00:01,000 --> 00:00:02,000\n"
    (tmp_path / name).write_text(start + cue)
    assert rewritten(monkeypatch, tmp_path / name).read_text() == start + cue
    assert upper_cased(monkeypatch, tmp_path / name, overwrite=True).read_text() == start + expected


def test_emphasis_without_words_leaves_no_marks(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("er **rief** mich **an _jetzt_** [so](b)\n")
    opened = read_document(path)
    empty = [each if isinstance(each, str) else each._replace(pieces=[]) for each in opened.blocks[0]]
    nested = [each if isinstance(each, str) else each._replace(pieces=["", each]) for each in empty]
    for block in (empty, nested):
        opened.write(path, [block])
        assert "*" not in path.read_text() and "](b)" in path.read_text()


def test_marks_of_tasks_are_no_text(tmp_path):
    (tmp_path / "a.md").write_text("- [ ] one [x] two\n- three\n")
    first, second = read_document(tmp_path / "a.md").blocks
    assert first[0].content[0] == "[ ] " and first[1:] == ["one [x] two"] and second == ["three"]


LATIN = '<meta charset="iso-8859-1">'


@pytest.mark.parametrize(
    ("name", "page", "written"),
    [
        ("a.html", f"{LATIN}<p>über x</p>".encode("latin-1"), f"{LATIN}<p>ÜBER X</p>".encode("latin-1")),
        ("a.html", f"{LATIN}<p>a &uuml; &lArr;</p>", f"{LATIN}<p>A Ü &#8656;</p>".encode("latin-1")),
        ("a.html", "<p>gr&ouml;&szlig;er</p>", "<p>GR&#214;SSER</p>"),
        ("a.html", "<p>größer</p><!--ö--><script>'ö'</script>", "<p>GR&#214;SSER</p><!--ö--><script>'ö'</script>"),
        ("a.html", "\ufeff<p>größer</p>", "\ufeff<p>GRÖSSER</p>"),
        ("a.html", "<meta charset=utf-8><p>gr&ouml;&szlig;er</p>", "<meta charset=utf-8><p>GRÖSSER</p>"),
        ("a.html", "<p>größer &lArr;</p>".encode("cp1252"), "<p>GRÖSSER &#8656;</p>".encode("cp1252")),
        ("a.xhtml", "<p>größer</p>", "<p>GRÖSSER</p>"),  # UTF-8 by definition
    ],
)
def test_pages_keep_their_encoding_and_have_character_references_without_a_name(
    tmp_path, monkeypatch, name, page, written
):
    page, written = (text.encode() if isinstance(text, str) else text for text in (page, written))
    (tmp_path / name).write_bytes(page)
    assert upper_cased(monkeypatch, tmp_path / name).read_bytes() == written


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
    assert upper_text(monkeypatch, tmp_path / "a.html", page.format("en")) == page.format("de").replace("de-GB", "de")
    monkeypatch.delattr(UpperCase.model.config, "source_lang")
    assert upper_cased(monkeypatch, tmp_path / "a.html", overwrite=True).read_text() == page.format("en")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.html", "<!--" * 200, "a tag or comment that begins at character 1 has no end"),
        ("a.html", "<p>x</p><script>a<b</script>" + "<a b='" * 201, "that begins at character 29 has no end"),
        ("a.md", b"a\xff", "not UTF-8: .* in position 1"),
        ("a.txt", "a\0b", "has NUL characters, must be text"),
        ("a.html", "<p>text</p>".encode("utf-16-le"), "has NUL characters, must be text"),
        ("a.html", b"<meta charset=ascii><p>\xff", "not ASCII: .* in position 23"),
        ("a.html", b"<meta charset=hex><p>\xff", "a.html: not HEX: 'hex' is not a text encoding"),
        ("a.xhtml", b"<?xml version='1.0' encoding='x-user'?><p>\xff", "not X-USER: unknown encoding: x-user"),
        ("a.html", b"<meta charset=undefined><p>\xff", "not UNDEFINED: "),
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
    assert upper_text(monkeypatch, tmp_path / "a.md", "*a* " * 11 + "\n\nb\n") == "*a* " * 11 + "\n\nB\n"
    assert "a.md: 1 paragraphs of more than 10 elements stay" in caplog.text
