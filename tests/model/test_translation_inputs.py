from unicodedata import normalize

import pytest
from support.tiny_translator import tiny_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from residual_hf import ResidualConfig
from residual_hf.model.placeholders import PLACEHOLDER_TOKENS
from residual_hf.model.translation_inputs import TranslationInputs, in_capitals, is_in_capitals


def inputs(**fields):
    return TranslationInputs(ResidualConfig(**fields), tiny_tokenizer(*PLACEHOLDER_TOKENS))


def bpe_with_at():
    vocabulary = {token: number for number, token in enumerate(("<unk>", "@", "@@"))}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [("@", "@")])))


CAPITALS = {
    'A DOG SLEEPS. "I\'M {NAME}", I SAID, STRAßE 5A!': 'A dog sleeps. "I\'m {NAME}", I said, straße 5a!',
    "NATO <B>DOGS</B> https://A.B/C": "Nato <B>dogs</B> https://A.B/C",
    "USA": "USA",
    "A dog SLEEPS": "A dog SLEEPS",
    "你好 HTML": "你好 HTML",
    "REGLAMENTO Nº 1, 3ª": "Reglamento nº 1, 3ª",
    "OʻZBEKISTON. ОБʼЄКТ": "Oʻzbekiston. Обʼєкт",
    "ΑΠΟΤΕΛΕΣΜΑ. ΑΣ ΠΑΜΕ": "Αποτελεσμα. Ας παμε",
    "ᲥᲐᲠᲗᲣᲚᲘ": "ქართული",
}


@pytest.mark.parametrize("placeholders", [False, True])
def test_a_line_in_capitals_is_read_in_lower_case_and_written_in_capitals(placeholders):
    reader = inputs(source_lang="en", target_lang="de", placeholders=placeholders)
    for text, read in CAPITALS.items():
        assert placeholders or reader.edited(text).text == read
        written = reader.restored("die Straße {x} <b>ist</b> www.a.de", text).text
        assert written == (
            "die Straße {x} <b>ist</b> www.a.de" if text == read else "DIE STRASSE {x} <b>IST</b> www.a.de"
        )
    assert not placeholders or reader.edited("DOGS {NAME} SLEEP").text == "Dogs <ph1> sleep"
    assert in_capitals("გამარჯობა tiếng việt", "ka", of_words=True) == "გამარჯობა Tiếng Việt"
    accents_apart = normalize("NFD", "tiếng việt")
    assert normalize("NFC", in_capitals(accents_apart, "vi", of_words=True)) == "Tiếng Việt"
    assert is_in_capitals(accents_apart.upper())
    with_at = TranslationInputs(ResidualConfig(source_lang="en", target_lang="de"), bpe_with_at())
    assert with_at.edited("DOGS").text == "Dogs"  # GPT-2's vocabulary has `@@` too
    turkish = inputs(source_lang="tr", target_lang="tr-CY")
    assert turkish.edited("İSTANBUL'DA IŞIK").text == "İstanbul'da ışık"
    assert turkish.restored("istanbul", "IŞIK").text == "İSTANBUL"
