import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer

pytest.importorskip("sentencex", reason="needs the extra 'serve'")

from residual_hf.documents.literal_text import marked_block, spelled
from residual_hf.generation import markup
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest
from residual_hf.generation.html_text import DEEPEST, HTMLText, visible_text
from residual_hf.generation.html_tokens import BOUNDARIES, VOID
from residual_hf.generation.markup import (
    LONGEST_SENTENCE,
    Inline,
    SplitBlocks,
    document_for,
    paragraph_hypotheses,
    translate_blocks,
)
from residual_hf.generation.translator import Hypothesis, Translator
from residual_hf.model.alignment import AlignedTokens, Alignment, word_spans

LAYOUT = "# Title\n\n  - Hello Dr. Smith.  How are you? \r\n  - Fine!\n\n----\n\t3.14 \n"


class document:
    """A text, or HTML with `markup`, whose sentences can be replaced."""

    def __init__(self, text, fits=lambda sentence: True, *, markup=False, language="en"):
        self.html = HTMLText(text) if markup else None
        self.document = SplitBlocks(self.html.blocks if markup else [[text]], language, fits)
        self.sentences, self.aligned = self.document.sentences, self.document.aligned

    def join(self, translations, alignments=None):
        found = zip(translations, alignments or [None] * len(translations), strict=True)
        blocks = self.document.join([Hypothesis(text, None, alignment) for text, alignment in found])
        return self.html.render(blocks) if self.html else "".join(blocks[0])


@pytest.mark.parametrize(
    ("html", "sentences"),
    [
        ("<nav> <a>The owl</a><a><img>The bear</a><!-- c --><a>The fox</a>\n</nav>", 3),
        ("<p><label>The owl<input></label><label><input>The bear</label></p>", 2),
        ("<p><i><a>The owl</a><a>The bear</a></i></p>", 2),
        ("<p><i><a>The owl</a></i><b><a>The bear</a></b></p>", 2),
        ("<p>Read <a>the owl</a><a>the bear</a></p>", 1),
        ("<p><a>the owl</a> <a>the bear</a></p>", 1),
        ("<p><b>bo</b><i>ld</i></p>", 1),
    ],
)
def test_links_that_touch_are_texts_of_their_own(html, sentences):
    found = document(html, markup=True)
    assert len(found.sentences) == sentences
    translations = [sentence.upper() for sentence in found.sentences]
    if sentences > 1:
        assert found.join(translations) == re.sub(">[^<]+", lambda text: text[0].upper(), html)


def test_layout_numbers_and_markers_stay_outside_sentences():
    found = document(LAYOUT)
    assert found.sentences == ["Title", "Hello Dr. Smith.", "How are you?", "Fine!"]
    assert found.join(found.sentences) == LAYOUT
    assert found.join("ABCD") == "# A\n\n  - B  C \r\n  - D\n\n----\n\t3.14 \n"


ODD = ["", " \n\n ", "...", "世界。你好。", "a\u2028b", "Plan B\u00a0. Gut.", "C\u3000.\u202f.", "🙂 x", "- "]


@pytest.mark.parametrize("text", [*ODD, "a" * 1000])
@pytest.mark.parametrize("markup", [False, True])
def test_any_text_keeps_its_layout(text, markup):
    found = document(text, lambda sentence: len(sentence) <= 10, markup=markup)
    assert found.join(found.sentences) == text
    assert all(len(sentence) <= 10 for sentence in found.sentences)


def test_long_sentences_are_split_at_spaces():
    words = " ".join(f"word{i}" for i in range(100))
    parts = document(words, lambda sentence: len(sentence) <= 60).sentences
    assert " ".join(parts) == words and max(map(len, parts)) <= 60 and len(parts) < 20


def test_html_keeps_tags_entities_code_and_untranslated_elements():
    source = (
        '<!doctype html><p class="a">Ham &amp; eggs.</p><!-- c --><br/><code>x &lt; y</code> is '
        '<script>if (a < b) {}</script><b translate="no">Name<b>x</b></b> and &lt;more&gt;<?p?>'
    )
    found = document(source, markup=True)
    assert found.sentences == ["Ham & eggs.", "x < y is Namex and <more>"]
    expected = source.replace("Ham &amp; eggs.", "A &lt; B").replace("and &lt;more&gt;", "AND &lt;MORE&gt;")
    assert found.join(["A < B", "x < y is Namex AND <MORE>"]) == expected


def test_elements_without_an_end_tag_end_nothing():
    source = '<IMG translate="no" src="x"><P>Guten Tag!</P ><br translate="no">Ja.<![CDATA[x y]]>'
    found = document(source, markup=True)
    assert found.sentences == ["Guten Tag!", "Ja."] and found.join(found.sentences) == source


@pytest.mark.parametrize(
    ("source", "sentences"),
    [
        ("<li translate=no>Foo bar<li>Second item</ul><p>The rest", ["Second item", "The rest"]),
        ("<ul><li translate='NO'>Foo bar</ul><p>The rest", ["The rest"]),
        ("<div translate=no><p>a b<p>c d</div>The rest", ["The rest"]),
        ("<li translate=no>a<ul><li>b c</li></ul></li>The rest", ["The rest"]),
        ("<tr><td translate=no>a b<tr><td>c d", ["c d"]),
        ("<i class='x notranslate'>a b</i><p class=notranslate>c d</p>The rest", ["The rest"]),
        ("<ruby>a b<rp>(<rt>c d<rp>)</ruby> e f", ["a b e f"]),
        ("If a < b then c is small.", ["If a < b then c is small."]),
    ],
)
def test_elements_may_lack_their_end_tag(source, sentences):
    assert document(source, markup=True).sentences == sentences


def test_markup_that_is_no_section_is_text_and_what_is_not_translated_stays_escaped():
    found = document("a <![x b", markup=True)
    assert found.join(found.sentences) == "a &lt;![x b"
    source = "<textarea>&lt;/textarea&gt;&lt;img onerror=x&gt;</textarea><script>a < b"
    assert document(source, markup=True).join([]) == source


def test_sentences_have_spaces_between_them_as_their_language_writes():
    chinese, english = "你好。我很好。", "Hello. I am fine."
    assert document(chinese, language="zh").join(["Hello.", "I am fine."]) == english
    assert document(english).join(["你好。", "我很好。"]) == chinese
    assert document(chinese, language="zh").join(["你好。", "我很好。"]) == chinese
    assert document(english).join(["สวัสดีครับ", "ผมสบายดี"]) == "สวัสดีครับ ผมสบายดี"
    for text, language in (
        ("שלום!\u200f מה שלומך?", "he"),
        ("သူလာတယ်။သူမသွားတယ်။", "my"),
        ("यह है।यह नहीं।", "hi"),
        ("ខ្ញុំឈ្មោះ សុខ។ ខ្ញុំរស់នៅភ្នំពេញ។", "km"),
        ("ខ្ញុំទិញផ្លែឈើ ស្វាយ ។ល។ និងនំ។ ខ្ញុំរស់នៅ។", "km"),
        ("བཀྲ་ཤིས། བདེ་ལེགས།", "bo"),
    ):
        assert document(text, language=language).join(["Hello.", "How are you?"]) == "Hello. How are you?"


def test_signs_that_may_be_read_in_many_ways_take_no_time():
    source = f"Use <code>{'%' * 60} Section</code> as a banner."
    assert document(source, markup=True).join([f"Als Banner {'%' * 60} Section."]).count("<code>") == 1


def test_marks_of_direction_stay_in_what_is_kept():
    text = "اتصل بنا.\n\u200e+1 (555) 123-4567\nشكرا."
    assert document(text, language="ar").join(["a.", "b."]) == "a.\n\u200e+1 (555) 123-4567\nb."
    assert document("\u200f- مرحبا يا صديقي.", language="ar").join(["Hello."]) == "- Hello."


def aligned(source, target, links):
    """The alignment of a sentence whose words have these links, such as "0-0 1-2"."""
    words, written = word_spans(source, bare=True), word_spans(target, bare=True)
    weights = np.full((len(written), len(words)), 0.01)
    for read, write in (map(int, link.split("-")) for link in links.split()):
        weights[write, read] = 1
    return Alignment(source, target, (AlignedTokens(words, written, weights, np.zeros(len(written))),))


def translated(source, *translations):
    """HTML with translations, which are text and links, of its sentences."""
    found = document(source, markup=True)
    pairs = zip(found.sentences, translations, strict=True)
    return found.join([text for text, _ in translations], [aligned(old, text, links) for old, (text, links) in pairs])


@pytest.mark.parametrize(
    ("source", "translation", "links", "expected"),
    [
        ("<p>Wie heißt <b>du</b>?</p>", "What is your name?", "0-0 1-1 2-2 1-3", "<p>What is <b>your</b> name?</p>"),
        ("Das <i>rote Haus</i> dort", "the house there is red", "0-0 2-1 3-2 1-4", "the <i>house</i> there is red"),
        ("<b>Er</b> ruft <i>sie</i> an", "her he calls", "0-1 1-2 2-0", "<i>her</i> <b>he</b> calls"),
        (
            '<a href="#x" >Guten <em>Tag</em></a>, Welt',
            "hi good day",
            "2-0 0-1 1-2",
            'hi <a href="#x" >good <em>day</em></a>',
        ),
        ("<u>Ja<b>hr</b></u> um Jahr", "year by year", "0-0 1-1 2-2", "<u><b>year</b></u> by year"),
        (
            "eins <b>zwei <i>drei</b> vier</i> fünf",
            "1 2 3 4 5",
            "0-0 1-1 2-2 3-3 4-4",
            "1 <b>2 <i>3</i></b> <i>4</i> 5",
        ),
        ("Sie <b>nicht</b>, <i>er</i>", "he", "2-0", "<b></b><i>he</i>"),
        ("Er ist <i><b>müde.</b></i>", "he is tired.", "0-0 1-1 2-2", "he is <i><b>tired</b></i>."),
        ("Der <a>müde <b>König</b></a> ruht", "he rests", "1-0 3-1", "<a><b>he</b></a> rests"),
        ("Er rief mich <a>an</a>.", "he called me.", "0-0 1-1 2-2", "<a>he</a> called me."),
        ("Nimm <code>ls -l</code> oft", "often use ls -l", "0-1 1-2 2-3 3-0", "often use <code>ls -l</code>"),
        ("Nimm <kbd>F1</kbd> oft", "often use F2", "0-1 1-2 2-0", "often use <kbd>F1</kbd>"),
        ("Nimm <kbd>F1</kbd> oft", "often", "2-0", "<kbd>F1</kbd> often"),
        ("Nimm <kbd>en</kbd> oft", "often", "2-0", "<kbd>en</kbd> often"),
        ("Haus<img src=a> groß ist", "big is the house", "2-1 1-0 0-3", "big is the house<img src=a>"),
        ("Nimm {a} <b>oft</b>", "often use {a}", "0-1 1-2 2-0", "<b>often</b> use {a}"),
        ("Nimm {a}, oft", "take, often", "0-0 2-1", "take {a}, often"),
        ("Nimm das {a}.", "take it.", "0-0 1-1", "take it {a}."),
        (
            "Ein <img src=a> Bild <!-- n --> da",
            "there a picture",
            "0-1 1-2 2-0",
            "<!-- n -->there a <img src=a> picture",
        ),
        ("Drück <kbd>Strg</kbd>+<kbd>C</kbd>.", "press Strg+C.", "0-0 1-1", "press <kbd>Strg</kbd>+<kbd>C</kbd>."),
        ("Nimm {a}_{b}, x{a}", "x{a} {a}_{b}", "", "x{a} {a}_{b}"),
        ("Ein <b>rot</b>-blau H<sub>2</sub>O", "H2O red-blue", "1-1 2-0", "H<sub>2</sub>O <b>red</b>-blue"),
        ("Er <b>rief</b> mich <b>an</b>.", "he called me.", "0-0 1-1 2-2", "he <b>called</b> <b></b>me."),
        ("<b>我们</b>今天去", "today we go", "0-0", None),
        ("<p>Hund &lt;<b>R&amp;D</b>&gt;</p>", "<R&D> dog", "0-1 1-0", "<p>&lt;<b>R&amp;D</b>&gt; dog</p>"),
    ],
)
def test_tags_are_around_the_words_that_belong_to_theirs(source, translation, links, expected):
    found = translated(source, (translation, links))
    assert found == expected if expected else visible_text(found).split() == translation.split()


@pytest.mark.parametrize(
    ("source", "target", "spans", "expected"),
    [
        ("Nimm {a} oft", "take, often", [(0, 4), (4, 5), (6, 11)], "take {a} often"),
        ("Nimm {a} oft", "take—often", [(0, 4), (4, 5), (5, 10)], "take {a} often"),
        ("Nimm x{a} oft", "take x{a} often", [(0, 4), (6, 9), (10, 15)], "take x{a} often"),
    ],
)
def test_a_placeholder_in_the_place_of_a_comma_stands_apart(source, target, spans, expected):
    words = [found.span() for found in re.finditer(r"{a}|\w+(?!{)", source)]
    links = AlignedTokens(np.array(words), np.array(spans), np.eye(3), np.zeros(3))
    assert document(source).join([target], [Alignment(source, target, (links,))]) == expected


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("Take {0} now", "Nimm {0}x jetzt"),
        ("{count} times, {count} times", "{count}mal, {count}mal"),
        ("%d s", "%ds"),
        ("File {0}", "Datei{0}"),
        ("{name}'s car", "{name}s Auto"),
        ("a {x} b {y}", "b{y}a{x}"),
        ("%s of %s", "%svon%s"),
        ("{a}{b} c", "c{a}{b}"),
        (":count days", ":counttage"),
        ("${x} kg, %1$s", "%1$skg${x}kg"),
        ("mail a@b.de now", "Nach-a@b.de-mailen"),
    ],
)
@pytest.mark.parametrize("aligns", [False, True])
def test_a_placeholder_may_touch_letters(source, translation, aligns):
    for is_html in (False, True):
        found = document(source, markup=is_html)
        assert found.join([translation], [aligned(source, translation, "0-0")] if aligns else None) == translation
    (block,) = SplitBlocks([marked_block([source])], "en", lambda sentence: True).join([Hypothesis(translation, None)])
    assert "".join(spelled(block)) == translation


@pytest.mark.parametrize("aligns", [False, True])
def test_a_placeholder_within_an_element_may_touch_letters(aligns):
    source, target = "{count} times <b>{name}</b>", "{count}mal {name}s"
    links = [aligned(visible_text(source), target, "0-0 2-1")] if aligns else None
    written = document(source, markup=True).join([target], links)
    assert written in ("{count}mal <b>{name}</b>s", "{count}mal <b>{name}s</b>")


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        ("{n} files", "{n}{n} Dateien", "{n} Dateien"),
        ("{0} x", "{0} {0} {0}x", "{0} x"),
        ("{a} and {a} and {b}", "{a} und {b} {a} und {a} {b}", "{a} und {a} und {b}"),
        ("Take {count}", "Nimm {Count}", "Nimm {count}"),
        ("<b>{n} files</b>", "<b>{n} {n} Dateien</b>", "<b>{n} Dateien</b>"),
    ],
)
def test_a_placeholder_comes_back_as_often_as_it_was(source, written, expected):
    found = document(source, markup=True)
    assert found.join([visible_text(written)]) == expected


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("%d%% of files", "%d. %% Dateien", "%d%% Dateien"),
        ("{0}% complete", "{0} fertig", "{0}% fertig"),
        ("{0}% complete", "{0} % fertig", "{0}% fertig"),
        ("Page {0}/{1}.", "Seite {0} / {1}.", "Seite {0}/{1}."),
        ("{0}x{1} files", "{0} {1} Dateien", "{0}x{1} Dateien"),
        ("a {0}{1}", "A {0} , {1}", "A {0}{1}"),
        ("a {0}{1}", "A {1}{0}", "A {0}{1}"),
        ("{0} and {0}%", "{0} und {0}", "{0} und {0}%"),
        ("Pay €{0} now", "Zahl {0} jetzt", "Zahl €{0} jetzt"),
        ("{0}°C now, {a} {b}", "{0}° jetzt, {a} {b}", "{0}°C jetzt, {a} {b}"),
        ("Use {name} now", "{name geht", "{name} geht"),
        ("Use {name} now", "name} geht", "{name} geht"),
        ("Use {name} now", "geht { Name.", "geht {name}."),
    ],
)
def test_placeholders_in_pieces_are_whole_again(source, translation, expected):
    for is_html in (False, True):
        assert document(source, markup=is_html).join([translation]) == expected
    (block,) = SplitBlocks([marked_block([source])], "en", lambda sentence: True).join([Hypothesis(translation, None)])
    assert "".join(spelled(block)) == expected


def test_placeholders_and_the_signs_between_them_are_no_text():
    assert document("{0}x{1}\n%d%%\n{0}% x").sentences == ["{0}% x"]


def test_a_block_is_a_unit_and_its_white_space_means_nothing():
    source = "<p>\n  Ein\tSatz <b>mit \r\n Um-</b>\f\nbruch.\n  Noch\u00a0einer. </p>\n<ul><li>a b<li>c d<br>e f</ul>"
    found = document(source, markup=True)
    expected = ["Ein Satz mit Um- bruch.", "Noch\u00a0einer.", "a b", "c d", "e f"]
    assert found.sentences == expected and found.aligned == [True, *[False] * 4]
    one_line = "<p>\n  Ein Satz <b>mit Um-</b> bruch. Noch\u00a0einer. </p>\n<ul><li>a b<li>c d<br>e f</ul>"
    assert found.join(found.sentences) == one_line
    assert document("<a><div>a b</div> c</a> d", markup=True).sentences == ["a b", "c", "d"]


@pytest.mark.parametrize(
    "source",
    [
        "Text <a href=x><img src=y></a> mehr <span><b><img></b></span> da",
        "Bild <picture><source srcset=a><img src=b></picture> hier",
        "Klick <svg><path/></svg> los <i class=icon></i> da",
        "<math><mi>x</mi></math> ist da",
        f"Nimm <code>{'x' * 101}</code> oft",
        "<label>Name <input></label>",
    ],
)
def test_elements_without_text_and_the_spaces_around_them_stay(source):
    found = document(source, markup=True)
    assert found.join(found.sentences) == source


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("<p>The king<sup>1</sup> sleeps.</p>", "Der König schläft.", "<p>Der König<sup>1</sup> schläft.</p>"),
        ("the king<sup><a href=x>2</a></sup> sleeps", "der König ruht", "der König<sup><a href=x>2</a></sup> ruht"),
        ("<p>The king<sup>a</sup> sleeps.</p>", "Der König schläft.", "<p>Der König<sup>a</sup> schläft.</p>"),
        ("the king,<SUP><i>b</i></SUP> sleeps", "der König, schläft", "der König,<SUP><i>b</i></SUP> schläft"),
    ],
)
def test_numbers_of_notes_in_html_stay(source, translation, expected):
    found = document(source, markup=True)
    assert found.sentences == [visible_text(re.sub("(?i)<sup>.*?</sup>", "", source))]
    assert found.join([translation], [aligned(found.sentences[0], translation, "0-0 1-1 2-2")]) == expected


@pytest.mark.parametrize(
    ("source", "read", "translation", "links", "expected"),
    [
        ("king<sup>1</sup>s owl", "kings owl", "Eule Königs", "0-1 1-0", "Eule Königs<sup>1</sup>"),
        ("the king<sup>[3]</sup>s", "the kings", "der König", "0-0 1-1", "der König<sup>[3]</sup>"),
        ("the sin<sup>2</sup>x", "the sin2x", "der sin2x", "0-0 1-1", "der sin<sup>2</sup>x"),
    ],
)
def test_a_note_within_a_word_stays(source, read, translation, links, expected):
    assert document(source, markup=True).sentences == [read]
    assert translated(source, (translation, links)) == expected


@pytest.mark.parametrize("source", ["M<sup>r</sup> Fox", "the king<b>s</b> sleep", "the 1<sup>st</sup> king"])
def test_letters_of_words_are_read(source):
    assert document(source, markup=True).sentences == [re.sub("<.*?>", "", source)]


def test_an_element_may_go_over_sentences():
    translations = ("Yes.", "0-0"), ("he comes.", "0-0 1-1"), ("she goes.", "0-0 1-1")
    found = translated("Ja. <b>Er kommt. Sie</b> geht.", *translations)
    assert found == "Yes. <b>he comes. she</b> goes."


class OpenTags(HTMLParser):
    """Start tags, and those of inline elements that are not closed, or not in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.stack, self.wrong = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(self.get_starttag_text())
        if tag not in BOUNDARIES and tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag not in BOUNDARIES and (not self.stack or self.stack.pop() != tag):
            self.wrong.append(tag)


PARTS = ["ein ", "Hund\n", "12. ", " ja ", "&amp;", "<img src=q>", "<!-- c -->", "<br>", "<p>", "</div>", "<![x", "<"]
INLINE = ["b", "i", "a href='x'", "span class=y", "code", "em translate=no"]


@pytest.mark.parametrize("valid", [True, False])
def test_any_markup_and_translation_give_well_formed_elements(valid):
    draw = random.Random(1)
    for _ in range(200):
        source, stack = "", []
        for _ in range(draw.randrange(25)):
            if draw.random() < 0.5:
                source += draw.choice(PARTS[:7] if valid else PARTS)
            elif draw.random() < 0.6 or not stack:
                stack.append(draw.choice(INLINE))
                source += f"<{stack[-1]}>"
            else:
                tag = stack.pop() if valid else draw.choice(stack)
                source += f"</{tag.split()[0]}>"
        if valid:
            source += "".join(f"</{tag.split()[0]}>" for tag in reversed(stack))
        found = document(source, markup=True)
        given = [(draw.choice(["", "dog ran.", "ja 12, ein Hund " * 2]), sentence) for sentence in found.sentences]
        alignments = [aligned(old, new, "0-0" if new and draw.random() < 0.5 else "") for new, old in given]
        result = found.join([new for new, _ in given], alignments if draw.random() < 0.8 else None)
        tags = OpenTags(result)
        assert not tags.wrong and not tags.stack, source
        if valid:
            assert sorted(tags.tags) == sorted(OpenTags(source).tags), source


def test_most_placeholders_of_a_block(monkeypatch):
    monkeypatch.setattr(markup, "MOST_PLACEHOLDERS", 3)
    found = document("{a} x <i>{b} y</i> {c} {d} z {e}", markup=True)
    (sentence,) = found.sentences
    assert found.join([sentence.upper()]) == "{a} X <i>{b} Y</i> {c} {D} Z {E}"


def test_nesting_without_end_is_cut():
    deep = "<b>" * 5000 + "Hund" + "</b>" * 5000
    found = document(deep, markup=True)
    assert found.join(["dog"]) == "<b>" * DEEPEST + "dog" + "</b>" * DEEPEST
    assert document("<b>" * 5000 + "</i>" * 5000 + "<p>" * 5000, markup=True).sentences == []


def test_long_sentences_are_split_for_models_without_positions():
    tokenizer = tiny_tokenizer()
    translator = Translator(tiny_model(tokenizer, position_embedding_type="none"), tokenizer)
    found = document_for(translator, [["Hund " * 300]], SearchRequest())
    assert len(found.sentences) > 1
    assert all(len(ids) <= LONGEST_SENTENCE for ids in translator.encode(found.sentences)[0])


def test_blocks_of_any_format_are_translated_as_units(monkeypatch):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config.no_repeat_ngram_size = 3  # random weights repeat themselves
    translator = Translator(model, tokenizer, DecodingSettings(num_beams=2, max_length_a=1, max_length_b=5))
    words, calls, run = SENTENCES[0].split(), [], object()
    answer = translator.answer

    def recorded(sentences, request):
        calls.append((sentences, request.alignments))
        return answer(sentences, request)

    monkeypatch.setattr(translator, "answer", recorded)
    marked = [" ".join(words[:2]) + " ", Inline(run, [" ".join(words[2:4])]), " " + " ".join(words[4:])]
    found = translate_blocks(translator, [marked, [SENTENCES[1]], [], ["12 ", Inline("img")]], target_lang=None)
    assert calls == [([SENTENCES[1]], False), ([SENTENCES[0]], True)]
    monkeypatch.undo()
    first, second = translator.translate(SENTENCES[:2])
    text = "".join(piece if isinstance(piece, str) else "".join(piece.pieces) for piece in found[0])
    assert text == first and [piece.content for piece in found[0] if isinstance(piece, Inline)] == [run]
    assert found[1:] == [[second], [], ["12 ", Inline("img")]]


class Writer:
    """What `paragraph_hypotheses` needs of a translator, which writes an address wrong."""

    written = {"Mail an a@b.de jetzt.": ("Now mail c@d.org", "0-1 2-2 3-0"), "Danke.": ("Thanks.", "0-0")}

    def answer(self, sentences, request):
        pairs = [(sentence, *self.written[sentence]) for sentence in sentences]
        return [
            [Hypothesis(text, 0.0, aligned(old, text, links) if request.alignments else None)]
            for old, text, links in pairs
        ]


@pytest.mark.parametrize("alignments", [False, True])
def test_an_address_in_a_line_takes_the_place_of_its_translation(monkeypatch, alignments):
    monkeypatch.setattr(markup, "document_for", lambda _, blocks, request: SplitBlocks(blocks, "de", lambda _: True))
    request = SearchRequest(alignments=alignments)
    ((found,),) = paragraph_hypotheses(Writer(), ["Mail an a@b.de jetzt. Danke."], request)
    assert found.text == "Now mail a@b.de Thanks."
    if alignments:
        assert found.alignment.target == found.text and len(found.alignment.word_scores) == 4
        assert str(found.alignment) == "0-1 2-2 3-0 4-3"
    else:
        assert found.alignment is None
