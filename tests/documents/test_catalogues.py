"""PO and XLIFF: empty targets are filled, the rest stays."""

import difflib
import gettext
import re

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("polib", reason="the extra [documents] is not installed")

import polib
from support.documents import upper_cased, upper_text, with_marks

from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import read_xml
from residual_hf.documents.catalogues import CatalogueOptions
from residual_hf.documents.literal_text import marked_block
from residual_hf.documents.translation import NumberedDocument, read_document
from residual_hf.generation.generation_settings import FILL
from residual_hf.generation.markup import Inline

PO = r"""# translators
msgid ""
msgstr ""
"Language: de\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: file.c:1
msgctxt "menu"
msgid "already done, with a text that is much longer than the seventy-eight columns of a usual catalogue"
msgstr "schon fertig"

#, fuzzy
msgid "old"
msgstr "unsicher"

#, c-format
msgid "open <b>%s</b> or "
"{name},\n"
"or \"nothing\".\n"
"New line\n"
msgstr ""

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "12345"
msgstr   ""

#~ msgid "gone"
#~ msgstr ""
"""
FILLED = {
    'msgstr ""': r'msgstr "OPEN <b>%s</b> OR {name},\nOR \"NOTHING\".\nNEW LINE\n"',
    'msgstr[0] ""': 'msgstr[0] "ONE FILE"',
    'msgstr[1] ""': 'msgstr[1] "%d FILES"',
    'msgstr   ""': 'msgstr   "12345"',
}


def changed_lines(before, after):
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_only_empty_messages_of_a_catalogue_change(tmp_path, monkeypatch, end):
    content = PO.replace("\n", end)
    written = upper_text(monkeypatch, tmp_path / "a.po", content)
    assert written.count("\r") == content.count("\r")
    expected = [line for pair in FILLED.items() for line in (f"- {pair[0]}", f"+ {pair[1]}")]
    assert sorted(changed_lines(content, written)) == sorted(expected)
    assert [entry.msgstr for entry in polib.pofile(written)][2].startswith("OPEN <b>%s</b>")


def test_numbered_tags_are_elements():
    inner = Inline(("<1>", "</1>"), ["me"])
    expected = [Inline(("<0>", "</0>"), ["Read ", inner]), " ", Inline(("<2/>", ""), [], keep=True), " now"]
    assert marked_block(["<0>Read <1>me</1></0> <2/> now"]) == expected


def test_a_catalogue_keeps_its_encoding(tmp_path, monkeypatch):
    content = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\nmsgid "über"\nmsgstr ""\n'
    (tmp_path / "a.po").write_bytes(content.encode("latin-1"))
    assert 'msgstr "ÜBER"'.encode("latin-1") in upper_cased(monkeypatch, tmp_path / "a.po").read_bytes()
    document = read_document(tmp_path / "a.po")
    document.write(tmp_path / "greek.po", [["υπέρ"]])  # letters that the encoding does not have
    expected = content.replace("ISO-8859-1", "UTF-8").replace('über"\nmsgstr ""', 'über"\nmsgstr "υπέρ"')
    assert (tmp_path / "greek.po").read_text(encoding="utf-8") == expected
    (tmp_path / "new.po").write_text(content.replace("ISO-8859-1", "CHARSET").replace("ü", "u"))  # as of xgettext
    assert "charset=UTF-8" in upper_cased(monkeypatch, tmp_path / "new.po").read_text()
    (tmp_path / "a.po").write_bytes(content.replace("ISO-8859-1", "klingon").encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.po: cannot be read as a PO file: 'utf-8' .*; its charset is klingon$"):
        read_document(tmp_path / "a.po")


TEMPLATE = r"""#, fuzzy
msgid ""
msgstr ""
"Language-Team: \n"
"Language: \n"
"Content-Type: text/plain; charset=CHARSET\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

msgid "open"
msgstr ""
"""
PLURALS = """
msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
"""


@pytest.mark.parametrize(
    ("code", "messages", "language", "forms"),
    [
        ("deu_Latn", PLURALS, "de", "nplurals=2; plural=(n != 1);"),
        ("fr", PLURALS, "fr", "nplurals=2; plural=(n > 1);"),
        ("pt-BR", PLURALS, "pt_BR", "nplurals=2; plural=(n > 1);"),
        ("ja", "", "ja", "nplurals=1; plural=0;"),
        ("zho_Hans", "", "zh_Hans", "nplurals=1; plural=0;"),
        ("no", PLURALS, "no", "nplurals=2; plural=(n != 1);"),
        ("ru", PLURALS, "ru", "ru has 3 plural forms, the messages have 2"),
        ("xyz", PLURALS, "xyz", "the plural forms of xyz are unknown"),
        (None, PLURALS, "", "the plural forms of the target language are unknown"),
    ],
)
def test_a_template_of_xgettext_becomes_a_catalogue(tmp_path, caplog, code, messages, language, forms):
    (tmp_path / "a.pot.po").write_text(TEMPLATE + messages)
    document = NumberedDocument(tmp_path / "a.pot.po")
    document.write(tmp_path / "a.po", document.blocks, "en", code)
    written = polib.pofile(str(tmp_path / "a.po"))
    assert (written.metadata["Language"], written.metadata["Language-Team"]) == (language, "")
    if forms.startswith("nplurals"):
        assert written.metadata["Plural-Forms"] == forms and not caplog.text
        written.save_as_mofile(tmp_path / "a.mo")
        with (tmp_path / "a.mo").open("rb") as file:
            assert gettext.GNUTranslations(file).gettext("open") == "open"
    else:
        assert written.metadata["Plural-Forms"] == "nplurals=INTEGER; plural=EXPRESSION;"
        assert f"Plural-Forms stays a template, which gettext refuses: {forms}" in caplog.text


def test_an_empty_message_may_have_several_lines(tmp_path, monkeypatch):
    second = 'msgid "b"\nmsgstr ""\n""\n"done"\n'
    written = upper_text(monkeypatch, tmp_path / "a.po", f'msgid "a"\nmsgstr ""\n"" \n  ""\n\n{second}')
    assert written == f'msgid "a"\nmsgstr "A"\n\n{second}'


CHOICES = [
    "{n, plural, =0 {«No files»} one {# <b>«file»</b>} other {{n} «files»}} «in» {name}, «it''s» '{'x'}'.",
    "«You»: {g, select, male {{n, plural, one {{m, number} «of» {x}} other {«two»}}} other {«They»: {d, date}}}",
    "«No choice: {n, plural, one {»",
]


def test_texts_of_choices_are_translated(tmp_path, monkeypatch):
    pairs = [*map(with_marks, CHOICES)]
    written = upper_text(monkeypatch, tmp_path / "a.po", "".join(f'msgid "{old}"\nmsgstr ""\n\n' for old, _ in pairs))
    assert written == "".join(f'msgid "{old}"\nmsgstr "{new}"\n\n' for old, new in pairs)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        with_marks('{N, plural, =0 {«now»} =1 {«a» <g id="1">«day»</g> «ago»} other {<x id="2"/> «days ago»}}'),
        with_marks("«See» &lt;b&gt;«our» %s&lt;/b&gt; &lt;br/&gt; {a}"),
        ("<![CDATA[See <a href='x y'>our</a> {a}]]>", "SEE &lt;a href='x y'&gt;OUR&lt;/a&gt; {a}"),
    ],
)
def test_tags_and_choices_in_the_text_of_xliff(tmp_path, monkeypatch, source, expected):
    start = '<xliff version="1.2"><file><trans-unit id="1"><source>'
    written = upper_text(monkeypatch, tmp_path / "a.xlf", f"{start}{source}</source></trans-unit></file></xliff>")
    assert re.search("<target[^>]*>(.*)</target>", written)[1] == expected
    assert f"{start}{source}</source>" in written


XLIFF_1 = """<?xml version="1.0"?>
<!-- by hand --><xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:x="urn:x" version="1.2"><file
source-language="en"><body>
  <trans-unit id="1"><source>done</source><target>fertig</target></trans-unit>
  <trans-unit id="2" x:own="1"><source>see <g id="1">two <x id="2"/> birds</g> &amp; <ph id="3" equiv-text="{n}"/> cats
    now</source>
    <note>keep</note></trans-unit>
  <trans-unit id="3"><source>new</source><seg-source><mrk>new</mrk></seg-source><target xml:lang="de"/></trans-unit>
  <trans-unit id="4" translate="no"><source>name</source></trans-unit>
  <trans-unit id='5' ><source>12 > "3"</source><note /></trans-unit>
</body></file></xliff>
<!-- end -->

"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><file id="f"><unit id="1">
  <segment><source>a <pc id="1">dog</pc> runs</source></segment><ignorable><source> </source></ignorable>
  <segment state="final"><source>done</source><target>fertig</target></segment></unit>
  <unit id="2" translate="no"><segment><source>name</source></segment></unit></file></xliff>"""


def test_only_empty_targets_of_xliff_1_change(tmp_path, monkeypatch):
    written = upper_text(monkeypatch, tmp_path / "a.xlf", XLIFF_1)
    state = 'state="needs-review-translation" state-qualifier="mt-suggestion"'
    second = 'SEE <g id="1">TWO <x id="2"/> BIRDS</g> &amp; <ph id="3" equiv-text="{n}"/> CATS NOW</target>'
    source = XLIFF_1.replace('"en"', '"en" target-language="de"')
    expected = source.replace("now</source>\n    ", f"now</source>\n    <target {state}>{second}\n    ")
    expected = expected.replace('<target xml:lang="de"/>', f'<target xml:lang="de" {state}>NEW</target>')
    assert written == expected


def test_only_empty_targets_of_xliff_2_change(tmp_path, monkeypatch):
    written = upper_text(monkeypatch, tmp_path / "a.xliff", XLIFF_2)
    expected = XLIFF_2.replace("runs</source>", 'runs</source><target>A <pc id="1">DOG</pc> RUNS</target>')
    expected = expected.replace(
        "<segment><source>a", '<segment state="translated" subState="residual_hf:mt"><source>a'
    )
    expected = expected.replace('srcLang="en"', 'srcLang="en" trgLang="de"')
    assert written == expected


@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_white_space_that_xliff_preserves_stays(tmp_path, monkeypatch, version):
    source = "  one  <g>x\n  two</g>\n"
    unit = f'<trans-unit xml:space="preserve"><source>{source}</source></trans-unit>'
    if version == "2.0":
        unit = f'<segment><source xml:space="preserve">{source}</source></segment>'
    written = upper_text(monkeypatch, tmp_path / "a.xlf", f'<xliff version="{version}"><unit>{unit}</unit></xliff>')
    space = "" if version == "1.2" else ' xml:space="preserve"'
    assert re.search(f"<target{space}[^>]*>  ONE  <g>X\n  TWO</g>\n</target>", written)


def test_segments_of_xliff_1_are_filled(tmp_path, monkeypatch):
    text = '<mrk mtype="seg" mid="0">one.</mrk> <mrk mtype="seg" mid="1">Two {n}.</mrk>'
    empty = '<mrk mtype="seg" mid="0"/> <mrk mtype="seg" mid="1"/>'
    unit = f"<trans-unit><source>one. Two {{n}}.</source><seg-source>{text}</seg-source>%s</trans-unit>"
    content = f"<xliff version='1.2'>{unit % f'<target>{empty}</target>'}{unit % ''}</xliff>"
    written = upper_text(monkeypatch, tmp_path / "a.xlf", content)
    assert written.count(f">{text.replace('one', 'ONE').replace('Two', 'TWO')}</target>") == 2


SEGMENT = '<mrk mtype="seg" mid="1">%s</mrk>'


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("see", ""), ("see", " "), (f'<g id="1">{SEGMENT % "see"}</g>', "")),
        *((text, text.replace("see", "")) for text in ('<g id="1">see</g>', 'see<x id="1"/>')),
        *((text, text.replace("see", "")) for text in ('see<ph id="1">&lt;br&gt;</ph>', 'see<ph id="1">{0}</ph>')),
        *((SEGMENT % text, SEGMENT % text.replace("see", "")) for text in ("see", 'see<x id="1"/>')),
        (f'<g id="1">{SEGMENT % "see"}</g>', f'<g id="1">{SEGMENT % ""}</g>'),
    ],
)
def test_targets_with_tags_but_no_text_are_filled(tmp_path, monkeypatch, source, target):
    plain = re.sub("</?mrk[^>]*>", "", source)
    marked = f"<seg-source>{source}</seg-source>" if plain != source else ""
    unit = f'<trans-unit id="1"><source>{plain}</source>{marked}<target>{target}</target></trans-unit>'
    written = upper_text(monkeypatch, tmp_path / "a.sdlxliff", f'<xliff version="1.2">{unit}</xliff>')
    assert re.search("<target[^>]*>(.*)</target>", written)[1] == source.replace("see", "SEE")


def test_placeholders_of_xliff_are_read_with_their_sentence(tmp_path, monkeypatch):
    source = 'see <ph id="1">{0}</ph>, <g id="2"><x id="3" equiv-text="%s"/></g><ph id="4">&lt;img&gt;</ph> now'
    (tmp_path / "a.xlf").write_text(f"<xliff><trans-unit><source>{source}</source></trans-unit></xliff>")
    assert NumberedDocument(tmp_path / "a.xlf").text == "see {0}, %s now"
    written = upper_cased(monkeypatch, tmp_path / "a.xlf").read_text()
    assert re.search("<target[^>]*>(.*)</target>", written)[1] == source.replace("see", "SEE").replace("now", "NOW")


@pytest.mark.parametrize(
    "source", ["The <!-- a -->owl calls", "The owl <!-- a --> calls", "The o<?a b?>wl <x id='1'/>calls"]
)
@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_comments_in_a_source_stay_there(source, version, tmp_path, monkeypatch):
    unit = "trans-unit" if version == "1.2" else "segment"
    content = f'<xliff version="{version}"><unit><{unit}><source>{source}</source></{unit}></unit></xliff>'
    (tmp_path / "a.xlf").write_text(content)
    assert NumberedDocument(tmp_path / "a.xlf").text == "The owl calls"
    written = upper_cased(monkeypatch, tmp_path / "a.xlf").read_text()
    assert f"<source>{source}</source>".replace("'", '"') in written
    assert re.sub("<x .*?/>", "", re.search("<target[^>]*>(.*)</target>", written)[1]) == "THE OWL CALLS"


@pytest.mark.parametrize(
    "code",
    [
        *('<x id="1" ctype="lb"/>', '<x id="1" ctype="x-html-br"/>'),
        '<x id="1" ctype="lb" equiv-text="&lt;br/&gt;"/>',
        *('<ph id="1" equiv="LINE_BREAK" type="fmt" disp="&lt;br/&gt;"/>', '<ph id="1" type="fmt" subType="xlf:lb"/>'),
        *('<ph id="1">&lt;br/&gt;</ph>', '<ph id="1">\n</ph>', '<ph id="1">\\n</ph>', '<ph id="1" dataRef="d"/>'),
    ],
)
def test_codes_for_line_breaks_end_a_line(code, tmp_path, monkeypatch):
    data = '<originalData><data id="d">&lt;br/&gt;</data></originalData>'
    source = f"One line.{code}two <g>words{code}three</g>"
    (tmp_path / "a.xlf").write_text(f"<xliff><unit>{data}<segment><source>{source}</source></segment></unit></xliff>")
    assert NumberedDocument(tmp_path / "a.xlf").text == "One line.\ntwo words\nthree"
    written = upper_cased(monkeypatch, tmp_path / "a.xlf").read_text()
    assert f"<target>ONE LINE.{code}TWO <g>WORDS{code}THREE</g></target>" in written


def test_codes_of_phrase_are_around_their_text(tmp_path, monkeypatch):
    source, expected = with_marks("«see» {1&gt;«our» {b&gt;«new»&lt;b} «page»&lt;1} {2} {i&gt;«a»")
    unit = f"<trans-unit><source>{source}</source></trans-unit>"
    written = upper_text(monkeypatch, tmp_path / "a.mxliff", f"<xliff>{unit}</xliff>")
    assert re.search("<target[^>]*>(.*)</target>", written)[1] == expected
    new = Inline(("{b>", "<b}"), ["new"])
    assert read_document(tmp_path / "a.mxliff").blocks[0][1] == Inline(("{1>", "<1}"), ["our ", new, " page"])


@pytest.mark.parametrize(
    "unit",
    [
        *(f"<trans-unit {locked}>%s</trans-unit>" for locked in ('m:locked="true"', 'm:locked="locked"')),
        '<trans-unit>%s<m:seg-defs><m:seg id="1" locked="true"/></m:seg-defs></trans-unit>',
    ],
)
def test_locked_segments_stay(tmp_path, monkeypatch, unit):
    path, other = tmp_path / "a.sdlxliff", "<trans-unit><source>b</source>"
    for target in ("", "eins"):
        segments = f"<seg-source>{SEGMENT % 'one'}</seg-source><target>{SEGMENT % target}</target>"
        locked = f'<xliff xmlns:m="urn:m">{unit % f"<source>one</source>{segments}"}'
        path.write_text(f"{locked}{other}</trans-unit></xliff>")
        written = upper_cased(monkeypatch, path, {"fill": "all"}, overwrite=True).read_text()
        assert written.startswith(f"{locked}{other}<target") and ">B</target>" in written


def test_segments_of_xliff_are_translated_one_by_one(tmp_path, monkeypatch):
    mark = '<mrk mtype="seg" mid="%d">%s</mrk>'
    segments = f"{mark % (1, 'one when')} {mark % (2, 'two.')}{mark % (3, '7')}"
    target = '<target><mrk mtype="seg" mid="1">eins</mrk> <mrk mtype="seg" mid="2"/></target>'
    unit = f"<trans-unit><source>one two.</source><seg-source>{segments}</seg-source>%s</trans-unit>"
    (tmp_path / "a.mqxliff").write_text(f"<xliff>{unit % ''}{unit % target}{unit % '<target>fertig</target>'}</xliff>")
    assert read_document(tmp_path / "a.mqxliff").blocks == [["one when"], ["two."], ["two."]]
    written = upper_cased(monkeypatch, tmp_path / "a.mqxliff").read_text()
    found = re.findall("<target[^>]*>(.*?)</target>", written)
    assert found[0] == segments.replace("one when", "ONE WHEN").replace("two", "TWO")
    assert found[1:] == ['<mrk mtype="seg" mid="1">eins</mrk> <mrk mtype="seg" mid="2">TWO.</mrk>', "fertig"]


def turned(translator, blocks, **languages):
    """The blocks with the elements of each in the reverse order."""

    def turn(block):
        elements = [piece for piece in block if not isinstance(piece, str)]
        return [piece if isinstance(piece, str) else elements.pop() for piece in block]

    return [*map(turn, blocks)]


@pytest.mark.parametrize(
    ("flag", "source", "written"),
    [
        ("c-format", "%d of %5.2f in %s", "%3$s of %2$5.2f in %1$d"),
        ("c-format", "<a href='%s'>a</a> %d%% of %s", "%3$s %2$d%% of <a href='%1$s'>a</a>"),
        ("c-format", "%<PRIu64> of %s", "%2$s of %1$<PRIu64>"),
        ("c-format", "%s of %s", "%s of %s"),
        ("c-format", "%1$d of %2$s", "%2$s of %1$d"),
        ("python-format", "%(a)d of %(b)s", "%(b)s of %(a)d"),
        ("python-format", "%d of %s", ""),
        ("python-brace-format", "{:d} of {} and {a}", "{a} of {1} and {0:d}"),
        ("qt-format", "%1d of %2h", "%2 of %1dh"),
        ("ruby-format", "%d of %B at %p", "%p of %B at %d"),
    ],
)
def test_placeholders_that_move_get_the_numbers_of_their_arguments(
    flag, source, written, tmp_path, monkeypatch, caplog
):
    content = f'#, {flag}\nmsgid "{source}"\nmsgstr ""\n'
    (tmp_path / "a.po").write_text(content)
    found = upper_cased(monkeypatch, tmp_path / "a.po", translate=turned).read_text()
    assert found == content.replace('msgstr ""', f'msgstr "{written}"')
    warning = "a.po: 1 messages stay, whose placeholders would move and have no numbers"
    assert (warning in caplog.text) == (written == "")


def test_all_plural_forms_of_a_message_stay_if_one_does(tmp_path, monkeypatch, caplog):
    forms = '#, python-format\nmsgid "One in %s"\nmsgid_plural "%d in %s"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    content = 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n' + forms
    (tmp_path / "a.po").write_text(content)
    assert upper_cased(monkeypatch, tmp_path / "a.po", translate=turned).read_text() == content
    assert "a.po: 1 messages stay" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.xlf", '<xliff><trans-unit><source>{0} <g id="1">of</g> {1}</source></trans-unit></xliff>'),
        ("a.strings", '"a" = "{0} of {1}";\n'),
        ("a.properties", "a = {0} of {1}\n"),
        ("a.xml", '<resources>\n  <string name="a">{0} of {1}</string>\n</resources>\n'),
    ],
)
def test_placeholders_get_numbers_in_all_messages(name, content, tmp_path, monkeypatch):
    (tmp_path / name).write_text(content.format("%d", "%s"))
    written = upper_cased(monkeypatch, tmp_path / name, translate=turned).read_text()
    assert re.findall(r"%[\w$]+", written)[-2:] == ["%2$s", "%1$d"]


MARKS = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#, fuzzy
#~ msgid "gone"
#~ msgstr "fort"

#: a.c
#, c-format
msgid "open %s"
msgstr ""

#~ msgid "gone"
#~ msgstr "fort"

msgctxt "menu"
msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
#| msgid "clos"
msgid "close"
msgstr "schließ"

msgid "done"
msgstr "fertig"
"""


def test_the_singular_is_translated_into_the_form_of_one_thing(tmp_path, monkeypatch):
    head = (
        r'msgid ""' "\n" r'msgstr "Plural-Forms: nplurals=3; plural=(n%100==1 ? 1 : n%100==2 ? 2 : 0);\n"'
    )  # of Slovenian
    plural = f'{head}\n\nmsgid "file"\nmsgid_plural "files"\n' + "".join(f'msgstr[{form}] ""\n' for form in range(3))
    filled = plural.replace('] ""', '] "FILES"').replace('[1] "FILES"', '[1] "FILE"')
    assert upper_text(monkeypatch, tmp_path / "a.po", plural) == filled


def test_translations_of_a_catalogue_are_marked_and_chosen(tmp_path, monkeypatch):
    path = tmp_path / "a.po"
    path.write_text(MARKS)
    filled = MARKS.replace('%s"\nmsgstr ""', '%s"\nmsgstr "OPEN %s"')
    filled = filled.replace('[0] ""', '[0] "ONE FILE"').replace('[1] ""', '[1] "%d FILES"')
    assert upper_cased(monkeypatch, path).read_text() == filled
    fuzzy = filled.replace("#, c-", "#, fuzzy, c-").replace("msgctxt", "#, fuzzy\nmsgctxt")
    settings = {"overwrite": True, "settings": {"mark_fuzzy": True}}
    assert upper_cased(monkeypatch, path, **settings).read_text() == fuzzy
    settings["settings"] = {"fill": "unreviewed", "mark_fuzzy": True}
    assert upper_cased(monkeypatch, path, **settings).read_text() == fuzzy.replace("schließ", "CLOSE")
    settings["settings"] = {"fill": "all"}
    expected = filled.replace("schließ", "CLOSE").replace("fertig", "DONE")
    assert upper_cased(monkeypatch, path, **settings).read_text() == expected


def test_translations_of_xliff_to_review_are_chosen(tmp_path):
    states = ("needs-review-translation", "translated", "final", "new")
    units = (f"<trans-unit><source>{s}</source><target state='{s}'>da</target></trans-unit>" for s in states)
    (tmp_path / "a.xlf").write_text(f"<xliff>{''.join(units)}</xliff>")
    found = {fill: len(read_document(tmp_path / "a.xlf", CatalogueOptions(fill)).blocks) for fill in FILL}
    assert found == {"empty": 0, "unreviewed": 2, "all": 4}


def test_translations_of_xliff_2_to_review_are_chosen(tmp_path, monkeypatch):
    path, text = tmp_path / "b.xliff", upper_text(monkeypatch, tmp_path / "a.xliff", XLIFF_2)
    path.write_text(text)
    assert len(read_document(path, CatalogueOptions("unreviewed")).blocks) == 1
    path.write_text(text.replace('state="translated"', 'state="reviewed"'))
    assert not read_document(path, CatalogueOptions("unreviewed")).blocks


@pytest.mark.parametrize(
    "unit",
    [
        "<trans-unit><source>one</source><target state='needs-translation'>one</target></trans-unit>",
        "<segment state='initial'><source>one</source><target>one</target></segment>",
    ],
)
def test_copies_of_the_source_are_translated(tmp_path, monkeypatch, unit):
    written = upper_text(monkeypatch, tmp_path / "a.xlf", f"<xliff>{unit}{unit.replace('>one</t', '>two</t')}</xliff>")
    assert written.count(">ONE</target>") == written.count(">two</target>") == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('a <bpt id="1">[</bpt>b<ept id="1">]</ept>', '<bpt id="1">[</bpt>b<ept id="1">]</ept>a '),
        ('a <bx rid="1" id="1"/>b<ex rid="1" id="2"/>', '<bx rid="1" id="1"/>b<ex rid="1" id="2"/>a '),
        ('a <sc id="1"/>b <ph id="2"/><ec startRef="1"/>', '<sc id="1"/>b <ph id="2"/><ec startRef="1"/>a '),
        (
            'a <sm id="1"/><sc id="2"/>b<em startRef="1"/>c<ec startRef="2"/>',
            '<ec startRef="2"/>c<sm id="1"/><sc id="2"/>b<em startRef="1"/>a ',
        ),
        ('a <ec startRef="1"/><sc id="1"/>b', 'b<sc id="1"/><ec startRef="1"/>a '),
        (
            'a <x id="START_LINK_1"/>b<x id="CLOSE_LINK"/> <x id="PH"/>',
            '<x id="PH"/> <x id="START_LINK_1"/>b<x id="CLOSE_LINK"/>a ',
        ),
    ],
    ids=["two tags", "two placeholders", "with a placeholder", "crossed", "of other segments", "of Angular"],
)
def test_the_start_and_the_end_of_a_span_stay_around_its_text(tmp_path, source, expected):
    path = tmp_path / "a.xlf"
    path.write_text(f"<xliff><trans-unit><source>{source}</source></trans-unit></xliff>")
    document = read_document(path)
    document.write(path, [document.blocks[0][::-1]])  # as a translation with another order
    assert f">{expected}</target>" in path.read_text()


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_texts_in_codes_stay_and_are_named(tmp_path, monkeypatch, caplog, end):
    code = "<ph id='1'>x <sub>the owl</sub></ph>"
    before = f"<xliff version='1.2'><trans-unit id='1'>{end}<source>go {code}</source>{end}</trans-unit></xliff>{end}"
    written = upper_text(monkeypatch, tmp_path / "a.xlf", before)
    assert re.sub(r"\s*<target.*?</target>", "", written.replace('"', "'")) == before
    assert "a.xlf: 1 texts in codes (<sub>) stay" in caplog.text


@pytest.mark.parametrize("mark", ['translate="no"', 'mtype="protected"'])
def test_text_that_xliff_protects_stays(tmp_path, monkeypatch, mark):
    source = f'by <mrk {mark}>Brand <pc id="1">name</pc></mrk> now'
    unit = f'<unit translate="yes"><segment><source>{source}</source></segment></unit>'
    content = f'<xliff version="2.0"><group translate="no">{unit}</group></xliff>'
    written = upper_text(monkeypatch, tmp_path / "a.xlf", content)
    assert f"<target>{source.replace('by', 'BY').replace('now', 'NOW')}</target>" in written


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlf", '<!DOCTYPE x [<!ENTITY e SYSTEM "/etc/passwd">]><x>&e;</x>', "defines entities, must have none"),
        ("a.xlf", "<xliff>", "not XML that can be read"),
        ("a.po", "one message", "cannot be read as a PO file"),
        ("a.po", 'msgid "a"\nmsgstr ""\n# odd\n""\n', "cannot be read as a PO file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_document(tmp_path / name)


def test_entities_are_not_resolved():
    with pytest.raises(InputError, match="a.xml: defines entities"):
        read_xml(b'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><x>&c;</x>', "a.xml")
    with pytest.raises(InputError, match="a.xml: the entity &c; is not defined"):
        read_xml(b'<!DOCTYPE x SYSTEM "x.dtd"><x><y>&c;</y></x>', "a.xml")
