# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""English inflection: the article a/an, persons of verbs, auxiliaries with and without negation or question."""

from __future__ import annotations

from typing import NamedTuple

I, YOU, SINGULAR, PLURAL = range(4)  # how a subject makes the verb agree  # noqa: E741
_BE = ("am", "are", "is", "are")
_WAS = ("was", "were", "was", "were")


class EnglishVerb(NamedTuple):
    """The forms of a verb; `particle` follows it, after a pronoun if `shifts` (pick her up, but wait for her)."""

    base: str
    third: str
    past: str
    progressive: str
    particle: str = ""
    shifts: bool = False


class EnglishModal(NamedTuple):
    """A modal: an auxiliary (can, would like to), `be` with an adjective (is allowed to), or a verb (wants to)."""

    auxiliary: str = ""
    tail: str = ""
    present: str = ""
    past: str = ""
    verb: EnglishVerb | None = None


def third_person(base: str) -> str:
    if base == "have":
        return "has"
    if base.endswith(("s", "sh", "ch", "x", "o")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeou":
        return base[:-1] + "ies"
    return base + "s"


def parse_verb(words: str) -> EnglishVerb:
    """`pick picked picking +up*`: base, past, progressive, particle; the star makes the particle shift."""
    base, past, progressive, *rest = words.split()
    particle = rest[0].lstrip("+") if rest else ""
    return EnglishVerb(base, third_person(base), past, progressive, particle.rstrip("*"), particle.endswith("*"))


def with_article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def verb_group(
    verb: EnglishVerb, tense: str, agreement: int, modal: EnglishModal | None, support: bool
) -> tuple[str, str]:
    """The auxiliary and what follows the place of `not`: (is, buying), ("", buys), (does, want to buy).

    Args:
        tense: simple, progressive, past or future.
        support: whether a negation or a question asks for an auxiliary (do, if there is no other).
    """
    tail = verb.base
    if modal is not None:
        if modal.verb is None:
            if tense == "past":
                return _WAS[agreement], f"{modal.past} {tail}"
            if modal.present:
                return _BE[agreement], f"{modal.present} {tail}"
            return modal.auxiliary, modal.tail + tail
        verb, tail = modal.verb, f"{modal.verb.base} to {tail}"
    elif verb.base == "be" and tense != "future":
        return (_WAS if tense == "past" else _BE)[agreement], ""
    if tense == "future":
        return "will", tail
    if tense == "progressive":
        return _BE[agreement], verb.progressive
    third = agreement == SINGULAR
    if support:
        return "did" if tense == "past" else "does" if third else "do", tail
    finite = verb.past if tense == "past" else verb.third if third else verb.base
    return "", finite + tail[len(verb.base) :]
