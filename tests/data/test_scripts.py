import pytest

from residual_hf.data.scripts import is_script, share_of_script, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein  Hund\tbellt .", ["Ein", "Hund", "bellt", "."]),
        ("Größe 5 µm", ["Größe", "5", "µm"]),
        ("我去Berlin。", ["我", "去", "Berlin。"]),
        ("これは iPhone 12 です", ["こ", "れ", "は", "iPhone", "12", "で", "す"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("안녕 하세요", ["안녕", "하세요"]),
        (" ", []),
    ],
)
def test_words_are_letters_where_a_script_has_no_spaces(text, expected):
    assert words(text) == expected


def test_share_of_script():
    assert share_of_script("abc где 123 !", "Latin") == 0.5
    assert share_of_script("日本語のテキスト", "Han+Hiragana+Katakana") == 1.0
    assert share_of_script("コーヒー", "Katakana") == share_of_script("スーパー", "Han+Hiragana+Katakana") == 1.0
    assert share_of_script("12 : 34", "Greek") == 1.0
    assert is_script("Latin") and is_script("Han+Hiragana") and not is_script("Klingon")
