# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Noun phrases in both languages: determiners, names, pronouns, owners in the genitive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from residual_hf.data.generated import german
from residual_hf.data.generated.english import PLURAL, SINGULAR, YOU, I, with_article
from residual_hf.data.generated.german import DER_WORD, EIN_WORD, GEN, MIXED, STRONG, WEAK, Cases
from residual_hf.data.generated.nouns import MEN, Adjective, Noun
from residual_hf.data.generated.numerals import cardinal


class NounPhrase(NamedTuple):
    """`pronoun` names the entry of PRONOUNS that can stand for it; `definite` decides its place among the objects."""

    en: str
    en_object: str
    de: Cases
    agreement: int
    pronoun: str
    definite: bool = True
    is_pronoun: bool = False


class Pronoun(NamedTuple):
    phrase: NounPhrase
    en_possessive: str
    de_possessive: str


def _pronoun(key: str, agreement: int, english: str, german_forms: str) -> Pronoun:
    subject, other, possessive = english.split()
    *cases, de_possessive = german_forms.split()
    phrase = NounPhrase(subject, other, (*cases, ""), agreement, key, is_pronoun=True)
    return Pronoun(phrase, possessive, de_possessive)


# `you` is always the familiar du; `it` takes the gender of the German noun it stands for.
PRONOUNS: Mapping[str, Pronoun] = {
    "I": _pronoun("I", I, "I me my", "ich mich mir mein"),
    "you": _pronoun("you", YOU, "you you your", "du dich dir dein"),
    "he": _pronoun("he", SINGULAR, "he him his", "er ihn ihm sein"),
    "she": _pronoun("she", SINGULAR, "she her her", "sie sie ihr ihr"),
    "it m": _pronoun("it m", SINGULAR, "it it its", "er ihn ihm sein"),
    "it f": _pronoun("it f", SINGULAR, "it it its", "sie sie ihr ihr"),
    "it n": _pronoun("it n", SINGULAR, "it it its", "es es ihm sein"),
    "we": _pronoun("we", PLURAL, "we us our", "wir uns uns unser"),
    "they": _pronoun("they", PLURAL, "they them their", "sie sie ihnen ihr"),
}
WHO = NounPhrase("who", "who", ("wer", "wen", "wem", "wessen"), SINGULAR, "he", is_pronoun=True)


@dataclass(frozen=True, eq=False)
class Determiner:
    """English before singular and plural, the German stem with its endings, and the endings of adjectives after it."""

    en: str
    en_plural: str
    de: str
    article: Mapping[str, Cases]
    adjective: Mapping[str, Cases]
    definite: bool = True


THE = Determiner("the", "the", "", german.DEFINITE_ARTICLE, WEAK)
THIS = Determiner("this", "these", "dies", DER_WORD, WEAK)
WHICH = Determiner("which", "which", "welch", DER_WORD, WEAK)
A = Determiner("a", "", "ein", EIN_WORD, MIXED, definite=False)
BARE = Determiner("", "", "", {}, STRONG, definite=False)
MANY = Determiner("", "many", "viel", DER_WORD, STRONG, definite=False)
NOT_A = Determiner("a", "any", "kein", EIN_WORD, MIXED, definite=False)  # English has the negation in the verb
NOT_ANY = Determiner("any", "any", "kein", EIN_WORD, MIXED, definite=False)  # the same before a mass noun
NO = Determiner("no", "no", "kein", EIN_WORD, MIXED, definite=False)
HOW_MANY = Determiner("", "how many", "wie viel", DER_WORD, STRONG, definite=False)
POSSESSIVE = {
    key: Determiner(pronoun.en_possessive, pronoun.en_possessive, pronoun.de_possessive, EIN_WORD, MIXED)
    for key, pronoun in PRONOUNS.items()
}


@cache
def number(n: int) -> Determiner:
    """A number from two upwards before a plural: three red apples, drei rote Äpfel."""
    en, de = cardinal(n)
    return Determiner("", en, de, {}, STRONG, definite=False)


@cache
def of_name(name: str) -> Determiner:
    """A name in the genitive: Anna's red coat, Annas roter Mantel."""
    return Determiner(f"{name}'s", f"{name}'s", f"{name}s", {}, STRONG)


@cache
def person_named(name: str) -> NounPhrase:
    return NounPhrase(name, name, (name, name, name, f"{name}s"), SINGULAR, "he" if name in MEN else "she")


def _pronoun_of(noun: Noun, plural: bool) -> str:
    if plural or noun.gender == "p":
        return "they"
    if noun.kind in ("kin", "people") and noun.gender != "n":
        return "he" if noun.gender == "m" else "she"
    return f"it {noun.gender}"


@cache
def noun_phrase(determiner: Determiner, adjective: Adjective | None, noun: Noun, plural: bool = False) -> NounPhrase:
    """A determiner, an adjective or None, and a noun; nouns that have only a plural need no `plural`."""
    plural = plural or noun.gender == "p"
    head = noun.en_plural if plural else noun.en
    en = f"{adjective.en} {head}" if adjective else head
    if plural:
        en = f"{determiner.en_plural} {en}".lstrip()
    elif determiner is A or determiner is NOT_A:
        en = with_article(en)
    else:
        en = f"{determiner.en} {en}".lstrip()
    de = german.decline(determiner.de, determiner.article, determiner.adjective, adjective, noun, plural)
    agreement = PLURAL if plural else SINGULAR
    return NounPhrase(en, en, de, agreement, _pronoun_of(noun, plural), determiner.definite)


def owned_by(owner: NounPhrase, adjective: Adjective | None, noun: Noun) -> NounPhrase:
    """A thing and its owner in the genitive: my neighbour's new car, das neue Auto meines Nachbarn."""
    thing = noun_phrase(THE, adjective, noun)
    en = f"{owner.en}'s {thing.en[len('the ') :]}"
    de = tuple(f"{form} {owner.de[GEN]}" for form in thing.de)
    return thing._replace(en=en, en_object=en, de=de)


@cache
def portion(determiner: Determiner, vessel: Noun, drink: Noun, plural: bool = False) -> NounPhrase:
    """A measure of something: two cups of tea, zwei Tassen Tee."""
    measure = noun_phrase(determiner, None, vessel, plural)
    en = f"{measure.en} of {drink.en}"
    return measure._replace(en=en, en_object=en, de=tuple(f"{form} {drink.de}" for form in measure.de))


def both(first: NounPhrase, second: NounPhrase) -> NounPhrase:
    """Two phrases joined by `and`."""
    en = f"{first.en} and {second.en}"
    de = tuple(f"{a} und {b}" for a, b in zip(first.de, second.de, strict=True))
    return NounPhrase(en, en, de, PLURAL, "they", first.definite and second.definite)


def pronoun_for(phrase: NounPhrase) -> NounPhrase:
    """The pronoun that agrees with a phrase: die Lampe -> sie, der Schlüssel -> er (English: it)."""
    return PRONOUNS[phrase.pronoun].phrase


IMPERSONAL = PRONOUNS["it n"].phrase
