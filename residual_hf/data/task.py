"""The tasks that a recipe can train a model for: all that differs between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM
from residual_hf.model.modeling_speech import ResidualForSpeechSeq2Seq

from . import task_facts
from .language_modeling import block_encoder, prepare_text
from .pipeline import Preparation, PreparedData, pair_encoder, prepare
from .speech import prepare_speech
from .task_facts import TaskFacts


@dataclass(frozen=True, kw_only=True)
class Task(TaskFacts):
    """A task that a model is trained for: one of `TASKS`, chosen by `task` of a recipe.

    Args:
        model: the class of the model.
        prepare: makes the tokenizer and the encoded corpora, see `residual_hf.data.pipeline.prepare`.
        encoder: makes the function that encodes the text of a stream, see `residual_hf.data.pipeline.pair_encoder`.
    """

    model: Any
    prepare: Callable[[Preparation], PreparedData]
    encoder: Callable[..., Callable[..., Any]] = pair_encoder


TRANSLATION = Task(**vars(task_facts.TRANSLATION), model=ResidualForConditionalGeneration, prepare=prepare)
SUMMARIZATION = Task(**vars(task_facts.SUMMARIZATION), model=ResidualForConditionalGeneration, prepare=prepare)
LANGUAGE_MODELING = Task(
    **vars(task_facts.LANGUAGE_MODELING), model=ResidualForCausalLM, prepare=prepare_text, encoder=block_encoder
)
SPEECH_RECOGNITION = Task(
    **vars(task_facts.SPEECH_RECOGNITION), model=ResidualForSpeechSeq2Seq, prepare=prepare_speech
)
TASKS = {task.name: task for task in (TRANSLATION, SUMMARIZATION, LANGUAGE_MODELING, SPEECH_RECOGNITION)}


def task_of(config: ResidualConfig) -> Task:
    """The task of a model whose recipe is not known."""
    if config.reads_speech:
        return SPEECH_RECOGNITION
    if config.is_decoder_only:
        return LANGUAGE_MODELING
    return SUMMARIZATION if config.source_lang and config.source_lang == config.target_lang else TRANSLATION
