import pytest

from residual_hf.generation.inline import Inline, read_block, restored

NOTE, SIGN = Inline("sup", ["1"]), Inline("sup", [Inline("a", ["[12]"])])


@pytest.mark.parametrize(
    ("source", "read", "written", "restored_as"),
    [
        (["see ", Inline("i"), " now"], ["see ", Inline(0), "now"], [Inline(0), "NOW SEE"], [Inline("i"), " NOW SEE"]),
        (["see ", Inline("i"), " now"], ["see ", Inline(0), "now"], ["NOW", Inline(0)], ["NOW", " ", Inline("i")]),
        (["a", Inline("note"), " b"], ["a", Inline(0), " b"], ["A ", Inline(0), "B"], ["A", Inline("note"), " B"]),
        ([Inline("ref"), " a"], [Inline(0), "a"], [Inline(0), "A"], [Inline("ref"), " A"]),
        (["a", NOTE, " b"], ["a", Inline(0), " b"], ["A ", Inline(0), "B"], ["A", NOTE, " B"]),
        (["10", NOTE, " b"], ["10", Inline(0), " b"], ["B 10", Inline(0)], ["B 10", NOTE]),
        (["1.", NOTE], ["1.", Inline(0, ["1"])], ["1.", Inline(0, ["1"])], ["1.", NOTE]),
        (["a.", NOTE], ["a.", Inline(0)], ["A.", Inline(0)], ["A.", NOTE]),
        (["H", NOTE, "O"], ["H", Inline(0, ["1"]), "O"], [Inline(0, ["H1O"])], [Inline("sup", ["H1O"])]),
        (["a ", NOTE], ["a ", Inline(0, ["1"])], ["A ", Inline(0, ["1"])], ["A ", NOTE]),
        (["a", SIGN, " b"], ["a", Inline(0), " b"], ["B A", Inline(0)], ["B A", SIGN]),
        (
            ["订单编号：", NOTE, "。"],
            ["订单编号：", Inline(0, ["1"]), "。"],
            ["No. ", Inline(0, ["1"])],
            ["No. ", NOTE],
        ),
        (["ที่", NOTE, " คน"], ["ที่", Inline(0, ["1"]), " คน"], [Inline(0, ["1"])], [NOTE]),
        (["编号", SIGN, "。"], ["编号", Inline(0), "。"], ["No.", Inline(0)], ["No.", SIGN]),
        (["a", Inline("b", ["c"])], ["a", Inline(0, ["c"])], [Inline(0, ["C"]), "A"], [Inline("b", ["C"]), "A"]),
    ],
)
def test_spaces_around_what_has_no_text(source, read, written, restored_as):
    """The model reads one space where an image is a word, and a note comes after a word."""
    contents = []
    assert read_block(source, contents) == read
    assert restored(written, contents) == restored_as
