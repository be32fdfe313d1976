# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Makes Transformers know the models and the translation pipeline, at the moment it needs to know them.

The Auto classes and `transformers.pipelines` take seconds to import, and registering with them needs our model code.
So `import residual_hf` only registers with what is loaded already and leaves a watch on the import system, which
registers with the rest when, and if, it is imported, and then removes itself.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register() -> None:
    """Register configuration, tokenizer, models and `pipeline("translation")` with Transformers. May be repeated."""
    _watch.waiting = dict(STEPS)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    _watch.register_loaded()


def _register_config() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    from residual_hf.model.configuration_residual import ResidualConfig

    AutoConfig.register(ResidualConfig.model_type, ResidualConfig, exist_ok=True)


def _register_tokenizer() -> None:
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from residual_hf.model.configuration_residual import ResidualConfig
    from residual_hf.model.tokenization_residual import ResidualTokenizer

    AutoTokenizer.register(ResidualConfig, fast_tokenizer_class=ResidualTokenizer, exist_ok=True)


def _register_models() -> None:
    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForSeq2SeqLM

    from residual_hf.model.configuration_residual import ResidualConfig
    from residual_hf.model.modeling_residual import ResidualForConditionalGeneration, ResidualModel

    AutoModel.register(ResidualConfig, ResidualModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(ResidualConfig, ResidualForConditionalGeneration, exist_ok=True)


def _register_pipeline() -> None:
    """The `translation` task that Transformers 5 removed; no other removed task comes back.

    What this relies on is not public, so a Transformers that changed it gives a warning that says what failed, never
    an error: models and `TranslationPipeline` itself work without it.
    """
    import transformers

    try:
        _register_translation_task(sys.modules["transformers.pipelines"])
    except Exception as error:
        warnings.warn(
            f"pipeline('translation') is not available: Transformers {transformers.__version__} has changed how tasks "
            f"are registered ({type(error).__name__}: {error}). residual_hf.TranslationPipeline(model=..., "
            "tokenizer=...) works without it; please report this to residual_hf.",
            RuntimeWarning,
            stacklevel=2,
        )


def _register_translation_task(pipelines: ModuleType) -> None:
    from transformers import AutoModelForSeq2SeqLM

    from residual_hf.model.pipeline_translation import TASK_PATTERN, TranslationPipeline

    registry = pipelines.PIPELINE_REGISTRY
    if registry.supported_tasks.get("translation", {}).get("impl") is not TranslationPipeline:
        registry.register_pipeline(
            "translation", TranslationPipeline, AutoModelForSeq2SeqLM, default=_NoDefaultModel(model=None), type="text"
        )
        # With this mark `pipe.save_pretrained` would turn every model, a Marian too, into one with remote code.
        del TranslationPipeline._registered_impl
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)  # since 5.19
    if not isinstance(registry.task_aliases, _TranslationAliases):
        registry.task_aliases = _TranslationAliases(registry.task_aliases, TASK_PATTERN)
    for task in ("translation", "translation_de_to_en"):
        _, found, _ = pipelines.check_task(task)
        if found["impl"] is not TranslationPipeline:
            raise LookupError(f"task {task!r} leads to {found['impl']}")


class _NoDefaultModel(dict):
    """In the place of a task's default model: an error that says that there is none."""

    def __getitem__(self, key: str) -> Any:
        raise ValueError("pipeline('translation') has no default model: pass model=, a name on the Hub or a folder")


class _TranslationAliases(dict):
    """Task aliases, with `translation_xx_to_yy` for every pair of languages."""

    def __init__(self, aliases: dict[str, str], pattern: re.Pattern[str]):
        super().__init__(aliases)
        self.pattern = pattern

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and self.pattern.fullmatch(task) is not None)

    def __missing__(self, task: str) -> str:
        if task in self:
            return "translation"
        raise KeyError(task)


STEPS: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.tokenization_auto": _register_tokenizer,
    "transformers.models.auto.modeling_auto": _register_models,
    "transformers.pipelines": _register_pipeline,
}


class _ImportWatch(MetaPathFinder):
    """Runs the steps whose module has been imported, at the end of the outermost import of Transformers or of ours.

    Not earlier: inside, modules that our model code imports may be half loaded.
    """

    PACKAGES = ("transformers", "residual_hf")

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], None]] = {}
        self.thread = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.PACKAGES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module") and not isinstance(loader, type):
            loader.exec_module = partial(self._execute, loader, loader.exec_module)
        return spec

    def _execute(self, loader: Any, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        del loader.exec_module
        depth = getattr(self.thread, "depth", 0)
        self.thread.depth = depth + 1
        try:
            execute(module)
        finally:
            self.thread.depth = depth
        if depth == 0:
            self.register_loaded()

    def register_loaded(self) -> None:
        for name in [name for name in self.waiting if name in sys.modules]:
            step = self.waiting.pop(name, None)  # gone if the import inside another step has run it
            if step is not None:
                step()
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


_watch = _ImportWatch()
