# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Statements, questions and sentences with a subordinate clause, built from random clauses."""

from __future__ import annotations

from collections.abc import Callable

from residual_hf.data.generated import choices, scenes
from residual_hf.data.generated.clauses import Clause, Pair, Part, asked, english, finished, german
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.nouns import nouns
from residual_hf.data.generated.phrases import (
    HOW_MANY,
    POSSESSIVE,
    PRONOUNS,
    THE,
    WHICH,
    WHO,
    NounPhrase,
    noun_phrase,
    of_name,
    pronoun_for,
)
from residual_hf.data.generated.verbs import ASK, BE, HOPE, KNOW, LIKED, SAY, THINK, USAGES, Verb

_BUYING = tuple(usage for usage in USAGES if usage.verb.infinitive in ("kaufen", "verkaufen", "bestellen", "brauchen"))
_CHOOSING = (LIKED, *(usage for usage in _BUYING if not {"food", "drink"} & {noun.kind for noun in usage.objects}))
_OF_THINGS = tuple(u for u in USAGES if u.objects and not u.persons and not u.preposition and u.use != "past")
_OF_PERSONS = tuple(u for u in USAGES if u.persons and u.use != "timeless")
_LOCATED = tuple(u for u in USAGES if u.places and "HOME" not in u.places and u.use == "any")
_CHOSEN = nouns("clothes read film restaurant museum hotel")
_OBJECTS = ("definite", "indefinite", "dative", "goal", "accusative pronoun", "dative pronoun")
_CLAIMS: tuple[Verb, ...] = (SAY, THINK, HOPE, KNOW)
_TIMELESS = {usage.verb for usage in (LIKED, *USAGES) if usage.use == "timeless"}
_PAST = ("past", "past modal")
_PRESENT = ("now", "habit", "future", "modal")


def _speaker(dice: Dice) -> NounPhrase:
    """The subject of a question: often you, never I."""
    subject = PRONOUNS["you"].phrase if dice.chance(0.35) else choices.subject(dice)
    return subject if subject.pronoun != "I" else PRONOUNS["we"].phrase


def _same_or_other(dice: Dice, subject: NounPhrase) -> NounPhrase:
    return pronoun_for(subject) if dice.chance(0.6) else choices.subject(dice)


def statement(dice: Dice) -> Pair:
    """Today Anna is buying fresh bread. Heute kauft Anna frisches Brot."""
    clause = scenes.anything(dice, choices.subject(dice))
    days = [part for part in clause.parts if part.role == "day"]
    if days and dice.chance(0.4):
        clause.front = days[0]
        clause.parts.remove(days[0])
    return finished(english(clause), german(clause))


def located(dice: Dice) -> Pair:
    """The key is on the table. Der Schlüssel liegt auf dem Tisch."""
    clause = scenes.lying(dice)
    return finished(english(clause), german(clause))


def reason(dice: Dice) -> Pair:
    """Anna stays at home because she is ill. Anna bleibt zu Hause, weil sie krank ist."""
    subject = choices.subject(dice)
    past = dice.chance(0.4)
    main = scenes.anything(dice, subject, brief=True, tenses=_PAST if past else _PRESENT)
    en, de = dice.pick((("because", "weil"), ("because", "weil"), ("although", "obwohl")))
    draw = dice.between(1, 10)
    if draw <= 6:
        why = scenes.being(dice, _same_or_other(dice, subject), past)
    elif draw <= 8:
        why = scenes.weather(dice, "past" if past else "progressive")
    else:
        scene = dice.pick((scenes.doing, scenes.going))
        why = scene(dice, _same_or_other(dice, subject), True, ("past modal",) if past else ("future", "modal"))
    return finished(f"{english(main)} {en} {english(why)}", f"{german(main)}, {de} {german(why, 'subordinate')}")


def condition(dice: Dice) -> Pair:
    """If it rains, we will stay at home. Wenn es regnet, werden wir zu Hause bleiben."""
    subject = choices.subject(dice)
    when = scenes.weather(dice) if dice.chance(0.35) else scenes.being(dice, _same_or_other(dice, subject))
    main = scenes.anything(dice, subject, brief=True, tenses=("future", "modal"))
    en, de = f"if {english(when)}", f"wenn {german(when, 'subordinate')}"
    if dice.chance(0.6):
        main.front = Part(f"{en},", f"{de},", "front")
        return finished(english(main), german(main))
    return finished(f"{english(main)} {en}", f"{german(main)}, {de}")


def report(dice: Dice) -> Pair:
    """Paul hopes that we will visit him. Paul hofft, dass wir ihn besuchen werden."""
    teller = choices.subject(dice)
    verb = dice.pick(_CLAIMS)
    tenses = ("future",) if verb is HOPE else dice.pick((_PAST, _PRESENT, _PRESENT))
    told = scenes.anything(dice, _same_or_other(dice, teller), brief=True, tenses=tenses)
    main = Clause(teller, verb)
    return finished(f"{english(main)} that {english(told)}", f"{german(main)}, dass {german(told, 'subordinate')}")


def doubt(dice: Dice) -> Pair:
    """Do you know whether the guest is ill? Weißt du, ob der Gast krank ist?"""
    asker = _speaker(dice)
    other = choices.other_person(dice, asker)
    scene = scenes.being if dice.chance(0.3) else scenes.anything
    about = _plain(lambda: scene(dice, other))
    en, de = "whether", "ob"
    if dice.chance(0.35):
        en, de = dice.pick((("when", "wann"), ("why", "warum")))
        about = _plain(lambda: scenes.doing(dice, other, brief=True), dated=True)
        _drop(about, "day", "clock", "frequency")
    sub_en, sub_de = f"{en} {english(about)}", f"{de} {german(about, 'subordinate')}"
    draw = dice.between(1, 3)
    if draw == 1:
        main = Clause(asker, KNOW)
        return finished(f"{english(main, question=True)} {sub_en}", f"{german(main, 'question')}, {sub_de}", "?")
    main = Clause(asker, KNOW, negated=True) if draw == 2 else Clause(asker, ASK)
    return finished(f"{english(main)} {sub_en}", f"{german(main)}, {sub_de}")


def _plain(make: Callable[[], Clause], dated: bool = False) -> Clause:
    """A clause without negation and, if `dated`, about something that has its time."""
    while True:
        clause = make()
        if not clause.negated and not (dated and clause.verb in _TIMELESS):
            return clause


def _drop(clause: Clause, *roles: str) -> None:
    clause.parts = [part for part in clause.parts if part.role not in roles]


def yes_or_no(dice: Dice) -> Pair:
    """Did you call your mother yesterday? Hast du gestern deine Mutter angerufen?"""
    return asked(_plain(lambda: scenes.anything(dice, _speaker(dice))))


def when_or_why(dice: Dice) -> Pair:
    """When are you picking us up? Wann holst du uns ab?"""
    clause = _plain(lambda: scenes.anything(dice, _speaker(dice)), dated=True)
    en, de = dice.pick((("when", "wann"), ("when", "wann"), ("why", "warum")))
    _drop(clause, "frequency", *(("day", "clock") if en == "when" else ()))
    return asked(clause, en, de)


def where(dice: Dice) -> Pair:
    """Where did she buy the coat? Wo hat sie den Mantel gekauft? Where are you going? Wohin gehst du?"""
    draw = dice.between(1, 10)
    if draw <= 3:
        clause = _plain(lambda: scenes.going(dice, _speaker(dice)))
        _drop(clause, "goal", "frequency")
        return asked(clause, "where", "wohin")
    if draw <= 5:
        what = dice.pick(scenes.LYING)
        owner = dice.pick((THE, POSSESSIVE[dice.pick(choices.PERSONAL)], of_name(dice.pick(choices.NAMES))))
        lost = noun_phrase(owner, choices.adjective(dice, what, 0.6), what, dice.chance(0.15))
        return asked(Clause(lost, BE), "where", "wo")
    clause = _plain(lambda: scenes.doing(dice, _speaker(dice), usages=_LOCATED))
    _drop(clause, "place", "frequency")
    return asked(clause, "where", "wo")


def what_or_who(dice: Dice) -> Pair:
    """What is Anna cooking? Was kocht Anna? Who are you helping? Wem hilfst du?"""
    draw = dice.between(1, 3)
    if draw == 1:
        clause = _plain(lambda: scenes.doing(dice, _speaker(dice), usages=_OF_THINGS))
        _drop(clause, *_OBJECTS, "frequency")
        return asked(clause, "what", "was")
    if draw == 2:
        clause = _plain(lambda: scenes.anything(dice, WHO))
        _drop(clause, "frequency")
        return finished(english(clause), german(clause), "?")
    usage = dice.pick(_OF_PERSONS)
    clause = _plain(lambda: scenes.doing(dice, _speaker(dice), usages=(usage,)))
    _drop(clause, *_OBJECTS, "frequency")
    return asked(clause, "who", f"{usage.preposition} {WHO.de[usage.case]}".strip())


def which_or_how_many(dice: Dice) -> Pair:
    """Which coat do you like? Welchen Mantel magst du? How many eggs did he buy? Wie viele Eier hat er gekauft?"""
    many = dice.chance(0.5)
    usage = dice.pick(_BUYING if many else _CHOOSING)
    options = _CHOSEN if usage is LIKED else usage.objects
    what = dice.pick([noun for noun in options if noun.en_plural])
    phrase = noun_phrase(HOW_MANY if many else WHICH, choices.adjective(dice, what, 0.4), what, many)
    clause = _plain(lambda: scenes.doing(dice, _speaker(dice), usages=(usage,)))
    _drop(clause, *_OBJECTS, "frequency")
    return asked(clause, phrase.en, phrase.de[1])


# Each pattern with its share among all sentences.
SENTENCES = (
    (statement, 30), (located, 4), (reason, 10), (condition, 6), (report, 8), (doubt, 6), (yes_or_no, 6),
    (when_or_why, 4), (where, 4), (what_or_who, 5), (which_or_how_many, 3),
)  # fmt: skip
