import time

import pytest

from residual_hf.generation.html_text import HTMLText, visible_text


@pytest.mark.parametrize(
    ("source", "text"),
    [("a <!-- b --!> c", "a c"), ("a <!--> b --> c", "a b --> c"), ("a <!---> b", "a b"), ("a <!-- b <p>c</p>", "a")],
)
def test_comments_end_as_in_browsers(source, text):
    assert visible_text(source).split() == text.split()


@pytest.mark.parametrize("begins", ["<a title='x>here", "<y then", "</y then", "<? then", "<!DOCTYPE then"])
def test_text_behind_a_tag_without_an_end_stays(begins):
    """Python has lost it since June 2025."""
    assert "and more" in visible_text(f"See {begins} and more.")


def test_visible_text_has_neither_markup_nor_code():
    source = '<p class="intro">Guten Tag!</p><script>return the(element)</script><code>for the</code> Ja &amp; nein'
    assert visible_text(source).split() == ["Guten", "Tag!", "Ja", "&", "nein"]


@pytest.mark.parametrize("tag", ["video", "audio", "canvas", "iframe", "object"])
def test_what_is_shown_in_place_of_media_is_no_part_of_the_sentence(tag):
    blocks = HTMLText(f"<p>Look: <{tag} id=a>Not <b>shown</b>.</{tag}></p>").blocks
    assert blocks[0] == ["Look:"] and blocks[1][0] == "Not "


def test_characters_that_stand_for_code_of_templates_stay():
    document = HTMLText("one \ufdd00\ufdd1 <% two \ufdd07\ufdd1 %>")
    assert document.render(document.blocks) == "one \ufdd00\ufdd1 <% two \ufdd07\ufdd1 %>"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- use <% to begin --> <p>Text one.</p> <p>and %> here</p>",
        "<p>It begins with <code>&lt;</code> <%.</p><p>It ends with %>.</p>",
    ],
)
def test_marks_of_templates_in_prose_do_not_hide_paragraphs(text):
    assert len(HTMLText(text).blocks) == 2


@pytest.mark.parametrize(
    "code",
    [
        '<% out.println("<td>" + user.name + "</td>"); %>',
        "<%-- <p>Old text.</p> --%>",
        '<? echo "<p>Hello</p>"; ?>',
        '<%= content_tag(:p) { "<li>No</li>" } # it\'s %>',
    ],
)
def test_code_of_templates_with_markup_stays(code):
    document = HTMLText(f"<p>One.</p>{code}<p>It's two.</p>")
    assert len(document.blocks) == 2 and code in document.render(document.blocks)


@pytest.mark.parametrize("begins", ["<a ", "</", "<?", "<", '<a b="', "<%", "{{<", '<%"', "<%'", "<%--"])
def test_tags_that_never_end_are_read_in_linear_time(begins):
    text = begins * (30_000 // len(begins))
    started = time.process_time()
    document = HTMLText(text)
    assert time.process_time() - started < 1 and document.render(document.blocks).count("&lt;") == text.count("<")
