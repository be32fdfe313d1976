"""Sentence pairs in the files of translators and offices."""

import csv
import gzip
import json
import sys
import tracemalloc
import zipfile
from dataclasses import replace

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")
pytest.importorskip("polib", reason="the extra [documents] is not installed")

from residual_hf.base import archives, xml_reader
from residual_hf.base.errors import InputError
from residual_hf.data import pair_formats
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.pair_formats import languages_in
from residual_hf.data.pair_reader import PairReader, count_rows

PAIRS = [("a dog & a cat", "ein Hund & eine Katze"), ("two birds", "zwei Vögel"), ("last one", "der letzte")]
TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"/><!-- units --><body>
<tu><prop>x</prop><tuv xml:lang="en-US"><seg>a <bpt i="1">&lt;b></bpt>dog<ept i="1">&lt;/b></ept>
   &amp; a <hi>cat</hi></seg></tuv><tuv xml:lang="de-DE"><seg>ein Hund &amp; eine Katze</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>only French</seg></tuv><tuv xml:lang="fr"><seg>seulement</seg></tuv></tu>
<tu><tuv lang="DE"><seg>zwei Vögel</seg></tuv><tuv lang="EN"><seg>two birds</seg></tuv></tu>
<tu><tuv xml:lang="en-GB"><seg>last one</seg></tuv><tuv xml:lang="de"><seg>der letzte</seg></tuv></tu>
</body></tmx>"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"
target-language="de-DE"><body><group><trans-unit id="1"><source>a <g id="1">dog</g> &amp; <x id="2"/>a cat</source>
<target state="final">ein <g id="1">Hund</g> &amp; eine <ph id="3">&lt;br></ph>Katze</target>
<alt-trans><target>ein Köter</target></alt-trans></trans-unit></group>
<trans-unit id="2"><source>two birds</source><target>zwei Vögel</target></trans-unit>
<trans-unit id="3"><source>new</source><target/></trans-unit><trans-unit id="4"><source>newer</source></trans-unit>
<trans-unit id="5"><source>copied</source><target state="needs-translation">copied</target></trans-unit>
<trans-unit id="6"><source>unseen</source><target>&#x200b;</target></trans-unit>
<trans-unit id="7"><source>last one</source><target>der letzte</target></trans-unit></body></file></xliff>"""
XLIFF_2 = """<xliff version="2.1" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">
<unit id="1"><segment><source>a <pc id="1">dog</pc> &amp; a cat</source><target>ein Hund &amp; <ph id="2"/>eine
<mrk id="3">Katze</mrk></target></segment><ignorable><source> </source><target> </target></ignorable>
<segment state="translated"><source>two birds</source><target>zwei Vögel</target></segment>
<segment state="initial"><source>new</source><target>new</target></segment></unit>
<unit id="2"><segment><source>last one</source><target>der letzte</target></segment></unit></file></xliff>"""
PO = r"""# a comment
msgid ""
msgstr ""
"Language: de\n"
"Content-Type: text/plain; charset=UTF-8\n"

#: file.c:1
msgid "a dog "
"& a cat\n"
msgstr "ein Hund & eine Katze\n"

#, fuzzy
msgid "old"
msgstr "unsicher"

msgid "untranslated"
msgstr ""

msgid "two birds"
msgid_plural "last one"
msgstr[0] "zwei Vögel"
msgstr[1] "der letzte"

#~ msgid "gone"
#~ msgstr "weg"
"""


def table(path, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def workbook(path, rows):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra [documents] is not installed")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes").append(["not", "read"])
    book.save(path)
    return path


def parquet(path, rows):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    write_table(Table.from_pylist(rows), path)
    return path


def json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(path, content):
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def pair_of(file):
    return PairReader(CorpusSpec(file=file, source_lang="en", target_lang="de")).take()


KEYED = [{"id": 1, "de": target, "en": source} for source, target in PAIRS]
NESTED = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
NUMBERED = [("id", "de", "en"), *((i, target, source) for i, (source, target) in enumerate(PAIRS))]
FILES = {
    "tmx": lambda f: text(f / "a.tmx", TMX),
    "tmx.gz": lambda f: text(f / "a.TMX.gz", TMX),
    "xliff 1.2": lambda f: text(f / "a.xlf", XLIFF_1),
    "xliff 2.1": lambda f: text(f / "a.xliff", XLIFF_2),
    "po": lambda f: text(f / "a.po", PO),
    "csv": lambda f: table(f / "a.csv", [*PAIRS[:1], (), *PAIRS[1:]]),
    "csv of languages": lambda f: table(f / "a.csv", NUMBERED, ";"),
    "csv with a header": lambda f: table(f / "a.csv", [("Target", "Source"), *(pair[::-1] for pair in PAIRS)]),
    "csv of names": lambda f: table(f / "a.csv", [("id", "Deutsch", "English "), *NUMBERED[1:]]),
    "tsv": lambda f: table(f / "a.tsv", NUMBERED, "\t"),
    "excel": lambda f: workbook(f / "a.xlsx", NUMBERED),
    "jsonl": lambda f: json_lines(f / "a.jsonl", KEYED),
    "nested jsonl": lambda f: json_lines(f / "a.jsonl", NESTED),
    "parquet": lambda f: parquet(f / "a.parquet", KEYED),
    "nested parquet": lambda f: parquet(f / "a.parquet", NESTED),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_the_same_pairs_are_read_from_every_format(make, tmp_path):
    spec = CorpusSpec(file=make(tmp_path), source_lang="en", target_lang="de")
    assert PairReader(spec).take() == PAIRS
    first = PairReader(spec)
    first.take(2)
    assert PairReader(spec, first.cursor).take() == PAIRS[2:], "reading continues"
    assert count_rows(spec) >= 3 and count_rows(spec, most=1) >= 2


@pytest.mark.parametrize("write", [json_lines, parquet])
def test_spaces_of_records_stay(write, tmp_path):
    file = tmp_path / {json_lines: "a.jsonl", parquet: "a.parquet"}[write]
    spec = CorpusSpec(file=write(file, [{"text": "    return 1  # one"}]), text_column="text")
    assert PairReader(spec).take() == [("    return 1  # one",) * 2]


@pytest.mark.parametrize(
    ("rule", "forms"),
    [
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);",
            ["psov", "pes", "-", "-"],
        ),
        ("nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);", ["pes", "psov", "nič"]),  # as of Latvian
        *((rule, ["pes", "psi", "psov"]) for rule in ("plural=(n == 1 ? 1 : 5);", "plural=n%0;", "", "plural=(n")),
    ],
)
def test_plurals_of_po_are_those_of_its_rule(rule, forms, tmp_path):
    lines = [f'msgstr[{number}] "{form}"' for number, form in enumerate(forms)]
    head = f'msgid ""\nmsgstr ""\n"Language: sl\\n"\n"Plural-Forms: {rule}\\n"\n\n'
    file = text(tmp_path / "a.po", head + "\n".join(['msgid "a dog"', 'msgid_plural "dogs"', *lines]) + "\n")
    spec = CorpusSpec(file=file, source_lang="en", target_lang="sl")
    assert PairReader(spec).take() == [("a dog", "pes"), ("dogs", "psov")]


def test_delimiters_in_quotes_are_text(tmp_path):
    file = text(tmp_path / "a.csv", '"so, ""well"", yes";"ja"\n"no";"nein, nein"\n')
    assert pair_of(file) == [('so, "well", yes', "ja"), ("no", "nein, nein")]
    assert pair_of(text(tmp_path / "a.csv", 'Well, yes, sir\t"""Ja"""\n')) == [("Well, yes, sir", '"Ja"')]
    assert pair_of(text(tmp_path / "a.csv", "Yes, sir;Ja\n")) == [("Yes, sir", "Ja")], "a comma is likelier in text"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "en|de\none|eins\n"),
        ("a.csv", "sep=;\none;eins\n"),
        ("a.csv", "\nde;en\neins;one\n"),
        ("a.csv", "sep=;\n\nde;en\neins;one\n"),
        ("a.csv", "\n\n\nde;en\neins;one\n"),
        ("a.csv", ",\nGerman,English\neins,one\n"),
        ("a.jsonl", '{"source": "one", "target": "eins"}\n'),
        ("a.jsonl", '{"tgt": "eins", "src": "one", "id": 1}\n\n'),
    ],
)
def test_other_names_and_delimiters(tmp_path, name, content):
    spec = CorpusSpec(file=text(tmp_path / name, content), source_lang="en", target_lang="de", skip_empty=True)
    assert PairReader(spec).take() == [("one", "eins")]


def test_columns_are_chosen_by_name_or_number(tmp_path):
    file = table(tmp_path / "a.csv", [("id", "English text", "Deutsch"), *((1, *pair) for pair in PAIRS)])
    with pytest.raises(InputError, match="has 3 columns, whose names are not those of both languages; set "):
        pair_of(file)
    languages = {"source_lang": "en", "target_lang": "de"}
    named = CorpusSpec(file=file, source_column="English text", target_column="Deutsch", **languages)
    assert PairReader(named).take() == PAIRS
    numbered = replace(named, source_column=3, target_column=2)
    assert PairReader(numbered).take()[1:] == [pair[::-1] for pair in PAIRS]
    with pytest.raises(InputError, match="no column 'English'; the first row has 'id', 'English text', 'Deutsch'"):
        PairReader(replace(named, source_column="English")).take()
    with pytest.raises(InputError, match="row 3 has 1 columns, but columns 1 and 2 are to be read"):
        pair_of(text(tmp_path / "b.csv", "\nen,de\none\n"))
    with pytest.raises(InputError, match="row 1 has 3 columns, but columns 2 and 4 are to be read"):
        PairReader(replace(named, source_column=2, target_column=4)).take()


@pytest.mark.parametrize(("code", "name"), [("no", "Norwegian"), ("id", "Indonesian")])
def test_a_column_of_numbers_is_no_language(code, name, tmp_path):
    file = table(tmp_path / "a.csv", [(code.upper(), "English", name), *((i, *pair) for i, pair in enumerate(PAIRS))])
    assert PairReader(CorpusSpec(file=file, source_lang="en", target_lang=code)).take() == PAIRS
    of_opus = [{"id": "0", "translation": {"en": source, code: target}} for source, target in PAIRS]
    flat = [{code: "0", "source": source, "target": target} for source, target in PAIRS]
    for rows in (of_opus, flat):
        spec = CorpusSpec(file=json_lines(tmp_path / "a.jsonl", rows), source_lang="en", target_lang=code)
        assert PairReader(spec).take() == PAIRS
    numbered = table(tmp_path / "b.csv", [(code, "source", "target"), *((i, *pair) for i, pair in enumerate(PAIRS))])
    assert PairReader(CorpusSpec(file=numbered, source_lang="en", target_lang=code)).take() == PAIRS


def test_a_header_is_known_by_the_columns_that_are_read(tmp_path):
    spec = CorpusSpec(file=table(tmp_path / "a.tsv", NUMBERED, "\t"), source_column=3, target_column=2)
    assert PairReader(replace(spec, source_lang="en", target_lang="de")).take() == PAIRS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", "<tmx><body><tu>", r"a\.tmx: not XML that can be read: .*line 1"),
        (
            "a.tmx",
            TMX.replace("xml:lang", "lang").replace("de", "nl").replace("DE", "nl"),
            "no unit has both en and de",
        ),
        ("a.tmx", '<!DOCTYPE tmx [<!ENTITY a "x">]><tmx><tu/></tmx>', "defines entities, must have none"),
        ("a.tmx", TMX.replace("two birds", "two &birds;"), "the entity &birds; is not defined"),
        ("a.tmx", f"<tmx><tu>{'<tuv/>' * 99}</tu></tmx>", "<tu> of more than 50 elements"),
        ("a.tmx.gz", "<tmx", "damaged gzip file"),
        ("a.xlf", XLIFF_1.replace('"de-DE"', '"fr"'), "is from en to fr, must be of en and de"),
        ("a.po", PO.replace("Language: de", "Language: fr"), "is from None to fr, must be of en and de"),
        ("a.po", "message one", r"a\.po: cannot be read as a PO file"),
        ("a.po", 'msgid ""\n"Hello\nmsgstr "b"\n', 'a text without its end: "Hello'),
        ("a.po", PO.encode("utf-16"), "it looks like UTF-16, which gettext does not read"),
        ("a.po", 'msgid "a\0"\nmsgstr "b"\n', "pair 1 has a NUL character"),
        ("a.csv", "", "empty, must have at least one sentence pair"),
        (
            "a.csv",
            "en,de\nyes, please,ja\n",
            "row 2 has 3 columns, but the first row has 2; text with a delimiter must be",
        ),
        (
            "a.csv",
            f'en,de\na,b\n"{"x" * 200_000}\n',
            "begins in line 3 is not CSV: field larger than field limit",
        ),
        (
            "a.csv",
            '"\n",' * 500_000,
            "begins in line 1 is not CSV: a row of more than 1,048,576 characters",
        ),
        ("a.csv", 'en,de\na,"b\nc,d\ne,f\n', "begins in line 2 is not CSV: unexpected end of data"),
        (
            "a.csv",
            'sep=,\none,eins\n"two"x,zwei\n',
            "begins in line 3 is not CSV: ',' expected after '\"'",
        ),
        ("a.csv", "en,de\rone,eins\r", "its lines end with carriage returns, must end with line feeds"),
        ("a.tsv", "one\teins\ntwo\tzwei\tdrei\n", "row 2 has 3 columns, but the first row has 2$"),
        ("a.tsv", '"en"\t"de"\n"one"\t"eins"\n', '"en" is quoted as in CSV; give it a name that ends in .csv'),
        ("a.tsv", 'en\tde\n"say ""one"""\teins\n', '"say ""one""" is quoted as in CSV'),
        ("a.tsv", "one;eins\n", "its first row 'one;eins' has no second column after a tab"),
        (
            "a.csv",
            "DE,English,Deutsche Texte\n1,one,eins\n",  # a code beside a name may be of another kind
            "has 3 columns, whose names are not those of both languages; set source_column and ",
        ),
        (
            "a.csv",
            "Original,en\nHallo,hello\n",
            "has 2 columns, whose names are not those of both languages; set source_c",
        ),
        ("a.xlsx", "PK", "cannot be read as a zip archive"),
        ("a.parquet", "PAR1", "cannot be read as a parquet file"),
        ("a.jsonl", '{"en": "x"}\n', "line 1: no key `de`|no key `translation`"),
        ("a.docx", "x", "file: .* given, must be"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr(xml_reader, "MOST_PARTS", 50)
    monkeypatch.setattr(pair_formats, "LONGEST_LINE", 1 << 20)
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        pair_of(path)


def test_a_workbook_is_limited_before_it_is_unpacked(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx", PAIRS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 10**6)
    spec = CorpusSpec(file=path, source_lang="en", target_lang="de")
    assert PairReader(spec).take() == PAIRS
    monkeypatch.setattr(pair_formats, "LARGEST_WORKBOOK", 10**6)
    with pytest.raises(InputError, match="MiB unpacked, must have at most"):
        PairReader(spec).take()
    monkeypatch.undo()
    monkeypatch.setattr(archives, "MOST_FILES", 2)
    with pytest.raises(InputError, match="files of"):
        PairReader(spec).take()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a" * 2**20] * 1000, "a text of 1,048,576 bytes, must have at most 1,048,575"),
        (["a" * 2**24], "row group 0 of translation.en has 16,[0-9,]+ bytes, more than 100 times as many"),
    ],
    ids=["repeated", "compressed"],
)
def test_small_parquet_files_of_large_texts_are_refused_in_little_memory(tmp_path, monkeypatch, texts, message):
    import pyarrow as pa
    from pyarrow.parquet import write_table

    monkeypatch.setattr(pair_formats, "LONGEST_LINE", 2**20 - 1)
    monkeypatch.setattr(pair_formats, "PARQUET_PAGES", 2**22)
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * len(texts), pa.int32()), pa.array(texts[:1]))
    column = pa.StructArray.from_arrays([dictionary, pa.array(["b"] * len(texts))], ["en", "de"])
    path = tmp_path / "a.parquet"
    write_table(pa.table({"translation": column}), path, compression="zstd", dictionary_pagesize_limit=2**28)
    assert path.stat().st_size < 60_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(InputError, match=message):
        pair_of(path)
    assert pa.default_memory_pool().max_memory() <= before + 2**25


def test_long_texts_of_parquet_files_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    rows = [{"en": f"{number}" * 40, "de": "b", "image": b"x" * 100, "tags": ["y"] * 50} for number in range(30)]
    monkeypatch.setattr(pair_formats, "LONGEST_LINE", 100)
    assert pair_of(parquet(tmp_path / "a.parquet", rows)) == [(row["en"], "b") for row in rows]
    monkeypatch.setattr(pair_formats, "LONGEST_LINE", 2**16)
    languages = {"source_lang": "en", "target_lang": "de"}
    same = parquet(tmp_path / "b.parquet", [{"en": "x" * 60_000, "de": "b"}] * 1000)  # a small file, of a dictionary
    tracemalloc.start()
    assert (
        sum(len(source) for source, _ in pair_formats.pairs_of_file(CorpusSpec(file=same, **languages))) == 60_000_000
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_long_names_of_columns_are_compared_in_linear_time(tmp_path):
    assert not languages_in(table(tmp_path / "a.csv", [("en" + "_a" * 50_000 + "!", "de", "note")]))


SHEET = "<worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'>{}</worksheet>"
TEXT_CELL = '<c r="{}" t="inlineStr"><is><t>{}</t></is></c>'
ROW = f'<row r="{{0}}">{TEXT_CELL.format("A{0}", "{1}")}{TEXT_CELL.format("B{0}", "{2}")}</row>'


@pytest.mark.parametrize("last", [1_048_576, 10**9])
def test_rows_that_a_workbook_claims_are_not_read(last, tmp_path):
    rows = "".join(ROW.format(number, *pair) for number, pair in zip((1, 7, last), PAIRS, strict=True))
    sheet = SHEET.format(f'<dimension ref="A1:XFD1048576"/><sheetData>{rows.replace("&", "&amp;")}</sheetData>')
    assert pair_of(with_sheet(tmp_path, sheet)) == PAIRS


def test_the_columns_of_a_workbook_are_bounded(tmp_path):
    row = ROW.format(1, "one", "eins").replace("</row>", '<c r="XFD1"><v>1</v></c></row>')
    with pytest.raises(InputError, match="has a cell XFD1, must have at most 1,000 columns"):
        pair_of(with_sheet(tmp_path, SHEET.format(f"<sheetData>{row}</sheetData>")))


def with_sheet(folder, sheet):
    """A workbook with another first sheet."""
    source = workbook(folder / "source.xlsx", PAIRS)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(folder / "a.xlsx", "w") as new:
        for name in old.namelist():
            new.writestr(name, sheet if name == "xl/worksheets/sheet1.xml" else old.read(name))
    return folder / "a.xlsx"


def test_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polib", None)
    with pytest.raises(InputError, match=r"polib is not installed: pip install 'residual_hf\[documents\]'"):
        pair_of(FILES["po"](tmp_path))


def test_units_that_were_read_are_forgotten(tmp_path):
    """The parser is ahead of the elements by what it reads at once."""
    unit = "<tu><tuv lang='en'><seg>a</seg></tuv><tuv lang='de'><seg>b</seg></tuv></tu>\n<x><y/></x>"
    path = text(tmp_path / "a.tmx", f"<tmx><body>{unit * 5000}</body></tmx>")
    with path.open("rb") as file:
        for element in xml_reader.xml_elements(file, "a", ("tu",)):
            assert len(element.getparent()) < 1000


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tmx", ["en-US", "de-DE"]),
        ("xliff 1.2", ["en", "de-DE"]),
        ("xliff 2.1", ["en", "de"]),
        ("csv with a header", ()),
        ("jsonl", ["de", "en"]),
        ("nested parquet", ["en", "de"]),
    ],
)
def test_languages_are_what_a_file_names(name, found, tmp_path):
    assert list(languages_in(FILES[name](tmp_path))) == list(found)
    (tmp_path / "a.jsonl").write_text('{"en": "a"},\n')
    with pytest.raises(InputError, match=r"a\.jsonl: line 1 is not JSON: Extra data: .*char 11"):
        languages_in(tmp_path / "a.jsonl")
    assert languages_in(table(tmp_path / "corpus.de-en.tsv", [("src", "tgt"), *PAIRS])) == ("de", "en")
    assert languages_in(table(tmp_path / "a.tsv", [("English", "german"), *PAIRS], "\t")) == ["en", "de"]
    assert languages_in(table(tmp_path / "a.csv", [("id", "French", "note", "Thai")])) == ["fr", "th"]
    three = TMX.replace("</tu>", '<tuv xml:lang="fr"><seg>x</seg></tuv></tu>', 1)
    assert languages_in(text(tmp_path / "a.tmx", three)) == ["en-US", "de-DE", "fr"]
    assert languages_in(text(tmp_path / "a.tmx", three.replace('"fr"', '"de-DE"'))) == ["en-US", "de-DE"]
