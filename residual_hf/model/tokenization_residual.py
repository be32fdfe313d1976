# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A tokenizer with separate vocabularies for source and target.

A joint vocabulary uses a plain `PreTrainedTokenizerFast`.
"""

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tokenizers import Tokenizer
from transformers import AddedToken, BatchEncoding, PreTrainedTokenizerFast

IN_TARGET: ContextVar[bool] = ContextVar("in_target", default=False)  # the vocabulary that this thread uses

SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side"),
    *("clean_up_tokenization_spaces", "split_special_tokens"),
)


def settings_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The settings of a tokenizer that one made from it keeps, with its special tokens."""
    return {name: getattr(tokenizer, name) for name in SETTINGS} | tokenizer.special_tokens_map


class ResidualTokenizer(PreTrainedTokenizerFast):
    """Encodes source text and decodes target ids.

    `tokenizer(text, text_target=target)` encodes `text` with the source vocabulary and `target` (the `labels`) with
    the target vocabulary. `decode`, `batch_decode`, `convert_ids_to_tokens` and `convert_tokens_to_string` use the
    target vocabulary, or the source vocabulary with `use_source_tokenizer=True`. All other methods (`len`,
    `get_vocab`, `tokenize`, `convert_tokens_to_ids`) refer to the source; `target_tokenizer` and `target_vocab_size`
    refer to the target. Added tokens are added to both. Special tokens have the same ids in both: before a new one,
    the smaller vocabulary is filled with unused entries. `train_new_from_iterator` trains the source.

    `known_tokens` gives the numbers of entries that the model has for source and target, if a vocabulary contains
    more: intermediate pieces that are only merged into longer ones. If such a piece remains in a text, it becomes the
    unknown token.

    Saved as `tokenizer.json` (source), `target_tokenizer.json` and this module. If the class is not registered,
    `AutoTokenizer` requires `trust_remote_code=True`.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": "target_tokenizer.json"}
    _auto_class = "AutoTokenizer"

    def __init__(
        self,
        *args: Any,
        target_tokenizer_file: str | None = None,
        target_tokenizer_object: Tokenizer | None = None,
        known_tokens: Sequence[int] | None = None,
        **kwargs: Any,
    ):
        if target_tokenizer_object is not None:
            target = copy.deepcopy(target_tokenizer_object)
        elif target_tokenizer_file is not None:
            target = Tokenizer.from_file(target_tokenizer_file)
        else:
            raise ValueError("ResidualTokenizer requires target_tokenizer_object or target_tokenizer_file")
        self.known_tokens = known_tokens
        self.target_tokenizer = target  # before the base class adds tokens
        super().__init__(*args, known_tokens=known_tokens, target_tokenizer_file=target_tokenizer_file, **kwargs)
        for name, token in self.special_tokens_map.items():
            source_id, target_id = self._source_tokenizer.token_to_id(token), target.token_to_id(token)
            if source_id != target_id:
                raise ValueError(f"{name} {token} has the id {source_id} in the source, {target_id} in the target")

    @property
    def _tokenizer(self) -> Tokenizer:
        return self.target_tokenizer if IN_TARGET.get() else self._source_tokenizer

    @_tokenizer.setter
    def _tokenizer(self, tokenizer: Tokenizer) -> None:
        self._source_tokenizer = tokenizer

    @classmethod
    def from_pair(
        cls,
        source: PreTrainedTokenizerFast,
        target: PreTrainedTokenizerFast,
        known_tokens: Sequence[int] | None = None,
    ) -> "ResidualTokenizer":
        """Join two tokenizers. Settings such as `model_max_length` are taken from `source`.

        Raises `ValueError` if the ids of the special tokens differ.
        """
        return cls(
            tokenizer_object=source.backend_tokenizer,
            target_tokenizer_object=target.backend_tokenizer,
            known_tokens=known_tokens,
            **settings_of(source),
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Pass the file names to `__init__` instead of parsing `tokenizer.json`, as the base class does."""
        if kwargs.get("target_tokenizer_file") is None:
            raise ValueError(
                f"{kwargs.get('name_or_path')}: target_tokenizer.json is missing; a tokenizer of one vocabulary must "
                "be saved by its `save_pretrained`, which writes tokenizer_config.json too"
            )
        return kwargs

    @property
    def target_vocab_size(self) -> int:
        """Number of entries of the target vocabulary, added tokens included."""
        return self._known(1) or self.target_tokenizer.get_vocab_size(with_added_tokens=True)

    def __len__(self) -> int:
        return self._known(0) or super().__len__()

    def _known(self, side: int) -> int | None:
        """Number of entries of the source (0) or target (1) that the model has, or None for all."""
        return None if self.known_tokens is None else self.known_tokens[side]

    def _known_ids(self, ids: list[int]) -> list[int]:
        known = self._known(int(IN_TARGET.get()))
        if known is None or max(ids, default=0) < known:
            return ids
        return [i if i < known else self.unk_token_id for i in ids]

    def _convert_encoding(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], list[Any]]:
        converted, encodings = super()._convert_encoding(*args, **kwargs)
        converted["input_ids"] = [self._known_ids(ids) for ids in converted["input_ids"]]
        return converted, encodings

    def _convert_token_to_id_with_added_voc(self, token: str) -> int:
        return self._known_ids([super()._convert_token_to_id_with_added_voc(token)])[0]

    def _add_tokens(self, new_tokens: Sequence[str | AddedToken], special_tokens: bool = False) -> int:
        source, target = self._source_tokenizer, self.target_tokenizer
        new = [token for token in new_tokens if source.token_to_id(str(token)) is None]
        if new and self.known_tokens is not None:
            raise ValueError(f"{new[0]}: tokens cannot be added, because the model has no rows for them")
        special = [token for token in new if special_tokens or getattr(token, "special", False)]
        if known := [token for token in special if target.token_to_id(str(token)) is not None]:
            raise ValueError(f"{known[0]} cannot be a new special token, because the target contains it")
        if special:
            smaller, larger = sorted((source, target), key=Tokenizer.get_vocab_size)
            ids = range(smaller.get_vocab_size(), larger.get_vocab_size())
            smaller.add_special_tokens([f"<unused_{number}>" for number in ids])
        with self._vocabulary(use_source_tokenizer=False):
            super()._add_tokens(new, special_tokens)
        return super()._add_tokens(new_tokens, special_tokens)

    def train_new_from_iterator(
        self, text_iterator: Iterable[str], *args: Any, target_iterator: Iterable[str] | None = None, **kwargs: Any
    ) -> "ResidualTokenizer":
        """A copy with a new source vocabulary, and a new target vocabulary if `target_iterator` gives its texts.

        Other arguments as in Transformers.
        """
        source, target = (
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings_of(self))
            for tokenizer in (self._source_tokenizer, self.target_tokenizer)
        )
        source = source.train_new_from_iterator(text_iterator, *args, **kwargs)
        if target_iterator is not None:
            target = target.train_new_from_iterator(target_iterator, *args, **kwargs)
        known = None if self.known_tokens is None else (len(source), self.target_vocab_size)
        return self.from_pair(source, target, None if target_iterator is not None else known)

    def _switch_to_target_mode(self) -> None:
        IN_TARGET.set(True)

    def _switch_to_input_mode(self) -> None:
        IN_TARGET.set(False)

    @contextmanager
    def _vocabulary(self, use_source_tokenizer: bool) -> Iterator[None]:
        if not use_source_tokenizer:
            self._switch_to_target_mode()
        try:
            yield
        finally:
            self._switch_to_input_mode()

    def __call__(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        try:
            return super().__call__(*args, **kwargs)
        finally:  # also after an error in text_target
            self._switch_to_input_mode()

    def _decode(self, *args: Any, use_source_tokenizer: bool = False, **kwargs: Any) -> str:
        with self._vocabulary(use_source_tokenizer):
            return super()._decode(*args, **kwargs)

    def convert_ids_to_tokens(
        self, ids: int | list[int], skip_special_tokens: bool = False, use_source_tokenizer: bool = False
    ) -> str | list[str]:
        with self._vocabulary(use_source_tokenizer):
            return super().convert_ids_to_tokens(ids, skip_special_tokens)

    def convert_tokens_to_string(self, tokens: list[str], use_source_tokenizer: bool = False) -> str:
        with self._vocabulary(use_source_tokenizer):
            return super().convert_tokens_to_string(tokens)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        files = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = os.path.join(save_directory, prefix + self.vocab_files_names["target_tokenizer_file"])
        self.target_tokenizer.save(path)
        return (*files, path)
