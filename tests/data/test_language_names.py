import pytest

from residual_hf.data.language_names import bcp47, code_of, script_of


@pytest.mark.parametrize(
    ("code", "name"),
    [("de_DE", "de-DE"), ("zho_Hans", "zh-Hans"), ("en_XX", "en"), ("deu_Latn", "de"), ("uzn_Latn", "uz")]
    + [("sr-Latn", "sr-Latn"), ("srp_Cyrl", "sr-Cyrl"), ("kk-Latn", "kk-Latn")],
)
def test_documents_name_a_script_that_is_not_the_usual_one(code, name):
    assert bcp47(code) == name


@pytest.mark.parametrize(
    ("code", "script"),
    [("sr", "Cyrl"), ("sr-ME", "Latn"), ("srp_Latn", "Latn"), ("pa_PK", "Arab"), ("zh-TW", "Hant"), ("zxx", "")],
)
def test_the_script_of_a_language_may_be_that_of_its_region(code, script):
    assert script_of(code) == script


NLLB = ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "arb_Arab", "arb_Latn", "swh_Latn", "srp_Cyrl"]
MBART = ["de_DE", "en_XX", "zh_CN", "pt_XX", "he_IL"]


@pytest.mark.parametrize(
    ("language", "known", "code"),
    [
        ("de", NLLB, "deu_Latn"),
        ("deu_Latn", NLLB, "deu_Latn"),
        ("zh", NLLB, "zho_Hans"),
        ("zh-Hant", NLLB, "zho_Hant"),
        ("zh-TW", NLLB, None),
        ("ar", NLLB, "arb_Arab"),
        ("sw", NLLB, "swh_Latn"),
        ("fr", NLLB, None),
        ("de", MBART, "de_DE"),
        ("zh", MBART, "zh_CN"),
        ("pt", MBART, "pt_XX"),
        ("iw", MBART, "he_IL"),
        ("de-AT", MBART, None),
    ],
)
def test_code_of_a_language(language, known, code):
    assert code_of(language, known) == code
