# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation")`, `"summarization"` and `"text2text-generation"` for all encoder-decoders, as in
Transformers 4.
"""

import copy
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import Pipeline
from transformers.utils import logging

from .alignment import Alignment, align, of_originals
from .decoding import defaults, given
from .evaluation_mode import evaluation_mode
from .length_limits import DEFAULT_MAX_LENGTH, has_length_rule, length_limit
from .translation_inputs import TranslationInputs, beginning, without_tag

logger = logging.get_logger(__name__)

DEFAULT_BEAMS = 4  # as in Transformers 4
WITHOUT_BEAMS = ("do_sample", "streamer", "assistant_model", "prompt_lookup_num_tokens", "custom_generate")


class TranslationPipeline(Pipeline):
    """Translate text with a model of `AutoModelForSeq2SeqLM`:

        translate = pipeline("translation", model=...)      # or "translation_de_to_en"
        translate("Guten Tag.")                             # [{"translation_text": "Good day."}]
        translate(["Guten Tag.", "Danke."], batch_size=2)   # [{"translation_text": ...}, {"translation_text": ...}]
        for result in translate(lines, batch_size=64): ...  # generators, files and data sets are streamed

    Args:
        src_lang, tgt_lang: languages, in the constructor or in a call; by default those of the task name. Languages
            that the model does not support (`config.source_lang`, `config.target_lang`, tags such as `<2de>` in the
            vocabulary) are errors. For models with tags, the tag of `tgt_lang` is prepended to the text. Tokenizers
            such as those of mBART and NLLB add their own codes; for T5 the prompt is read from
            `config.task_specific_params`.
        truncation: truncate sentences to the tokenizer's `model_max_length` and the positions of the model.
        return_tensors: return `translation_token_ids` (1-D tensors) instead of `translation_text`.
        return_text: with `return_tensors=True`, also return the text.
        return_alignments: also return `alignment`, pairs of a source and a target word, both counted from 0, and
            `word_scores`, the probability of each target word. Words are separated by spaces. It takes another pass of
            the model over text and translation.
        clean_up_tokenization_spaces: passed to the tokenizer's `decode`.
        batch_size, num_workers: as in all pipelines. All arguments of `generate` are accepted too.

    Unless the caller or the model's generation config sets them, `num_beams` is 4 and the maximum length is
    2 * source length + 50 new tokens (`max_length_a` and `max_length_b` of the generation config), limited by the
    positions of the model. With `num_return_sequences` above 1 the result of each sentence is a list. The translation
    of an empty text is empty, and that of a text without letters is the text.

    Raises `ValueError` for languages that the model does not support and for sentences longer than the positions of
    the model, and `TypeError` for inputs that are not text.
    """

    result_name = "translation"
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError(f"a {self.result_name} pipeline requires a tokenizer")
        if not self.model.config.is_encoder_decoder or not self.model.can_generate():
            raise ValueError(f"{type(self.model).__name__} is not a generative encoder-decoder, as this task requires")
        self.texts = TranslationInputs(self.model.config, self.tokenizer, self.task)
        languages = (self._preprocess_params.get(name) for name in ("src_lang", "tgt_lang"))
        self.texts.check(*self.texts.languages(*languages))

    def _sanitize_parameters(self, **generate_kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        def taken(*names: str) -> dict[str, Any]:
            return given({name: generate_kwargs.pop(name, None) for name in names})

        languages = taken("src_lang", "tgt_lang")
        preprocess = languages | taken("truncation")
        postprocess = taken("return_tensors", "return_text", "return_alignments", "clean_up_tokenization_spaces")
        if generate_kwargs.get("max_length") is not None:
            generate_kwargs.setdefault("max_new_tokens", None)  # overrides that of the constructor
        return preprocess, languages | generate_kwargs, postprocess

    def __call__(self, inputs: str | Iterable[str], **kwargs: Any) -> Any:
        """Translate one text (returns a list of translations), a sequence (a list) or a stream (an iterator)."""
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            texts = list(inputs)
            for position, text in enumerate(texts):
                _check_text(text, f"item {position}")
            results = super().__call__(texts, **kwargs) if texts else []
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        if isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes, Mapping, Dataset)):
            inputs = _Stream(inputs)
        return super().__call__(inputs, **kwargs)

    def preprocess(
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None, truncation: bool | str = False
    ) -> dict[str, Any]:
        _check_text(text, "the input")
        positions, longest = self.texts.positions, self.tokenizer.model_max_length
        limit = longest if positions is None else min(longest, positions)
        truncate = truncation not in (False, "do_not_truncate")
        options = {"truncation": truncation, "return_tensors": "pt"}
        if truncate and limit < 10**9:  # without a limit it is 1e30
            options["max_length"] = limit
        inputs = self.texts.encode(text, src_lang, tgt_lang, **options)
        inputs["text"] = text
        length = inputs["input_ids"].shape[-1]
        if truncate and length == limit:

            def length_of(part: str) -> int:
                return len(self.texts.encode(part, src_lang, tgt_lang)["input_ids"])

            if length_of(text) > limit:
                inputs["text"] = beginning(text, limit, length_of)
        if length == 0:
            if self.tokenizer.eos_token_id is None:
                raise ValueError("the text has no tokens, and the tokenizer has no end-of-sentence token")
            inputs["input_ids"] = torch.tensor([[self.tokenizer.eos_token_id]])
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        elif positions is not None and length > positions:
            raise ValueError(
                f"the text {text[:40]!r}... has {length} tokens, but the model has {positions} positions "
                "(max_position_embeddings): split it into sentences or pass truncation=True"
            )
        elif length > longest:
            logger.warning(
                f"A text has {length} tokens, more than the model_max_length of {longest}: split it into sentences or "
                "pass truncation=True."
            )
        return inputs

    def _forward(
        self,
        model_inputs: dict[str, Any],
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        kept = {"text": model_inputs.pop("text"), "input_ids": model_inputs["input_ids"]}
        forced_bos = model_inputs.pop("forced_bos_token_id", None)
        if forced_bos is not None:  # in a batch it is a list
            forced_bos = forced_bos[0] if isinstance(forced_bos, list) else forced_bos
            generate_kwargs.setdefault("forced_bos_token_id", forced_bos)
        sentences, source_length = model_inputs["input_ids"].shape
        task = self.texts.task_parameters(*self.texts.languages(src_lang, tgt_lang))
        arguments = self._generation_arguments(generate_kwargs, task, source_length)
        with evaluation_mode(self.model):
            output = self.model.generate(**model_inputs, **arguments)
        token_ids = output if isinstance(output, torch.Tensor) else output.sequences
        return {"output_ids": token_ids.reshape(sentences, -1, token_ids.shape[-1]), **kept}

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool | None = None,
        return_alignments: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        return_text = not return_tensors if return_text is None else return_text
        if not return_text and not return_tensors:
            raise ValueError("return_text=False without return_tensors=True returns nothing")
        results = []
        source = model_outputs["text"]
        source = source[0] if isinstance(source, list) else source  # of a batch of one
        kept = self.texts.kept(source)
        for token_ids in model_outputs["output_ids"][0]:
            result: dict[str, Any] = {}
            if kept is not None and return_tensors:
                (ids,) = self.texts.target_ids([kept])
                token_ids = torch.cat([token_ids[:1], token_ids.new_tensor(ids)])  # after the start token
            if return_tensors:
                result[f"{self.result_name}_token_ids"] = token_ids
            text = self.tokenizer.decode(
                token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )
            text = without_tag(text) if self.texts.tags_targets else text
            if return_text:
                result[f"{self.result_name}_text"] = self.texts.restored(text, source).text if kept is None else kept
            if return_alignments:
                read = model_outputs["input_ids"][0].tolist()
                found = self._alignment(source, read, text, token_ids) if kept is None else Alignment(source, kept, ())
                result |= {"alignment": found.links, "word_scores": found.word_scores}
            results.append(result)
        return results

    def _alignment(self, original: str, read: list[int], text: str, token_ids: torch.Tensor) -> Alignment:
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        written = list(takewhile(lambda token: token not in ends, token_ids[1:].tolist()))
        read = [token for token in read if token != self.tokenizer.pad_token_id]
        source = self.texts.edited(original)
        with evaluation_mode(self.model):
            (found,) = align(self.model, self.tokenizer, [source.text], [text], [read], [written])
        return of_originals(found, source, self.texts.restored(text, original))

    def _generation_arguments(
        self, generate_kwargs: dict[str, Any], task: dict[str, Any], source_length: int
    ) -> dict[str, Any]:
        """Arguments for `generate`, by precedence: caller, task, generation config of the model, defaults above."""
        config = generate_kwargs.pop("generation_config", None)
        caller = given({} if config is None else config.to_dict()) | given(generate_kwargs)
        added = {
            name: value
            for name, value in task.items()
            if name != "prefix" and name not in caller and not (name == "max_length" and "max_new_tokens" in caller)
        }
        saved = given(self.model.generation_config.to_dict())
        if saved.get("max_length") == DEFAULT_MAX_LENGTH:  # entered by `Seq2SeqTrainer`, with all defaults
            saved = {name: value for name, value in saved.items() if value != defaults().get(name)}
        used = self.model.generation_config if config is None else config  # its rule is for each text of a batch
        if has_length_rule(self.model.generation_config):
            saved.pop("max_length", None)
        known = {**saved, **added, **caller}
        if "max_length" not in known and "max_new_tokens" not in known and not has_length_rule(used):
            rule = known.get("max_length_a", 2), known.get("max_length_b", 50)
            added["max_new_tokens"] = length_limit(source_length, self.texts.positions, *rule)
        elif source_length > 0.9 * known.get("max_length", float("inf")):
            logger.warning(
                f"A text has {source_length} tokens, close to the maximum length of the translation "
                f"(max_length={known['max_length']}): pass a larger max_length."
            )
        if "num_beams" not in known and not any(known.get(name) for name in WITHOUT_BEAMS):
            added["num_beams"] = max(DEFAULT_BEAMS, known.get("num_return_sequences", 1))
        if "pad_token_id" not in known and self.tokenizer.pad_token_id is not None:
            added["pad_token_id"] = self.tokenizer.pad_token_id
        if config is None:
            return {**generate_kwargs, **added}
        merged = copy.deepcopy(config)
        merged.update(**added)
        return {**generate_kwargs, "generation_config": merged}


class SummarizationPipeline(TranslationPipeline):
    """Summarize text with a model of `AutoModelForSeq2SeqLM`:

        summarize = pipeline("summarization", model=...)
        summarize("Shares fell on Monday after ...")    # [{"summary_text": "shares fall"}]

    Arguments as for `TranslationPipeline`; for T5 the prompt is that of `"summarization"` in
    `config.task_specific_params`.
    """

    result_name = "summary"


class Text2TextGenerationPipeline(TranslationPipeline):
    """Map text to text with any model of `AutoModelForSeq2SeqLM`:

        generate = pipeline("text2text-generation", model=...)
        generate("Shares fell on Monday after ...")    # [{"generated_text": "shares fall"}]

    Arguments as for `TranslationPipeline`.
    """

    result_name = "generated"


class _Stream(IterableDataset):
    """An iterable in a form that the pipelines of all versions read lazily."""

    def __init__(self, texts: Iterable[str]):
        self.texts = texts

    def __iter__(self) -> Iterator[str]:
        of_file = isinstance(self.texts, io.TextIOBase)
        return (text.removesuffix("\n") if of_file else text for text in self.texts)


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(
            f"{what} is of type {type(text).__name__}, but the pipeline takes a text, or a list, generator "
            "or data set of texts (use dataset['de'] for a column of a data set)"
        )
