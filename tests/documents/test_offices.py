"""Word, PowerPoint, OpenDocument and EPUB: text is replaced, everything else stays."""

import re
import zipfile
from functools import partial

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")

from support.documents import in_upper_case, rewritten, upper_cased, with_marks

from residual_hf.base import archives
from residual_hf.base.errors import InputError
from residual_hf.documents.translation import NumberedDocument, read_document

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


def open_document(path, text):
    """A document of OpenDocument with these paragraphs."""
    spaces = 'xmlns:o="urn:o" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    return archive(path, mimetype="x", **{"content.xml": f"<o:doc {spaces}>{text}</o:doc>"})


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


PARAGRAPHS = {
    "formats of words": run("«see »") + run("«two»", BOLD) + run("« dogs and »") + run("«red»", RED) + run("« cats»"),
    "the format of most letters": run("«much bold text »", BOLD) + run("«plain»"),
    "a link": run("«see »")
    + f'<w:hyperlink w:anchor="x">{run("«our »")}{run("«page»", BOLD)}</w:hyperlink>'
    + run("« now»"),
    "a footnote": run("«text»") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + run("« goes on»"),
    "a field": run("«see »") + BEGIN + code(" REF a ") + SEPARATE + run("figure 1") + STOP + run("« above»"),
    "the field of a link": BEGIN + code(' HYPERLINK "x" ') + SEPARATE + run("«our page»") + STOP + run("« now»"),
    "a field of several paragraphs": BEGIN + code(" TOC ") + SEPARATE + f"<w:hyperlink>{run('«title»')}</w:hyperlink>",
    "the end of a field": run("«last»") + STOP + run("«more»"),
    "a bookmark": run("«one »") + BOOKMARK + run("«two »") + NUMBER + UNTIL + run("« x»"),
    "more links than text": run("«see »") + f"<w:hyperlink>{run('«our home page»', LINK)}</w:hyperlink>" + run("« x»"),
    "a bookmark without text": run("«one »") + BOOKMARK + UNTIL + run("«two»"),
    "a deletion": run("«now »")
    + "<w:del><w:r><w:delText>not</w:delText></w:r></w:del>"
    + f"<w:ins>{run('«here»')}</w:ins>",
    "a content control": run("«dear »") + f"<w:sdt><w:sdtPr/><w:sdtContent>{run('«reader»')}</w:sdtContent></w:sdt>",
    "a text box": run("«text »")
    + f"<w:r><w:pict><w:txbxContent><w:p>{run('«in»')}</w:p></w:txbxContent></w:pict></w:r>",
    "a mark of a field without a type": run("«last»") + "<w:r><w:fldChar/></w:r>",
    "numbers only": run("1", BOLD) + "<w:proofErr/>" + run("2"),
}
"""Text between « and » is translated."""
REWRITTEN = {
    "runs of one format": (
        f"<w:pPr><w:jc/></w:pPr>{run('a sm')}<w:proofErr/>{run('all ', '<w:rPr><w:lang/></w:rPr>')}{run('dog')}",
        f"<w:pPr><w:jc/></w:pPr>{run('A SMALL DOG')}",
    ),
    "tabs and breaks": (
        f"{run('name:')}<w:r><w:tab/><w:t>value</w:t><w:br/><w:t>line</w:t></w:r>",
        f"{run('NAME:')}<w:r><w:tab/></w:r>{run('VALUE')}<w:r><w:br/></w:r>{run('LINE')}",
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
}
"""What is written in another form."""


@pytest.mark.parametrize(
    ("before", "after"), [*map(with_marks, PARAGRAPHS.values()), *REWRITTEN.values()], ids=[*PARAGRAPHS, *REWRITTEN]
)
def test_paragraphs_of_word(tmp_path, monkeypatch, before, after):
    source = word(tmp_path / "a.docx", before)
    written = content(upper_cased(monkeypatch, source), "word/document.xml")
    assert written.partition("<w:p>")[2].rpartition("</w:p>")[0] == after
    same = content(rewritten(monkeypatch, source), "word/document.xml")
    assert same.casefold() == written.casefold()


@pytest.mark.parametrize(
    "name", ["rStyle", "u", "strike", "dstrike", "highlight", "shd", "bdr", "hlinkClick", "b", "i"]
)
def test_spaces_at_a_format_have_it_only_where_it_cannot_be_seen(tmp_path, monkeypatch, name):
    look = f"<w:rPr><w:{name}/></w:rPr>"
    written = upper_cased(monkeypatch, word(tmp_path / "a.docx", run("see ") + run("much text", look) + run(" x")))
    seen = run("SEE ") + run("MUCH TEXT", look) + run(" X")
    expected = run("SEE") + run(" MUCH TEXT ", look) + run("X") if name in "bi" else seen
    assert content(written, "word/document.xml").partition("<w:p>")[2].startswith(expected)


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
    files = {"[Content_Types].xml": "", "ppt/slides/slide1.xml": slide}
    written = upper_cased(monkeypatch, archive(tmp_path / "a.pptx", **files))
    assert content(written, "ppt/slides/slide1.xml").partition("<a:pPr/>")[2] == (
        '<a:r><a:rPr lang="en" b="1"/><a:t>BIG</a:t></a:r><a:r><a:rPr lang="en-US"/><a:t> SMALL WORDS</a:t></a:r>'
        '<a:br/><a:fld type="slidenum"><a:t>1</a:t></a:fld><a:endParaRPr/></a:p></p:sld>'
    )


def test_tabs_of_slides_stay(tmp_path, monkeypatch):
    text = (
        "<a:r><a:rPr b='1'/><a:t>Owls:\t</a:t></a:r><a:r><a:rPr/><a:t>one owl\tthree of them\t\t</a:t></a:r>"
        "<a:r><a:rPr i='1'/><a:t>seen here</a:t></a:r>"
    )
    files = {"ppt/slides/slide1.xml": f'<p:sld xmlns:p="urn:p" xmlns:a="{A}"><a:p>{text}</a:p></p:sld>'}
    path = archive(tmp_path / "a.pptx", **files)
    assert NumberedDocument(path).text == "Owls:\vone owl\vthree of them\vseen here"
    translate = partial(in_upper_case, write=lambda sentence: " ".join(sentence.upper().split()))
    written = content(upper_cased(monkeypatch, path, translate=translate), "ppt/slides/slide1.xml")
    assert re.findall("<a:t>(.*?)</a:t>", written) == ["OWLS:\t", "ONE OWL\tTHREE OF THEM\t\t", "SEEN HERE"]


def test_masters_have_text_of_their_own_and_placeholders(tmp_path, monkeypatch):
    shape = (
        "<p:sp><p:nvSpPr><p:nvPr>{}</p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>{}</a:t></a:r></a:p></p:txBody></p:sp>"
    )
    master = f'<p:sldMaster xmlns:p="urn:p" xmlns:a="{A}">{{}}</p:sldMaster>'
    texts = shape.format('<p:ph type="title"/>', "click to edit"), shape.format("<p:x/>", "our motto")
    names = [f"ppt/{kind}s/{kind}1.xml" for kind in ("slideMaster", "slideLayout", "notesMaster", "handoutMaster")]
    files = {name: master.format("".join(texts)) for name in names}
    written = upper_cased(monkeypatch, archive(tmp_path / "a.pptx", **files))
    for name in names:
        assert content(written, name).endswith(master.format(texts[0] + texts[1].replace("our motto", "OUR MOTTO")))


CHART = "http://schemas.openxmlformats.org/drawingml/2006/chart"


@pytest.mark.parametrize("name", ["a.docx", "a.pptx"])
def test_categories_and_series_of_charts(tmp_path, monkeypatch, name):
    label = '<c:{0}Cache><c:pt idx="0"><c:v>{1}</c:v></c:pt></c:{0}Cache>'
    chart = f'<c:chartSpace xmlns:c="{CHART}"><c:tx>{{}}</c:tx><c:cat>{{}}</c:cat><c:val>{{}}</c:val></c:chartSpace>'
    series, values = label.format("str", "{}"), label.format("num", "4.5")
    levels = "<c:multiLvlStrCache><c:lvl><c:pt><c:v>{}</c:v></c:pt></c:lvl></c:multiLvlStrCache>"
    before, after = (
        chart.format(series.format(a), levels.format(b), values) for a, b in (("owls", "in may"), ("OWLS", "IN MAY"))
    )
    part = f"{'word' if name == 'a.docx' else 'ppt'}/charts/chart1.xml"
    written = content(upper_cased(monkeypatch, archive(tmp_path / name, **{part: before})), part)
    assert written.endswith(after)


def test_parts_without_text_are_copied(tmp_path, monkeypatch):
    files = {"word/footer1.xml": f"<w:ftr   xmlns:w='{W}'><w:p>{run('12')}</w:p></w:ftr>"}
    written = upper_cased(monkeypatch, word(tmp_path / "a.docx", run("x y"), **files))
    assert content(written, "word/footer1.xml") == files["word/footer1.xml"]


SIMPLE = f'<w:fldSimple w:instr=" PAGE ">{run("7", BOLD)}</w:fldSimple>'
CONTROL = "<w:sdt><w:sdtPr><w:tag/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>"
RUBY = "<w:r><w:ruby><w:rubyPr/><w:rt><w:r><w:t>aul</w:t></w:r></w:rt><w:rubyBase>{}</w:rubyBase></w:ruby></w:r>"
TAB, PICTURE = "<w:r><w:tab/></w:r>", "<w:r><w:drawing/></w:r>"
LINE = "<w:r><w:br/></w:r>"
UNDERLINED = '<w:rPr><w:u w:val="single"/></w:rPr>'
READ = {
    "a simple field": (run("see page ") + SIMPLE + run(" of it"), "see page 7 of it"),
    "the simple field of a link": (
        run("see ") + f'<w:fldSimple w:instr=" HYPERLINK x ">{run("our page")}</w:fldSimple>' + run(" now"),
        "see our page now",
    ),
    "a content control": (run("dear ") + CONTROL.format(run("reader")) + run(", hello"), "dear reader, hello"),
    "controls within a control": (
        run("a ") + CONTROL.format(run("red ") + CONTROL.format(run("fox", BOLD))) + run(" runs"),
        "a red fox runs",
    ),
    "a field in a control": (run("on page ") + CONTROL.format(SIMPLE) + run(" of it"), "on page 7 of it"),
    "ruby": (run("the ") + RUBY.format(run("old owl")) + run(" calls"), "the old owl calls"),
    "a formula": (
        run("so ") + '<m:oMath xmlns:m="urn:m"><m:r><m:t>x=1</m:t></m:r></m:oMath>' + run(" holds"),
        "so x=1 holds",
    ),
    "an indented line": (run("a line") + LINE + run("    second line"), "a line\nsecond line"),
    "an indented line in bold": (run("one") + LINE + run("   ") + run("two", BOLD) + run(" three"), "one\ntwo three"),
    "spaces before a break": (run("one   ") + LINE + LINE + run("two"), "one\ntwo"),
    "spaces and a picture at the start": (run("  ") + PICTURE + run("   one two"), "one two"),
    "spaces behind a tab": (TAB + run("  one") + TAB + TAB + run(" two"), "one\ntwo"),
    "a picture between spaces": (run("one  ") + PICTURE + run("   two"), "one two"),
    "blanks of a form": (run("name:") + run("        ", UNDERLINED) + run("date:"), "name: date:"),
    "blanks behind a tab": (run("name:") + TAB + run("    ", UNDERLINED), "name:"),
    "blanks within text": (run("name:          date:    "), "name: date:"),
    "notes side by side": (
        run("one")
        + '<w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:footnoteReference w:id="3"/></w:r>'
        + run(" two"),
        "one two",
    ),
}


HINT = '<w:rPr><w:rFonts w:hint="eastAsia"/></w:rPr>'
NOTE = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        (with_marks(PARAGRAPHS["a link"])[0], [(True, False)]),
        (with_marks(PARAGRAPHS["the field of a link"])[0], [(True, False)]),
        (READ["the simple field of a link"][0], [(True, False)]),
        (run("the old king") + run("a", NOTE) + run(" sleeps"), [(False, True)]),
        (run("销售额增长", HINT) + run("25") + run("。", HINT), []),
        (run("a sentence with ") + run("bold", BOLD) + run(" and ") + CONTROL.format(run("x")), [(False, False)] * 2),
    ],
)
def test_links_and_superscripts_are_known(tmp_path, paragraph, expected):
    (block,) = read_document(word(tmp_path / "a.docx", paragraph)).blocks
    assert [(piece.link, piece.raised) for piece in block if not isinstance(piece, str)] == expected


def test_comments_of_xml_are_not_read(tmp_path, monkeypatch):
    text = "The <!-- a -->owl c<?b c?>alls"
    odt = open_document(tmp_path / "a.odt", f"<text:p>{text}</text:p>")
    for source in (word(tmp_path / "a.docx", run(text)), odt):
        assert NumberedDocument(source).text == "The owl calls"
        name = "word/document.xml" if source.suffix == ".docx" else "content.xml"
        assert ">THE OWL CALLS<" in content(upper_cased(monkeypatch, source), name)


@pytest.mark.parametrize(("paragraph", "read"), READ.values(), ids=READ)
def test_the_model_reads_sentences_and_layout_stays(tmp_path, monkeypatch, paragraph, read):
    source = word(tmp_path / "a.docx", paragraph)
    lines = NumberedDocument(source).text.split("\n")
    assert [" ".join(line.split()) for line in lines if line.strip()] == read.split("\n")
    written = content(rewritten(monkeypatch, source), "word/document.xml")
    joined = '</w:t></w:r><w:r><w:t xml:space="preserve">'
    assert written.partition("<w:p>")[2].rpartition("</w:p>")[0].replace(joined, "") == paragraph.replace(joined, "")
    shown = content(upper_cased(monkeypatch, source, overwrite=True), "word/document.xml")
    kept = ("7", "aul", "x=1")
    assert not [text for text in re.findall(r"<\w:t[^>]*>([^<]+)", shown) if text != text.upper() and text not in kept]


OPEN_READ = {
    "a page number": ("see page <text:page-number>4</text:page-number> of it", "see page 4 of it"),
    "a reference": ("as <text:bookmark-ref>two</text:bookmark-ref> says", "as two says"),
    "an input field": ("dear <text:text-input>reader</text:text-input>, hello", "dear reader, hello"),
    "a date and a variable": (
        "on <text:date>May 1</text:date> at <text:variable-get>9 h</text:variable-get> sharp",
        "on May 1 at 9 h sharp",
    ),
    "ruby": (
        "the <text:ruby><text:ruby-base>owl</text:ruby-base><text:ruby-text>aul</text:ruby-text></text:ruby> calls",
        "the owl calls",
    ),
    "an indented line": ("one<text:line-break/><text:s text:c='4'/>two", "one\ntwo"),
    "spaces in a line": ("name:<text:s text:c='9'/>date:", "name: date:"),
    "spaces in a span": ("name:<text:span><text:s text:c='9'/></text:span>date:", "name: date:"),
    "spaces at the start": ("<text:s text:c='3'/><text:tab/> one", "one"),
}


@pytest.mark.parametrize(("paragraph", "read"), OPEN_READ.values(), ids=OPEN_READ)
def test_the_model_reads_sentences_of_open_document(tmp_path, monkeypatch, paragraph, read):
    paragraph = f"<text:p>{paragraph}</text:p>".replace("'", '"')
    source = open_document(tmp_path / "a.odt", paragraph)
    lines = NumberedDocument(source).text.split("\n")
    assert [" ".join(line.split()) for line in lines if line.strip()] == read.split("\n")
    assert content(rewritten(monkeypatch, source), "content.xml").endswith(f">{paragraph}</o:doc>")


def test_open_document(tmp_path, monkeypatch):
    text = (
        "<text:h>a  <text:span text:style-name='T1'>bold\n</text:span>title<text:s text:c='2'/>now <text:s/>x</text:h>"
        "<text:p>see "
        "<text:a href='x'>our page</text:a><text:note><text:note-body><text:p>a note</text:p></text:note-body>"
        "</text:note> now<text:line-break/>next<text:tab/>column</text:p><text:p>12</text:p>"
    ).replace("'", '"')
    written = upper_cased(monkeypatch, open_document(tmp_path / "a.odt", text))
    assert content(written, "content.xml").partition("text:1.0")[2] == (
        '"><text:h>A <text:span text:style-name="T1">BOLD</text:span> TITLE<text:s text:c="2"/>NOW <text:s/>X</text:h>'
        "<text:p>SEE "
        '<text:a href="x">OUR PAGE</text:a><text:note><text:note-body><text:p>A NOTE</text:p></text:note-body>'
        "</text:note> NOW<text:line-break/>NEXT<text:tab/>COLUMN</text:p><text:p>12</text:p></o:doc>"
    )


def test_a_bookmark_of_open_document_stays_around_its_text(tmp_path):
    bookmark = '<text:bookmark-start text:name="m" xml:id="i"/>b<text:bookmark-end text:name="m"/>'
    document = read_document(open_document(tmp_path / "a.odt", f"<text:p>a {bookmark}</text:p>"))
    document.write(tmp_path / "b.odt", [document.blocks[0][::-1]])  # as a translation with another order
    assert f"<text:p>{bookmark}a </text:p>" in content(tmp_path / "b.odt", "content.xml")


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
    files["__MACOSX/o/._toc.ncx"] = files["__MACOSX/o/._a.xhtml"] = "\0\5\x16\7"
    written = upper_cased(monkeypatch, archive(tmp_path / "a.epub", **files))
    expected = page.replace("two", "TWO").replace("cats", "CATS").replace("sleep", "SLEEP")
    assert content(written, "o/a.xhtml") == content(written, "o/t/b c.xml") == expected
    assert content(written, "o/toc.ncx").endswith(contents.replace("my book", "MY BOOK"))
    assert content(written, "o/a.opf").endswith(metadata.format("de"))
    with zipfile.ZipFile(written) as packed:
        assert packed.infolist()[0].compress_type == zipfile.ZIP_STORED


@pytest.mark.parametrize("encoding", ["utf-8", "cp437"])
def test_names_of_files_need_no_flag_for_utf_8(tmp_path, monkeypatch, encoding):
    """Info-ZIP and macOS write them without; of other names without it, those of DOS are meant."""
    item = '<manifest><item href="Über.xml" media-type="application/xhtml+xml"/></manifest>'
    files = {"mimetype": "application/epub+zip", "a.opf": f"<p>{item}</p>", "b.xhtml": "<p>two</p>"}
    size = len("Über".encode(encoding))
    source = archive(tmp_path / "a.epub", **files, **{f"{'x' * size}.xml": "<p>one</p>", f"{'y' * size}.png": "a"})
    packed = source.read_bytes()
    for letter, name in (("x", "Über.xml"), ("y", "Über.png")):
        packed = packed.replace(f"{letter * size}{name[4:]}".encode(), name.encode(encoding))
    source.write_bytes(packed)
    written = upper_cased(monkeypatch, source)
    assert content(written, "Über.xml") == "<p>ONE</p>" and content(written, "Über.png") == "a"


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("LARGEST_PARTS", 100, r"with word/document\.xml, its text has 0 MiB unpacked, must have at most 0"),
        ("MOST_MARKS", 5, r"with word/document\.xml, its text has more than 5 elements and attributes"),
        ("MOST_FILES", 1, "has 2 files of 0 MiB unpacked, must have at most 1 of"),
    ],
)
def test_an_archive_is_limited_before_it_is_unpacked(tmp_path, monkeypatch, limit, value, message):
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(InputError, match=message):
        read_document(word(tmp_path / "a.docx", run("text")))


@pytest.mark.parametrize(
    ("name", "part", "content"),
    [
        ("a.docx", "word/document.xml", "<a>" + "<w:p/>" * 2_000_000 + "</a>"),
        ("a.pptx", "ppt/slides/slide1.xml", "<a " + "b='' " * 2_000_000 + "/>"),
        ("a.epub", "a.html", "<p>a" * 500_001),
        ("a.odt", "content.xml", '<?xml version="1.0" encoding="UTF-7"?><a>+ADw-b/+AD4-</a>'),
    ],
    ids=["elements", "attributes", "tags", "UTF-7"],
)
def test_small_archives_of_many_elements_are_refused_before_they_are_parsed(tmp_path, name, part, content):
    path = archive(tmp_path / name, mimetype="x", **{part: content})
    assert path.stat().st_size < 50_000
    with pytest.raises(InputError, match="has more than .* divide it into several documents|is in UTF-7"):
        read_document(path)


def test_elements_of_all_parts_are_counted(tmp_path, monkeypatch):
    footer = f'<a xmlns:w="{W}"><w:p>{run("end")}</w:p></a>'
    path = word(tmp_path / "a.docx", run("text"), **{"word/footer1.xml": footer})
    monkeypatch.setattr(archives, "MOST_MARKS", 20)
    with pytest.raises(InputError, match=r"with word/footer1\.xml, its text has more than 20 elements"):
        read_document(path)


def test_a_page_of_many_tags_and_other_archives_are_refused(tmp_path):
    (tmp_path / "a.html").write_text("<p>a" * 500_001)
    with pytest.raises(InputError, match="has more than 500,000 tags and attributes; divide it"):
        read_document(tmp_path / "a.html")
    with pytest.raises(InputError, match="no text found, must be a .docx document"):
        read_document(archive(tmp_path / "a.docx", x=""))
    (tmp_path / "b.epub").write_text("not a zip archive")
    with pytest.raises(InputError, match="cannot be read as a zip archive"):
        read_document(tmp_path / "b.epub")
    with pytest.raises(InputError, match="unknown format, must be one of .txt, .html"):
        read_document(tmp_path / "c.pdf")


def test_a_content_control_of_word_shows_its_translation(tmp_path, monkeypatch):
    bound = '<w:sdtPr><w:alias/><w:dataBinding w:xpath="x"/></w:sdtPr>'
    inside = f"<w:sdt>{bound}<w:sdtContent>{run('a title')}</w:sdtContent></w:sdt>"
    body = f"<w:p>{inside}</w:p><w:sdt>{bound}<w:sdtContent><w:p>{run('an author')}</w:p></w:sdtContent></w:sdt>"
    path = word(tmp_path / "a.docx", "")
    files = {"word/document.xml": content(path, "word/document.xml").replace("<w:p></w:p>", body)}
    written = content(upper_cased(monkeypatch, archive(path, **files)), "word/document.xml")
    assert "A TITLE" in written and "AN AUTHOR" in written
    assert written.count("<w:alias/>") == 2 and "dataBinding" not in written


def test_links_of_slides_are_known(tmp_path):
    name = "xmlns:a='http://schemas.openxmlformats.org/drawingml/2006/main'"
    link = "<a:r><a:rPr><a:hlinkClick/></a:rPr><a:t>here</a:t></a:r>"
    slide = f"<p {name}><a:p><a:r><a:t>the whole report is </a:t></a:r>{link}</a:p></p>"
    (block,) = read_document(archive(tmp_path / "a.pptx", **{"ppt/slides/slide1.xml": slide})).blocks
    assert block[0] == "the whole report is " and block[1].link
