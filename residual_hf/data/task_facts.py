"""The facts about the tasks that a recipe can train a model for: their names, words, scores and fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .data_settings import TOKENIZER_KINDS

CAUTION = "omit, add or change content. Have important"
NO_SPEECH: dict[str, Any] = dict.fromkeys(
    ("data.spec_augment", "data.features", "model.conv_channels", "corpus.audio_folder", "model.max_source_positions")
)
NO_BLOCKS: dict[str, Any] = {"data.block_size": None, "data.sample_break_mode": "none", "evaluation.context_window": 0}
ONE_SIDE: dict[str, Any] = {
    **dict.fromkeys(f"data.{name}" for name in ("cleaning", "language_tags", "pretokenized", "glossary")),
    **dict.fromkeys((f"data.{name}" for name in ("bidirectional", "placeholders")), False),
    **{"data.subword_regularization": None, "data.upper_case": 0, "data.title_case": 0},
    **{"training.simcut": 0, "tokenizer.joint": True, "decoding.shortlist": False},
}


@dataclass(frozen=True)
class TaskFacts:
    """The facts about a task that cards and reports need; a `Task` has the functions and the model too.

    Args:
        name, hub_name: in recipes; on the Hub and in pipelines.
        scores: what `training.metric` may be besides the losses, the main one first; without any, there is perplexity.
        fixed: the values that fields of a recipe must have; those of `corpus` in every corpus.
        words: of cards; among them `call`, the name of a pipeline.
        config, columns: of the model and of tables, unless the recipe names others.
        tokenizers: what `tokenizer.kind` may be.
        reads_lines: corpora are lines, not pairs.
        has_source_text: a model reads one text and writes another; one that `translates`, in another language.
    """

    name: str
    hub_name: str
    scores: tuple[str, ...]
    fixed: Mapping[str, Any]
    words: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    tokenizers: tuple[str, ...] = TOKENIZER_KINDS
    reads_lines: bool = False
    has_source_text: bool = False
    translates: bool = False


TRANSLATION = TaskFacts(
    name="translation",
    hub_name="translation",
    scores=("bleu", "chrf", "tokenized_bleu", "rouge1", "rouge2", "rougeL"),
    fixed=NO_SPEECH | NO_BLOCKS,
    words={
        **{"does": "Translates", "purpose": "translating single sentences", "call": "translate"},
        **{"examples": "sentence pairs", "samples": "sentences", "inputs": "text", "output": "translation"},
        **{"outputs": "translations", "example": "A sentence", "best": "{value:.1f} BLEU", "citation": "post2018call"},
        "caution": f"{CAUTION} translations checked by a person who knows both languages",
    },
    has_source_text=True,
    translates=True,
)
SUMMARIZATION = replace(
    TRANSLATION,
    name="summarization",
    hub_name="summarization",
    # both directions have the same language, and no tag tells them apart
    fixed={**TRANSLATION.fixed, "data.bidirectional": False},
    words={
        **{**TRANSLATION.words, "does": "Summarizes text in", "purpose": "summarizing texts", "call": "summarize"},
        **{"output": "summary", "outputs": "summaries", "example": "A text"},
        "caution": f"{CAUTION} summaries checked against the text",
    },
    translates=False,
)
LANGUAGE_MODELING = TaskFacts(
    name="language_modeling",
    hub_name="text-generation",
    scores=(),
    fixed=NO_SPEECH
    | ONE_SIDE
    | {"data.max_length": None, "training.label_smoothing": 0, "training.r_drop": 0, "evaluation.metrics": ()},
    words={
        **{**TRANSLATION.words, "does": "Continues text in", "purpose": "continuing text", "call": "generate"},
        **{"examples": "lines", "caution": "be false"},
    },
    config={"is_decoder_only": True},
    reads_lines=True,
)
SPEECH_RECOGNITION = TaskFacts(
    name="speech_recognition",
    hub_name="automatic-speech-recognition",
    scores=("wer", "cer"),
    fixed=NO_BLOCKS | ONE_SIDE | {"data.stream": False, "data.temperature": 1.0, "corpus.weight": None},
    words={
        **{"does": "Transcribes speech in", "purpose": "transcribing speech", "call": "transcribe"},
        **{"examples": "recordings", "samples": "recordings", "output": "transcript"},
        **{"inputs": "speech, speakers and recordings", "outputs": "transcripts", "citation": "wang2020fairseq"},
        **{"caution": f"{CAUTION} transcripts checked against the recording", "best": "a {label} of {value:.1f} %"},
    },
    config={"conv_channels": 1024},  # as in fairseq
    columns={"source_column": "audio", "target_column": "text"},
    tokenizers=tuple(kind for kind in TOKENIZER_KINDS if kind != "pretokenized"),
)
FACTS = {facts.name: facts for facts in (TRANSLATION, SUMMARIZATION, LANGUAGE_MODELING, SPEECH_RECOGNITION)}
