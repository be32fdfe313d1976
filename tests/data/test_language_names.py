import pytest

from residual_hf.data.language_names import bcp47


@pytest.mark.parametrize(
    ("code", "name"),
    [("de_DE", "de-DE"), ("zho_Hans", "zh-Hans"), ("en_XX", "en"), ("deu_Latn", "de"), ("uzn_Latn", "uz")]
    + [("sr-Latn", "sr-Latn"), ("srp_Cyrl", "sr-Cyrl"), ("kk-Latn", "kk-Latn")],
)
def test_documents_name_a_script_that_is_not_the_usual_one(code, name):
    assert bcp47(code) == name
