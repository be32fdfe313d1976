"""Beam search for translations that have given phrases."""

import pytest
import torch

from residual_hf.model.constraints import PhraseState, beams_for

PHRASES = [[[[87]], [[85, 67]]], [[[85, 67], [40, 41]]]]


@pytest.fixture(scope="module")
def inputs(tokenizer):
    return tokenizer(["zwei Katzen", "a small dog"], padding=True, return_tensors="pt")


def search(model, inputs, phrases, **arguments):
    arguments = {"num_beams": 8, "max_new_tokens": 16, "return_dict_in_generate": True, **arguments}
    return model.generate(**inputs, phrases=phrases, hypothesis_scores=True, **arguments)


def contains(row, phrase):
    return any(row[start : start + len(form)] == form for form in phrase for start in range(len(row)))


@pytest.mark.parametrize("beams", [2, 8])
@pytest.mark.usefixtures("with_and_without_kernels")
def test_all_hypotheses_have_the_phrases_of_their_sentence(model, inputs, beams):
    found = search(model, inputs, PHRASES, num_beams=beams, num_return_sequences=2)
    rows = found.sequences.tolist()
    for number, row in enumerate(rows):
        assert all(contains(row, phrase) for phrase in PHRASES[number // 2]), row
    assert len({tuple(row) for row in rows}) == len(rows)


def test_scores_are_those_of_the_model(model, inputs):
    found = search(model, inputs, PHRASES, length_penalty=0.0)
    for row, score in enumerate(found.sequences_scores.tolist()):
        sequence = found.sequences[row]
        length = int((sequence[1:] == 2).nonzero()[0]) + 1 if (sequence[1:] == 2).any() else len(sequence) - 1
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        logits = model(**one, decoder_input_ids=sequence[None, :length]).logits[0].log_softmax(-1)
        assert score == pytest.approx(float(logits.gather(1, sequence[1 : length + 1, None]).sum()), abs=1e-3)


def test_the_score_of_a_hypothesis_that_lacks_a_phrase_at_its_limit_is_that_of_the_model(model, inputs):
    found = search(model, inputs, PHRASES, max_new_tokens=1, length_penalty=0.0)
    for row, score in enumerate(found.sequences_scores.tolist()):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        logits = model(**one, decoder_input_ids=found.sequences[row, None, :1]).logits[0, 0].log_softmax(-1)
        assert score == pytest.approx(float(logits[found.sequences[row, 1]]), abs=1e-3)


def test_without_phrases_the_search_is_that_of_others(model, inputs):
    plain, free = search(model, inputs, None), search(model, inputs, [[], []])
    assert plain.sequences.tolist() == free.sequences.tolist()
    assert torch.equal(plain.sequences_scores, free.sequences_scores)


def test_progress_counts_tokens_of_phrases():
    start = PhraseState.of([[[1, 2], [3]], [[1, 1, 4]]], lambda last, token: 0)
    assert start.lacking == 5 and start.needed() == {1, 3}
    assert start.after(1).needed() == {1, 2, 3} and start.after(9).lacking == 5
    assert start.after(1).after(1).needed() == {1, 2, 3, 4}  # the second 1 begins the other phrase or goes on
    assert start.after(1).after(2).missing == (1,) and start.after(3).missing == (1,)
    assert start.after(1).after(1).after(4).missing == (0,)
    assert beams_for([[[1, 2], [3]], [[1, 1, 4]]]) == 8


def after(progress, *tokens):
    for token in tokens:
        progress = progress.after(token)
    return progress.missing


def test_phrases_are_whole_words():
    """Tokens from 10 on are so many letters of a word, less 10."""
    start = PhraseState.of([[[1], [1, 15, 4]], [[12, 2]]], lambda last, token: max(0, token - 10))
    assert after(start, 1, 12) == (1,) and after(start, 1, 12, 11) == after(start, 1, 15) == (0, 1)
    assert after(start, 1, 3, 19) == (1,)  # another word follows
    assert after(start, 1, 15, 4) == (1,)  # the longer alternative
    assert after(start, 12, 2) == (0,) and after(start, 5, 12, 2) == (0, 1)  # within a word


@pytest.mark.parametrize("changes", [{"num_beams": 1}, {"do_sample": True}, {"fast_decoding": False}])
def test_other_searches_refuse_phrases(model, inputs, changes):
    with pytest.raises(ValueError, match="phrases: only beam search"):
        search(model, inputs, PHRASES, **changes)
    for phrases, message in ((PHRASES[:1], "1 lists given for 2"), ([[[[]]], []], "an empty phrase")):
        with pytest.raises(ValueError, match=message):
            search(model, inputs, phrases)
