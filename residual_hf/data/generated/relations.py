# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentences about owners, comparisons and what there is, and pairs of clauses where a pronoun stands for a thing."""

from __future__ import annotations

from residual_hf.data.generated import choices
from residual_hf.data.generated.clauses import Clause, Pair, Part, english, finished, german
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.english import PLURAL
from residual_hf.data.generated.german import ACC, DAT, NOM, prepositional
from residual_hf.data.generated.nouns import COMPARATIVES, PERSONAL_COMPARATIVES, nouns
from residual_hf.data.generated.numerals import cardinal
from residual_hf.data.generated.phrases import (
    NO,
    POSSESSIVE,
    PRONOUNS,
    THE,
    THIS,
    A,
    NounPhrase,
    noun_phrase,
    number,
    of_name,
    person_named,
    pronoun_for,
)
from residual_hf.data.generated.scenes import LYING, SPOTS, object_part
from residual_hf.data.generated.verbs import BE, BELONG, LIVE, MODALS, VERBS

_CAN = MODALS[0]
_POSSESSIONS = nouns("clothes thing vehicle animal")
_SMALL = LYING + nouns("clothes bag")
_SIGHTS = nouns("cinema restaurant hotel library supermarket market")
_LANDMARKS = nouns("station park theatre museum")
_PEERS = nouns("sister brother friend colleague")
_STORED = (
    ("in the kitchen", "in der Küche", nouns("milk bread cheese coffee tea egg apple tomato potato cup glass")),
    ("in the village", "im Dorf", nouns("hotel restaurant cinema supermarket museum library")),
    ("in the room", "im Zimmer", nouns("furniture radio window")),
    ("in the hotel", "im Hotel", nouns("room guest computer")),
)
# What is bought and then said of it: English, German, and the nouns it suits.
_MERITS = (
    ("cheap", "billig", nouns("clothes vehicle bag watch lamp")),
    ("beautiful", "schön", nouns("clothes bag picture flower lamp")),
    ("interesting", "interessant", nouns("read")),
    ("modern", "modern", nouns("lamp sofa chair table bed camera")),
)


def belonging(dice: Dice) -> Pair:
    """The black umbrella belongs to my neighbour. Der schwarze Regenschirm gehört meinem Nachbarn."""
    what = dice.pick(_POSSESSIONS)
    several = what.en == "shoe" or dice.chance(0.15)
    phrase = noun_phrase(dice.pick((THE, THIS)), choices.adjective(dice, what, 0.5), what, several)
    owner = object_part(choices.subject(dice), DAT)
    clause = Clause(phrase, BELONG, negated=dice.chance(0.15), parts=[owner])
    return finished(english(clause), german(clause))


def _peer(dice: Dice) -> NounPhrase:
    name = dice.pick(choices.NAMES)
    if dice.chance(0.3):
        return person_named(name)
    owner = of_name(name) if dice.chance(0.3) else POSSESSIVE[dice.pick(choices.PERSONAL)]
    return noun_phrase(owner, None, dice.pick(_PEERS))


def comparison(dice: Dice) -> Pair:
    """Anna's car is bigger than our car. Annas Auto ist größer als unser Auto."""
    if dice.chance(0.5):
        first, second = _peer(dice), _peer(dice)
        while second.en == first.en:
            second = _peer(dice)
        if dice.chance(0.4):
            first = PRONOUNS[dice.pick(choices.PERSONAL)].phrase
        en, de = dice.pick(PERSONAL_COMPARATIVES)
    else:
        en, de, fits = dice.pick(COMPARATIVES)
        what = dice.pick(nouns(fits))
        first = choices.owned(dice, what) if dice.chance(0.5) else noun_phrase(dice.pick((THE, THIS)), None, what)
        second = noun_phrase(POSSESSIVE[dice.pick(choices.PERSONAL)], None, what)
    clause = Clause(first, BE, parts=[Part(f"{en} than {second.en}", f"{de} als {second.de[NOM]}", "predicate")])
    return finished(english(clause), german(clause))


def existence(dice: Dice) -> Pair:
    """There is a quiet hotel next to the station. Neben dem Bahnhof gibt es ein ruhiges Hotel."""
    if dice.chance(0.5):
        en, de, _ = dice.pick(SPOTS[2:5])
        landmark = noun_phrase(THE, None, dice.pick(_LANDMARKS))
        en_where, de_where = f"{en} {landmark.en}", prepositional(de, landmark.de[DAT])
        options = _SIGHTS
    else:
        en_where, de_where, options = dice.pick(_STORED)
    what = dice.pick(options)
    lacking = not what.en_plural or dice.chance(0.3)
    several = bool(what.en_plural) and (lacking or dice.chance(0.4))
    determiner = NO if lacking else number(dice.between(2, 6)) if several else A
    phrase = noun_phrase(determiner, choices.adjective(dice, what, 0.5), what, several)
    verb = "are" if phrase.agreement == PLURAL else "is"
    return finished(f"there {verb} {phrase.en} {en_where}", f"{de_where} gibt es {phrase.de[ACC]}")


def lasting(dice: Dice) -> Pair:
    """Anna has lived in Berlin for three years. Anna wohnt seit drei Jahren in Berlin."""
    subject = choices.subject(dice)
    years, jahre = cardinal(dice.between(2, 30))
    lives = dice.chance(0.5)
    verb = LIVE if lives else VERBS["arbeiten"]
    where = choices.place(
        dice, ("TOWN", "village") if lives else ("TOWN", "office", "hotel", "library", "museum", "restaurant")
    )
    clause = Clause(subject, verb, parts=[where, Part(f"for {years} years", f"seit {jahre} Jahren", "day")])
    has = "has" if subject.en not in ("I", "you") and subject.agreement != PLURAL else "have"
    return finished(f"{subject.en} {has} {verb.en.past} {where.en} for {years} years", german(clause))


def lost(dice: Dice) -> Pair:
    """Where is my key? I cannot find it. Wo ist mein Schlüssel? Ich kann ihn nicht finden."""
    what = dice.pick(_SMALL)
    key = dice.pick(choices.PERSONAL)
    phrase = noun_phrase(
        POSSESSIVE[key], choices.adjective(dice, what, 0.4), what, what.en == "shoe" or dice.chance(0.1)
    )
    asked = Clause(phrase, BE)
    it = object_part(pronoun_for(phrase), ACC)
    verb = VERBS[dice.pick(("finden", "finden", "brauchen", "suchen"))]
    searcher = PRONOUNS[key].phrase
    if verb.infinitive == "finden":
        then = Clause(searcher, verb, "simple", _CAN, True, [it])
    elif verb.infinitive == "brauchen":
        then = Clause(searcher, verb, parts=[it, *([choices.day(dice, "now")[0]] if dice.chance(0.7) else [])])
    else:
        then = Clause(searcher, verb, "progressive", parts=[it])
    first = finished(english(asked, question=True, asked="where"), german(asked, "question", asked="wo"), "?")
    second = finished(english(then), german(then))
    return f"{first[0]} {second[0]}", f"{first[1]} {second[1]}"


def found(dice: Dice) -> Pair:
    """Paul lost his umbrella, but Anna found it. Paul hat seinen Regenschirm verloren, aber Anna hat ihn gefunden."""
    loser = choices.subject(dice)
    what = dice.pick(_SMALL)
    phrase = noun_phrase(POSSESSIVE[loser.pronoun], choices.adjective(dice, what, 0.3), what, what.en == "shoe")
    first = Clause(loser, VERBS["verlieren"], "past", parts=[object_part(phrase, ACC)])
    second = Clause(choices.subject(dice), VERBS["finden"], "past", parts=[object_part(pronoun_for(phrase), ACC)])
    if dice.chance(0.6):
        second.parts.append(
            choices.place(dice, ("kitchen", "garden", "room", "office", "park", "beach", "hotel", "TOWN"))
        )
    return finished(f"{english(first)}, but {english(second)}", f"{german(first)}, aber {german(second)}")


def merit(dice: Dice) -> Pair:
    """We bought the lamp because it was cheap. Wir haben die Lampe gekauft, weil sie billig war."""
    en, de, options = dice.pick(_MERITS)
    what = dice.pick(options)
    phrase = noun_phrase(dice.pick((THE, THIS)), None, what, what.en == "shoe" or dice.chance(0.1))
    past = dice.chance(0.6)
    deed = Clause(
        choices.subject(dice), VERBS["kaufen"], "past" if past else "progressive", parts=[object_part(phrase, ACC)]
    )
    if dice.chance(0.5):
        deed.parts.append(choices.day(dice, "past" if past else "now")[0])
    why = Clause(pronoun_for(phrase), BE, "past" if past else "simple", parts=[Part(en, de, "predicate")])
    return finished(f"{english(deed)} because {english(why)}", f"{german(deed)}, weil {german(why, 'subordinate')}")


# Each pattern with its share among all sentences.
RELATIONS = (
    (belonging, 2), (comparison, 2), (existence, 3), (lasting, 2), (lost, 3), (found, 2), (merit, 2),
)  # fmt: skip
