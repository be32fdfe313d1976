"""Names of languages, for people and of detectors, and the codes that NLLB, M2M100 and mBART add to a text."""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.core import get_global

from residual_hf.base.errors import InputError

from .data_settings import DataSettings

CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""Such as `deu_Latn` or `de_DE`."""
OF_NAMES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "uk", "ru", "ja", "zh")


def adds_codes(tokenizer: Any) -> bool:
    """Whether a tokenizer adds the codes of `src_lang` and `tgt_lang` to texts."""
    return hasattr(tokenizer, "_build_translation_inputs")


def codes_of(tokenizer: Any) -> dict[str, int]:
    """The ids of the languages of a tokenizer by their codes."""
    named = getattr(tokenizer, "lang_code_to_token", None)  # `__de__` for `de` of M2M100
    tokens = named or {token: token for token in tokenizer.get_vocab() if CODE.fullmatch(token)}
    return {code: tokenizer.convert_tokens_to_ids(token) for code, token in tokens.items()}


def set_languages(tokenizer: Any, data: DataSettings, where: str) -> None:
    """Let a tokenizer that adds codes add those of the one pair of languages of a recipe, also when it is saved.

    Raises `InputError` that begins with `where` for several pairs, tags, and a language that it does not have.
    """
    pairs = sorted({(str(spec.source_lang), str(spec.target_lang)) for spec in data.corpora})
    given = {"data.bidirectional": data.bidirectional, "data.language_tags": data.language_tags}
    given[f"the languages {', '.join(map(' to '.join, pairs))}"] = len(pairs) > 1
    if wrong := [name for name, value in given.items() if value]:
        raise InputError(
            f"{where}: a {type(tokenizer).__name__}, which adds codes of languages, is only supported for one pair of "
            f"languages without tags, not with {wrong[0]}"
        )
    set_pair(tokenizer, *pairs[0], where)


def set_pair(tokenizer: Any, source_lang: str, target_lang: str, where: str) -> None:
    """Let a tokenizer that adds codes add those of two languages.

    Raises `InputError` that begins with `where` for a language that it does not have.
    """
    known = list(codes_of(tokenizer))
    for name, language in (("src_lang", source_lang), ("tgt_lang", target_lang)):
        code = code_of(language, known)
        if code is None:
            near = [code for code in known if _parts(code)[0] == _parts(language)[0]] or known
            raise InputError(f"{where}: no code for the language {language!r}; it has {', '.join(near)}")
        setattr(tokenizer, name, code)


def code_of(language: str, known: list[str]) -> str | None:
    """The code for a language: the same, or the only one of that language in that or its usual script or region."""
    if language in known:
        return language
    code, detail = _parts(language)
    found = [other for other in known if _parts(other)[0] == code]
    usual = get_global("likely_subtags").get(code, "").split("_")[1:]
    for details in ([detail.title(), detail.upper()], *([part] for part in usual if not detail)):
        fitting = [other for other in found if _parts(other)[1] in details]
        if len(fitting) == 1:
            return fitting[0]
    return found[0] if len(found) == 1 and not detail else None


def variants(language: str, known: Iterable[str]) -> list[str]:
    """The known codes for a language that a code or its English name gives: the same, then those of other regions.

    They are in the same script: `zh-TW` is no other region of `zh-Hans`.
    """

    def spoken_and_written(name: str) -> tuple[str, str]:
        code = code_given(name)
        return _parts(code)[0], script_of(code)

    wanted = spoken_and_written(language)
    same = [each for each in known if spoken_and_written(each) == wanted]
    return sorted(dict.fromkeys(same), key=lambda each: (each != language, _parts(each)[1] != ""))


def script_of(code: str) -> str:
    """The script of a language, which its code or its region may say, else the usual one; empty if none is known."""
    language, detail = _parts(code)
    parts = re.split("[-_]", detail)
    scripts = [part.title() for part in parts if len(part) == 4]
    likely = get_global("likely_subtags")
    usual = likely.get(f"{language}_{parts[-1].upper()}") or likely.get(language, "")
    return next(iter([*scripts, *usual.split("_")[1:2]]), "")


def _parts(code: str) -> tuple[str, str]:
    """Language by its shortest code, and script or region: `("de", "Latn")` for `deu_Latn`; `EN` is `en`."""
    language, _, detail = code.replace("-", "_").partition("_")
    language = language.lower() if language.isupper() else language
    return get_global("language_aliases").get(language, language), detail


def target_code(tokenizer: Any) -> int | None:
    """The id of the code that is the first token of a translation; None for a tokenizer that adds none."""
    return codes_of(tokenizer)[tokenizer.tgt_lang] if adds_codes(tokenizer) and tokenizer.tgt_lang else None


def begins_with_code(tokenizer: Any) -> bool:
    """Whether labels begin with the code of their language; else, as in mBART, the decoder starts with it."""
    return tokenizer(text_target="a")["input_ids"][0] == target_code(tokenizer)


def _locale(code: str) -> Locale | None:
    """The locale of a language code; None for a code that Babel does not know."""
    try:
        return Locale.parse(code.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        return None


def language_name(code: str) -> str:
    """English name of a language code, or the code."""
    locale = _locale(code)
    return (locale and locale.get_display_name("en")) or code


@lru_cache
def names_of(code: str) -> frozenset[str]:
    """The English name of a language code, and the name in the language itself, in lower case."""
    locale = _locale(re.split("[-_]", code)[0])
    names = [locale.get_language_name(language) for language in ("en", None)] if locale else ()
    return frozenset(str(name).casefold() for name in names)


def code_given(language: str) -> str:
    """The code of a language that its code or its English name gives: `ga` is Irish, not Ga."""
    language = {"pb": "pt-BR", "zt": "zh-Hant"}.get(language, language)  # of LibreTranslate
    return language if is_known(language) else code_named(language) or language


def is_known(code: str) -> bool:
    return _parts(code)[0] in Locale("en").languages


def spoken_in(country: str) -> str | None:
    """The main language of a country whose code is that of no language: `ja` for `jp`, None for `de`."""
    likely: str = get_global("likely_subtags").get(f"und_{country.upper()}", "")
    return None if is_known(country) else likely.partition("_")[0] or None


@lru_cache
def code_named(name: str) -> str | None:
    """The code of a language with this English name, or None."""
    found = (code for code, known in Locale("en").languages.items() if known.casefold() == name.strip().casefold())
    return min(found, key=len, default=None)


def codes_called(name: str) -> set[str]:
    """The languages that a code gives, such as `de-AT`, or a name in one of the languages `OF_NAMES`."""
    name = name.strip().casefold()
    named = (pair for locale in OF_NAMES for pair in Locale(locale).languages.items())
    found = {code for code, known in named if known.casefold() == name}
    code = name.replace("_", "-").partition("-")[0]
    if re.fullmatch("[a-z]{2}(?:[-_][a-z]{2,4})?", name) and code in Locale("en").languages:
        found.add(code)
    return found


def detected_as(code: str, labels: Collection[str]) -> str:
    """The label for a language among those of a detector: `pt` for `pt-BR`, `por_Latn` and `Portuguese`."""
    language = re.split("[-_]", code_given(code))[0].lower()
    locale = None if language in labels else _locale(language)
    return locale.language if locale else language


def bcp47(code: str) -> str:
    """A code as documents name it (BCP 47): `de-DE` for `de_DE`, `zh-Hans` for `zho_Hans`, `en` for `en_XX`."""
    language, *more = re.split("[-_]", code)
    language = detected_as(language, ())
    is_usual = script_of(language) in ("Latn", "")  # not of Serbian, nor of Kazakh
    return "-".join([language, *(part for part in more if part != "XX" and not (part == "Latn" and is_usual))])
