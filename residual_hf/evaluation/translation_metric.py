"""Translation scores as an `evaluate.Metric`, and other metrics of the `evaluate` library."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from numbers import Real
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from residual_hf.base.errors import InputError, input_errors
from residual_hf.model.options import suggestion
from residual_hf.model.translation_inputs import source_writer, without_tag

from .metrics import METRICS, Lines, corpus_scores, default_tokenizer
from .sentence_metrics import ERROR_RATES, Comet, CompoundBLEU, ErrorRate, Rouge, SentenceMetric

USAGE = """
Args:
    predictions: one detokenized translation per sentence.
    references: one reference per sentence.
    metrics: names out of "bleu", "bleu_lowercase", "chrf" (chrF2), "chrf++" (chrF2 with word bigrams) and "ter".
    lowercase: ignore case. Otherwise TER is cased too, unlike in sacreBLEU's command line.
    tokenize: sacreBLEU's tokenizer for BLEU, such as "13a", "intl", "zh", "ja-mecab", "char" or "none"; by default
        that of `target_lang`, 13a without one.
    target_lang: language code.
    baseline: translations of another system, to compare with by paired bootstrap.
    samples: number of bootstrap resamples.

Returns:
    `{"bleu": {"value": 31.4, "signature": "nrefs:1|case:mixed|..."}, ...}`: 0 to 100 for BLEU and chrF, edits per 100
    reference words for TER, characters of Chinese and Japanese; in other scripts without spaces it is left out. With a
    baseline also `interval` (95%), `baseline`, `baseline_interval` and `p_value`.
"""


class TranslationMetric(evaluate.Metric):
    """BLEU, chrF and TER with signatures, as sacreBLEU (Post 2018) computes them.

        metric = TranslationMetric()
        metric.add_batch(predictions=["Ein Hund."], references=["Ein Hund!"])
        metric.compute(metrics=("bleu", "chrf"))

    Works offline. Sentences are kept in memory; with `num_process` above 1 in files of `cache_dir`, which all
    processes must see, and the process with `process_id` 0 returns the scores of all.
    """

    def __init__(self, config_name: str | None = None, *, num_process: int = 1, **options: Any):
        if options.setdefault("keep_in_memory", num_process == 1) and options.get("cache_dir") is None:
            options["cache_dir"] = tempfile.gettempdir()  # evaluate creates a folder there, even if it needs none
        super().__init__(config_name, num_process=num_process, **options)

    def _info(self) -> evaluate.MetricInfo:
        line = datasets.Value("string")
        return evaluate.MetricInfo(
            description="BLEU, chrF and TER with signatures, as sacreBLEU computes them.",
            citation="Matt Post. A Call for Clarity in Reporting BLEU Scores. WMT 2018.",
            inputs_description=USAGE,
            features=datasets.Features({"predictions": line, "references": line}),
        )

    def _compute(
        self,
        predictions: Lines,
        references: Lines,
        metrics: Sequence[str] = ("bleu", "chrf", "ter"),
        tokenize: str | None = None,
        target_lang: str | None = None,
        **options: Any,
    ) -> dict[str, dict[str, Any]]:
        tokenize = tokenize or default_tokenizer(target_lang)
        return corpus_scores(predictions, references, metrics, tokenize, **options)


def compute_metrics_for(
    tokenizer: PreTrainedTokenizerBase, metrics: Sequence[str] = ("bleu", "chrf", "ter"), **options: Any
) -> Callable[[EvalPrediction], dict[str, float]]:
    """The `compute_metrics` of a `Seq2SeqTrainer` with `predict_with_generate=True`.

    Args:
        tokenizer: decodes predictions and labels.
        metrics: names of `TranslationMetric`, and of `load_metric`, such as `"rouge"`. One that compares with the
            sources, such as `"comet"`, needs `include_for_metrics=["inputs"]` in the training arguments.
        options: further arguments of `TranslationMetric.compute`, such as `tokenize`.
    """
    if isinstance(metrics, str):
        raise InputError(f"metrics: {metrics!r} given, must be a list of names")
    metric, own = TranslationMetric(), [name for name in metrics if name in METRICS]
    others = {name: load_metric(name) for name in metrics if name not in METRICS}
    metric.compute(predictions=["a"], references=["a"], metrics=own, **options)  # refuses options before training
    of_sources = {"use_source_tokenizer": True} if hasattr(tokenizer, "target_vocab_size") else {}

    def text(ids: Any, decoder: Any = tokenizer, **options: Any) -> list[str]:
        if isinstance(ids, list):  # of batches, with `eval_do_concat_batches=False`
            return [line for part in ids for line in text(part, decoder, **options)]
        ids = ids[0] if isinstance(ids, tuple) else ids
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        return [without_tag(line) for line in decoder.batch_decode(ids, skip_special_tokens=True, **options)]

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        texts = text(prediction.predictions), text(prediction.label_ids)
        scores = metric.compute(predictions=texts[0], references=texts[1], metrics=own, **options)
        figures = {name: score["value"] for name, score in (scores or {}).items()}
        sources = [] if prediction.inputs is None else text(prediction.inputs, source_writer(tokenizer), **of_sources)
        for name, other in others.items():
            add_results(figures, name, other.compute(*texts, sources))
        return figures

    return compute_metrics


def add_results(figures: dict[str, float], metric: str, results: Mapping[str, float]) -> None:
    """Add the results of a metric; one that another metric has, too, is named by both: `rouge:stem rougeL`."""
    figures |= {f"{metric} {name}" if name in figures else name: value for name, value in results.items()}


@cache
def load_metric(name: str) -> SentenceMetric:
    """Load a metric: `wer`, `cer`, `rouge`, `rouge:stem`, `compound_bleu:LANGUAGE`, `comet`, `comet:MODEL`, or one of
    the `evaluate` library, by its name on the Hub or a local path.

    Raises `InputError` for one that cannot be loaded or needs other inputs than predictions, references and sources.
    """
    kind, _, variant = name.partition(":")
    if kind in OWN:
        if variant and variant != (allowed := VARIANTS.get(kind, variant)):
            raise InputError(f"evaluation.metrics: {name!r} given, must be {kind} or {kind}:{allowed}")
        return OWN[kind](variant) if variant else OWN[kind]()
    if kind in METRICS:
        known = ", ".join(METRICS)
        raise InputError(f"evaluation.metrics: {name!r} given, must be another than {known} of every report")
    close = suggestion(name, (*OWN, *METRICS))
    with input_errors(f"evaluation.metrics: {name!r} cannot be loaded{close and f' ({close})'}: ", Exception):
        metric = evaluate.load(name, keep_in_memory=True)
    forms = metric.features if isinstance(metric.features, list) else [metric.features]
    inputs = next((form for form in forms if isinstance(form.get("references"), datasets.Value)), forms[0])
    unknown = sorted(set(inputs) - {"predictions", "references", "sources"})
    if unknown:
        raise InputError(f"evaluation.metrics: {name!r} needs {unknown}, must need predictions, references or sources")
    return LoadedMetric(metric, inputs)


@dataclass(frozen=True)
class LoadedMetric:
    """A metric of the `evaluate` library and the inputs that it takes."""

    metric: evaluate.EvaluationModule
    inputs: datasets.Features
    is_fast: ClassVar[bool] = False

    def compute(self, predictions: Lines, references: Lines, sources: Lines) -> dict[str, float]:
        """The numbers that the metric returns; lists, such as one score per sentence, are omitted.

        Raises `InputError` for a metric that fails.
        """
        given: dict[str, Any] = {"predictions": predictions, "references": references, "sources": sources}
        if not isinstance(self.inputs.get("references"), datasets.Value):
            given["references"] = [[reference] for reference in references]
        with input_errors(f"evaluation.metrics: {self.metric.name}: ", Exception):
            result = self.metric.compute(**{name: given[name] for name in self.inputs})
        return {name: float(value) for name, value in result.items() if isinstance(value, Real)}


OWN: dict[str, Callable[..., SentenceMetric]] = {
    **{name: partial(ErrorRate, name) for name in ERROR_RATES},
    "comet": Comet,
    "compound_bleu": CompoundBLEU,
    "rouge": Rouge,
}
"""Metrics that need no script from the Hub; the part of a name after a colon is their argument."""
VARIANTS = {"wer": "raw", "cer": "raw", "rouge": "stem"}
"""The only argument of those that do not have any."""
