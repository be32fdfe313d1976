"""Scores equal hand-made ones, as an `evaluate.Metric` in one or two processes and in a `Seq2SeqTrainer`."""

import json
import multiprocessing
from types import SimpleNamespace

import evaluate
import numpy as np
import pytest
from evaluation.test_metrics import BAD, GOOD, REFERENCES
from support.files import write_metric
from support.foreign_models import model_of_two_vocabularies
from support.tiny_translator import tiny_tokenizer
from transformers import AutoTokenizer, EvalPrediction

from residual_hf.base.errors import InputError
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.evaluation import translation_metric
from residual_hf.evaluation.metrics import corpus_scores, sacrebleu_metrics
from residual_hf.evaluation.translation_metric import TranslationMetric, compute_metrics_for, load_metric
from residual_hf.model.tokenization_residual import ResidualTokenizer


def score(predictions, references, **options):
    return TranslationMetric().compute(predictions=predictions, references=references, **options)


def test_perfect_translations_get_perfect_scores_with_signatures():
    scores = score(REFERENCES, REFERENCES, metrics=("bleu", "chrf", "chrf++", "ter"))
    rounded = {name: round(entry["value"], 6) for name, entry in scores.items()}
    assert rounded == {"bleu": 100.0, "chrf": 100.0, "chrf++": 100.0, "ter": 0.0}
    assert scores["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "nw:0" in scores["chrf"]["signature"] and "nw:2" in scores["chrf++"]["signature"]
    assert scores["ter"]["signature"].startswith("nrefs:1|case:mixed|tok:tercom")
    assert json.loads(json.dumps(scores)) == scores


def test_scores_follow_their_definitions():
    scores = score(["a b c d e"], ["a b c d f"])
    assert scores["bleu"]["value"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert scores["ter"]["value"] == pytest.approx(100 * 1 / 5)


def test_lowercase_ignores_case_in_every_metric():
    predictions, references = ["The Dog Runs On Grass"], ["the dog runs on grass"]
    mixed = score(predictions, references, metrics=("bleu", "bleu_lowercase", "chrf", "ter"))
    lower = score(predictions, references, lowercase=True)
    assert [entry["value"] for entry in lower.values()] == pytest.approx([100.0, 100.0, 0.0])
    assert mixed["bleu"]["value"] < 50 and mixed["chrf"]["value"] < 90 and mixed["ter"]["value"] > 50
    assert all("case:lc" in lower[name]["signature"] and "case:mixed" in mixed[name]["signature"] for name in lower)
    assert mixed["bleu_lowercase"] == lower["bleu"]


def test_tokenize_is_the_tokenizer_of_bleu():
    lines = ["one two three four, five"], ["one two three four , five"]
    assert score(*lines)["bleu"]["value"] == pytest.approx(100)
    untouched = score(*lines, tokenize="none")["bleu"]
    assert untouched["value"] < 60 and "tok:none" in untouched["signature"]


def test_batches_add_up_to_the_corpus():
    metric = TranslationMetric()
    assert isinstance(metric, evaluate.Metric)
    for start in range(0, 60, 25):
        metric.add_batch(predictions=GOOD[start : start + 25], references=REFERENCES[start : start + 25])
    assert metric.compute() == score(GOOD, REFERENCES)
    metric.add(prediction="a dog", reference="a dog")
    assert metric.compute(metrics=("chrf",))["chrf"]["value"] == pytest.approx(100)


def test_scoring_leaves_the_random_state_as_it_was():
    before = np.random.get_state()[1].copy()
    score(GOOD, REFERENCES, baseline=BAD, metrics=("bleu",), samples=10)
    assert np.array_equal(np.random.get_state()[1], before)


def share(arguments):
    rank, folder = arguments
    metric = TranslationMetric(num_process=2, process_id=rank, cache_dir=folder)
    metric.add_batch(predictions=GOOD[rank::2], references=REFERENCES[rank::2])
    return metric.compute()


def test_two_processes_score_the_whole_corpus(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        first, second = pool.map(share, [(rank, str(tmp_path)) for rank in (0, 1)], chunksize=1)
    assert first == score(GOOD, REFERENCES)
    assert second is None


def test_a_baseline_adds_significance():
    found = score(GOOD, REFERENCES, baseline=BAD, metrics=("bleu",), samples=100)["bleu"]
    assert found["value"] == score(GOOD, REFERENCES)["bleu"]["value"]
    assert found["baseline"] == score(BAD, REFERENCES)["bleu"]["value"]
    assert found["p_value"] < 0.05 and found["interval"][0] > found["baseline_interval"][1]
    assert "bs:100|seed:12345" in found["signature"]


def test_compute_metrics_of_a_plain_trainer():
    """Label padding is ignored, and sentences of different lengths come as one padded array."""
    tokenizer = tiny_tokenizer()
    lines = ["ein Hund", "ein kleiner Hund sieht"]
    ids = tokenizer(text_target=lines, padding=True, return_tensors="np")["input_ids"]
    labels = np.where(ids == tokenizer.pad_token_id, -100, ids)
    assert (labels == -100).any()
    figures = compute_metrics_for(tokenizer, metrics=("bleu", "chrf"))(EvalPrediction((ids, None), labels))
    expected = score(tokenizer.batch_decode(ids, skip_special_tokens=True), lines, metrics=("bleu", "chrf"))
    assert figures == {name: entry["value"] for name, entry in expected.items()}
    parts = [(ids[:1], None), (ids[1:], None)]  # with `eval_do_concat_batches=False`
    assert (
        compute_metrics_for(tokenizer, metrics=("bleu", "chrf"))(EvalPrediction(parts, [labels[:1], labels[1:]]))
        == figures
    )
    with pytest.raises(InputError, match="metrics: 'bleu' given, must be a list of names"):
        compute_metrics_for(tokenizer, metrics="bleu")


def test_compute_metrics_adds_metrics_that_are_not_sacrebleus():
    tokenizer = tiny_tokenizer()
    lines = ["ein Hund", "a small dog runs"]
    labels = tokenizer(text_target=lines, padding=True, return_tensors="np")["input_ids"]
    figures = compute_metrics_for(tokenizer, metrics=("chrf", "rouge"))(EvalPrediction(labels, labels))
    assert figures == pytest.approx({"chrf": 100, "rouge1": 100, "rouge2": 100, "rougeL": 100})
    other = tokenizer(text_target=["ein Hund", "a small dog run"], padding=True, return_tensors="np")["input_ids"]
    figures = compute_metrics_for(tokenizer, metrics=("rouge", "rouge:stem"))(EvalPrediction(other, labels))
    assert figures["rouge1"] < figures["rouge:stem rouge1"] == pytest.approx(100)


def test_compute_metrics_reads_sources_by_their_own_vocabulary(tmp_path, monkeypatch):
    seen = []
    metric = SimpleNamespace(compute=lambda *texts: seen.append(texts) or {})
    monkeypatch.setattr(translation_metric, "load_metric", lambda name: metric)
    source, target = (train_tokenizer([line], TokenizerSettings(vocab_size=300)) for line in ("abc cab", "xyz zyx"))
    tokenizer = ResidualTokenizer.from_pair(source, target)
    pair = tokenizer(["abc cab"], text_target=["xyz zyx"], return_tensors="np")
    prediction = EvalPrediction(pair["labels"], pair["labels"], inputs=pair["input_ids"])
    compute_metrics_for(tokenizer, metrics=("chrf", "comet"))(prediction)
    assert seen == [(["xyz zyx"], ["xyz zyx"], ["abc cab"])]
    folder, _ = model_of_two_vocabularies("marian", tmp_path / "marian", "target")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pair = tokenizer(["a dog"], text_target=["ein"], return_tensors="np")
    prediction = EvalPrediction(pair["labels"], pair["labels"], inputs=pair["input_ids"])
    compute_metrics_for(tokenizer, metrics=("chrf", "comet"))(prediction)
    assert seen[1] == (["ein"], ["ein"], ["a dog"])


RESULT = '"first": len(inputs["predictions"]), "inputs": sorted(inputs), "shape": {}'


def test_other_metrics_are_loaded_from_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    all_texts = '"predictions": text, "references": text, "sources": text'
    write_metric(tmp_path / "plain" / "plain.py", all_texts, RESULT.format(0.5))
    plain = load_metric(str(tmp_path / "plain"))
    assert plain.compute(["a", "b"], ["c", "d"], ["e", "f"]) == {"first": 2.0, "shape": 0.5}
    nested = '"predictions": text, "references": datasets.Sequence(text)'
    several = load_metric(write_metric(tmp_path / "several.py", nested, RESULT.format('len(inputs["references"][0])')))
    assert several.compute(["a", "b"], ["cd", "e"], []) == {"first": 2.0, "shape": 1.0}


def test_a_metric_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before `evaluate` looks for it once more
    with pytest.raises(InputError, match="evaluation.metrics: 'not_there' cannot be loaded: "):
        load_metric("not_there")
    with pytest.raises(InputError, match=r"'chrf\+\+' given, must be another than bleu, .* of every report"):
        load_metric("chrf++")
    with pytest.raises(InputError, match=r"'rogue' cannot be loaded \(did you mean 'rouge'\?\): "):
        load_metric("rogue")
    with pytest.raises(InputError, match="; did you mean 'chrf'"):
        sacrebleu_metrics(["chff"], False, "13a")
    path = write_metric(tmp_path / "image.py", '"predictions": text, "images": text', "")
    with pytest.raises(
        InputError, match=r"image.py' needs \['images'\], must need predictions, references or sources"
    ):
        load_metric(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score([], []), "references: 0 lines for 0 references given, must be .* at least one"),
        (lambda: score(["a", "b"], ["a"]), r"number of predictions \(2\) and references \(1\)"),
        (lambda: corpus_scores("a b", ["a b"], ["bleu"], "13a"), "predictions: one string given"),
        (lambda: corpus_scores(["a b"], "a b", ["bleu"], "13a"), "references: one string given"),
        (lambda: score(["a"], ["a"], metrics=("meteor",)), r"metrics: \('meteor',\) given, must be .* 'chrf\+\+'"),
        (lambda: score(["a"], ["a"], metrics="bleu"), "metrics: 'bleu' given, must be a sequence"),
        (lambda: score(["a"], ["a"], tokenize="14b"), "tokenize: '14b' given, must be one of .*'13a'"),
        (lambda: score(["a"], ["a"], baseline=["b", "c"]), "system_a: 2 lines for 1 references"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_options_that_cannot_be_used_are_refused_before_training():
    with pytest.raises(TypeError, match="tokenise"):
        compute_metrics_for(tiny_tokenizer(), ("bleu",), tokenise="char")
