from residual_hf.generation.long_text import split_text


def test_a_text_is_split_at_the_ends_of_sentences_then_at_spaces_then_anywhere():
    def split(text, most):
        return list(split_text(text, lambda part: len(part) <= most))

    assert split("Ja. Nein, nein.", 11) == [("Ja.", " "), ("Nein, nein.", "")]
    assert split("eins zwei drei vier", 10) == [("eins zwei", " "), ("drei vier", "")]
    assert split("二零二零年。二零二一年。", 6) == [("二零二零年。", ""), ("二零二一年。", "")]
    assert split("abcdef", 3) == [("abc", ""), ("def", "")]
