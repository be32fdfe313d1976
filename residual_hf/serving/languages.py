"""The languages that the models of a server translate."""

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from py3langid.langid import MODEL_FILE, LanguageIdentifier
from regex import Pattern

from residual_hf.base.errors import InputError
from residual_hf.data.language_names import code_given, detected_as, language_name, script_of, variants
from residual_hf.data.scripts import LETTER, is_script, letters_of
from residual_hf.generation.translator import Translator
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.translation_inputs import language_tags

from .layout import SAMPLE

CERTAIN = 50  # percent, from which a text is in the target language and stays, and a text of a list is read alone
FAR_LIKELIER = 3  # times
LETTERS = {"Hans": "Han", "Hant": "Han", "Jpan": "Han+Hiragana+Katakana", "Kore": "Hangul+Han"}
"""Scripts of Unicode for those of several writing systems, which codes of languages name."""


@cache
def letters(code: str) -> Pattern:
    """One letter of the script of a language, which is the usual one if its code names none."""
    script = script_of(code)
    script = LETTERS.get(script, script)
    return letters_of(script) if script and is_script(script) else LETTER


@cache
def identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


class Languages:
    """Which translator serves which languages. A language in between joins two models.

    Args:
        translators: by the name of their model, for messages. The first that serves a pair of languages is used.
        sources: source languages of the models whose config has no `source_lang`.
        target: target language of the models whose config has no `target_lang`.
    """

    def __init__(self, translators: dict[str, Translator], sources: Sequence[str] = (), target: str | None = None):
        self.translators: dict[tuple[str, str], Translator] = {}
        sources, target = list(map(code_given, sources)), target and code_given(target)
        for name, translator in translators.items():
            config = translator.model.config
            if config.model_type != ResidualConfig.model_type:
                raise InputError(f"{name}: a {config.model_type} model given; convert it by `residual-hf convert`")
            tags = sorted(language_tags(translator.tokenizer)) if config.language_tags else []
            found: dict[str, list[Any]] = {
                "source-lang": [config.source_lang] if config.source_lang else list(sources),
                "target-lang": tags or [config.target_lang or target],
            }
            for field, languages in found.items():
                if not all(languages) or not languages:
                    raise InputError(f"--{field}: missing, required because the config of {name} names none")
            pairs = [pair for pair in itertools.product(*found.values()) if len(set(pair)) == 2]
            if not pairs:
                only = found["target-lang"][0]
                raise InputError(f"{name}: source and target language are {only!r}, but a server translates")
            for pair in pairs:
                translator.reader.encode([""], *pair)  # refuses languages
                self.translators.setdefault(pair, translator)
        self.sources = list(dict.fromkeys(source for source, _ in self.translators))
        self.targets = list(dict.fromkeys(target for _, target in self.translators))
        if len(self.targets) > 1 and any(translator.glossary for translator in translators.values()):
            several = " and ".join(self.targets)
            raise InputError(f"--glossary: given for {several}, must be for one; a request may have its own")
        labels = set(identifier().labels)
        self._by_label: dict[str, str] = {}
        for code in (*self.sources, *self.targets):
            self._by_label.setdefault(detected_as(code, labels), code)

    def detect(self, text: str) -> list[dict[str, Any]]:
        """The likelihood, in percent, that a text is in each language; of regional ones, the first counts.

        Those of other scripts are left out, but for one that is far likelier, such as Serbian in Latin letters.
        """
        rank = dict(identifier().rank(text))
        found = [(float(rank[label]), code) for label, code in self._by_label.items() if label in rank]
        written = [each for each in found if letters(each[1]).search(text)]
        least = FAR_LIKELIER * max(written, default=(0.0,))[0]
        kept = [each for each in found if each in written or each[0] > least]
        return [
            {"confidence": round(100 * likelihood, 1), "language": code}
            for likelihood, code in sorted(kept, key=lambda each: each[0], reverse=True)
        ] or [{"confidence": 0.0, "language": self.sources[0]}]

    def route(self, source: str, target: str) -> list[str]:
        """The languages from source to target, or of other regions, with one in between if no model serves the pair.

        Raises `InputError`, in the words of LibreTranslate, if there are no such models.
        """
        begins, ends = variants(source, self.sources), variants(target, self.targets)
        for begin, end in itertools.product(begins, ends):
            if (begin, end) in self.translators:
                return [begin, end]
            for between in () if variants(begin, [end]) else self.targets:
                if {(begin, between), (between, end)} <= self.translators.keys():
                    return [begin, between, end]
        for language in (source, target):
            if not variants(language, [*self.sources, *self.targets]):
                raise InputError(f"{language} is not supported")
        if source == target:
            return [target]
        names = [f"{language_name(language)} ({language})" for language in (target, source)]
        raise InputError(f"{names[0]} is not available as a target language from {names[1]}")

    def choose(self, source: str, target: str, text: str) -> tuple[list[str], dict[str, Any] | None]:
        """The route, which is the target alone for text in that language; for the source "auto" also the likeliest
        language of the text that has a route, as of `detect`."""
        if source != "auto":
            return self.route(source, target), None
        detected = self.detect(text)
        likeliest, confidence = detected[0]["language"], detected[0]["confidence"]
        served = {(likeliest, each) for each in variants(target, self.targets)} & self.translators.keys()
        if confidence > CERTAIN and variants(target, [likeliest]) and not served:
            return [target], detected[0]
        for found in detected:
            with suppress(InputError):
                return self.route(found["language"], target), found
        return self.route(detected[0]["language"], target), detected[0]

    def choose_each(
        self, source: str, target: str, texts: Iterable[str]
    ) -> list[tuple[list[str], dict[str, Any] | None]]:
        """`choose` for each text of a list. One whose language is uncertain, as of a word, is read as the list."""
        texts = list(texts)
        whole = self.choose(source, target, "\n".join(texts)[:SAMPLE])
        if source != "auto" or len(texts) == 1:
            return [whole] * len(texts)
        each = (self.choose(source, target, text) for text in texts)
        return [(route, found) if found and found["confidence"] > CERTAIN else whole for route, found in each]

    def listed(self) -> list[dict[str, Any]]:
        """The answer to `/languages`; `via` has the languages between two models, by target."""
        found = []
        for code in dict.fromkeys((*self.sources, *self.targets)):
            targets, via = [target for source, target in self.translators if source == code], {}
            for target in self.targets:
                with suppress(InputError):
                    route = self.route(code, target)
                    if len(route) > 2 and (route[0], route[-1]) == (code, target):
                        via[target] = route[1]
            found.append({"code": code, "name": language_name(code), "targets": [*targets, *via], "via": via or None})
        return found
