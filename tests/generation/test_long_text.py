import pytest

from residual_hf.generation.long_text import space_between, split_text


def test_a_text_is_split_at_the_ends_of_sentences_then_at_spaces_then_anywhere():
    def split(text, most):
        return list(split_text(text, lambda part: len(part) <= most))

    assert split("Ja. Nein, nein.", 11) == [("Ja.", " "), ("Nein, nein.", "")]
    assert split("eins zwei drei vier", 10) == [("eins zwei", " "), ("drei vier", "")]
    assert split("二零二零年。二零二一年。", 6) == [("二零二零年。", ""), ("二零二一年。", "")]
    assert split("यह है। यह नहीं।", 9) == [("यह है।", " "), ("यह नहीं।", "")]
    assert split("「はい。」と言った。「では」", 10) == [("「はい。」", ""), ("と言った。「では」", "")]
    assert split("提供するサービス、及びその他", 9) == [("提供するサービス、", ""), ("及びその他", "")]
    assert split("सच है।। सच", 8) == [("सच है।।", " "), ("सच", "")]
    assert split("សុខ។ សុខ", 6) == [("សុខ។", " "), ("សុខ", "")]
    assert split("abcdef", 3) == [("abc", ""), ("def", "")]


SPACES = [
    ("“你好。”", "", "“Hello.”", "Then", " "),
    ("你好!", "", "Hello!", "I am", " "),
    ("你好。", "", "Hello.", "I am", " "),
    ("Hello.", " ", "“你好。”", "然后", ""),
    ("Hello.", " ", "你好。", "“然后", ""),
    ("Hello!", " ", "你好!", "我", ""),
    ("Hello.", "  ", "Hallo.", "Wie", "  "),
    ("Hello.", " ", "Hallo.", "“你", " "),
    ("你好。", "", "Mein 你.", "Ade", " "),
    ("Hello.\n", "\n", "你好。", "我", "\n"),
    ("यह है।", "", "Hello.", "I", " "),
    ("यह है।", "", "你好。", "我", ""),
]


@pytest.mark.parametrize(("source", "space", "before", "after", "expected"), SPACES)
def test_the_space_between_sentences_is_that_of_the_script(source, space, before, after, expected):
    assert space_between(source, space, before, after) == expected
