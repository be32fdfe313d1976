"""Cells of Excel and OpenDocument."""

import re
import zipfile
from functools import partial

import pytest
from documents.test_offices import archive, content, open_document
from support.documents import in_upper_case, rewritten, upper_cased

from residual_hf.documents.translation import read_document
from residual_hf.generation.markup import plain_text


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


def test_texts_that_formulas_compare_stay(tmp_path, monkeypatch, caplog):
    texts = ["Done", "Late", "No thanks", "My house", "Sure?", "a*b", "Open"]
    cells = "".join(f"<si><t>{text}</t></si>" for text in texts)
    formulas = 'COUNTIF(B:B,"done")', 'COUNTIF(B:B,"&lt;&gt;Late")', '"Yes please, No thanks"', '"*HOUSE*"', '"*"'
    formulas += '"*o*"', '"Sure~?"'
    sheet = "".join(f"<f>{formula}</f>" for formula in formulas)
    comment = (
        "<ThreadedComments xmlns='urn:t'><threadedComment><text>see this</text></threadedComment></ThreadedComments>"
    )
    files = {
        "xl/sharedStrings.xml": f"<sst xmlns='urn:s'>{cells}</sst>",
        "xl/worksheets/sheet1.xml": f"<s>{sheet}</s>",
    }
    files["xl/threadedComments/threadedComment1.xml"] = comment
    written = upper_cased(monkeypatch, archive(tmp_path / "a.xlsx", mimetype="x", **files))
    found = re.findall("<t>([^<]*)</t>", content(written, "xl/sharedStrings.xml"))
    assert found == [*texts[:5], "A*B", "OPEN"], "a wildcard with a letter or two names nothing"
    assert "a.xlsx: 5 texts stay, which formulas, filters, lists of choices or tables name" in caplog.text
    assert "<text>SEE THIS</text>" in content(written, "xl/threadedComments/threadedComment1.xml")
    formula = '<t:table-cell t:formula="of:=IF([.A1]=&quot;open&quot;;1;2)"/>'
    names = 'xmlns:t="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    path = open_document(tmp_path / "a.ods", f"<a {names}>{formula}<text:p>Open</text:p><text:p>Shut</text:p></a>")
    written = content(upper_cased(monkeypatch, path), "content.xml")
    assert "<text:p>Open</text:p>" in written and "<text:p>SHUT</text:p>" in written


SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ('<sheets/><calcPr calcId="1"/><extLst/>', '<sheets/><calcPr calcId="1" fullCalcOnLoad="1"/><extLst/>'),
        ("<bookViews/><sheets/><pivotCaches/>", '<bookViews/><sheets/><calcPr fullCalcOnLoad="1"/><pivotCaches/>'),
    ],
)
def test_formulas_are_calculated_from_the_translation(tmp_path, monkeypatch, properties, expected):
    parts = {"xl/workbook.xml": f'<workbook xmlns="{SHEETS}">{properties}</workbook>'}
    parts["xl/sharedStrings.xml"] = f'<sst xmlns="{SHEETS}"><si><t>an owl</t></si></sst>'
    cell = '<c t="str">{}<v>an owl calls</v></c>'
    for formula in ("<f>A1&amp;B1</f>", ""):
        parts["xl/worksheets/sheet1.xml"] = f'<worksheet xmlns="{SHEETS}">{cell.format(formula)}</worksheet>'
        path = archive(tmp_path / "a.xlsx", **parts)
        written = content(upper_cased(monkeypatch, path, overwrite=True), "xl/workbook.xml")
        assert (expected if formula else properties) in written
        assert properties in content(rewritten(monkeypatch, path), "xl/workbook.xml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("a.xlsx", value) for value in ('<filter val="{}"/>', '<filter val="12"/>', '<customFilter val="{}"/>')),
        ("a.xlsx", '<customFilter val="*open*"/>'),
        *(("a.ods", f"<t:filter-{value}/>") for value in ('set-item t:value="{}"', 'condition t:value="{}"')),
        ("a.ods", '<t:filter-condition t:operator="contains" t:value="open"/>'),
    ],
)
def test_filters_find_the_translated_cells(tmp_path, monkeypatch, name, value):
    """A cell stays if its filter looks for a part of it."""
    before, after, written = "Open task", "Open task" if "open" in value else "OPEN TASK", value.format("OPEN TASK")
    value = f'<a xmlns:t="urn:oasis:names:tc:opendocument:xmlns:table:1.0">{value.format("open task")}</a>'
    if name == "a.ods":
        path = open_document(tmp_path / name, f"{value}<text:p>{before}</text:p><text:p>see</text:p>")
    else:
        cells = f"<sst><si><t>{before}</t></si></sst>"
        path = archive(tmp_path / name, **{"xl/worksheets/sheet1.xml": value, "xl/sharedStrings.xml": cells})
    with zipfile.ZipFile(upper_cased(monkeypatch, path)) as packed:
        found = "".join(packed.read(part).decode() for part in packed.namelist())
    assert written in found and f">{after}<" in found


@pytest.mark.parametrize("kind", ["si", "text"])
@pytest.mark.parametrize("translation", ["all", "all gone", ""])
def test_formats_without_a_translation_leave_no_empty_run(tmp_path, monkeypatch, kind, translation):
    """Excel takes a file with an empty run for a damaged one."""
    bold, italic = (f"<r><rPr><{name}/></rPr><t>{{}}</t></r>" for name in "bi")
    source = f"<{kind}>{bold.format('no one')}<r><t> is </t></r>{italic.format('here')}</{kind}>"
    part = "xl/sharedStrings.xml" if kind == "si" else "xl/comments1.xml"
    path = archive(tmp_path / "a.xlsx", **{part: f'<a xmlns="{SHEETS}">{source}</a>'})
    translate = partial(in_upper_case, write=lambda sentence: translation)
    written = content(upper_cased(monkeypatch, path, translate=translate), part)
    runs = re.findall("<t[^>]*>([^<]*)</t>", written)
    assert "".join(runs) == translation and (all(runs) or written.endswith(f"<{kind}><t></t></{kind}></a>"))


def test_names_of_fields_of_pivot_tables_stay(tmp_path, monkeypatch):
    cells = "".join(f"<si><t>{text}</t></si>" for text in ("Region", "North"))
    cache = '<a xmlns="urn:s"><cacheFields><cacheField name="Region"/></cacheFields></a>'
    files = {"xl/sharedStrings.xml": f"<sst>{cells}</sst>", "xl/pivotCache/pivotCacheDefinition1.xml": cache}
    path = archive(tmp_path / "a.xlsx", **files)
    assert [*map(plain_text, read_document(path).blocks)] == ["North"]
    assert content(upper_cased(monkeypatch, path), "xl/pivotCache/pivotCacheDefinition1.xml") == cache
    names = 'xmlns:t="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    field = f'<t:data-pilot-field {names} t:source-field-name="Region"/>'
    path = open_document(tmp_path / "a.ods", f"{field}<text:p>Region</text:p><text:p>North</text:p>")
    assert read_document(path).blocks == [["North"]]


@pytest.mark.parametrize(
    ("condition", "stay"),
    [
        ('<formula>NOT(ISERROR(SEARCH("owl",D2)))</formula>', ["an owl calls", "owls", "the owl"]),
        ('<f>FIND( "owl";A1)</f>', ["an owl calls", "owls", "the owl"]),
        ('<cfRule type="notContainsText" text="owl"/>', ["an owl calls", "owls", "the owl"]),
        ('<cfRule type="beginsWith" text="owl"><formula>LEFT(A1,3)="owl"</formula></cfRule>', ["owls"]),
        ('<cfRule type="endsWith" text="Owl"/>', ["the owl"]),
        ("<condition t:value='contains-text(\"owl\")'/>", ["an owl calls", "owls", "the owl"]),
        ("<condition t:value='begins-with(\"owl\")'/>", ["owls"]),
    ],
)
def test_texts_stay_in_which_conditions_look_for_a_part(tmp_path, condition, stay):
    texts = ["an owl calls", "owls", "the owl", "a bear"]
    files = {"xl/sharedStrings.xml": f"<sst>{''.join(f'<si><t>{text}</t></si>' for text in texts)}</sst>"}
    files["xl/worksheets/sheet1.xml"] = f'<a xmlns:t="urn:t">{condition}</a>'
    blocks = read_document(archive(tmp_path / "a.xlsx", **files)).blocks
    assert [*map(plain_text, blocks)] == [text for text in texts if text not in stay]


def test_characters_that_excel_writes_as_their_numbers(tmp_path, monkeypatch):
    cells = (
        "<si><t>one_x000D_\ntwo</t></si>",
        "<si><r><t>a_x000b_b _x005F_x000D_</t></r></si>",
        "<si><t>c_x_d</t></si>",
    )
    path = archive(
        tmp_path / "a.xlsx", mimetype="x", **{"xl/sharedStrings.xml": f"<sst xmlns='urn:s'>{''.join(cells)}</sst>"}
    )
    assert [*map(plain_text, read_document(path).blocks)] == ["one\r\ntwo", "a\vb _x000D_", "c_x_d"]
    expected = ["ONE_x000D_\nTWO", "A_x000B_B _X000D_", "C_X_D"]
    written = content(upper_cased(monkeypatch, path), "xl/sharedStrings.xml")
    assert re.findall("<t[^>]*>([^<]*)</t>", written) == expected
    written = content(rewritten(monkeypatch, path), "xl/sharedStrings.xml")
    assert re.findall("<t[^>]*>([^<]*)</t>", written)[1] == "a_x000B_b _x005F_x000D_"
