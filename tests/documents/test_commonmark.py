"""Markdown: what is text stays text, and what is a mark stays one, whatever the sentences become."""

import json
import re
from functools import partial
from itertools import product

import pytest
from support import ROOT

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("markdown_it", reason="the extra [documents] is not installed")

from markdown_it import MarkdownIt
from support.documents import in_upper_case, replaced, rewritten, upper_cased, upper_text, with_marks

from residual_hf.documents.translation import read_document
from residual_hf.generation.markup import Inline

SPECIFICATION = ROOT / "node_modules" / "commonmark-spec" / "spec.txt"  # of the package of npm

WRITTEN = [
    r"\* Required fields",
    r"- \* An item of a form",
    r"> \+ Two quoted words",
    r"&ast; a star",
    r"\~~~ no fence",
    r"\~\~not struck\~\~ out",
    r"\`no code\` and ``a ` b`` code",
    r"\- no list",
    r"2\) no list",
    r"1986\. was a good year",
    r"\# no heading",
    "# a sharp \\#\n",
    r"## \## twice ##",
    r'\[foo]: /url "t"',
    r"\[foo\]: see below",
    r"\![a](b) x",
    r"\[a](b)",
    r"[a\]b](u)",
    "[a [b] c](d)",
    "- \\[ ] not a task\n- [ ] a task\n",
    r"\[^1] is no note",
    "a[^1][^2] b\n\n[^1]: one\n[^2]: two\n",
    r"\[[x]] and [[page|text]]",
    "see [[1]](../about/page.md#part) for it",
    "[one] and [One][] and [two][one] and [`three`][one]\n\n[one]: http://x.y 'z'\n",
    "See [the client][httpx.Client] and [`Client`][] and [Client][] now.",
    "![an *image*][one] here\n\n[one]: http://x.y\n",
    '[a](<b c> (title)) and [d](e "f \\" g")',
    r"Path C:\\*x* here",
    r"*\*so\** and __\_\_init\_\___",
    r"snake_case and a\_b and \@user",
    r"\$5 and \$6 but $x$",
    r"\<b> and &lt;i&gt; and \&amp; and &amp;copy; and &copy;",
    "in the file `__init__.py` now",
    "| a \\| b | `c\\|d` |\n|--|--|\n| \\*x | e\\\\ |\n| f<br>g_h | i |\n",
    "one  \n\\# two\\\nthree\n",
    "> one\\\n> \\> two\n",
    "<b\nclass='x'>bold</b> text",
    "arr[i][j] = 3, x[1](y)",
    "a&nbsp;b and &#9;c",
    r"\:smile: and :smile:",
    "*foo _bar* baz_",
    "see [text [x][y] z][none]",
    "a\vb &#11; \\*c",
    "```js\na\n\nimport b from 'c'\n```\n\ntext\n",
]


def renderings(texts):
    """HTML with any white space as one space."""
    render = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render
    return [re.sub(r"\s+", " ", render(text)) for text in texts]


@pytest.mark.parametrize("text", WRITTEN)
def test_sentences_that_stay_are_written_as_they_were(tmp_path, monkeypatch, text):
    (tmp_path / "a.md").write_text(text)
    assert rewritten(monkeypatch, tmp_path / "a.md").read_text() == text


@pytest.mark.parametrize(
    ("source", "translation", "written"),
    [
        ("words", "* words", "\\* words"),
        ("words", "3. words", "3\\. words"),
        ("words", "# words", "\\# words"),
        ("# words", "words #", "# words \\#"),
        ("words", "a *b* c", "a \\*b\\* c"),
        ("words", "[a](b) c", "\\[a\\](b) c"),
        ("words", "<b> &amp; c", "&lt;b> &amp;amp; c"),
        ("words", "[x]: words", "\\[x\\]: words"),
        ("words", "a * b, c_d [e] 1. & f", "a * b, c_d [e] 1. & f"),
        ("\\*words", "words and more", "words and more"),
        ("x [see] y\n\n[see]: /url", "a [see] b", "a [see](/url) b"),
    ],
)
def test_what_is_no_mark_is_escaped_only_where_it_would_be_one(tmp_path, source, translation, written):
    (tmp_path / "a.md").write_text(source)
    document = read_document(tmp_path / "a.md")
    document.write(tmp_path / "b.md", [[translation]])
    text = (tmp_path / "b.md").read_text().partition("\n\n[see]")[0].replace("\\[see\\]", "[see](/url)")
    assert text.replace("\\>", ">") == written
    shown = re.sub("<[^>]+>", "", MarkdownIt("commonmark").render((tmp_path / "b.md").read_text()))
    assert shown.strip() == translation.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.parametrize(
    ("source", "texts", "written"),
    [
        ("an _important_ text", ["这是", "重要", "文字。"], "这是*重要*文字。"),
        ("**Note:** please read.", ["注意：", "请阅读。"], "**注意：** 请阅读。"),
        ("an _important_ text", ["ein ", "wichtiger", " Text"], "ein _wichtiger_ Text"),
        ("a _b_ c", ["हिन्दी", "है", "में"], "हिन्दी*है*में"),
        (
            "a [**b:** c](u) _e **f:** g_ d\n",
            ["甲", "乙：", "丙", "丁", "戊", "己：", "庚", "辛"],
            "甲[**乙：** 丙](u)丁*戊**己：** 庚*辛\n",
        ),
        ("a **[b](u)** c **`x`** d\n", ["甲", "b", "丙", "丁"], "甲 **[b](u)** 丙 **`x`** 丁\n"),
    ],
)
def test_emphasis_without_spaces_is_emphasis(tmp_path, source, texts, written):
    remaining = iter(texts)
    assert replaced(tmp_path / "a.md", source, lambda text: next(remaining)) == written


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("See [@smith2020, p. 3] and @jones2021.", "SEE [@smith2020, p. 3] AND @jones2021."),
        (
            "[see @a_b; also -@c:d, ch. 1] and @{x.y} [p. 33] say",
            "[see @a_b; also -@c:d, ch. 1] AND @{x.y} [p. 33] SAY",
        ),
        ("It says so [@a, p. 3].", "IT SAYS SO [@a, p. 3]."),
        ("Mail [to a@b.de] @ noon", "MAIL [TO a@b.de] @ NOON"),
        ("Owl [calls bear](u), @jones2021 [a](b)", "OWL [CALLS BEAR](u), @jones2021 [A](b)"),
    ],
)
def test_citations_stay(tmp_path, monkeypatch, source, expected):
    assert upper_text(monkeypatch, tmp_path / "a.md", source) == expected


def test_labels_and_roles_of_myst_stay(tmp_path, monkeypatch):
    text = "(the-dog)=\n# «a dog»\n\n«see» {ref}`the-dog`, {term}``a ` b`` «and» {doc}`x\ny <z>` «now»\n"
    before, expected = with_marks(text)
    assert upper_text(monkeypatch, tmp_path / "a.md", before) == expected
    assert read_document(tmp_path / "a.md").blocks[1][1] == Inline(("{ref}`the-dog`", ""), ["the-dog"], keep=True)


def test_a_reference_keeps_its_label(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("[old owl] and [old owl][] and [a *b*][old owl]\n\n[old owl]: /url\n")
    document = read_document(tmp_path / "a.md")
    blocks = [[each if isinstance(each, str) else each._replace(pieces=["Eule"]) for each in document.blocks[0]]]
    document.write(tmp_path / "b.md", blocks)
    assert (tmp_path / "b.md").read_text().startswith("[Eule][old owl] and [Eule][old owl] and [Eule][old owl]\n")


PAGE = """# The @

- [see @](#the-@), **[see](#the-@ "title")** and [more](<#the-@-1>)
- [⬆](#the-@), [in another case](#THE-@)
- [a page](b.md#the-owl), [none](#owl), [an own one](#kept), [a nest](#owl-nest), code `[x](#the-owl)`
- <a href="#big-@-x--söhne">big</a>, [big](#big-@-x--s%C3%B6hne) and [a definition][d]

[d]: #the-@ 'title'

<p>
<a href="#100">back</a> <a href='#1-@'>forth</a>
</p>

## The *@*

    [x](#the-owl)

Big @ `x` & „Söhne“
---

## 1. @

## 1.0.0

## Own @ {#kept}

<a id="owl-nest"></a>

## @ nest
"""


def test_links_to_headings_of_the_page_follow_them(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text(PAGE.replace("@", "owl"))
    translate = partial(in_upper_case, write=lambda sentence: sentence.replace("owl", "Ühu"))
    assert rewritten(monkeypatch, tmp_path / "a.md").read_text() == PAGE.replace("@", "owl")
    written = upper_cased(monkeypatch, tmp_path / "a.md", translate=translate, overwrite=True).read_text()
    expected = re.sub(r"(#[\w-]*)@", r"\1ühu", PAGE.replace("%C3%B6", "ö").replace("#THE", "#the"))
    assert written == expected.replace("@", "Ühu")


@pytest.mark.skipif(not SPECIFICATION.exists(), reason="npm install commonmark-spec")
def test_the_examples_of_commonmark_stay(tmp_path, monkeypatch):
    text = SPECIFICATION.read_text(encoding="utf-8").replace("→", "\t")
    examples = re.findall(r"^`{32} example\n(.*?)^\.\n", text, re.MULTILINE | re.DOTALL)
    assert len(examples) > 600
    for number, example in enumerate(examples):
        (tmp_path / f"{number}.md").write_bytes(example.encode())
        written = rewritten(monkeypatch, tmp_path / f"{number}.md").read_bytes().decode()
        assert renderings([written]) == renderings([example]), json.dumps(example)


@pytest.mark.parametrize("pages", ["*.md", pytest.param("docs/*.md", marks=pytest.mark.slow)])
def test_the_documentation_of_this_project_stays(pages, tmp_path, monkeypatch):
    for path in ROOT.glob(pages):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        texts = path.read_text("utf-8"), rewritten(monkeypatch, tmp_path / path.name).read_text("utf-8")
        before, after = (re.sub(r"[\s>]+", " ", text) for text in texts)
        assert before == after and len({*renderings(texts)}) == 1, path


MDX = """---
title: x
---
import X from 'y'
import {
  A
} from "b";

export const meta = {
  title: 'text'
}

# Hello {props.name} there

<Tabs defaultValue={{a: 1}}>
  <TabItem value="a" label="b">

Some *text* here.

  </TabItem>
</Tabs>

<Comp prop="a" on={() => x > 2}>Text</Comp> and {/* comment */} more {a.b(c)} end

<Note>
  Read this
</Note>
"""


STATEMENTS = """export function Card() {
  const a = "}"; // }

  return <b>a {dog}</b>;
}

export const list = [
  {a: '('},

  {a: `(

`},
]

# one

export const open = {

two (so)

<Comp data={[
  'x',

  'y'
]} />

end

import A from 'a'"""


def test_components_of_mdx_stay(tmp_path, monkeypatch):
    expected = MDX.replace("Hello", "HELLO").replace("there", "THERE").replace("Some *text* here", "SOME *TEXT* HERE")
    for words in (">Text<", "> and {", "more", "end\n", "Read this"):
        expected = expected.replace(words, words.upper())
    assert upper_text(monkeypatch, tmp_path / "a.mdx", MDX) == expected
    expected = STATEMENTS.replace("# one", "# ONE").replace("two (so)", "TWO (SO)").replace("end", "END")
    assert upper_text(monkeypatch, tmp_path / "b.mdx", STATEMENTS) == expected
    codes = "re = /[(]/", "f = (s) => /[(]/.test(s)", 'f = s.replace(/[(]/g, "")', "f = / " + 40 * "[a]" + " }"
    for number, (code, kind) in enumerate(product(codes, ("md", "mdx"))):
        path, prose = tmp_path / f"{number}.{kind}", f"export const {code};\n\nfirst\n\nsecond :)\n"
        assert upper_text(monkeypatch, path, prose).endswith(";\n\nFIRST\n\nSECOND :)\n"), code
    written = upper_text(monkeypatch, tmp_path / "a.md", "import X from 'y'\n\n<Comp prop=\"a\">Text</Comp>\n")
    assert written.startswith("import X from 'y'\n\n<Comp prop=\"a\">TEXT")
