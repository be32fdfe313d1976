"""Tokenized BLEU and paired bootstrap."""

import math
import sys

import pytest
from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from residual_hf.base.errors import InputError
from residual_hf.conversion.export import installed_tokenizer
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.task import SPEECH_RECOGNITION
from residual_hf.evaluation.metrics import (
    EvaluationSettings,
    corpus_scores,
    default_tokenizer,
    detokenize,
    paired_bootstrap,
    tokenized_bleu,
    tokenizer_of,
    warn_once,
)
from residual_hf.evaluation.scorer import make_scorers
from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe

REFERENCES = ["the dog runs on wet grass", "two men talk in a small shop", "a girl reads the old red book"] * 20
GOOD = ["the dog runs on wet grass", "two men talk in a small store", "a girl reads the old red book"] * 20
BAD = ["dog runs on the grass quickly", "some men stand in a store", "the girl has an old red book"] * 20


def test_tokenized_bleu_counts_as_multi_bleu_and_prints_as_fairseq():
    hypotheses = ["a b c d e", "the cat sat down"]
    references = ["a b c d f g", "the cat sat down again"]
    result = tokenized_bleu(hypotheses, references)
    precisions = [8 / 9, 6 / 7, 4 / 5, 2 / 3]
    brevity_penalty = math.exp(1 - 11 / 9)
    assert result.precisions == pytest.approx([100 * precision for precision in precisions])
    assert result.brevity_penalty == pytest.approx(brevity_penalty)
    assert result.value == pytest.approx(100 * brevity_penalty * math.prod(precisions) ** 0.25)
    assert str(result) == "BLEU4 = 63.93, 88.9/85.7/80.0/66.7 (BP=0.801, ratio=0.818, syslen=9, reflen=11)"
    assert "tok:none|smooth:none" in result.signature


def test_tokenized_bleu_keeps_tokens_and_is_not_smoothed():
    assert tokenized_bleu(["one two three four, five"], ["one two three four , five"]).precisions[0] < 100
    assert tokenized_bleu(["a b c x d"], ["a b c d e"]).value == 0.0
    assert str(tokenized_bleu(["a b"], [""])).startswith("BLEU4 = 0.00")


def test_paired_bootstrap_does_not_tell_equals_apart():
    same = paired_bootstrap(GOOD, list(GOOD), REFERENCES, metrics=("bleu",), samples=200)["bleu"]
    assert same.a == same.b and same.p_value == 1.0
    spaced = [line.replace(" ", "  ") for line in GOOD]
    assert paired_bootstrap(GOOD, spaced, REFERENCES, metrics=("bleu",), samples=200)["bleu"].p_value == 1.0
    references = [f"word{i} a b c d e f g" for i in range(60)]
    wrong = [line.replace(" d ", " x ") for line in references]
    first = [line if i % 2 else wrong[i] for i, line in enumerate(references)]
    second = [wrong[i] if i % 2 else line for i, line in enumerate(references)]
    equal = paired_bootstrap(first, second, references, metrics=("bleu",), samples=200)["bleu"]
    assert equal.a == pytest.approx(equal.b) and equal.p_value > 0.3


@pytest.mark.parametrize(("different", "lowest"), [(1, 1.0), (4, 0.125), (12, 0.0)])
def test_a_few_sentences_show_no_difference(different, lowest):
    better = [*REFERENCES[:different], *BAD[different:]]
    found = paired_bootstrap(BAD, better, REFERENCES, metrics=("chrf",), samples=200)["chrf"]
    assert found.b > found.a and lowest <= found.p_value <= max(lowest, 0.01)


def test_p_is_of_both_directions():
    systems = [("worse", GOOD[:10] + BAD[10:30] + GOOD[30:]), ("better", GOOD[:44] + BAD[44:])]
    _, columns = PairedTest(systems, {"chrf": CHRF()}, [REFERENCES], test_type="bs", n_samples=200)()
    one_direction = next(iter(results for name, results in columns.items() if name != "System"))[1].p_value
    found = paired_bootstrap(systems[0][1], systems[1][1], REFERENCES, metrics=("chrf",), samples=200)["chrf"]
    assert 0.01 < one_direction < 0.5 and found.p_value == pytest.approx(2 * one_direction)


def test_paired_bootstrap_is_repeatable():
    first, second = (paired_bootstrap(BAD, GOOD, REFERENCES, metrics=("chrf",), samples=50) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"),
        ("zh-TW", "zh"),
        ("Chinese", "zh"),
        ("zho_Hans", "zh"),
        ("yue", "zh"),
        ("ja", "ja-mecab"),
        ("jpn_Jpan", "ja-mecab"),
    ]
    + [("ko", "ko-mecab"), ("th", "char"), ("mya_Mymr", "char"), ("de", "13a"), ("kmr", "13a"), (None, "13a")],
)
def test_the_tokenizer_of_bleu_follows_the_language(language, tokenizer):
    assert default_tokenizer(language) == tokenizer


@pytest.mark.parametrize("tokenize", ["zh", "char", "13a"])
@pytest.mark.parametrize(
    ("translation", "reference", "ter"),
    [
        ("我们明天晚上去北京。", "我们明天早上去北京。", 10),
        ("私は昨日学校へ行きました。", "私は昨日学校に行きました。", 10),
        ("내일 학교에 가요", "내일 학교에 갔어요", 100 / 3),
        ("3 + 4 = 8", "3 + 4 = 7", 20),
        ("ฉันไปโรงเรียน", "ฉันไปโรงเรียนเมื่อวาน", None),
        ("ខ្ញុំ ទៅ ផ្សារ ជាមួយ គាត់", "ខ្ញុំ ទៅ សាលា ជាមួយ គាត់", 20),
        ("ང་སློབ་གྲྭར་འགྲོ", "ང་སློབ་གྲྭར་སོང", None),
    ],
)
def test_ter_has_characters_or_is_left_out_by_the_script(caplog, tokenize, translation, reference, ter):
    warn_once.cache_clear()
    found = corpus_scores([translation], [reference], ("chrf", "ter"), tokenize)
    compared = corpus_scores([translation], [reference], ("chrf", "ter"), tokenize, baseline=["x"], samples=2)
    expected = {"chrf"} if ter is None else {"chrf", "ter"}
    assert found.keys() == compared.keys() == expected and len(caplog.messages) == (ter is None)
    assert ter is None or found["ter"]["value"] == compared["ter"]["value"] == pytest.approx(ter)


@pytest.mark.parametrize(
    ("recorded", "tokenizer"),
    [("13a", "13a"), ("spBLEU-1K", "spBLEU-1K"), ("ja-mecab-0.996-IPA", "ja-mecab")]
    + [("ko-mecab-0.996/ko-0.9.2-KO", "ko-mecab")],
)
def test_the_tokenizer_is_read_from_a_signature(recorded, tokenizer):
    assert tokenizer_of(f"nrefs:1|case:mixed|eff:no|tok:{recorded}|smooth:exp|version:2.6.0") == tokenizer
    assert tokenizer_of("") == "13a"


def test_a_tokenizer_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(InputError, match=r"tokenize: 'ja-mecab' cannot be used .* pip install 'residual_hf\[ja\]'"):
        EvaluationSettings().tokenizer_for("ja")
    assert EvaluationSettings(tokenize="char").tokenizer_for("ja") == "char"
    assert installed_tokenizer("ja") == "char" and installed_tokenizer("de") == "13a"  # of an export
    transcripts = ParallelCorpus(["1.wav"], ["はい"], "test", target_lang="ja")
    make_scorers([transcripts], None, EvaluationSettings(), task=SPEECH_RECOGNITION)  # has no BLEU
    corpora = {"train": {"text": "a"}, "valid": {"text": "b"}}
    values = {"task": "language_modeling", "language": "ja", "output_dir": "run", "data": corpora}
    values["training"] = {"label_smoothing": 0.0, "max_updates": 1}
    assert from_mapping(Recipe, values).task == "language_modeling"


def test_bad_input_is_named():
    with pytest.raises(InputError, match="references: 0 lines for 0 references given, must be .* at least one"):
        tokenized_bleu([], [])
    with pytest.raises(InputError, match="samples: 0 given"):
        paired_bootstrap(["a"], ["b"], ["a"], samples=0)


def test_moses_detokenizes_by_the_language_of_a_regional_code():
    pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
    assert detokenize(["je n' aime pas l' eau d' ici ."], "fr_CA") == ["je n'aime pas l'eau d'ici."]
