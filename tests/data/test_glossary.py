"""Terms in a text, and training text that says how they are translated."""

import gc
import re
import sys

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.glossary import Glossary, form_of, letters_after, occurs
from residual_hf.data.marked_text import marked

ROWS = [("dog", "Hund"), ("guide dog", "Blindenhund"), ("US", "USA"), ("狗", "dog"), ("Windows 10", "Windows 10")]


@pytest.fixture
def glossary():
    return Glossary([*ROWS, ("dog", "Rüde")])


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("A Dog and a guide dog.", ["Dog", "guide dog"]),
        ("us or US? hotdog, dogs and dogma, USs", ["US", "dogs"]),
        ("Guide Dogs of dog's", ["Guide Dogs", "dog"]),
        ("我的狗很好", ["狗"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest(glossary, text, terms):
    assert [text[term.start : term.end] for term in glossary.find(text)] == terms


@pytest.mark.parametrize(
    ("term", "text"),
    [("ışık", "Işık IŞIK"), ("istanbul", "İstanbul"), ("masse", "Maſſe"), ("λόγος", "ΛΌΓΟΣ λόγοσ"), ("µm", "5 μm")],
)
def test_letters_with_several_lower_case_forms(term, text):
    found = Glossary([(term, "x")]).find(text)
    assert len(found) == len(text.replace("5 ", "").split()) and {each.targets for each in found} == {("x",)}


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[2:3], []])
def test_a_glossary_may_have_terms_of_one_kind_only(rows):
    assert len(Glossary(rows).find("the dog of the US")) == len(rows)


def test_regular_plurals_are_found():
    rows = [("city", "Stadt"), ("box", "Kiste"), ("Hund", "dog"), ("Hunde", "hounds"), ("key", "Schlüssel")]
    text = "Cities, boxes, keys, Hunds, Hunde, cityscape, keies"
    found = {text[term.start : term.end]: term.targets[0] for term in Glossary(rows).find(text)}
    assert found == {"Cities": "Stadt", "boxes": "Kiste", "keys": "Schlüssel", "Hunds": "dog", "Hunde": "hounds"}


def test_a_glossary_may_be_csv(tmp_path):
    file = tmp_path / "terms.csv"
    file.write_text('\ufeffdog;Hund\n"salt; pepper"; Gewürz;;\n', encoding="utf-8")
    assert Glossary.read(file).targets == {"dog": ("Hund",), "salt; pepper": ("Gewürz",)}
    file.write_text('dog,"Hund, der"\n')
    assert Glossary.read(file).targets == {"dog": ("Hund, der",)}
    file.write_text("dog\tHund, der; Rüde\n")
    assert Glossary.read(file).targets == {"dog": ("Hund, der; Rüde",)}
    file.write_text("dog,Hund\ncar,Auto; Wagen\n")
    assert Glossary.read(file).targets == {"dog": ("Hund",), "car": ("Auto; Wagen",)}
    file.write_text("English,German\ncar,Auto; Wagen\n")
    assert Glossary.read(file).targets == {"car": ("Auto; Wagen",)}


@pytest.mark.parametrize(
    ("start", "terms"),
    [
        ("English;German\n", {"owl"}),
        ("Englisch,Deutsch,Notiz\n", {"owl"}),
        ("source\ttarget\n", {"owl"}),
        ("Source term;Translation\n", {"owl"}),
        ("sep=,\nen,de-DE\n", {"owl"}),
        ("\nEN;DE\n", {"owl"}),
        ("German;Deutsch\n", {"German", "owl"}),
        ("term;Begriff\n", {"term", "owl"}),
        ("owl;Uhu\nen;de\n", {"owl", "en"}),
    ],
)
def test_a_row_that_names_the_columns_is_no_term(start, terms, tmp_path, caplog):
    file = tmp_path / "terms.csv"
    file.write_text(f"{start}owl{',' if 'sep' in start else ';'}Uhu\n")
    assert Glossary.read(file).targets.keys() == terms
    assert ("names the columns" in caplog.text) is (len(terms) == 1)


def test_nothing_keeps_the_terms_of_a_glossary_that_is_gone():
    term = "".join(["of one", " request"])
    before = sys.getrefcount(term)
    assert Glossary([(term, "Wort")]).find(term)
    gc.collect()
    assert sys.getrefcount(term) == before


def test_the_file_is_read_or_refused_by_line(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("dog\tHund\n\n dog \t Rüde\n")
    assert Glossary.read(file).targets == {"dog": ("Hund", "Rüde")}
    for content, message in (
        ("dog\tHund\ncat\n", "line 2"),
        ("a\tb\tnote\n", "line 1.*third column, 'note'"),
        ("a;b\xe4\n".encode("latin-1"), "line 1, byte 4 .*iconv"),
        ("\n", "empty"),
        ('"dog"\t"Hund"\n', '"dog" is quoted as in CSV; write terms without quotes, or with a semicolon'),
        ("dog;Hund\rcat;Katze\r", "line 1 is not CSV: .*new-line"),
        (f"a;{'b' * 200_000}\n", "line 1 is not CSV: .*field limit"),
        ("\tb\n", "line"),
    ):
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError, match=message):
            Glossary.read(file)
    with pytest.raises(InputError, match="missing.tsv"):
        Glossary.read(tmp_path / "missing.tsv")


@pytest.mark.parametrize(
    ("term", "text", "found"),
    [
        ("Hund", "Viele Hunde bellen", True),
        ("Hund", "Hundert Leute", False),
        ("Hund", "ein Windhund", False),
        ("rotes Auto", "mit roten Autos", True),
        ("3D", "in 3D", True),
        ("C++", "mit C++le", False),
        ("user's guide", "the user's guides", True),
        ("Vitamin-C", "Vitamin-D", False),
        ("Windows 10", "Windows 1099", False),
        ("เซิร์ฟเวอร์", "เชื่อมต่อที่เซิร์ฟเวอร์ของเรา", True),
        ("cat", "concat", False),
        ("PI", "使用API接口", False),
        ("at", "ใช้cat", False),
        ("ak", "éak", False),
        ("北京理工大学", "我在北京理工学院工作", False),
        ("北京理工大学", "我在北京理工大学工作", True),
        ("働きかける", "彼に働きかけた", True),
        ("漢字漢字漢い", "漢字漢字字い", False),
        ("ilaç", "İlaç aldı", True),
    ],
)
def test_a_translation_may_be_inflected(term, text, found):
    assert occurs(term, text) is found


@pytest.mark.parametrize(
    ("term", "text", "letters"), [("Hund", "e!", 1), ("Hund", " e", 0), ("狗", "很", 0), ("C++", "l", 3), ("", "a", 0)]
)
def test_letters_after_a_term(term, text, letters):
    assert letters_after(term, text) == letters


def test_an_acronym_and_a_word_have_plurals_of_their_own():
    glossary = Glossary([("pin", "Nadel"), ("PIN", "Geheimzahl")])
    assert [term.targets for term in glossary.find("pins, PIN, PINs")] == [("Nadel",), ("Geheimzahl",), ("Nadel",)]


def test_the_longest_term_is_found_whatever_its_case():
    glossary = Glossary([("API", "Schnittstelle"), ("api key", "API-Schlüssel")])
    assert [term.targets for term in glossary.find("The API key")] == [("API-Schlüssel",)]


def test_terms_have_the_form_that_tokenizers_write():
    glossary = Glossary([("cafe\u0301", "ल\u095cकी")])
    assert glossary.without_translation("un café", "एक लड\u093cकी") == []
    for text in ("un cafe\u0301 noir", "un café noir"):
        assert [text[term.start : term.end] for term in glossary.find(text)] == [text[3:-5]]
    assert Glossary([("ल\u095cकी", "girl")]).find("वह ल\u095cकी है")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("new york", "in New\u00a0York"),
        ("50 km", "the 50\u202fkm"),
        ("user's guide", "the user’s guide"),
        ("l’eau", "de l'eau"),
        ("e-mail", "an e\u2011mail"),
        ("e\u2010mail", "an e-mail"),
    ],
)
def test_spaces_apostrophes_and_hyphens_have_several_forms(term, text):
    (found,) = Glossary([(term, "x")]).find(text)
    assert text[found.start : found.end] == form_of(term, text) == text.split(" ", 1)[1]


def test_a_term_has_the_translations_of_all_its_spellings():
    assert Glossary([("café", "a"), ("cafe\u0301", "b")]).find("café")[0].targets == ("a", "b")
    assert Glossary([("l’eau", "a"), ("l'eau", "b")]).find("l’eau")[0].targets == ("a", "b")


def test_many_terms_take_no_longer_to_find():
    glossary = Glossary((f"term{number}x", "y") for number in range(20_000))
    assert max(map(len, glossary._lengths.values())) < 10  # lengths that are tried where a word begins
    assert len(glossary.find("a term7x of Term19999x and term20000x")) == 2


def test_other_translations_of_terms_are_found(glossary):
    assert glossary.without_translation("The dog and the US", "Der Köter und die USA") == ["dog"]
    assert glossary.without_translation("The dog", "Die Rüden") == []


def test_training_text_says_how_a_share_of_its_terms_is_translated(glossary):
    sources = [f"{'so ' * number}the dog sees Windows 10" for number in range(200)]
    targets = ["die Rüden sehen Windows 10 ."] * 100 + ["nichts"] * 100
    corpus = marked(ParallelCorpus(sources, targets, "x"), placeholders=True, glossary=glossary, learned=True)
    annotated = [source for source in corpus.sources if "<term> dog <trans> Rüde </term>" in source]
    assert 30 < len(annotated) < 70 and not any("<term>" in source for source in corpus.sources[100:])
    for source, target in list(corpus)[:100]:
        digits = "<term> Windows 10 <trans> Windows 10 </term>" in source  # a span within a term stays
        assert bool(re.search(r"Windows <ph\d+> \.", target)) is not digits
