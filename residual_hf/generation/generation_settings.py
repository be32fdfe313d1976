"""Settings of the search, and of the translation of lines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError, InputSettings
from residual_hf.model.length_limits import has_length_rule, own_length
from residual_hf.model.options import option, refusal

from .long_text import LONG_TEXT


@dataclass(frozen=True)
class DecodingSettings(InputSettings):
    """Search parameters, for evaluations during training and as defaults of the saved model."""

    also_called = {
        "beam": "num_beams",
        "beam_size": "num_beams",
        "lenpen": "length_penalty",
        "alpha": "length_penalty",
    }

    num_beams: int = option(5, minimum=1, maximum=1000, help="beam size; 1: greedy search")
    length_penalty: float = option(
        1.0, minimum=-2, maximum=10, help="exponent of the length normalization; higher values favor longer outputs"
    )
    early_stopping: bool = option(
        True, help="stop a sentence when `num_beams` hypotheses are finished, as fairseq does"
    )
    max_length_a: float = option(
        2.0, minimum=0, help="limit of a translation: `max_length_a * source length + max_length_b` tokens"
    )
    max_length_b: int = option(50, minimum=1, help="see `max_length_a`")
    max_tokens: int = option(12_000, minimum=1, help="source tokens times beams per batch")
    dtype: str = option(
        "float32",
        choices=DECODING_DTYPES,
        help="precision on a CPU; `float32`: the hypotheses of Transformers; `bfloat16`, `int8`: faster",
    )
    shortlist: bool = option(
        False,
        help="compute only target tokens that are likely for the source, by the lexical shortlist in the model "
        "folder; on a CPU with native kernels",
    )

    @classmethod
    def of_model(cls, model: Any, settings: Mapping[str, Any]) -> "DecodingSettings":
        """The `settings` that are not None, and those that the generation config of a model has."""
        generation = model.generation_config
        saved = {key: getattr(generation, key, None) for key in ("length_penalty", "max_length_a", "max_length_b")}
        saved |= {"num_beams": generation.num_beams or 1, "dtype": getattr(generation, "decoding_dtype", None)}
        if (longest := own_length(generation)) is not None:
            saved |= {"max_length_a": 0.0, "max_length_b": longest}
        if generation.early_stopping is not None or not has_length_rule(generation):  # else of this package
            saved["early_stopping"] = generation.early_stopping is True  # "never" is closest to False
        return cls.given(saved | {key: value for key, value in settings.items() if value is not None})

    @classmethod
    def given(cls, settings: Mapping[str, Any]) -> "DecodingSettings":
        """The `settings` that are not None, and defaults."""
        return cls(**{key: value for key, value in settings.items() if value is not None})

    def generate_arguments(self, max_new_tokens: int) -> dict[str, Any]:
        """Keyword arguments of `model.generate`."""
        arguments: dict[str, Any] = {"num_beams": self.num_beams, "do_sample": False, "max_new_tokens": max_new_tokens}
        if self.num_beams > 1:
            arguments |= {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        return arguments

    def replaced_by(self, arguments: Mapping[str, Any]) -> tuple["DecodingSettings", dict[str, Any]]:
        """Settings with the values that arguments of `model.generate` give for them, and the other arguments."""
        names = ("num_beams", "length_penalty", "max_length", "max_new_tokens")
        own = {name: arguments[name] for name in names if arguments.get(name) is not None}
        for name in names[2:]:
            if own.get(name, 1) < 1:
                raise InputError(refusal(name, own[name], "an integer >= 1"))
        longest = own.pop("max_length", None)  # with the token it begins with
        longest = own.pop("max_new_tokens", longest and max(1, longest - 1))
        if longest is not None:
            own |= {"max_length_a": 0.0, "max_length_b": longest}
        return replace(self, **own), {name: value for name, value in arguments.items() if name not in names}


FILL = ("empty", "unreviewed", "all")


@dataclass(frozen=True)
class SearchRequest(InputSettings):
    """A request to translate some sentences, from `Translator` and the server to `generate`.

    Attributes:
        long: `"split"` sentences at spaces, and join the translations; `"skip"`: their translation is empty.
        scores, alignments: of hypotheses; alignments take another pass of the model.
        generate_arguments: further arguments of `model.generate`.
        shared: the processes of a `torchrun` share the work; all make the same calls and get the same results.
        on_long: called with the position of each sentence that is too long, and the least number of its tokens.
        progress: called after each batch with the number of sentences in it.
    """

    source_lang: str | None = option(None, help="source language of a multilingual model")
    target_lang: str | None = option(None, help="target language of a multilingual model")
    num_return_sequences: int = option(
        1, minimum=1, help="translations per line, each on its own line, best first unless sampled"
    )
    long: str = option(
        "error", choices=LONG_TEXT, help="how to handle lines with more tokens than the model has positions"
    )
    scores: bool = option(False, help="write the score and a tab before each translation")
    alignments: bool = option(
        False, help="write a tab and the word alignment after each translation, as pairs of numbers: `0-0 1-2`"
    )
    generate_arguments: dict[str, Any] = field(default_factory=dict)
    shared: bool = False
    on_long: Callable[[int, int], Any] = field(default=lambda position, tokens: None, compare=False)
    progress: Callable[[int], Any] = field(default=lambda sentences: None, compare=False)

    def check(self) -> None:
        if "generation_config" in self.generate_arguments:
            raise self.error("generation_config: settings would replace its fields; give these as arguments")

    @classmethod
    def of(cls, **asked: Any) -> "SearchRequest":
        """A request by its fields and further arguments of `model.generate`."""
        own = {each.name: asked.pop(each.name) for each in fields(cls) if each.name in asked}
        return cls(**own, generate_arguments=asked)

    @property
    def declared(self) -> dict[str, Any]:
        """The fields that results depend on and files can hold."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata}

    @property
    def samples(self) -> bool:
        return bool(self.generate_arguments.get("do_sample"))


@dataclass(frozen=True)
class StreamSettings(SearchRequest):
    """A request to translate lines of text, with what is written for each."""

    word_scores: bool = option(False, help="write a tab and the probability of each word after each translation")
    flags: bool = option(
        False,
        help="write a tab and suspicions after each translation: repetition, copy, numbers, placeholders, tags, "
        "length, sentences, terms (of a glossary)",
    )
    review: int = option(
        0, minimum=0, help="list so many lines at the end, as messages: those with suspicions, then low scores"
    )
    sample: bool = option(False, help="sample translations instead of searching")
    top_k: int | None = option(None, minimum=1, help="with `sample`: sample from the k most probable tokens")
    temperature: float | None = option(None, above=0, help="with `sample`: lower values favor probable tokens")
    seed: int | None = option(
        None,
        minimum=0,
        maximum=2**32 - 1,
        help="with `sample`: the same seed (default: 1) gives the same translations",
    )
    split_sentences: bool = option(
        False,
        help="lines are paragraphs: translate each of their sentences by itself, parts of those that are too long",
    )
    window: int = option(2000, minimum=1, help="number of lines to read, translate and write together")
    fill: str = option(
        "empty",
        choices=FILL,
        help="which messages of PO, XLIFF and Qt to translate: those without a translation, also those that are fuzzy "
        "or need a review, or all",
    )
    mark_fuzzy: bool = option(
        False, help="PO: mark translations as fuzzy, for a review; others have marks of their own"
    )

    def check(self) -> None:
        for name in ("top_k", "temperature", "seed"):
            self.require(self.sample or getattr(self, name) is None, name, "absent without `sample`")
        splits = "error or split with `split_sentences`"
        self.require(not self.split_sentences or self.long in ("error", "split"), "long", splits)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments of `model.generate` to sample."""
        if not self.sample:
            return {}
        return {"do_sample": True, "top_k": self.top_k or 0, "top_p": 1.0, "temperature": self.temperature or 1.0}
