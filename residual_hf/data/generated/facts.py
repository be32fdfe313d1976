# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentences about prices, times of day, dates, ages and other numbers."""

from __future__ import annotations

from residual_hf.data.generated import choices
from residual_hf.data.generated.clauses import Clause, Pair, Part, asked, english, finished, german
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.german import ACC, NOM
from residual_hf.data.generated.nouns import CITIES, NOUNS, nouns
from residual_hf.data.generated.numerals import MONTHS, cardinal, clock, date, ordinal, price
from residual_hf.data.generated.phrases import (
    POSSESSIVE,
    THE,
    THIS,
    A,
    NounPhrase,
    noun_phrase,
    of_name,
    owned_by,
    pronoun_for,
)
from residual_hf.data.generated.scenes import object_part
from residual_hf.data.generated.verbs import ARRIVE, BE, COST, LEAVE, START, VERBS

# What things cost: nouns, lowest and highest price and the step between prices, in cents.
_PRICES = (
    (nouns("cake soup flower postcard newspaper"), 100, 990, 10),
    (nouns("ticket"), 1000, 9950, 50),
    (nouns("clothes umbrella bag suitcase watch camera book lamp chair"), 1000, 19900, 100),
    (nouns("table sofa bed cupboard computer bicycle"), 15000, 99900, 100),
    (nouns("car"), 200000, 2500000, 10000),
)
_DRINKS = nouns("drink")
_MERITS = (("beautiful", "schön"), ("good", "gut"), ("modern", "modern"))
_AGES = {"mother": (35, 60), "father": (35, 60), "grandmother": (61, 99), "grandfather": (61, 99), "sister": (2, 30),
         "brother": (2, 30), "daughter": (2, 30), "son": (2, 30), "aunt": (31, 70), "uncle": (31, 70),
         "friend": (18, 70), "colleague": (18, 65)}  # fmt: skip
_MEASURES = (
    ("book", "pages", "Seiten", 80, 900), ("hotel", "rooms", "Zimmer", 20, 400), ("letter", "pages", "Seiten", 2, 12),
)  # fmt: skip
_STAGES = {"film": ("cinema",), "concert": ("park", "theatre", "hotel"), "party": ("garden", "hotel", "restaurant")}


def _price(dice: Dice, prices: tuple[int, int, int]) -> Pair:
    low, high, step = prices
    euros, cents = divmod(dice.between(low // step, high // step) * step, 100)
    return price(_plain(euros), cents)


def _plain(n: int) -> int:
    """`n`, or the next number where Germans disagree about the form before a noun (hunderteins, hundertein)."""
    return n + 1 if n > 100 and n % 100 == 1 else n


def _article(dice: Dice, lasting: bool = False) -> tuple[NounPhrase, Pair]:
    """Something one can buy and, if `lasting`, keep, and its price in words."""
    if not lasting and dice.chance(0.2):
        return choices.serving(dice, dice.pick((A, THIS, THE)), dice.pick(_DRINKS)), _price(dice, (100, 990, 10))
    options, *prices = dice.pick(_PRICES[2:] if lasting else _PRICES)
    what = dice.pick(options)
    several = what.en == "shoe" or dice.chance(0.1)
    described = choices.adjective(dice, what, 0.6)
    if described is not None and described.en in ("cheap", "expensive"):
        described = None
    phrase = noun_phrase(dice.pick((THE, THIS)), described, what, several)
    return phrase, _price(dice, tuple(prices))


def costs(dice: Dice) -> Pair:
    """This red coat costs ninety euros. Dieser rote Mantel kostet neunzig Euro."""
    phrase, (en, de) = _article(dice)
    clause = Clause(phrase, COST, parts=[Part(en, de, "predicate")])
    if dice.chance(0.15):
        clause.parts = []
        return asked(clause, "how much", "wie viel")
    return finished(english(clause), german(clause))


def costs_but(dice: Dice) -> Pair:
    """The lamp is old, but it costs ninety euros. Die Lampe ist alt, aber sie kostet neunzig Euro."""
    phrase, (en, de) = _article(dice, lasting=True)
    merit = dice.pick(_MERITS)
    while merit[0] in phrase.en:
        merit = dice.pick(_MERITS)
    first = Clause(phrase, BE, parts=[Part(*merit, "predicate")])
    second = Clause(pronoun_for(phrase), COST, parts=[Part(en, de, "predicate")])
    return finished(f"{english(first)}, but {english(second)}", f"{german(first)}, aber {german(second)}")


def bought(dice: Dice) -> Pair:
    """We sold the car for nine thousand euros. Wir haben das Auto für neuntausend Euro verkauft."""
    subject = choices.subject(dice)
    options, *prices = dice.pick(_PRICES[1:])
    en, de = _price(dice, tuple(prices))
    what = choices.thing(dice, options, "")
    parts = [object_part(what, ACC), Part(f"for {en}", f"für {de}", "goal")]
    if dice.chance(0.5):
        parts.append(choices.day(dice, "past")[0])
    clause = Clause(subject, VERBS[dice.pick(("kaufen", "kaufen", "verkaufen"))], "past", parts=parts)
    return finished(english(clause), german(clause))


def _appointment(dice: Dice) -> list[Part]:
    parts = [choices.time_of_day(dice)]
    if dice.chance(0.7):
        near = ("today", "heute"), ("tomorrow", "morgen"), ("every day", "jeden Tag")
        parts.append(choices.dated(dice) if dice.chance(0.7) else Part(*dice.pick(near), "day"))
    return parts


def timetable(dice: Dice) -> Pair:
    """The train to Vienna leaves at half past seven. Der Zug nach Wien fährt um halb acht ab."""
    what = dice.pick(nouns("transport"))
    town, stadt = dice.pick(tuple(CITIES.items()))
    vehicle = noun_phrase(THE, None, what)
    leaves = dice.chance(0.6)
    parts = _appointment(dice)
    if leaves:
        de = tuple(f"{form} nach {stadt}" for form in vehicle.de)
        vehicle = vehicle._replace(en=f"{vehicle.en} to {town}", de=de)
    else:
        parts.append(Part(f"in {town}", f"in {stadt}", "place"))
    clause = Clause(vehicle, LEAVE if leaves else ARRIVE, parts=parts)
    if leaves and dice.chance(0.3):
        clause.parts = []
        return asked(clause, "when", "wann")
    return finished(english(clause), german(clause))


def programme(dice: Dice) -> Pair:
    """The concert starts at eight o'clock on Friday. Das Konzert fängt am Freitag um acht Uhr an."""
    what = dice.pick(nouns("event"))
    event = noun_phrase(dice.pick((THE, THIS)), choices.adjective(dice, what, 0.3), what)
    parts = _appointment(dice)
    if dice.chance(0.3):
        parts.append(choices.place(dice, _STAGES[what.en]))
    clause = Clause(event, START, parts=parts)
    return finished(english(clause), german(clause))


def calendar(dice: Dice) -> Pair:
    """Today is the third of May. It is half past seven. Anna's birthday is on the ninth of June."""
    month = dice.between(1, 12)
    en, de = date(dice.between(1, MONTHS[month - 1][2]), month, "e")
    draw = dice.between(1, 10)
    if draw == 1:
        return finished(f"today is {en}", f"heute ist der {de}")
    if draw == 2:
        en, de = clock(dice.between(1, 12), dice.pick((0, 5, 10, 15, 20, 30, 40, 45, 50, 55)))
        return finished(f"it is {en}", f"es ist {de}")
    feast = NOUNS["birthday"]
    if dice.chance(0.3):
        phrase = noun_phrase(of_name(dice.pick(choices.NAMES)), None, feast)
    else:
        relative = noun_phrase(POSSESSIVE[dice.pick(choices.PERSONAL)], None, dice.pick(choices.KIN[:-1]))
        phrase = owned_by(relative, None, feast)
    return finished(f"{phrase.en} is on {en}", f"{phrase.de[NOM]} ist am {de[: de.index(' ')]}n{de[de.index(' ') :]}")


def holiday(dice: Dice) -> Pair:
    """We stayed in Rome from the third to the ninth of May.

    Wir sind vom dritten bis zum neunten Mai in Rom geblieben.
    """
    month, en_month, de_month = dice.pick([(i, *names[:2]) for i, names in enumerate(MONTHS, 1)])
    first = dice.between(1, MONTHS[month - 1][2] - 2)
    last = dice.between(first + 1, MONTHS[month - 1][2])
    (en_first, de_first), (en_last, de_last) = ordinal(first), ordinal(last)
    en, de = f"from the {en_first} to the {en_last} of {en_month}", f"vom {de_first}en bis zum {de_last}en {de_month}"
    parts = [Part(en, de, "day"), choices.place(dice, ("TOWN", "TOWN", "hotel", "village", "HOME"))]
    clause = Clause(choices.subject(dice), VERBS["bleiben"], dice.pick(("progressive", "past", "future")), parts=parts)
    return finished(english(clause), german(clause))


def age(dice: Dice) -> Pair:
    """My grandmother is eighty-one years old. Meine Großmutter ist einundachtzig Jahre alt."""
    name = dice.pick(tuple(_AGES))
    owner = POSSESSIVE[dice.pick(choices.PERSONAL)] if dice.chance(0.6) else of_name(dice.pick(choices.NAMES))
    en, de = cardinal(dice.between(*_AGES[name]))
    old = Part(f"{en} years old", f"{de} Jahre alt", "predicate")
    clause = Clause(noun_phrase(owner, None, NOUNS[name]), BE, parts=[old])
    if dice.chance(0.1):
        clause.parts = []
        return asked(clause, "how old", "wie alt")
    return finished(english(clause), german(clause))


def measure(dice: Dice) -> Pair:
    """This book has three hundred and forty-five pages. Dieses Buch hat dreihundertfünfundvierzig Seiten."""
    name, unit, einheit, low, high = dice.pick(_MEASURES)
    phrase = noun_phrase(dice.pick((THE, THIS)), choices.adjective(dice, NOUNS[name], 0.6), NOUNS[name])
    en, de = cardinal(_plain(dice.between(low, high)))
    return finished(f"{phrase.en} has {en} {unit}", f"{phrase.de[NOM]} hat {de} {einheit}")


# Each pattern with its share among all sentences.
FACTS = (
    (costs, 4), (costs_but, 3), (bought, 3), (timetable, 4), (programme, 3), (calendar, 3), (holiday, 2), (age, 2),
    (measure, 2),
)  # fmt: skip
