from types import SimpleNamespace

import pytest
from support.recipes import make_recipe

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.runs import fitting
from residual_hf.runs.fitting import Validation, spread_rows


@pytest.mark.parametrize(
    ("sizes", "limit", "rows"),
    [
        ([5], None, [[0, 1, 2, 3, 4]]),
        ([5], 9, [[0, 1, 2, 3, 4]]),
        ([101], 5, [[0, 25, 50, 75, 100]]),
        ([101, 2], 6, [[0, 50, 100], [0, 1]]),
        ([7, 7, 7], 1, [[0], [0], [0]]),
        ([7], 0, [[]]),
    ],
)
def test_rows_are_spread_over_the_corpora(sizes, limit, rows):
    assert [part.tolist() for part in spread_rows(sizes, limit)] == rows


def test_a_part_of_each_corpus_is_translated_with_the_beams_of_evaluations(tmp_path, monkeypatch, caplog):
    corpora = [
        ParallelCorpus([f"{name}{i}" for i in range(size)], [f"ref {name}{i}" for i in range(size)], name)
        for name, size in (("a", 9), ("b", 3))
    ]
    encoded = EncodedCorpus.from_ids([[10 + i, 2] for i in range(12)], [[2]] * 12)
    seen = []

    def translate(model, tokenizer, corpus, sentences, settings):
        assert sentences == ["a0", "a4", "a8", "b0", "b1", "b2"]
        seen.append(([int(corpus[i]["input_ids"][0]) for i in range(len(corpus))], settings.num_beams))
        return [f"ref a{i}" for i in (0, 4, 8)] + ["other words here"] * 3

    monkeypatch.setattr(fitting, "translate_corpus", translate)
    recipe = make_recipe(tmp_path, eval_sentences=6, eval_samples=2, eval_beams=3)
    data = SimpleNamespace(tokenizer=None, references={"valid": corpora}, encoded={"valid": encoded})
    with caplog.at_level("INFO", logger="residual_hf"):
        figures = Validation(recipe, data).figures(None, encoded)
    assert seen == [([10, 14, 18, 19, 20, 21], 3)]
    assert 45 < figures["chrf"] < 65, "the mean of a perfect corpus and one without a match"
    assert "validation sentence 1\n  source:      a0\n  reference:   ref a0\n  translation: ref a0" in caplog.text
    assert "validation sentence 12\n" in caplog.text and "sentence 5" not in caplog.text
