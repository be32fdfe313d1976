# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Random noun phrases, places and times that make sense where they are used."""

from __future__ import annotations

from functools import cache

from residual_hf.data.generated.clauses import Part
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.german import ACC, DAT, prepositional
from residual_hf.data.generated.nouns import CITIES, MEN, NOUNS, PLACES, WOMEN, Adjective, Noun, adjectives_for, nouns
from residual_hf.data.generated.numerals import MONTHS, cardinal, clock, date
from residual_hf.data.generated.phrases import (
    BARE,
    MANY,
    NOT_A,
    NOT_ANY,
    POSSESSIVE,
    PRONOUNS,
    THE,
    THIS,
    A,
    Determiner,
    NounPhrase,
    both,
    noun_phrase,
    number,
    of_name,
    owned_by,
    person_named,
    portion,
)

NAMES = WOMEN + MEN
KIN, PEOPLE = nouns("kin"), nouns("people")
_COUPLES = tuple(
    (NOUNS[a], NOUNS[b]) for a, b in (("sister", "brother"), ("grandmother", "grandfather"), ("aunt", "uncle"))
)
_OFTEN_SEVERAL = nouns("sister brother daughter son friend colleague")
_VESSELS = {"coffee": nouns("cup"), "tea": nouns("cup"), "milk": nouns("glass cup"), "water": nouns("glass bottle"),
            "beer": nouns("glass bottle"), "wine": nouns("glass bottle")}  # fmt: skip
PERSONAL = ("I", "you", "he", "she", "we", "they")
_OWNERS = ("I", "I", "you", "he", "she", "we", "they")
_SETTLED = {"home", "venue", "opening"}  # of these there is one, and everybody knows which
# How often things come in numbers, by noun or kind of noun.
_SEVERAL = {
    "egg": 0.9,
    "tomato": 0.9,
    "potato": 0.9,
    "apple": 0.6,
    "flower": 0.7,
    "post": 0.4,
    "read": 0.3,
    "fare": 0.4,
}

WEEKDAYS = (
    ("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Wednesday", "Mittwoch"), ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"), ("Saturday", "Samstag"), ("Sunday", "Sonntag"),
)  # fmt: skip
_HABITS = (
    ("every day", "jeden Tag"), ("every morning", "jeden Morgen"), ("every evening", "jeden Abend"),
    ("in summer", "im Sommer"), ("in winter", "im Winter"), ("at the weekend", "am Wochenende"),
)  # fmt: skip
_FREQUENCIES = (("often", "oft"), ("always", "immer"), ("sometimes", "manchmal"), ("never", "nie"))
_NOW = ("today", "heute"), ("tomorrow", "morgen"), ("this evening", "heute Abend"), ("tomorrow morning", "morgen früh")
_PAST = (("yesterday", "gestern"), ("yesterday evening", "gestern Abend"), ("this morning", "heute Morgen"))
_LONG_PAST = (("last week", "letzte Woche"), ("last year", "letztes Jahr"), ("last summer", "letzten Sommer"))
_FUTURE = (("next week", "nächste Woche"), ("next year", "nächstes Jahr"), ("next summer", "nächsten Sommer"))
_UNITS = (("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"))


@cache
def _fitting(described: Noun) -> tuple[Adjective, ...]:
    return adjectives_for(described)


def adjective(dice: Dice, described: Noun, probability: float) -> Adjective | None:
    fitting = _fitting(described)
    return dice.pick(fitting) if fitting and dice.chance(probability) else None


def kinsperson(dice: Dice, owner: str = "") -> NounPhrase:
    """Somebody's relative, friend or colleague: my sister, Anna's parents."""
    relative = dice.pick(KIN)
    if not owner and dice.chance(0.25):
        return noun_phrase(of_name(dice.pick(NAMES)), None, relative)
    return noun_phrase(
        POSSESSIVE[owner or dice.pick(_OWNERS)], None, relative, relative in _OFTEN_SEVERAL and dice.chance(0.15)
    )


def stranger(dice: Dice, definite: bool = False) -> NounPhrase:
    """Somebody known by what he or she is: the young doctor, this friendly neighbour, a tired man."""
    who = dice.pick(PEOPLE)
    determiner = dice.pick((THE, THE, THIS) if definite or who.en == "child" else (THE, THE, THE, THIS, A))
    several = who.en == "child" or (determiner is not A and dice.chance(0.15))  # one child would be "it"
    return noun_phrase(determiner, adjective(dice, who, 0.35), who, several)


def somebody(dice: Dice, definite: bool = False) -> NounPhrase:
    """A person that no pronoun stands for."""
    draw = dice.between(1, 100)
    if draw <= 40:
        return person_named(dice.pick(NAMES))
    if draw <= 70:
        return kinsperson(dice)
    if draw <= 94:
        return stranger(dice, definite)
    if draw <= 97:
        owner = POSSESSIVE[dice.pick(_OWNERS)]
        first, second = dice.pick(_COUPLES)
        return both(noun_phrase(owner, None, first), noun_phrase(owner, None, second))
    return both(person_named(dice.pick(WOMEN)), person_named(dice.pick(MEN)))


def subject(dice: Dice) -> NounPhrase:
    return PRONOUNS[dice.pick(PERSONAL)].phrase if dice.chance(0.4) else somebody(dice)


def other_person(dice: Dice, than: NounPhrase, definite: bool = False) -> NounPhrase:
    """Somebody who is not `than`: nobody calls himself here."""
    while True:
        if dice.chance(0.3):
            key = dice.pick(PERSONAL)
            if key != than.pronoun and {key, than.pronoun} != {"I", "we"}:
                return PRONOUNS[key].phrase
        else:
            person = kinsperson(dice, than.pronoun) if dice.chance(0.4) else somebody(dice, definite)
            if person.en != than.en:
                return person


def thing(dice: Dice, options: tuple[Noun, ...], owner: str, manner: str = "") -> NounPhrase:
    """One of the things in `options`; `owner` is the pronoun whose possessive may come before it, or "".

    `manner` is "" in general, negated for the object of a negated verb (kein), generic for what one likes or knows.
    """
    what = dice.pick(options)
    described = adjective(dice, what, 0.35)
    if what.kind in _SETTLED:
        common = what.kind == "venue" or dice.chance(0.7)
        return noun_phrase(THE if common else POSSESSIVE[owner], described, what)
    if manner == "negated":
        several = bool(what.en_plural) and (what.en == "shoe" or dice.chance(0.2))
        return noun_phrase(NOT_A if what.en_plural else NOT_ANY, described, what, several)
    if not what.en_plural:
        if what.kind == "drink" and not manner and dice.chance(0.35):
            return serving(dice, A, what)
        return noun_phrase(BARE if manner else dice.pick((BARE, BARE, THE)), described, what)
    if manner == "generic":
        several = what.kind in ("food", "animal") or what.en == "shoe"
        return noun_phrase(BARE if several else dice.pick((THE, THIS, POSSESSIVE[owner])), described, what, several)
    if what.en == "shoe" or dice.chance(_SEVERAL.get(what.en) or _SEVERAL.get(what.kind, 0.08)):
        most = 12 if what.en in _SEVERAL or what.kind in _SEVERAL else 4
        if what.en != "shoe" and dice.chance(0.4):
            return noun_phrase(number(dice.between(2, most)), described, what, True)
        return noun_phrase(dice.pick((BARE, BARE, THE, MANY, THIS)), described, what, True)
    if what.kind in ("food", "animal", "event", "transport", "people"):
        return noun_phrase(dice.pick((A, A, THE, THIS)), described, what)
    if not owner:
        return noun_phrase(dice.pick((A, A, A, THE, THIS)), described, what)
    if dice.chance(0.1):
        return owned(dice, what)
    return noun_phrase(dice.pick((A, A, A, THE, THIS, POSSESSIVE[owner], POSSESSIVE[owner])), described, what)


def serving(dice: Dice, determiner: Determiner, drink: Noun) -> NounPhrase:
    """A drink in what it is served in: a cup of tea."""
    return portion(determiner, dice.pick(_VESSELS[drink.en]), drink)


def something(dice: Dice, options: tuple[Noun, ...]) -> NounPhrase:
    """One of the things in `options`, not yet spoken of: a new car, time."""
    what = dice.pick(options)
    return noun_phrase(A if what.en_plural else BARE, adjective(dice, what, 0.4), what)


def owned(dice: Dice, what: Noun) -> NounPhrase:
    """A thing of somebody else: Anna's red coat, my neighbour's car."""
    described = adjective(dice, what, 0.3)
    if dice.chance(0.4):
        return noun_phrase(of_name(dice.pick(NAMES)), described, what)
    relative = dice.pick(KIN[:-1])
    determiner: Determiner = POSSESSIVE[dice.pick(_OWNERS)]
    if dice.chance(0.4):
        relative, determiner = dice.pick(PEOPLE), THE
    return owned_by(noun_phrase(determiner, None, relative), described, what)


def place(dice: Dice, choices: tuple[str, ...], going: bool = False, role: str = "place") -> Part:
    """Where one is or, `going`, where one goes: in the small kitchen (dative), into the kitchen (accusative)."""
    name = dice.pick(choices)
    if name == "TOWN":
        en, de = dice.pick(tuple(CITIES.items()))
        return Part(f"to {en}", f"nach {de}", role) if going else Part(f"in {en}", f"in {de}", role)
    if name == "HOME":
        return Part("home", "nach Hause", role) if going else Part("at home", "zu Hause", role)
    where = PLACES[name]
    described = adjective(dice, where.noun, 0.2)
    determiner = A if described and where.noun.kind != "home" and dice.chance(0.4) else THE
    phrase = noun_phrase(determiner, described, where.noun)
    if going:
        case = DAT if where.de_to == "zu" else ACC
        return Part(f"{where.en_to} {phrase.en}", prepositional(where.de_to, phrase.de[case]), role)
    return Part(f"{where.en_at} {phrase.en}", prepositional(where.de_at, phrase.de[DAT]), role)


def dated(dice: Dice) -> Part:
    """On a weekday or on a day of the month: am Montag, am dritten Mai."""
    if dice.chance(0.6):
        en, de = dice.pick(WEEKDAYS)
        return Part(f"on {en}", f"am {de}", "day")
    month = dice.between(1, 12)
    en, de = date(dice.between(1, MONTHS[month - 1][2]), month, "en")
    return Part(f"on {en}", f"am {de}", "day")


def day(dice: Dice, tense: str) -> tuple[Part, bool]:
    """When, as fits `tense` (now, habit, past, recent or future), and whether a time of day may be added."""
    if tense == "habit":
        if dice.chance(0.4):
            return Part(*dice.pick(_FREQUENCIES), "frequency"), False
        if dice.chance(0.3):
            en, de = dice.pick(WEEKDAYS)
            return Part(f"on {en}s", f"{de.lower()}s", "day"), True
        index = dice.between(0, len(_HABITS) - 1)
        return Part(*_HABITS[index], "day"), index == 0
    if dice.chance(0.35):
        return dated(dice), True
    if tense in ("past", "recent"):
        draw = 2 if tense == "recent" else dice.between(1, 3)
        if draw == 1:
            unit, einheit = dice.pick(_UNITS)
            en, de = cardinal(dice.between(2, 12))
            return Part(f"{en} {unit} ago", f"vor {de} {einheit}", "day"), False
        words = dice.pick(_PAST if draw == 2 else _LONG_PAST)
        return Part(*words, "day"), words == _PAST[0]
    if tense == "future" and dice.chance(0.6):
        return Part(*dice.pick(_FUTURE), "day"), False
    near = dice.chance(0.6)
    return Part(*dice.pick(_NOW[:2] if near else _NOW[2:]), "day"), near


def time_of_day(dice: Dice) -> Part:
    minute = dice.pick((0, 0, 0, 15, 30, 30, 45, 5, 10, 20, 40, 50, 55))
    en, de = clock(dice.between(1, 12), minute)
    return Part(f"at {en}", f"um {de}", "clock")
