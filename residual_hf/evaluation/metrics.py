"""sacreBLEU's metrics with their signatures, significance by paired bootstrap, and Moses detokenization."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from residual_hf.base.errors import InputError, InputSettings, input_errors, requires
from residual_hf.data.language_names import detected_as
from residual_hf.data.scripts import LETTER, WITHOUT_SPACES, share_of_script
from residual_hf.model.options import option, suggestion

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

logger = logging.getLogger(__name__)

Lines = Sequence[str]
METRICS = ("bleu", "chrf", "chrf++", "ter", "bleu_lowercase")
TOKENIZERS = {
    "zh": ("zh", "yue", "wuu", "lzh"),
    "ja-mecab": ("ja",),
    "ko-mecab": ("ko",),
    "char": ("th", "lo", "km", "my", "bo", "dz"),
}
"""sacreBLEU's tokenizers for BLEU, and the languages that they are the default of; 13a is that of all others."""
IN_CHARACTERS = "Han+Hiragana+Katakana"
"""Scripts that sacreBLEU's TER splits; it takes a sentence of other scripts without spaces for one word."""
LEAST_WORDS = 3
"""Mean number of words of a reference from which a text in such a script has spaces between them."""


@dataclass(frozen=True)
class EvaluationSettings(InputSettings):
    """How translations are scored."""

    tokenize: str | None = option(
        None,
        help="sacreBLEU tokenizer for BLEU, such as `char`, `intl` or `flores200`; default: `zh`, `ja-mecab` or "
        "`ko-mecab` for these target languages, `char` for Thai, Lao, Khmer, Burmese and Tibetan, else `13a`",
    )
    metrics: tuple[str, ...] = option(
        (),
        help="additional metrics of the final translations: `rouge` (also at evaluations), `rouge:stem`, "
        "`compound_bleu:LANGUAGE` (Moses tokens, compounds split), `comet`, `comet:MODEL`, or a name or local path "
        "for `evaluate.load`",
    )
    context_window: int = option(
        0,
        minimum=0,
        help="language models: context tokens before each block that are not scored; more are "
        "slower and lower the perplexity",
    )

    def check(self) -> None:
        if self.tokenize is not None:
            self.tokenizer_for(None)

    def tokenizer_for(self, language: str | None) -> str:
        """The tokenizer for translations into a language. Raises `InputError` if it is not installed."""
        name = self.tokenize or default_tokenizer(language)
        sacrebleu_metrics(("bleu",), lowercase=False, tokenize=name)
        return name


def default_tokenizer(language: str | None) -> str:
    """sacreBLEU's tokenizer for a language code such as `zh`, `zh-TW` or `zho_Hant`."""
    code = detected_as(language or "", ())
    return next((name for name, languages in TOKENIZERS.items() if code in languages), "13a")


def has_spaces(language: str | None) -> bool:
    """Whether a language has spaces between words, as far as is known."""
    return default_tokenizer(language) in ("13a", "ko-mecab")


def tokenizer_of(signature: str) -> str:
    """The tokenizer in a signature of BLEU, for MeCab without the version that `tok:ja-mecab-0.996-IPA` has."""
    found = re.search(r"\btok:((?:ja|ko)-mecab|[^|]+)", signature)
    return found[1] if found else "13a"


@dataclass(frozen=True)
class TokenizedBLEU:
    """BLEU of tokenized text; its string is the line that fairseq-generate prints.

    `value` and `precisions` (of 1- to 4-grams) are percentages, the lengths count the tokens of the corpus.
    """

    value: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    system_length: int
    reference_length: int
    signature: str

    def __str__(self) -> str:
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = self.system_length / max(self.reference_length, 1)
        return (
            f"BLEU4 = {self.value:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"syslen={self.system_length}, reflen={self.reference_length})"
        )


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric under paired bootstrap resampling.

    `a` and `b` are the corpus scores; `a_interval` and `b_interval` the mean over the resamples with half the width of
    their 95% interval on both sides, as sacreBLEU prints them; `p_value` the probability of a difference at least as
    large in either direction if the systems were equally good.
    """

    a: float
    b: float
    a_interval: tuple[float, float]
    b_interval: tuple[float, float]
    p_value: float
    signature: str


def tokenized_bleu(hyp_tokens: Sequence[str], ref_tokens: Sequence[str], lowercase: bool = False) -> TokenizedBLEU:
    """BLEU4 of tokenized lines, as computed by multi-bleu.perl and fairseq-generate: cased unless `lowercase`, without
    smoothing, tokens separated by spaces.

    Only comparable between systems with identical tokenization; use `TranslationMetric` for anything else.
    """
    from sacrebleu.metrics import BLEU

    check_lines("hyp_tokens", hyp_tokens, ref_tokens)
    metric = BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(hyp_tokens, [ref_tokens])
    return TokenizedBLEU(
        result.score, tuple(result.precisions), result.bp, result.sys_len, result.ref_len, str(metric.get_signature())
    )


def corpus_scores(
    predictions: Lines,
    references: Lines,
    metrics: Sequence[str],
    tokenize: str,
    *,
    lowercase: bool = False,
    baseline: Lines | None = None,
    samples: int = 1000,
) -> dict[str, dict[str, Any]]:
    """The values of sacreBLEU's metrics and their signatures, as `TranslationMetric` returns them."""
    check_lines("predictions", predictions, references)
    if baseline is None:
        found = sacrebleu_metrics(metrics, lowercase, tokenize, references)
        values = {name: metric.corpus_score(predictions, [references]).score for name, metric in found.items()}
        return {name: {"value": values[name], "signature": str(found[name].get_signature())} for name in found}
    pairs = paired_bootstrap(baseline, predictions, references, metrics, lowercase, tokenize, samples)
    return {
        name: {
            "value": pair.b,
            "signature": pair.signature,
            "interval": pair.b_interval,
            "baseline": pair.a,
            "baseline_interval": pair.a_interval,
            "p_value": pair.p_value,
        }
        for name, pair in pairs.items()
    }


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu", "chrf"),
    lowercase: bool = False,
    tokenize: str = "13a",
    samples: int = 1000,
) -> dict[str, Comparison]:
    """Compare two systems by paired bootstrap resampling of the lines (Koehn 2004), as implemented in sacreBLEU.

    p is twice that of sacreBLEU, which counts one direction: with it, a tenth of equally good systems has p < 0.05.
    Systems with the same score get p = 1; sacreBLEU gives them its lowest p-value. Of m sentences that are translated
    differently, p is at least 2^(1 - m), the lowest value of a test that exchanges them: resampling a single sentence
    changes nothing, so that the bootstrap would be sure of it.

    Args:
        system_a, system_b: translations of the baseline and of the other system.
        metrics, lowercase: as for `TranslationMetric`.
        tokenize: sacreBLEU's tokenizer for BLEU, see `default_tokenizer`.
        samples: number of resamples; the lowest p-value is 2 / (samples + 1). Their seed is sacreBLEU's, 12345 or the
            environment variable SACREBLEU_SEED, and part of the signature.
    """
    from sacrebleu.significance import PairedTest, Result

    check_lines("system_a", system_a, references)
    check_lines("system_b", system_b, references)
    if samples < 1:
        raise InputError(f"samples: {samples} given, must be at least 1")
    lowest = 2.0 ** (1 - sum(map(str.__ne__, system_a, system_b)))
    comparisons = {}
    for name, metric in sacrebleu_metrics(metrics, lowercase, tokenize, references).items():
        systems = [("a", system_a), ("b", system_b)]
        signatures, columns = PairedTest(systems, {name: metric}, [references], test_type="bs", n_samples=samples)()
        ((title, signature),) = signatures.items()
        a, b = (cast(Any, result) for result in columns[title] if isinstance(result, Result))
        differ = a.score != b.score and b.p_value is not None
        p_value = max(min(2 * float(b.p_value), 1.0), lowest) if differ else 1.0
        scores = float(a.score), float(b.score)
        most = math.inf if name == "ter" else 100.0
        first, second = ((max(float(s.mean - s.ci), 0.0), min(float(s.mean + s.ci), most)) for s in (a, b))
        comparisons[name] = Comparison(*scores, first, second, p_value, str(signature))
    return comparisons


def check_lines(field: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise `InputError` unless both are sequences of lines, equally many and at least one."""
    for name, lines in (("references", references), (field, hypotheses)):
        if isinstance(lines, str) or not len(lines) or len(lines) != len(references):
            given = "one string" if isinstance(lines, str) else f"{len(lines)} lines for {len(references)} references"
            raise InputError(f"{name}: {given} given, must be a sequence of lines, at least one and as many")


def sacrebleu_metrics(
    names: Sequence[str], lowercase: bool, tokenize: str, references: Lines = ()
) -> "dict[str, Metric]":
    """sacreBLEU's objects by the names of `METRICS`.

    TER, too, is cased unless `lowercase`, and counts characters instead of words of Chinese and Japanese. For
    references in other scripts without spaces it is left out, with a warning.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    unknown = [name for name in names if name not in METRICS]
    if isinstance(names, str) or unknown:
        close = "".join(f"; {advice}" for name in unknown if (advice := suggestion(name, METRICS)))
        raise InputError(f"metrics: {names!r} given, must be a sequence of names out of {list(METRICS)}{close}")
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"tokenize: {tokenize!r} given, must be one of {sorted(BLEU.TOKENIZERS)}")

    in_characters = "ter" in names and is_written_in(IN_CHARACTERS, references)
    unspaced = "ter" in names and not in_characters and is_written_in(WITHOUT_SPACES, references)
    if unspaced and sum(len(line.split()) for line in references) < LEAST_WORDS * len(references):
        warn_once("TER is left out: it compares words, but the references have no spaces between words")
        names = [name for name in names if name != "ter"]

    bleu = partial(BLEU, tokenize=tokenize, force=True)  # without advice to give this argument
    makers = {
        "bleu": lambda: bleu(lowercase=lowercase),
        "bleu_lowercase": lambda: bleu(lowercase=True),
        "chrf": lambda: CHRF(lowercase=lowercase),
        "chrf++": lambda: CHRF(lowercase=lowercase, word_order=2),
        "ter": lambda: TER(case_sensitive=not lowercase, normalized=in_characters, asian_support=in_characters),
    }
    extra = {"ja-mecab": "ja", "ko-mecab": "ko"}.get(tokenize)
    advice = f"; pip install 'residual_hf[{extra}]', or choose char" if extra else ""
    unusable = f"tokenize: {tokenize!r} cannot be used on this machine{advice}: "
    with input_errors(unusable, ImportError, OSError, RuntimeError):
        return {name: makers[name]() for name in names}


@cache
def warn_once(message: str) -> None:
    logger.warning(message)


def is_written_in(script: str, lines: Lines) -> bool:
    """Whether most letters of lines belong to a script, or to several joined by `+`; False without letters."""
    text = "".join(lines)
    return LETTER.search(text) is not None and share_of_script(text, script) > 0.5


def detokenize(lines: Sequence[str], language: str | None) -> list[str]:
    """Text of lines tokenized by Moses, also with its escapes such as `&apos;`."""
    with requires("moses"):
        from sacremoses import MosesDetokenizer
    moses = MosesDetokenizer(lang=detected_as(language or "", ()))
    return [moses.detokenize(line.split(" "), unescape=True) for line in lines]
