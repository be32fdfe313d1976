# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Word, PowerPoint, OpenDocument and EPUB: text is replaced, everything else stays."""

from __future__ import annotations

import zipfile

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")

from support.documents import upper_cased

from residual_hf.base import archives
from residual_hf.base.errors import InputError
from residual_hf.documents.formats import read_document

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
BOLD, RED = "<w:rPr><w:b/></w:rPr>", '<w:rPr><w:color w:val="FF0000"/></w:rPr>'
LINK = '<w:rPr><w:rStyle w:val="Link"/></w:rPr>'
BOOKMARK, UNTIL = '<w:bookmarkStart w:id="1" w:name="b"/>', '<w:bookmarkEnd w:id="1"/>'
COMMENT, COMMENT_END = (f'<w:commentRange{end} w:id="1"/>' for end in ("Start", "End"))
BEGIN, SEPARATE, STOP = (f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end"))


def run(text, properties=""):
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


def code(text):
    return f"<w:r><w:instrText>{text}</w:instrText></w:r>"


NUMBER = BEGIN + code(" SEQ x ") + SEPARATE + run("1") + STOP


def archive(path, **files):
    """A zip archive whose `.` is `__` in names of files; the first is stored without compression."""
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in files.items():
            kind = zipfile.ZIP_STORED if name == next(iter(files)) else zipfile.ZIP_DEFLATED
            packed.writestr(name, content, kind)
    return path


def content(path, name):
    with zipfile.ZipFile(path) as packed:
        return packed.read(name).decode()


def word(path, *paragraphs, **files):
    body = "".join(f"<w:p>{paragraph}</w:p>" for paragraph in paragraphs)
    document = (
        f'<?xml version="1.0" standalone="yes"?>\n<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    )
    return archive(path, **{"[Content_Types].xml": "<Types/>", "word/document.xml": document, **files})


NUMBER = BEGIN + code(" SEQ x ") + SEPARATE + run("1") + STOP
PARAGRAPHS = {
    "runs of one format": (
        f"<w:pPr><w:jc/></w:pPr>{run('a sm')}<w:proofErr/>{run('all ', '<w:rPr><w:lang/></w:rPr>')}{run('dog')}",
        f"<w:pPr><w:jc/></w:pPr>{run('A SMALL DOG')}",
    ),
    "formats of words": (
        run("see ") + run("two", BOLD) + run(" dogs and ") + run("red", RED) + run(" cats"),
        run("SEE ") + run("TWO", BOLD) + run(" DOGS AND ") + run("RED", RED) + run(" CATS"),
    ),
    "the format of most letters": (
        run("much bold text ", BOLD) + run("plain"),
        run("MUCH BOLD TEXT ", BOLD) + run("PLAIN"),
    ),
    "a link": (
        run("see ") + f'<w:hyperlink w:anchor="x">{run("our ")}{run("page", BOLD)}</w:hyperlink>' + run(" now"),
        run("SEE ") + f'<w:hyperlink w:anchor="x">{run("OUR ")}{run("PAGE", BOLD)}</w:hyperlink>' + run(" NOW"),
    ),
    "tabs and breaks": (
        f"{run('name:')}<w:r><w:tab/><w:t>value</w:t><w:br/><w:t>line</w:t></w:r>",
        f"{run('NAME:')}<w:r><w:tab/></w:r>{run('VALUE')}<w:r><w:br/></w:r>{run('LINE')}",
    ),
    "a footnote": (
        run("text") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + run(" goes on"),
        run("TEXT") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + run(" GOES ON"),
    ),
    "a field": (
        run("see ") + BEGIN + code(" REF a ") + SEPARATE + run("figure 1") + STOP + run(" above"),
        run("SEE ") + BEGIN + code(" REF a ") + SEPARATE + run("figure 1") + STOP + run(" ABOVE"),
    ),
    "the field of a link": (
        BEGIN + code(' HYPERLINK "x" ') + SEPARATE + run("our page") + STOP + run(" now"),
        BEGIN + code(' HYPERLINK "x" ') + SEPARATE + run("OUR PAGE") + STOP + run(" NOW"),
    ),
    "a field of several paragraphs": (
        BEGIN + code(" TOC ") + SEPARATE + f"<w:hyperlink>{run('title')}</w:hyperlink>",
        BEGIN + code(" TOC ") + SEPARATE + f"<w:hyperlink>{run('TITLE')}</w:hyperlink>",
    ),
    "the end of a field": (run("last") + STOP + run("more"), run("LAST") + STOP + run("MORE")),
    "a bookmark": (
        run("one ") + BOOKMARK + run("two ") + NUMBER + UNTIL + run(" x"),
        run("ONE ") + BOOKMARK + run("TWO ") + NUMBER + UNTIL + run(" X"),
    ),
    "a bookmark without text": (
        run("one ") + BOOKMARK + UNTIL + run("two"),
        run("ONE ") + BOOKMARK + UNTIL + run("TWO"),
    ),
    "ranges that cross": (
        run("one ") + BOOKMARK + run("two ") + COMMENT + run("three ") + UNTIL + run("four") + COMMENT_END,
        BOOKMARK + run("ONE TWO ") + COMMENT + run("THREE FOUR") + COMMENT_END + UNTIL,
    ),
    "a range that begins in a field": (
        BEGIN + BOOKMARK + code(" FORMTEXT ") + SEPARATE + run("1") + STOP + UNTIL + run(" x"),
        BOOKMARK + BEGIN + code(" FORMTEXT ") + SEPARATE + run("1") + STOP + run(" X") + UNTIL,
    ),
    "the end of a range": (run("one ") + UNTIL + run("two"), run("ONE TWO") + UNTIL),
    "more links than text": (
        run("see ") + f"<w:hyperlink>{run('our home page', LINK)}</w:hyperlink>" + run(" x"),
        run("SEE ") + f"<w:hyperlink>{run('OUR HOME PAGE', LINK)}</w:hyperlink>" + run(" X"),
    ),
    "a deletion": (
        run("now ") + "<w:del><w:r><w:delText>not</w:delText></w:r></w:del>" + f"<w:ins>{run('here')}</w:ins>",
        run("NOW ") + "<w:del><w:r><w:delText>not</w:delText></w:r></w:del>" + f"<w:ins>{run('HERE')}</w:ins>",
    ),
    "a content control": (
        run("dear ") + f"<w:sdt><w:sdtPr/><w:sdtContent>{run('reader')}</w:sdtContent></w:sdt>",
        run("DEAR ") + f"<w:sdt><w:sdtPr/><w:sdtContent>{run('READER')}</w:sdtContent></w:sdt>",
    ),
    "a text box": (
        run("text ") + f"<w:r><w:pict><w:txbxContent><w:p>{run('in')}</w:p></w:txbxContent></w:pict></w:r>",
        run("TEXT ") + f"<w:r><w:pict><w:txbxContent><w:p>{run('IN')}</w:p></w:txbxContent></w:pict></w:r>",
    ),
    "a mark of a field without a type": (
        run("last") + "<w:r><w:fldChar/></w:r>",
        run("LAST") + "<w:r><w:fldChar/></w:r>",
    ),
    "numbers only": (run("1", BOLD) + "<w:proofErr/>" + run("2"), run("1", BOLD) + "<w:proofErr/>" + run("2")),
}


@pytest.mark.parametrize(("before", "after"), PARAGRAPHS.values(), ids=PARAGRAPHS)
def test_paragraphs_of_word(tmp_path, monkeypatch, before, after):
    written = content(upper_cased(monkeypatch, word(tmp_path / "a.docx", before)), "word/document.xml")
    assert written.partition("<w:p>")[2].rpartition("</w:p>")[0] == after


def test_other_parts_of_an_archive_stay(tmp_path, monkeypatch):
    header = f'<w:hdr xmlns:w="{W}"><w:p>{run("header")}</w:p></w:hdr>'
    files = {"word/header1.xml": header, "word/styles.xml": "<w:styles>text</w:styles>", "word/media/a.png": b"\0\1"}
    source = word(tmp_path / "a.docx", run("x y"), **files)
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(upper_cased(monkeypatch, source)) as after:
        assert after.testzip() is None
        for old, new in zip(before.infolist(), after.infolist(), strict=True):
            assert (old.filename, old.date_time, old.compress_type) == (new.filename, new.date_time, new.compress_type)
            if old.filename not in ("word/document.xml", "word/header1.xml"):
                assert before.read(old) == after.read(new)
        assert after.read("word/header1.xml").endswith(header.replace(">header<", ">HEADER<").encode())
        assert after.read("word/document.xml").startswith(b"<?xml version='1.0' encoding='UTF-8' standalone='yes'?>")


def test_the_main_part_of_word_may_have_a_number(tmp_path, monkeypatch):
    part = f'<w:document xmlns:w="{W}"><w:body><w:p>{run("text")}</w:p></w:body></w:document>'
    written = upper_cased(monkeypatch, archive(tmp_path / "a.docx", **{"word/document2.xml": part}))
    assert ">TEXT<" in content(written, "word/document2.xml")


@pytest.mark.parametrize("nested", [BOOKMARK, BEGIN + code(' HYPERLINK "x" ') + SEPARATE], ids=["ranges", "fields"])
def test_deep_nesting_in_a_paragraph(tmp_path, monkeypatch, nested):
    end = UNTIL if nested == BOOKMARK else STOP
    source = word(tmp_path / "a.docx", nested * 600 + run("text") + end * 600)
    written = content(upper_cased(monkeypatch, source), "word/document.xml")
    assert (written.count(nested), written.count(end), written.count(">TEXT<")) == (600, 600, 1)


def test_slides(tmp_path, monkeypatch):
    slide = (
        f'<p:sld xmlns:p="urn:p" xmlns:a="{A}"><a:p><a:pPr/><a:r><a:rPr lang="en" b="1"/><a:t>big </a:t></a:r><a:r>'
        '<a:rPr lang="en-US"/><a:t>small </a:t></a:r><a:r><a:rPr lang="de" dirty="0"/><a:t>words</a:t></a:r><a:br/>'
        '<a:fld type="slidenum"><a:t>1</a:t></a:fld><a:endParaRPr/></a:p></p:sld>'
    )
    files = {"[Content_Types].xml": "", "ppt/slides/slide1.xml": slide, "ppt/slideMasters/slideMaster1.xml": slide}
    written = upper_cased(monkeypatch, archive(tmp_path / "a.pptx", **files))
    assert content(written, "ppt/slideMasters/slideMaster1.xml") == slide
    assert content(written, "ppt/slides/slide1.xml").partition("<a:pPr/>")[2] == (
        '<a:r><a:rPr lang="en" b="1"/><a:t>BIG</a:t></a:r><a:r><a:rPr lang="en-US"/><a:t> SMALL WORDS</a:t></a:r>'
        '<a:br/><a:fld type="slidenum"><a:t>1</a:t></a:fld><a:endParaRPr/></a:p></p:sld>'
    )


def test_open_document(tmp_path, monkeypatch):
    text = (
        "<text:h>a  <text:span text:style-name='T1'>bold\n</text:span>title<text:s text:c='2'/>now <text:s/>x</text:h>"
        "<text:p>see "
        "<text:a href='x'>our page</text:a><text:note><text:note-body><text:p>a note</text:p></text:note-body>"
        "</text:note> now<text:line-break/>next<text:tab/>column</text:p><text:p>12</text:p>"
    ).replace("'", '"')
    file = f'<o:doc xmlns:o="urn:o" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">{text}</o:doc>'
    written = upper_cased(monkeypatch, archive(tmp_path / "a.odt", mimetype="x", **{"content.xml": file}))
    assert content(written, "content.xml").partition("text:1.0")[2] == (
        '"><text:h>A <text:span text:style-name="T1">BOLD</text:span> TITLE NOW <text:s/>X</text:h><text:p>SEE '
        '<text:a href="x">OUR PAGE</text:a><text:note><text:note-body><text:p>A NOTE</text:p></text:note-body>'
        "</text:note> NOW<text:line-break/>NEXT<text:tab/>COLUMN</text:p><text:p>12</text:p></o:doc>"
    )


def test_a_bookmark_of_open_document_stays_around_its_text(tmp_path):
    bookmark = '<text:bookmark-start text:name="m" xml:id="i"/>b<text:bookmark-end text:name="m"/>'
    text = f"<text:p>a {bookmark}</text:p>"
    file = f'<o:doc xmlns:o="urn:o" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">{text}</o:doc>'
    document = read_document(archive(tmp_path / "a.odt", mimetype="x", **{"content.xml": file}))
    document.write(tmp_path / "b.odt", [document.blocks[0][::-1]])  # as a translation with another order
    assert f"<text:p>{bookmark}a </text:p>" in content(tmp_path / "b.odt", "content.xml")


def test_cells_of_a_spreadsheet(tmp_path, monkeypatch):
    """A program shows a date from its attribute, and a text with an attribute from that, not from its paragraph."""
    cells = '<a o:value-type="{}"{}><text:p>may 1</text:p></a>'
    date, named = cells.format("date", ' o:date-value="2026-05-01"'), cells.format("string", ' o:string-value="may 1"')
    names = {"o": "office", "text": "text"}
    spaces = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{value}:1.0"' for n, value in names.items())
    sheet = f"<o:doc {spaces}>{date}{named}</o:doc>"
    written = upper_cased(monkeypatch, archive(tmp_path / "a.ods", mimetype="x", **{"content.xml": sheet}))
    upper = '<a o:value-type="string"><text:p>MAY 1</text:p></a>'
    assert content(written, "content.xml").endswith(f"{date}{upper}</o:doc>")


def test_an_e_book(tmp_path, monkeypatch):
    page = '<?xml version="1.0"?>\n<html xmlns="x"><body><p class="a">two <b>cats</b><br/>sleep</p></body></html>'
    contents = '<ncx><docTitle><text>my book</text></docTitle><content src="a.xhtml"/></ncx>'
    metadata = (
        '<p><m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>a</dc:title><dc:language>{}</dc:language></m>'
        '<manifest><item href="t/b%20c.xml" media-type="application/xhtml+xml"/><item href="a.css"/></manifest></p>'
    )
    files = {"mimetype": "application/epub+zip", "o/a.xhtml": page, "o/toc.ncx": contents, "o/a.css": "p {}"}
    files["o/a.opf"] = metadata.format("en-US")
    files["o/t/b c.xml"] = page
    written = upper_cased(monkeypatch, archive(tmp_path / "a.epub", **files))
    expected = page.replace("two", "TWO").replace("cats", "CATS").replace("sleep", "SLEEP")
    assert content(written, "o/a.xhtml") == content(written, "o/t/b c.xml") == expected
    assert content(written, "o/toc.ncx").endswith(contents.replace("my book", "MY BOOK"))
    assert content(written, "o/a.opf").endswith(metadata.format("de"))
    with zipfile.ZipFile(written) as packed:
        assert packed.infolist()[0].compress_type == zipfile.ZIP_STORED


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("LARGEST_PART", 100, r"word/document\.xml has 0 MiB unpacked, must have at most 0"),
        ("MOST_FILES", 1, "has 2 files of 0 MiB unpacked, must have at most 1 of"),
    ],
)
def test_an_archive_is_limited_before_it_is_unpacked(tmp_path, monkeypatch, limit, value, message):
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(InputError, match=message):
        read_document(word(tmp_path / "a.docx", run("text")))


def test_other_archives_are_refused(tmp_path):
    with pytest.raises(InputError, match="no text found, must be a .docx document"):
        read_document(archive(tmp_path / "a.docx", x=""))
    (tmp_path / "b.epub").write_text("not a zip archive")
    with pytest.raises(InputError, match="cannot be read as a zip archive"):
        read_document(tmp_path / "b.epub")
    with pytest.raises(InputError, match="unknown format, must be one of .txt, .html"):
        read_document(tmp_path / "c.pdf")


def test_the_text_of_a_workbook_is_translated(tmp_path, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl", reason="writes the workbook")
    from openpyxl.cell.rich_text import CellRichText, TextBlock
    from openpyxl.cell.text import InlineFont
    from openpyxl.comments import Comment
    from openpyxl.styles import Font
    from openpyxl.worksheet.table import Table

    book = openpyxl.Workbook()
    sheet = book.active
    rows = [("Bird", "Number"), ("The owl", 7), ("Yes", 8), ("one\ntwo", "=SUM(B2:B3)"), (" 12 ", '=IF(A3="Yes",1,2)')]
    for row in rows:
        sheet.append(row)
    sheet["A2"].font, sheet["A2"].comment = Font(bold=True), Comment("see below", "me")
    sheet["C1"] = CellRichText("plain and ", TextBlock(InlineFont(b=True), "bold"), " text")
    sheet.add_table(Table(displayName="Birds", ref="A1:B5"))
    book.save(tmp_path / "a.xlsx")
    written = openpyxl.load_workbook(upper_cased(monkeypatch, tmp_path / "a.xlsx"), rich_text=True).active
    found = [[cell.value for cell in row[:2]] for row in written.iter_rows()]
    expected = [["THE OWL" if v == "The owl" else "ONE\nTWO" if v == "one\ntwo" else v for v in row] for row in rows]
    assert found == expected, "names of columns of tables and texts in formulas stay"
    assert written["A2"].font.b and written["A2"].comment.text == "SEE BELOW"
    assert str(written["C1"].value) == "PLAIN AND BOLD TEXT" and written["C1"].value[1].text == "BOLD"
    assert written.tables["Birds"].column_names == ["Bird", "Number"]
