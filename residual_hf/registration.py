"""Registration of the model family and of the pipelines for translation and summarization with Transformers."""

import warnings
from pkgutil import resolve_name
from typing import Any

import transformers
from transformers import AutoModelForSeq2SeqLM, pipelines

from .model.configuration_residual import ResidualConfig
from .model.decoding import register_kernels
from .model.pipeline_translation import SummarizationPipeline, Text2TextGenerationPipeline, TranslationPipeline
from .model.self_contained import MODEL_CLASSES
from .model.tokenization_residual import ResidualTokenizer
from .model.translation_inputs import TASK_PATTERN
from .native.decoder import packed_model


def register() -> None:
    """Register config, tokenizer, models and pipelines with Transformers, and the kernels with the models.

    Can be called repeatedly.
    """
    register_kernels(packed_model)
    transformers.AutoTokenizer.register(ResidualConfig, fast_tokenizer_class=ResidualTokenizer, exist_ok=True)
    for config_class, models in MODEL_CLASSES.items():
        config = model_class(config_class)
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto_class, reference in models.items():
            getattr(transformers, auto_class).register(config, model_class(reference), exist_ok=True)
    register_pipeline()


def model_class(reference: str) -> Any:
    """The class of a reference "module.Class" in the model code."""
    return resolve_name(f"residual_hf.model.{reference.replace('.', ':')}")


def register_pipeline() -> None:
    """Restore the tasks `translation` and `summarization`, which Transformers 5 removed.

    This relies on private names of Transformers. If they change, a warning says what failed; models and the pipelines
    themselves do not depend on them.
    """
    try:
        _register_tasks()
    except Exception as error:
        warnings.warn(
            f"pipeline('translation') and pipeline('summarization') are not available: Transformers "
            f"{transformers.__version__} has changed the registration of tasks ({type(error).__name__}: {error}). Use "
            "residual_hf.TranslationPipeline(model=..., tokenizer=...) or SummarizationPipeline instead, and please "
            "report this to residual_hf.",
            RuntimeWarning,
            stacklevel=2,
        )


def _register_tasks() -> None:
    registry = pipelines.PIPELINE_REGISTRY
    tasks = {
        "translation": TranslationPipeline,
        "summarization": SummarizationPipeline,
        "text2text-generation": Text2TextGenerationPipeline,
    }
    for task, pipeline in tasks.items():
        if registry.supported_tasks.get(task, {}).get("impl") is not pipeline:
            registry.register_pipeline(
                task, pipeline, AutoModelForSeq2SeqLM, default=_NoDefaultModel(model=None, task=task), type="text"
            )
            # with this mark, `pipe.save_pretrained` would turn models of other families into models with remote code
            del pipeline._registered_impl
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)  # since 5.19
    if not isinstance(registry.task_aliases, _TranslationAliases):
        registry.task_aliases = _TranslationAliases(registry.task_aliases)
    for task, pipeline in (*tasks.items(), ("translation_de_to_en", TranslationPipeline)):
        _, found, _ = pipelines.check_task(task)
        if found["impl"] is not pipeline:
            raise LookupError(f"task {task!r} leads to {found['impl']}")


class _NoDefaultModel(dict):
    """Default model of a task: raises an error that asks for a model."""

    def __getitem__(self, key: str) -> Any:
        task = self.get("task")
        raise ValueError(f"pipeline({task!r}) has no default model: pass model=, a folder or a name on the Hub")


class _TranslationAliases(dict):
    """Task aliases, extended by `translation_xx_to_yy` for every pair of languages."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and TASK_PATTERN.fullmatch(task) is not None)

    def __missing__(self, task: str) -> str:
        if task in self:
            return "translation"
        raise KeyError(task)
