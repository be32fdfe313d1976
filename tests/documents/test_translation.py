"""`residual-hf translate FILE --output FILE` for documents."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("lxml", reason="the extra [documents] is not installed")

from support.documents import UpperCase, in_upper_case
from support.tiny_translator import save_tiny

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.documents import DOCUMENTS, translation
from residual_hf.documents.layout import numbered, restored
from residual_hf.documents.translation import READERS, translate_document
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.generation.markup import Inline
from residual_hf.generation.translator import Translator


def test_a_document_is_translated_by_the_command(model_folder, tmp_path, refused, monkeypatch):
    source, output = tmp_path / "page.HTML", tmp_path / "out.html"
    source.write_text('<p class="x">zwei <b>Katzen</b> schlafen.</p><p>zwei Katzen</p>\n<code>zwei</code>')
    assert main(["translate", str(model_folder), str(source), "--output", str(output)]) == 0
    translator = Translator.from_pretrained(model_folder)
    written = output.read_text()
    assert written.startswith('<p class="x">') and written.count("<b>") == written.count("</b>") == 1
    assert written.endswith(f"<p>{translator.translate('zwei Katzen')}</p>\n<code>zwei</code>")
    assert [path.name for path in tmp_path.iterdir() if path != source] == ["out.html"]
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "a.tex", "a.tmx.gz", "a.IDML", "a.po.gz", "a.de", "a.txt"):
        Path(name).write_text("zwei Katzen")
    for arguments, message in (
        ([str(source)], "--output: missing, must be a file that ends in .HTML, as the document does"),
        ([str(source), "--output", str(output)], "out.html exists; use --overwrite"),
        ([str(source), "--output", "x.pdf"], "--output: 'x.pdf' given, must be a file that ends in .HTML"),
        ([str(source), "--output", "x.html", "--long", "skip"], "--long: is for lines of text, not for the document"),
        ([str(source), "--output", "x.html", "--scores"], "--scores: is for lines of text, not for the document"),
        ([str(source.with_name("a.pdf")), "--output", "x.txt"], "a.pdf: has no lines of text: save it as .docx"),
        (["a.tex", "--output", "x.txt"], "a.tex: has no lines of text: convert it to Markdown"),
        (["a.tmx.gz", "--output", "x.txt"], "export it as XLIFF, or train on it"),
        (["a.IDML"], "export it as .epub or .html"),
        (["a.po.gz"], "a.po.gz: is a compressed document, must be unpacked"),
        (["a.de", "--fill", "all"], "--fill: given, but there is no catalogue such as a .po file"),
        ([str(source.with_name("a.txt")), "--output", "x.docx"], "--output: x.docx given, must be a text file"),
        ([str(source), "--output", "x.html", "--devices", "2"], "--devices: 2 given, must be 1 for a document"),
        (["gone.docx", "--output", "x.docx"], "no such file: gone.docx"),
    ):
        refused(message, "translate", model_folder, *arguments)


def test_a_document_is_not_summarized_sentence_by_sentence(tmp_path, refused):
    (tmp_path / "a.md").write_text("One. Two.\n")
    model = save_tiny(tmp_path / "m", source_lang="en", target_lang="en")
    files = tmp_path / "a.md", "--output", tmp_path / "b.md"
    refused("a.md: only lines of text, not documents, for a model of one language", "translate", model, *files)


def test_an_interrupted_document_is_continued(tmp_path, monkeypatch, caplog):
    source, output = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text("".join(f"line *{number}* here\n\n" for number in range(7)))
    seen = []

    def interrupted(translator, blocks, **languages):
        if len(seen) == 4 and not resume:
            raise KeyboardInterrupt
        seen.extend(blocks)
        return in_upper_case(translator, blocks)

    monkeypatch.setattr(translation, "translate_blocks", interrupted)
    settings, resume = StreamSettings(window=2 * translation.SHARE), False
    with pytest.raises(KeyboardInterrupt):
        translate_document(UpperCase, settings, source, output)
    assert not output.exists() and (tmp_path / "b.md.partial").exists()
    assert "b.md.partial has the output for 4 lines; --resume continues" in caplog.text
    resume = True
    with pytest.raises(InputError, match="is from an interrupted run; use --resume or --overwrite"):
        translate_document(UpperCase, settings, source, output)
    translate_document(UpperCase, settings, source, output, resume=True)
    assert len(seen) == 7 and output.read_text() == source.read_text().upper()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.md", "b.md"]
    source.write_text("other *text*\n")
    resume, seen[:] = False, range(4)
    with pytest.raises(KeyboardInterrupt):
        translate_document(UpperCase, settings, source, output, overwrite=True)
    assert output.read_text().startswith("LINE"), "until the new one is complete"


@pytest.mark.parametrize(
    ("source", "read", "written", "restored_as"),
    [
        (["see ", Inline("i"), " now"], ["see", Inline(0), " now"], [Inline(0), "NOW SEE"], [Inline("i"), " NOW SEE"]),
        (["see ", Inline("i"), " now"], ["see", Inline(0), " now"], ["NOW", Inline(0)], ["NOW ", Inline("i")]),
        (["a ", Inline("i"), " (b)"], ["a", Inline(0), " (b)"], ["A", Inline(0), " (B)"], ["A ", Inline("i"), " (B)"]),
        ([Inline("ref"), " a"], [Inline(0), "a"], [Inline(0), "A"], [Inline("ref"), " A"]),
        (["a", Inline("b", ["c"])], ["a", Inline(0, ["c"])], [Inline(0, ["C"]), "A"], [Inline("b", ["C"]), "A"]),
    ],
)
def test_spaces_around_what_has_no_text(source, read, written, restored_as):
    """The model reads one space where an image is a word."""
    contents = []
    assert numbered(source, contents) == read
    assert restored(json.loads(json.dumps(written)), contents) == restored_as


def test_numbers_stand_for_the_contents_of_elements():
    block, contents = ["a ", Inline("b", ["c", Inline("d", keep=True)]), Inline("e")], []
    assert numbered(block, contents) == ["a ", Inline(0, ["c", Inline(1, keep=True)]), Inline(2)]
    assert restored(json.loads(json.dumps(numbered(block, []))), contents) == block


def test_formats_are_those_that_the_command_lists_and_the_extra_is_named(model_folder, tmp_path, monkeypatch, refused):
    assert {*READERS} == {*DOCUMENTS, ".txt"}
    for name in [name for name in sys.modules if name.startswith("residual_hf.documents.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    (tmp_path / "a.md").write_text("text")
    files = tmp_path / "a.md", "--output", tmp_path / "b.md"
    refused("markdown_it is not installed: pip install 'residual_hf[documents]'", "translate", model_folder, *files)
