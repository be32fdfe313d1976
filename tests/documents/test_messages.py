"""Files of messages: texts are translated, keys and everything else stay."""

import json
import time
from contextlib import suppress

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("translate", reason="the extra [documents] is not installed")

from support.documents import changed_by_identity, replaced, upper_cased, upper_text, with_marks

from residual_hf.base.errors import InputError
from residual_hf.documents.catalogues import CatalogueOptions
from residual_hf.documents.translation import read_document

FILES = {
    "a.properties": r"""# Title
app.title = «The owl»
app.key:«In the wood»
empty=
x = «It''s» {0}
lines = «one»\n«two»
number = 1
""",
    "Localizable.strings": r"""/* Hello */
"hello" = "«Hello», %@!";

// other
"a key" = "«A \"word\"»\n«below»";
""",
    "values.xml": """<?xml version="1.0" encoding="utf-8"?>
<!-- ours -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <string name="hello">«Hello» <b>«world»</b> &amp; <xliff:g id="n">%1$s</xliff:g></string>
    <string name="brand">«welcome to» <xliff:g id="app">Owl Mail</xliff:g></string>
    <string name="quoted">«It\\'s the \\"nest\\"»\\n«here»</string>
    <string name="own" translatable="false">fixed</string>
    <string name="other">@string/hello</string>
    <string name="marked"><![CDATA[<b>«bold»</b> «text»]]></string>
    <string name='empty' ></string>
    <item name="bird" type="string">«The fox flies»</item>
    <item type="layout" name="page">@layout/page</item>
    <plurals name="files">
        <item quantity="one">%d «file»</item>
        <item quantity="many">%d <b>«files»</b></item>
    </plurals>
    <string-array name="days">
        <item>«Monday»</item>
    </string-array>
</resources>
""",
    "a.resx": """<?xml version="1.0" encoding="utf-8"?>
<root>
  <data name="Hello" xml:space="preserve">
    <value>«Hello» {0} &amp; «you»</value>
    <comment>Greets</comment>
  </data>
  <data name="Icon" type="System.Drawing.Icon" xml:space="preserve">
    <value>icon</value>
  </data>
  <data xml:space="preserve" name='n'>
    <value>1 > 2</value>
    <comment/><comment />
  </data>
  <data name="&gt;&gt;label.Name" xml:space="preserve">
    <value>label</value>
  </data>
</root>""",
    "app.arb": '{\n  "@@locale": "en_US",\n  "hello": "«Hello» {name}",\n  "@hello": {"description": "Greets"}\n}\n',
    "messages.json": '{"hello": {"message": "«Hello»", "description": "A greeting", "placeholders": {}}}',
    "a.json": '{"a.b": "«The owl»", "c": {"d": ["«One»", 2, 1.50, true, null], "e": {}},\n "c": "«Two»\\n«three»"}\n',
    "a.yml": f"""# ours
en:
  title: «The owl»
  quoted: "«Hello» %{{name}}"
  single: '«It''s here»'
  yes: true
  off: 1.50
  day: 2020-01-01
  long: {"«word» " * 30}«end»
  block: |
    «one»
    «two»
  list:
    - «first item»
    - «second»
""",
    "b.properties": r"""! x = y
  b\ c\==«It»
spaces   «value»
path=\ «a»\t«b»
""",
    "a.ini": "; ours\n[Main]\ntitle = «The owl»\nother=«In the wood»\nempty =\n",
}
"""Text between « and » is translated."""


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("name", FILES)
def test_texts_are_translated_and_all_else_stays(name, end, tmp_path, monkeypatch):
    content = FILES[name].replace("\n", end)
    path = tmp_path / name
    content, expected = with_marks(content)
    expected = expected.replace("en_US", "de")
    path.write_bytes(content.encode())
    assert changed_by_identity(path) == []
    assert upper_cased(monkeypatch, path).read_bytes().decode() == expected


OWL = ["The <!-- c -->owl calls", "The o<?a b?>wl<!-- c --> calls", "<!-- c -->The owl calls<!-- d -->"]
IN_XML = {
    "a.resx": '<root>\n <data name="a"><value>%s</value></data>\n</root>\n',
    "a.xml": '<resources>\n  <string name="a">%s</string>\n</resources>\n',
    "a.ts": "<!DOCTYPE TS>\n<TS>\n<context><name>a</name>\n<message><source>{0}</source>"
    '<translation type="unfinished">%s</translation></message>\n</context>\n</TS>\n',
}


@pytest.mark.parametrize("text", OWL)
@pytest.mark.parametrize("name", IN_XML)
def test_comments_in_a_text_are_not_read(name, text, tmp_path, monkeypatch):
    path, wrapper = tmp_path / name, IN_XML[name].replace("{0}", text)
    before = wrapper % ("" if name == "a.ts" else text)
    path.write_text(before)
    if name != "a.ts":
        assert changed_by_identity(path) == []
    assert upper_cased(monkeypatch, path).read_text() == wrapper % "THE OWL CALLS"
    path.write_text(wrapper % "<!-- c -->done")
    assert len(read_document(path).blocks) == (name != "a.ts")


@pytest.mark.parametrize(
    "text",
    [
        *(r"\@«home is here»", r"\?«why not»", r"\@<b>«home»</b> «is»", "?attr/color", " @string/other"),
        "«Tom» &amp;amp; «J» &lt; 5",
    ],
)
def test_escapes_of_android_say_what_is_text(text, tmp_path, monkeypatch):
    before, expected = with_marks(f'<resources>\n    <string name="a">{text}</string>\n</resources>\n')
    assert upper_text(monkeypatch, tmp_path / "a.xml", before) == expected


def test_placeholders_of_browsers_stay(tmp_path, monkeypatch):
    content = '{"a": {"message": "Hello %s, %s", "placeholders": {"user": {"content": "$1"}}}}'
    written = upper_text(monkeypatch, tmp_path / "messages.json", content % ("$user_1$", "you owe $1 and $$5"))
    assert written == content.replace("Hello", "HELLO") % ("$user_1$", "YOU OWE $1 AND $$5")


@pytest.mark.parametrize(
    "content",
    [
        *("---\n# ours\na: «one»\n", "# ours\n\n---\na: «one»\n", "%YAML 1.2\n---  # ours\na: «one»\n"),
        *("a: ~\nb: null\nc:\nd: «one»\n", "- ~ # ours\n- «one»\n- null\n", "a: [~, «one», null]\n"),
    ],
)
def test_starts_and_nulls_of_yaml_stay(content, tmp_path, monkeypatch):
    before, expected = with_marks(content)
    assert upper_text(monkeypatch, tmp_path / "a.yml", before) == expected


@pytest.mark.parametrize("translation", ["yes", "12:30:45"])
def test_translations_that_would_be_no_texts_of_yaml_get_quotes(translation, tmp_path, monkeypatch):
    def translate(translator, blocks, **languages):
        return [[translation] for _ in blocks]

    (tmp_path / "a.yml").write_text('a: ja\nb: no\nc: "ja"\nd:\n- ja\n')
    written = upper_cased(monkeypatch, tmp_path / "a.yml", translate=translate).read_text()
    assert written == f"a: '{translation}'\nb: no\nc: \"{translation}\"\nd:\n- '{translation}'\n"


def test_texts_of_yaml_with_a_tag_stay_and_are_named(tmp_path, monkeypatch, caplog):
    written = upper_text(monkeypatch, tmp_path / "a.yml", "a: !include the owl\nb: one\n")
    assert written == "a: !include the owl\nb: ONE\n"
    assert "a.yml: 1 texts that have a tag, such as !include, stay" in caplog.text


QT = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de_DE" sourcelanguage="en">
<context>
    <name>Window</name>
    <message>
        <source>Open &amp;file</source>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>OK</source>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>Done</source>
        <translation>Fertig</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished">
            <numerusform></numerusform>
            <numerusform></numerusform>
        </translation>
    </message>
    <message>
        <source>maybe</source>
        <translation type="unfinished">vielleicht</translation>
    </message>
    <message>
        <location filename='a' line="1" />
        <source>"The owl"<byte value="x9"/>calls.</source>
        <translation type="unfinished"/>
    </message>
    <message>
        <source>gone's</source>
        <translation type="vanished"></translation>
    </message>
</context>
</TS>
"""


def test_translations_of_qt_are_filled_and_stay_unfinished(tmp_path, monkeypatch):
    path = tmp_path / "a.ts"
    expected = QT.replace('shed"></tr', 'shed">OPEN &amp;FILE</tr', 1).replace('shed"></tr', 'shed">OK</tr', 1)
    expected = expected.replace("rusform></", "rusform>%n FILE(S)</")
    called = '>&quot;THE OWL&quot;<byte value="x9"/>CALLS.</translation>'
    expected = expected.replace('unfinished"/>', f'unfinished"{called}')
    assert upper_text(monkeypatch, path, QT) == expected
    assert [block[0] for block in read_document(path, CatalogueOptions("unreviewed")).blocks][-2] == "maybe"
    assert len(read_document(path, CatalogueOptions("all")).blocks) == 7
    bare = "<TS>\n<context><name>a</name>\n<message>\n  <source>one</source>{}</message>\n</context></TS>\n"
    filled = '<translation type="unfinished">ONE</translation>'
    assert upper_text(monkeypatch, tmp_path / "b.ts", bare.format("")) == bare.format(filled)
    plural = bare.replace("<message>", '<message numerus="yes">')
    form = filled.replace(">ONE<", "><numerusform>ONE</numerusform><")
    assert upper_text(monkeypatch, tmp_path / "c.ts", plural.format("")) == plural.format(form)


LATIN = """<?xml version='1.0' encoding='ISO-8859-1'?>
<root a='1>2'><!-- <b> --><?p <c>?><data name='a'><value>%s</value></data></root>
"""


@pytest.mark.parametrize(
    ("name", "content", "written"),
    [
        ("a.properties", b"a = Caf\\u00e9\n", b"a = CAF\\u00C9\n"),
        ("a.properties", "a = Café\n".encode(), "a = CAFÉ\n".encode()),
        ("a.properties", "a = Café\n".encode("latin-1"), "a = CAFÉ\n".encode("latin-1")),
        ("a.strings", '"a" = "Café";\n'.encode("utf-16"), '"a" = "CAFÉ";\n'.encode("utf-16")),
        ("a.properties", b"a = \\ud83e\\udd89 owl\n", b"a = \\uD83E\\uDD89 OWL\n"),
        ("a.properties", b"a = one \\\n  two\n", b"a = ONE TWO\n"),
        ("a.properties", b"a = true\nb=#ff0000\nc=12px\nd=#1 owl\n", b"a = true\nb=#ff0000\nc=12px\nd=#1 OWL\n"),
        ("a.properties", b"a = it''s {0} '{1}' x\n", b"a = IT''S {0} '{1}' X\n"),
        ("a.properties", b"a = it's {0}\nb = it''s\n", b"a = IT'S {0}\nb = IT''S\n"),  # not by MessageFormat
        ("a.properties", b"a = it''s '{'0'}' {0}\n", b"a = IT''S '{'0'}' {0}\n"),
        ("a.strings", '\ufeff"a"="b";'.encode("utf-16-be"), '\ufeff"a"="B";'.encode("utf-16-be")),
        ("a.strings", b'a = "b";"//" = "c"; /* x = "y";', b'a = "B";"//" = "C"; /* x = "y";'),
        ("a.properties", b"a = one \\\r\n  two\\\r\n\r\nb=c\r\n", b"a = ONE TWO\r\nb=C\r\n"),
        ("a.ini", b"[s]\nkey = The owl\n  calls: the\n\tbear.\nb=c\n", b"[s]\nkey = THE OWL CALLS: THE BEAR.\nb=C\n"),
        ("a.ini", b"a:\r\n  b\r\n  c\r\n\r\n\r\n  d \r\n", b"a:\r\n  B C\r\n\r\n\r\n  D \r\n"),
        ("a.ini", b"a = b\n  c\n  # d\n; e\n  f\n  g=h\n  i\n[j]\nk", b"a = B C\n  # d\n; e\n  F\n  g=h\n  I\n[j]\nk"),
        ("a.ini", b"[s]\n  a = b\n    c\n  d = e\n", b"[s]\n  a = B C\n  d = E\n"),
        ("a.ini", b'KEY="one \\"\r\n', b'KEY="ONE \\"\r\n'),
        ("a.ini", b'a="click \\"save\\""\nb="a "b" c"\n', b'a="CLICK \\"SAVE\\""\nb="A "B" C"\n'),
        ("a.json", b'\xef\xbb\xbf{"a": "caf\\u00e9"}', b'\xef\xbb\xbf{"a": "CAF\\u00c9"}'),
        ("a.yml", b"a: no\nb: 'no'\nOn: never\n", b"a: no\nb: 'NO'\nOn: NEVER\n"),
        ("a.resx", (LATIN % "größer &#8656;").encode("latin-1"), (LATIN % "GRÖSSER &#8656;").encode("latin-1")),
        ("a.yml", b"a: '%b %-d, %Y'\nb: '#ff0aa0'\nc: '%d owls'\n", b"a: '%b %-d, %Y'\nb: '#ff0aa0'\nc: '%d OWLS'\n"),
        ("a.resx", (LATIN % "true").encode(), (LATIN % "true").encode()),
        ("a.yml", b"\xef\xbb\xbfa: one\n", b"\xef\xbb\xbfa: ONE\n"),
        ("a.json", b'["\\ud83d", "a\\ud83d", "b"]', b'["\\ud83d", "A\\ufffd", "B"]'),
        ("a.json", b'["one\\u000btwo"]', b'["ONE\\u000bTWO"]'),
        ("a.json", b'["a &amp; b&lt; caf&eacute;&x; &amp;"]', '["A &amp; B&lt; CAFÉ&X; &amp;"]'.encode()),
        ("a.yml", b'a: "one\\vtwo"\n', b'a: "ONE\\vTWO"\n'),
        ("a.po", b'msgid "one\\v\\ftwo"\nmsgstr ""\n', b'msgid "one\\v\\ftwo"\nmsgstr "ONE\\v\\fTWO"\n'),
    ],
)
def test_encodings_and_escapes_stay(name, content, written, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(content)
    assert upper_cased(monkeypatch, tmp_path / name).read_bytes() == written


@pytest.mark.parametrize(
    ("name", "content", "read", "translation", "written"),
    [
        ("a.properties", "a = it''s {0}\n", "it's ", ["L'ami "], "a = L''ami \n"),
        ("a.properties", "a = it's\n", "it's", ["L'ami"], "a = L'ami\n"),
        (
            "a.properties",
            "a = x {0}\nb = it's {0}\n",
            "x ",
            ["L'ami"],
            "a = L'ami\nb = \n",
        ),  # b shows that a is as it is
        ("a.ini", 'a="click \\"here\\""\n', 'click "here"', ['"ici"'], 'a="\\"ici\\""\n'),
    ],
)
def test_characters_that_a_format_escapes(name, content, read, translation, written, tmp_path):
    (tmp_path / name).write_text(content)
    document = read_document(tmp_path / name)
    assert document.blocks[0][0] == read
    document.write(tmp_path / name, [translation, [""]][: len(document.blocks)])
    assert (tmp_path / name).read_text() == written


CHOICE = '"{n, plural, other {# owls of }}"'


@pytest.mark.parametrize(
    ("name", "content", "apostrophe"),
    [
        *(("a.json", f'["name of {text}", {CHOICE}]', "''") for text in ("{a}", "<b>it</b>", "<b>it of </b>")),
        ("a.json", '["name of {a}"]', "'"),  # not of ICU
        ("a.arb", f'{{"a": "name of {{a}}", "b": {CHOICE}}}', "'"),  # in which Flutter reads no quotes
    ],
)
def test_new_apostrophes_before_marks_of_icu_are_doubled(name, content, apostrophe, tmp_path):
    content = content.replace("]", ", \"it's '{a}' now\"]")  # whose quotes stay
    written = replaced(tmp_path / name, content, lambda text: text.replace("of ", "d'"))
    assert written == content.replace("of ", f"d{apostrophe}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.json", text) for text in ("[1", "[" * 100_000)),
        *(("a.yml", text) for text in ("a: [1", "a: 1\na: 2\n", "--- |\n one\n")),
        ("a.xml", "<page><p>Hello</p></page>"),
        ("a.xml", '<!DOCTYPE resources [<!ENTITY a "b">]><resources/>'),
        ("a.ts", "export const a = 1;"),
        ("a.ini", "no section"),
        ("a.strings", "Hello World"),
        ("a.resx", "<root>"),
    ],
)
def test_what_cannot_be_read_is_named(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=name):
        read_document(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.strings", text) for text in ("/* Localized keys */\n\n", "// one\n", '"a" = "";\n', 'Bundle = "";\n')),
        *(("a.properties", text) for text in ("# one\n", "one=\n", "! two\n\n")),
        *(("a.ini", text) for text in ("; one\n", "[one]\nb=\n")),
        *(("a.yml", text) for text in ("# one\n", "---\n", "a:\n...\n", "")),
    ],
)
def test_files_without_texts_stay(name, content, tmp_path, monkeypatch):
    assert upper_text(monkeypatch, tmp_path / name, content) == content


def test_options_of_catalogues_are_refused_elsewhere(tmp_path):
    for name in ("a.md", "a.json"):
        with pytest.raises(InputError, match=rf"--fill, --mark-fuzzy: given, but .*{name} is no catalogue"):
            read_document(tmp_path / name, CatalogueOptions("all"))


def test_keys_of_json_that_occur_twice_stay(tmp_path, monkeypatch):
    written = upper_text(monkeypatch, tmp_path / "a.json", '{"a": "one", "a": "two"}')
    assert json.loads(written, object_pairs_hook=list) == [("a", "ONE"), ("a", "TWO")]


HOSTILE = {
    "a.properties": ["a=" + "\\" * 100_001, "a=b\\\n" * 20_000, "a\\ " * 100_000, "a" + " " * 100_000, "a:" * 50_000],
    "a.strings": ["/*" * 50_000, '"a" = "' + '\\"' * 50_000, "a = " * 25_000, "=" + " " * 100_000, '"' * 100_001],
    "a.ini": ["[a]\n" + " a\n" * 100_000, "a=b" + " " * 100_000 + "c", "a" * 100_000, "a=\n" * 100_000]
    + ["a=b\n" + "  c" * 100_000 + "\n  d" * 20_000],
    "a.json": ['["' + "{a " * 100_000 + '"]', '"' * 100_000, '["' + "\\\\" * 50_000 + '"]', "1" * 100_000],
    "a.po": ["#,\n" * 100_000, 'msgid "a"\nmsgstr ' + '""\n' * 25_000, 'msgid "a"\nmsgstr ' + '"" ' * 100_000],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_to_read_is_linear(name, tmp_path):
    """What takes the square takes half a minute here."""
    start = time.process_time()
    for content in HOSTILE[name]:
        (tmp_path / name).write_text(content)
        with suppress(InputError):
            read_document(tmp_path / name)
    assert time.process_time() - start < 7
