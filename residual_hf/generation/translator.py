# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of text with a model and its tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from residual_hf.checkpoint import load_checkpoint
from residual_hf.errors import InputError
from residual_hf.model.pipeline_translation import language_tags

from .decode import DecodingSettings, generate_candidates, to_text


class Hypothesis(NamedTuple):
    """A translation, and its score if several are wanted (see `decode.Candidate`)."""

    text: str
    score: float | None


class Translator:
    """Translates lists of sentences, in batches of similar length."""

    def __init__(self, model: Any, tokenizer: Any, settings: DecodingSettings | None = None):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.settings = settings or DecodingSettings()

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str | None = None,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> Translator:
        """Load a model that was saved with its tokenizer.

        Args:
            name: folder, or name on the Hub.
            device: a GPU if there is one, by default.
            settings: fields of `DecodingSettings`; None keeps the default. `num_beams`, `length_penalty` and `dtype`
                default to the generation config of the model.

        Raises:
            InputError: the folder is missing, incomplete or damaged; weights, config and vocabulary do not match; the
                config is of a newer version; or the device does not exist.
        """
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model, tokenizer = load_checkpoint(name, trust_remote_code=trust_remote_code)
        try:
            model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {device!r}: {error}") from error
        generation = model.generation_config
        chosen: dict[str, Any] = {
            "num_beams": generation.num_beams or 1,
            "length_penalty": 1.0 if generation.length_penalty is None else generation.length_penalty,
            "dtype": getattr(generation, "decoding_dtype", None) or "float32",
        }
        chosen |= {key: value for key, value in settings.items() if value is not None}
        return cls(model, tokenizer, dataclasses.replace(DecodingSettings(), **chosen))

    def translate(
        self,
        sentences: Sequence[str],
        *,
        target_lang: str | None = None,
        progress: bool = False,
        **generate_arguments: Any,
    ) -> list[str]:
        """Translations in the order of `sentences`; the translation of an empty sentence is empty.

        Args:
            target_lang: target language, required by multilingual models.
            progress: show a progress bar.
            generate_arguments: further arguments of `model.generate`.

        Raises:
            InputError: `target_lang` is missing or not a language of the model, or a sentence (counted from 1) is
                longer than the position table.
        """
        candidates = self._candidates(sentences, 1, target_lang, progress=progress, **generate_arguments)
        return [best.text for (best,) in candidates]

    def hypotheses(
        self, sentences: Sequence[str], count: int, *, target_lang: str | None = None, **generate_arguments: Any
    ) -> list[list[Hypothesis]]:
        """The `count` best translations of each sentence with their scores, best first.

        The beam size is at least `count`. Arguments and errors are those of `translate`.
        """
        return self._candidates(sentences, count, target_lang, **generate_arguments)

    def source_lengths(self, sentences: Sequence[str]) -> list[int]:
        """Source tokens of each sentence, without a language tag."""
        return [len(ids) for ids in self._encode(sentences)]

    def _encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(list(sentences), return_attention_mask=False)["input_ids"] if sentences else []

    def _candidates(
        self,
        sentences: Sequence[str],
        count: int,
        target_lang: str | None,
        *,
        progress: bool = False,
        **generate_arguments: Any,
    ) -> list[list[Hypothesis]]:
        tag = self._tag(target_lang)
        if tag is not None and self.model.config.language_tags == "target":
            generate_arguments["forced_bos_token_id"] = self.tokenizer.convert_tokens_to_ids(tag)
        elif tag is not None:
            sentences = [f"{tag} {sentence}" if sentence.strip() else "" for sentence in sentences]
        encoded = self._encode(sentences)
        limit = self.model.config.max_position_embeddings
        for number, ids in enumerate(encoded, start=1):
            if len(ids) > limit:
                raise InputError(
                    f"sentence {number} has {len(ids)} tokens, but the model accepts at most {limit} "
                    "(max_position_embeddings): split it"
                )
        wanted = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        results = [[Hypothesis("", 0.0)] * count for _ in sentences]
        if wanted:
            settings = dataclasses.replace(self.settings, num_beams=max(self.settings.num_beams, count))
            sources = [encoded[i] for i in wanted]
            for place, found in generate_candidates(
                self.model, sources, settings, count=count, progress=progress, **generate_arguments
            ):
                texts = to_text(self.tokenizer, [candidate.ids for candidate in found])
                results[wanted[place]] = [
                    Hypothesis(text, candidate.score) for text, candidate in zip(texts, found, strict=True)
                ]
        return results

    def _tag(self, language: str | None) -> str | None:
        """The tag that selects the target language; None for a model without tags."""
        if self.model.config.language_tags is None:
            return None
        tags = language_tags(self.tokenizer)
        if language not in tags:
            raise InputError(f"--target-lang: {language!r} given, must be one of {sorted(tags)}")
        return tags[language]
