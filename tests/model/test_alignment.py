import numpy as np
import pytest
import torch
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer

from residual_hf.model.alignment import AlignedTokens, Alignment, align, alignment_weights, token_spans
from residual_hf.model.pipeline_translation import TranslationPipeline
from residual_hf.model.tokenization_residual import ResidualTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer("<2de>")


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(tokenizer, decoder_layers=2)


def tokens(source, target, weights, log_probs=None):
    probabilities = np.log(np.full(len(target), 0.5)) if log_probs is None else np.array(log_probs)
    return AlignedTokens(np.array(source), np.array(target), np.array(weights, dtype=float), probabilities)


def test_links_and_scores_are_of_words_without_their_punctuation():
    # "New", " York", " now", "." and the end to "Neu", "-York", " jetzt", "."
    part = tokens(
        [(0, 3), (3, 8), (8, 12), (12, 13), (0, 0)],
        [(0, 3), (3, 8), (8, 14), (14, 15)],
        [[0.2, 0.4, 0.1, 0.3, 0], [0.1, 0.6, 0, 0.2, 0.1], [0, 0, 0.1, 0.3, 0.6], [0, 0, 0, 1, 0]],
    )
    found = Alignment("New York now.", "Neu-York jetzt.", (part,))
    assert found.links == [(1, 0), (2, 1)] and str(found) == "1-0 2-1"
    assert found.word_scores == pytest.approx([0.25, 0.25])
    assert part.between([(0, 8), (8, 13)], [(0, 8), (8, 15)]).sum(1) == pytest.approx([1, 1])


def test_the_probability_of_a_word_includes_the_space_before_it():
    spans = [(0, 1), (1, 7), (7, 8), (8, 13), (13, 14)]  # "▁", "blickt", "▁", "ernst", "."
    part = tokens([(0, 1)], spans, [[1]] * 5, np.log([0.5, 0.8, 0.1, 0.5, 0.4]))
    assert Alignment("x", " blickt ernst.", (part,)).word_scores == pytest.approx([0.4, 0.02])


def test_other_threads_keep_the_attention_of_their_model(model, tokenizer):
    ids = tokenizer(SENTENCES[0])["input_ids"]
    inputs = {"input_ids": torch.tensor([ids]), "decoder_input_ids": torch.tensor([ids])}
    expected, during = model(**inputs).logits, []

    def another_pass(*_):
        hook.remove()
        during.append(model(**inputs).logits)

    hook = model.model.encoder.register_forward_pre_hook(another_pass)
    align(model, tokenizer, SENTENCES[:1], SENTENCES[:1], [ids], [ids[:-1]])
    assert torch.equal(during[0], expected) and model.config._attn_implementation == "sdpa"


def test_words_compete_for_those_of_the_source():
    # "a red dog" to "einem roten Hund": the article depends on the noun
    words = [(0, 1), (2, 5), (6, 9)], [(0, 5), (6, 11), (12, 16)]
    part = tokens(*words, [[0.4, 0, 0.6], [0, 0.7, 0.3], [0, 0.1, 0.9]])
    assert Alignment("a red dog", "einem roten Hund", (part,)).links == [(0, 0), (1, 1), (2, 2)]
    alone = tokens(words[0], [(0, 2)], [[0.1, 0.1, 0.8]])
    assert Alignment("a red dog", "it", (alone,)).links == [(2, 0)]


def test_parts_of_a_long_text_are_aligned_within_themselves():
    one = tokens([(0, 2)], [(0, 3)], [[1]])
    found = Alignment("ab cd  ef", "xyz uvw", (one, one.shifted(7, 4)))
    assert found.links == [(0, 0), (2, 1)]
    assert Alignment("", "", ()).links == [] == Alignment("", "", ()).word_scores


def test_the_weights_are_those_of_the_inner_layers_while_a_token_is_predicted():
    layers = torch.rand(4, 1, 2, 4, 5)
    layers[1, 0, 0, 0, 0] = float("nan")  # of a model that is not finite
    found = alignment_weights(list(layers))
    assert torch.allclose(found[0, 1:], layers[1:3, 0, :, 1:3].mean((0, 1))) and found[0, 0, 0] == 0
    assert torch.equal(alignment_weights([layers[2]]), layers[2, :, :, :3].mean(1))


def test_one_pass_gives_the_probabilities_of_the_model(model, tokenizer):
    rows = tokenizer(SENTENCES)["input_ids"]
    found = align(model, tokenizer, SENTENCES, SENTENCES[::-1], rows, [row[:-1] for row in rows[::-1]])
    for text, row, alignment in zip(SENTENCES, rows, found, strict=True):
        ids = tokenizer(alignment.target).input_ids[:-1]
        (alone,) = align(model, tokenizer, [text], [alignment.target], [row], [ids])
        (part,) = alone.parts
        assert np.allclose(part.weights, alignment.parts[0].weights, atol=1e-5)
        assert np.allclose(part.weights.sum(1), 1, atol=1e-5)
        loss = model(torch.tensor([row]), labels=torch.tensor([ids])).loss.item()
        assert part.log_probs.mean() == pytest.approx(-loss, rel=1e-4)


def test_tokens_are_found_in_their_text_with_and_without_offsets(tokenizer):
    text, words = "ein  kleiner Hund,", [[0, 3], [3, 4], [4, 12], [12, 17], [17, 18]]
    ids = tokenizer(f"<2de> {text}")["input_ids"]
    assert token_spans(tokenizer, ids, text).tolist() == [[0, 0], *words, [0, 0]]  # the tag and the end have no place
    other = [i for word in ["kle", "iner", "Hund"] for i in tokenizer(word, add_special_tokens=False).input_ids]
    pieces = [[0, 2], [2, 3], [3, 6], [6, 8], [8, 13]]  # not as the tokenizer would split it
    assert token_spans(tokenizer, other, "kle iner Hund", True).tolist() == pieces


def test_separate_vocabularies_have_their_own_tokens():
    pair = ResidualTokenizer.from_pair(tiny_tokenizer(), tiny_tokenizer(max_length=9))
    pair.target_tokenizer.add_tokens(["small dog"])
    ids = pair(text_target="a small dog runs")["input_ids"]
    assert token_spans(pair, ids, "a small dog runs", True).tolist()[1:4] == [[1, 2], [2, 11], [11, 16]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_pipeline_gives_alignments_and_word_scores(model, tokenizer, batch_size):
    pipe = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
    options = {"max_new_tokens": 5, "num_beams": 2, "tgt_lang": "de", "batch_size": batch_size}
    results = pipe([*SENTENCES[:2], " "], return_alignments=True, **options)
    plain = pipe([*SENTENCES[:2], " "], **options)
    assert [result["translation_text"] for result in results] == [result["translation_text"] for result in plain]
    for source, result in zip(SENTENCES, results[:2], strict=False):
        words = result["translation_text"].split()
        assert len(result["word_scores"]) == len(words) and all(0 < p <= 1 for p in result["word_scores"])
        assert {target for _, target in result["alignment"]} == set(range(len(words)))
        assert max(s for s, _ in result["alignment"]) < len(source.split())
    assert results[2] == {"translation_text": "", "alignment": [], "word_scores": []}
    ids = pipe(SENTENCES[0], return_alignments=True, return_tensors=True, **options)[0]
    assert ids.keys() == {"translation_token_ids", "alignment", "word_scores"}
