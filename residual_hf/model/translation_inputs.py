# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text as the inputs of an encoder-decoder: language tags, the language codes of tokenizers, the prompts of T5."""

import copy
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from unicodedata import category, combining

from transformers.utils import logging

from .length_limits import position_limit
from .placeholders import (
    LETTERS,
    PLACEHOLDER,
    RUN,
    TAG,
    Edit,
    EditedText,
    masked,
    masked_pair,
    restored,
    rewritten_words,
    with_emoji,
    without_emoji,
)

logger = logging.get_logger(__name__)

TASK_PATTERN = re.compile(r"translation_(.+)_to_(.+)")
ONE_LANGUAGE = ("summarization", "text2text-generation")
TAG_PATTERN = re.compile(r"<2([^\W\d_][^\s<>]*)>")
WORD_IN_CAPITALS = 4
"""Letters of a word, from which a text may be in capitals."""
CHARACTER = re.compile(r"&(?:[A-Za-z]+\d*|#x?[\dA-Fa-f]+);")
"""A name of a character in HTML, such as `&nbsp;`."""
MARKUP = re.compile(f"{TAG.pattern}|{CHARACTER.pattern}")
BEFORE_SENTENCE = re.compile(r"(?:^|[.!?…]\s)\W{0,9}$")


def language_tags(tokenizer: Any) -> dict[str, str]:
    """Map languages to the target-language tags, such as `<2de>`, of a vocabulary."""
    matches = (TAG_PATTERN.fullmatch(token) for token in tokenizer.get_vocab())
    return {match[1]: match[0] for match in matches if match}


def languages_of(config: Any, tokenizer: Any) -> tuple[str | None, str | None]:
    """Source and target language of a bilingual model: from its config, or from Marian's tokenizer."""
    if getattr(config, "langs", None):  # FSMT
        source, target = config.langs
        return source, target
    named = config if hasattr(config, "target_lang") else tokenizer
    return getattr(named, "source_lang", None), getattr(named, "target_lang", None)


def separate_target_vocabulary(tokenizer: Any) -> dict[str, int] | None:
    """The target tokens of a tokenizer in Python that has others than for sources: of FSMT, or Marian."""
    if not (is_of_fsmt(tokenizer) or getattr(tokenizer, "separate_vocabs", False)):
        return None
    target = {token: number for number, token in tokenizer.decoder.items()}
    return target if target != tokenizer.encoder else None


def is_of_fsmt(tokenizer: Any) -> bool:
    return "tgt_vocab_file" in getattr(tokenizer, "vocab_files_names", ())


def source_writer(tokenizer: Any) -> Any:
    """The tokenizer that decodes sources: for one in Python with two vocabularies, a copy, as it decodes targets."""
    if separate_target_vocabulary(tokenizer) is None:
        return tokenizer
    writer = copy.copy(tokenizer)
    writer.decoder = {number: token for token, number in tokenizer.encoder.items()}
    return writer


def target_reader(tokenizer: Any) -> Any:
    """The tokenizer that reads `text_target`: for FSMT, whose own reads it as a source, a copy for the other side."""
    if not is_of_fsmt(tokenizer):
        return tokenizer
    reader = copy.copy(tokenizer)
    reader.encoder = {token: number for number, token in tokenizer.decoder.items()}
    reader.src_lang = tokenizer.tgt_lang
    return reader


def without_tag(text: str) -> str:
    """A translation without its leading language tag, if any."""
    tag = TAG_PATTERN.match(text)
    return text[tag.end() :].removeprefix(" ") if tag else text


def beginning(text: str, limit: int, length: Callable[[str], int]) -> str:
    """The longest beginning of a text of more than `limit` tokens that has no more; `length` counts tokens."""
    most = limit
    while length(text[:most]) <= limit:
        most *= 2
    return text[: bisect_right(range(most), limit, key=lambda end: length(text[:end])) - 1]


def has_letters(text: str) -> bool:
    """Whether a text has something to translate: letters of any script, outside of placeholders, addresses and markup.

    Digits, punctuation, signs such as ² and №, emoji (also ℹ) and modifiers such as ˆ are no letters.
    """
    return any(c.isalpha() and category(c) != "Lm" and c != "ℹ" for c in MARKUP.sub("", RUN.sub("", text)))


def in_capitals(text: str, language: str | None, *, of_words: bool = False) -> str:
    """A text in capitals, or with one at the beginning of each word, except for placeholders, addresses and tags."""

    def changed(match: re.Match[str]) -> str:
        word = match[0]
        return _upper(word[0], language, str.title) + word[1:] if of_words else _upper(word, language)

    return rewritten_words(text, changed).text


def is_in_capitals(text: str) -> bool:
    """Whether all letters of a text are capitals, or have none; at least one word is too long for an acronym."""
    words = LETTERS.findall(PLACEHOLDER.sub("", TAG.sub("", text)))
    return any(len(word) >= WORD_IN_CAPITALS for word in words) and all(
        c.isupper() or combining(c) or c in "ßªº'’" or category(c) == "Lm" for word in words for c in word
    )


def _upper(word: str, language: str | None, change: Callable[[str], str] = str.upper) -> str:
    return change(word.replace("i", "İ") if _has_two_i(language) else word)


def _lower(word: re.Match[str], language: str | None) -> str:
    """A word of a text in capitals in lower case, with a capital at the beginning of a sentence."""
    text = word[0].replace("I", "ı").replace("İ", "i") if _has_two_i(language) else word[0]
    is_pronoun = word[0].startswith(("I'", "I’")) or word[0] == "I"
    if BEFORE_SENTENCE.search(word.string, 0, word.start()) or (is_pronoun and (language or "")[:2] == "en"):
        first = text[0].lower()
        return _upper(first, language, str.title) + text.lower()[len(first) :]  # with the sigma of a word's end
    return text.lower()


def _has_two_i(language: str | None) -> bool:
    return re.split("[_-]", language or "")[0] in ("tr", "tur", "az", "aze", "azj")


class TranslationInputs:
    """Encodes texts for a pair of languages as the model was trained to read them.

    `task`: name of a task such as `"translation_de_to_en"`, whose languages are the default, or of `ONE_LANGUAGE`.
    `terms` gives the edits of a text that say how to translate its terms.

    All methods raise `ValueError` for languages that the model does not support.
    """

    def __init__(self, config: Any, tokenizer: Any, task: str | None = None):
        self.config, self.tokenizer, self.task = config, tokenizer, task
        self.terms: Callable[[str], Sequence[Edit]] = lambda text: ()
        self.positions = position_limit(config)
        self.codes = [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")]

    @property
    def has_own_codes(self) -> bool:
        """Whether the tokenizer adds language codes to translations itself (mBART, NLLB, M2M100)."""
        return hasattr(self.tokenizer, "_build_translation_inputs") and self.task not in ONE_LANGUAGE

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Target texts as token ids, without codes of languages and the end."""
        side = "text" if self.has_own_codes else "text_target"  # M2M100 reads no target without its language
        given = {side: list(texts), "add_special_tokens": False, "verbose": False}
        return target_reader(self.tokenizer)(**given)["input_ids"] if texts else []

    @property
    def tags_targets(self) -> bool:
        """Whether a translation begins with the tag of its language."""
        return getattr(self.config, "language_tags", None) == "target"

    @cached_property
    def tags(self) -> dict[str, str]:
        """Map target languages to their tags in the vocabulary; empty for a model of one pair that reads none."""
        config = self.config
        bilingual = getattr(config, "language_tags", "source") is None and config.source_lang and config.target_lang
        return {} if bilingual else language_tags(self.tokenizer)

    def languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
        """The given languages, by default those of the task name."""
        named = TASK_PATTERN.fullmatch(self.task or "")
        return (src_lang or named[1], tgt_lang or named[2]) if named else (src_lang, tgt_lang)

    def edited(self, text: str) -> EditedText:
        """A text as the model reads it: with tokens for its placeholders if it was trained so, else without emoji.

        A text in capitals is in lower case, unless the config has `reads_capitals`.
        """
        terms = self.terms(text)
        edited = masked(text, taken=terms) if self.has_placeholders else without_emoji(text, terms)
        if not self.lowers(text):
            return edited
        kept = [term for term in terms if term.new == text[term.start : term.end]]
        others = [edit for edit in edited.edits if edit not in kept]
        return rewritten_words(text, lambda word: _lower(word, self.pair[0]), others)

    def restored(self, translation: str, source: str) -> EditedText:
        """A translation that the model has written, with the placeholders, emoji and capitals of its source."""
        found = (restored if self.has_placeholders else with_emoji)(translation, self.edited(source))
        if not self.lowers(source):
            return found
        return rewritten_words(translation, lambda word: _upper(word[0], self.pair[1]), found.edits)

    def as_written(self, translation: str, source: str) -> str:
        """A translation as the model writes it, before `restored`; one in capitals is in lower case."""
        marked = self.has_placeholders
        found = masked_pair(source, translation, learned=False)[1] if marked else without_emoji(translation)
        if self.lowers(source) and translation.replace("ß", "").isupper():
            found = rewritten_words(translation, lambda word: _lower(word, self.pair[1]), found.edits)
        return found.text

    @cached_property
    def pair(self) -> tuple[str | None, str | None]:
        """Source and target language of a bilingual model."""
        return languages_of(self.config, self.tokenizer)

    @cached_property
    def lowers_capitals(self) -> bool:
        """Whether text in capitals is read in lower case: by a model of known languages that is for whole words."""
        reads_capitals = None in self.pair or self.is_monolingual or getattr(self.config, "reads_capitals", False)
        kind = type(getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)).__name__
        segmented = kind == "WordLevel" and any(token.endswith("@@") for token in self.tokenizer.get_vocab())
        return not (reads_capitals or segmented)

    def lowers(self, text: str) -> bool:
        return self.lowers_capitals and is_in_capitals(text)

    @property
    def is_monolingual(self) -> bool:
        """Whether this is another task than translation."""
        return self.task in ONE_LANGUAGE or (self.pair[0] is not None and self.pair[0] == self.pair[1])

    def kept(self, text: str) -> str | None:
        """The translation of a text without letters, which is the text, or empty if it is blank; None for others.

        Only a model that names one language for both sides, or an other task than translation, reads such texts too.
        """
        if not text.strip():
            return ""
        if self.is_monolingual:
            return None
        text = without_tag(text) if self.tags else text
        return None if has_letters(text) else text

    @property
    def has_placeholders(self) -> bool:
        return bool(getattr(self.config, "placeholders", False))

    def encode(
        self, text: str | Sequence[str], src_lang: str | None, tgt_lang: str | None, **options: Any
    ) -> dict[str, Any]:
        """The result of the tokenizer, with its `options`, for a text or several ones; with `forced_bos_token_id` if
        the model needs it."""
        src_lang, tgt_lang = self.languages(src_lang, tgt_lang)
        text = self.edited(text).text if isinstance(text, str) else [self.edited(each).text for each in text]
        if self.has_own_codes:
            inputs = self._with_own_codes(text, src_lang, tgt_lang, options)
        elif self.tags_targets:
            target = getattr(self.tokenizer, "target_tokenizer", None)
            of_token = self.tokenizer.convert_tokens_to_ids if target is None else target.token_to_id
            forced = of_token(self._target_tag(src_lang, tgt_lang))
            inputs = {**self.tokenizer(text, verbose=False, **options), "forced_bos_token_id": forced}
        else:
            texts = [text] if isinstance(text, str) else text
            prompted = [self._prompted(each, src_lang, tgt_lang) for each in texts]
            inputs = self.tokenizer(prompted[0] if isinstance(text, str) else prompted, verbose=False, **options)
        return {name: value for name, value in inputs.items() if name != "token_type_ids"}

    def check(self, src_lang: str | None, tgt_lang: str | None) -> None:
        """Raise `ValueError` for languages that the model does not support; warn where it names none."""
        if self.has_own_codes:
            return
        source, target = self.pair
        pairs: list[tuple[str | None, str | None]] = [(source, tag) for tag in sorted(self.tags)]
        if not pairs and (source or target):
            pairs = [(source, target)]
        elif not pairs and (src_lang, tgt_lang) != self.languages(None, None):
            pairs = list(self.prompts)
            if not pairs:
                given = tgt_lang or src_lang
                logger.warning_once(
                    f"The model names no languages: {given!r} is not checked and changes no translation."
                )
        if pairs and not any(_fits((src_lang, tgt_lang), pair) for pair in pairs):
            asked = _named(source if src_lang is None else src_lang, target if tgt_lang is None else tgt_lang)
            supported = ", ".join(_named(*pair) for pair in pairs)
            raise ValueError(f"this model does not translate {asked}. Supported: {supported}.")

    @cached_property
    def prompts(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Prompt and generation arguments of the pairs in `config.task_specific_params` (T5)."""
        tasks = getattr(self.config, "task_specific_params", None) or {}
        named = {TASK_PATTERN.fullmatch(task): parameters for task, parameters in tasks.items()}
        return {(match[1], match[2]): parameters for match, parameters in named.items() if match}

    def task_parameters(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Prompt and generation arguments of the task in `config.task_specific_params` (T5)."""
        if self.task in ONE_LANGUAGE:
            return (getattr(self.config, "task_specific_params", None) or {}).get(self.task, {})
        fitting = [pair for pair in self.prompts if _fits((src_lang, tgt_lang), pair)]
        if self.prompts and len(fitting) != 1:
            prompt = f"that of {_named(*fitting[0])}" if fitting else "none"
            known = ", ".join(_named(*pair) for pair in self.prompts)
            logger.warning_once(
                f"{len(fitting)} prompts fit {_named(src_lang, tgt_lang)}, using {prompt}. Known: {known}."
            )
        return self.prompts[fitting[0]] if fitting else {}

    def _target_tag(self, src_lang: str | None, tgt_lang: str | None) -> str:
        self.check(src_lang, tgt_lang)
        language = tgt_lang or getattr(self.config, "target_lang", None)
        if language not in self.tags:
            known = ", ".join(sorted(self.tags))
            raise ValueError(f"this model translates into several languages: name the target language, one of {known}")
        return self.tags[language]

    def _prompted(self, text: str, src_lang: str | None, tgt_lang: str | None) -> str:
        """The text with the prefix that the model expects: a language tag, the prompt of T5, or nothing."""
        if self.tags and (tgt_lang or not text.startswith(tuple(self.tags.values()))):
            return f"{self._target_tag(src_lang, tgt_lang)} {text}"
        self.check(src_lang, tgt_lang)
        prefix = self.task_parameters(src_lang, tgt_lang).get("prefix", getattr(self.config, "prefix", None))
        return (prefix or "") + text

    def _with_own_codes(
        self, text: str | Sequence[str], src_lang: str | None, tgt_lang: str | None, options: dict[str, Any]
    ) -> Mapping[str, Any]:
        pair = [getattr(self.config, name, None) for name in ("source_lang", "target_lang")]
        if all(pair) and all(self.codes):  # fine-tuned for one pair, of which the tokenizer was saved with the codes
            given = zip((src_lang, tgt_lang), pair, self.codes, strict=True)
            src_lang, tgt_lang = (code if language in (None, own) else language for language, own, code in given)
        unknown = f"the tokenizer does not know the languages {src_lang!r} to {tgt_lang!r}"
        options = {"return_tensors": None, **options}  # which some of them require
        try:
            inputs = self.tokenizer._build_translation_inputs(text, src_lang=src_lang, tgt_lang=tgt_lang, **options)
        except KeyError as error:
            raise ValueError(f"{unknown}: {error}") from error
        nothing, token_id = (None, self.tokenizer.unk_token_id), self.tokenizer.convert_tokens_to_ids
        target_id = inputs.get("forced_bos_token_id", -1)
        if target_id in nothing or (target_id == token_id(tgt_lang) and token_id(src_lang) in nothing):
            raise ValueError(f"{unknown}. Special tokens: {', '.join(self.tokenizer.all_special_tokens)}")
        if target_id == getattr(self.config, "decoder_start_token_id", None):  # mBART: not a second time
            inputs.pop("forced_bos_token_id")
        return inputs


def _fits(given: tuple[str | None, str | None], pair: tuple[str | None, str | None]) -> bool:
    """Whether languages are those of a pair, as far as both are named."""
    return all(one is None or other is None or one == other for one, other in zip(given, pair, strict=True))


def _named(source: str | None, target: str | None) -> str:
    return " to ".join("any" if language is None else language or "''" for language in (source, target))
