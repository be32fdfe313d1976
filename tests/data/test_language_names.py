import pytest

from residual_hf.data.language_names import bcp47, script_of


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
