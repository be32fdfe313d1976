import pytest

pytest.importorskip("sentencex", reason="needs the extra 'serve'")

from residual_hf.generation.markup import SplitBlocks
from residual_hf.generation.sentences import split_sentences


@pytest.mark.parametrize("language", ["de", "de_DE", "deu_Latn", "de-AT"])
def test_sentences_end_by_the_rules_of_their_language(language):
    document = SplitBlocks([["Das gilt auch hier, vgl. Abschnitt 3. Und mehr."]], language, lambda sentence: True)
    assert document.sentences == ["Das gilt auch hier, vgl. Abschnitt 3.", "Und mehr."]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("fr", ["M. Roux et Mme. Petit citent, cf. l'art. 5 de la loi.", "Les articles sont clairs."]),
        ("fr", ["Elle a lu V. Hugo, env. la moitié.", "il a lu le reste."]),
        ("de", ["Im 19. und 20. Jahrhundert lebte der XXII. Graf inkl. Hut.", "Er war 3 und 4.", "Haus und Hof."]),
        ("it", ["L'art. 5, n. 3 e pag. 4 della legge.", "Poi il resto."]),
        ("hu", ["2024. május 3. napján II. József, pl. Pécsett.", "A Kft.-nek is jó."]),
        ("nb", ["Den 17. mai er fin, f.eks. Oslo.", "Han kom i 2004.", "Hun også."]),
        ("hr", ["Dana 3. svibnja, npr. Zagreb, od 11. 9. do danas u 19. stoljeću.", "Npr. Split."]),
        ("en", ["See vol. 3, ch. 2, by Ms. Fox.", "We ate.", "and left.", "Room 3.", "then out.", "5 men."]),
        ("es", ["D. Juan y Dña. Eva viven.", "Aquí."]),
        ("pl", ["Wg art. 5 tzw. Nowak ze św. Janem, m.in. w Łodzi, ok. 5 dni.", "Tzw. Lis.", "Jest ok.", "Idziemy."]),
        ("sv", ["Barn, t.ex. Eva, se kap. 5.", "Sedan."]),
        ("ja", ["彼は「行く。」と言った。", "「はい。」", "とても良い。", "「あ。」って。"]),
        ("en", ["i ate it.", "it was fine.", "we left."]),
        ("ru", ["Он помог им.", "Потом ушёл."]),
        ("fr", ["C'est le plan B.", "Nous partons."]),
        ("ka", ["ის არის აქ.", "მე აქ ვარ."]),
    ],
)
def test_abbreviations_and_ordinal_numbers_end_no_sentence(language, sentences):
    text = ("" if language == "ja" else " \u00a0").join(sentences)
    pieces = [*split_sentences(text, language, lambda sentence: True)]
    assert [piece for piece, is_sentence in pieces if is_sentence] == sentences
    assert "".join(piece for piece, _ in pieces) == text
