"""Text within the elements of TMX and XLIFF."""

import pytest
from data.test_pair_formats import pair_of, text

from residual_hf.base import xml_reader
from residual_hf.base.errors import InputError


def units(path, source, target):
    """A file of one pair, in the format of its suffix."""
    if path.suffix == ".tmx":
        sides = (("en", source), ("de", target))
        variants = "".join(f'<tuv xml:lang="{code}"><seg>{content}</seg></tuv>' for code, content in sides)
        return text(path, f"<tmx><body><tu>{variants}</tu></body></tmx>")
    pair = f"<source>{source}</source><target>{target}</target>"
    unit = f'<trans-unit id="1">{pair}</trans-unit>'
    if "dataRef" in source:
        unit = f'<unit><originalData><data id="d">{{0}}</data></originalData><segment>{pair}</segment></unit>'
    return text(path, f'<xliff srcLang="en" trgLang="de">{unit}</xliff>')


@pytest.mark.parametrize("suffix", [".tmx", ".sdlxliff"])
@pytest.mark.parametrize(
    "tag",
    [
        *('<hi type="b">{}</hi>', '<g id="1">{}</g>', '<mrk mtype="x">{}</mrk>', '<pc id="1">{}</pc>', "<b>{}</b>"),
        *('<a href="x">{}</a>', '<g id="1"><bpt i="2">&lt;b></bpt>{}<ept i="2">&lt;/b></ept></g>'),
    ],
)
def test_text_within_elements_belongs_to_the_pair(suffix, tag, tmp_path):
    sides = (
        f"{start}{tag.format(owl)}{end}" for start, owl, end in (("The ", "owl", " calls."), ("Die ", "Eule", "."))
    )
    assert pair_of(units(tmp_path / f"a{suffix}", *sides)) == [("The owl calls.", "Die Eule.")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("<ph>{0}</ph>", "{0}"),
        ("<ph>%1$s</ph>", "%1$s"),
        ("<ph>$name</ph>", "$name"),
        ("<ph>[NAME]</ph>", "[NAME]"),
        ('<x id="1" equiv-text="{{name}}"/>', "{{name}}"),
        ('<ph id="1" equiv="INTERPOLATION" disp="{{name}}"/>', "{{name}}"),
        ('<ph id="1" dataRef="d"/>', "{0}"),
        ("<ph>&lt;br/></ph>", ""),
        ('<x id="1" equiv-text="&lt;img>"/>', ""),
        ("<ph>{\\b}</ph>", ""),
        ("<bpt>{0}</bpt><ept>{1}</ept>", ""),
    ],
)
def test_placeholders_in_codes_are_text(code, expected, tmp_path):
    pair = ("Hi " + expected + ".", "Ja " + expected + ".") if expected else ("Hi .", "Ja .")
    for suffix in (".tmx", ".xlf") if "dataRef" not in code else (".xlf",):
        assert pair_of(units(tmp_path / f"a{suffix}", f"Hi {code}.", f"Ja {code}.")) == [pair]


def test_placeholders_that_trados_defines_before_the_units(tmp_path):
    defined = '<tag id="5"><ph name="a">{name}</ph></tag><tag id="6"><ph>&lt;br/></ph></tag>'
    file = text(
        tmp_path / "a.sdlxliff",
        '<xliff><file source-language="en" target-language="de"><header>'
        f'<tag-defs xmlns="http://sdl.com/FileTypes/SdlXliff/1.0">{defined}</tag-defs></header><body><trans-unit>'
        '<source>Hi <x id="5"/>.<x id="6"/></source><target>Ja <x id="5"/>.<x id="6"/></target>'
        "</trans-unit></body></file></xliff>",
    )
    assert pair_of(file) == [("Hi {name}.", "Ja {name}.")]


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        *((".tmx", code) for code in ('<ph type="lb"/>', '<ph x="1">&lt;br/></ph>', "<it>&lt;br></it>", "<br/>")),
        *((".xlf", code) for code in ('<x id="1" ctype="lb" equiv-text="&lt;br/>"/>', '<ph id="1">\\n</ph>')),
    ],
)
def test_line_breaks_are_between_words(suffix, code, tmp_path):
    file = units(tmp_path / f"a{suffix}", f"One line.{code}two", f"Eine Zeile.{code}zwei")
    assert pair_of(file) == [("One line. two", "Eine Zeile. zwei")]


def test_segments_of_xliff_are_pairs(tmp_path):
    marks = '<mrk mtype="seg" mid="1">{}</mrk> <mrk mtype="seg" mid="2">{}</mrk>'
    unit = f"<source>one two</source><seg-source>{marks.format('one', 'two')}</seg-source>"
    file = text(
        tmp_path / "a.mqxliff",
        f'<xliff><file source-language="en" target-language="de"><trans-unit>{unit}'
        f"<target>{marks.format('eins', 'zwei')}</target></trans-unit><trans-unit>{unit}"
        f"<target>{marks.format('eins', '')}</target></trans-unit></file></xliff>",
    )
    assert pair_of(file) == [("one", "eins"), ("two", "zwei"), ("one", "eins")]


@pytest.mark.parametrize(
    "content",
    [
        "<tmx><tu><seg>" + 20 * ("a" * 9000 + "<b/>") + "</seg></tu></tmx>",
        "<tmx><header>" + "a" * 180_000 + "</header></tmx>",
        "<tmx>" + "<!-- a -->" * 18_000 + "</tmx>",
        "<tmx><tu " + " ".join(f"a{number}='{'a' * 9000}'" for number in range(20)) + "/></tmx>",
        "".join(f"<a{number} a='{'a' * 30_000}'><tu/>" for number in range(9)),
    ],
    ids=["text", "between units", "comments", "attributes", "around units"],
)
def test_what_is_read_of_xml_is_bounded(content, tmp_path, monkeypatch):
    monkeypatch.setattr(xml_reader, "LARGEST_UNIT", 100_000)
    monkeypatch.setattr(xml_reader, "LARGEST_FRAME", 100_000)
    with pytest.raises(InputError, match=r"a\.tmx: (an element|attributes) of more than 100,000 (bytes|characters)"):
        pair_of(text(tmp_path / "a.tmx", content))
