# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Random clauses: somebody does something, gives something, goes somewhere, puts or finds something somewhere.

Every function takes the subject and returns a Clause. `brief` clauses (they go into longer sentences) say less about
time and place; `tenses` narrows what may be drawn from now, habit, past, future, modal and past modal.
"""

from __future__ import annotations

from residual_hf.data.generated import choices
from residual_hf.data.generated.clauses import Clause, Part
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.german import ACC, DAT, prepositional
from residual_hf.data.generated.nouns import ADJECTIVES, Noun, nouns
from residual_hf.data.generated.phrases import IMPERSONAL, POSSESSIVE, THE, NounPhrase, noun_phrase
from residual_hf.data.generated.verbs import (
    BE,
    FLY,
    GIVING,
    GO,
    HAVE,
    LIE,
    LIKED,
    LIVE,
    MODALS,
    PUT,
    RAIN,
    RIDE,
    STAND,
    USAGES,
    Modal,
    Usage,
)

Tenses = tuple[str, ...]
_ACTIVE = ("now",) * 5 + ("habit",) * 4 + ("past",) * 6 + ("future",) * 2 + ("modal",) * 4 + ("past modal",) * 2
# What a verb may be drawn in, as often as it is drawn.
_TENSES: dict[str, Tenses] = {
    "any": _ACTIVE,
    "state": ("now", "now", "past"),
    "still": _ACTIVE,
    "event": ("past",) * 5 + ("future", "modal", "past modal"),
    "body": ("habit", "past", "past"),
    "past": ("past",),
    "timeless": ("now",),
}
_DOINGS = USAGES + (LIKED,) * 3
_SOCIAL = {"essen", "trinken", "kochen", "tanzen", "singen", "schwimmen", "einkaufen", "fernsehen", "arbeiten"}
_ACQUIRING = {"kaufen", "bestellen"}  # not what one has
_GOALS = (
    *("garden", "office", "supermarket", "museum", "cinema", "theatre", "restaurant", "library", "station", "hotel"),
    *("market", "city", "park", "beach", "lake", "village", "kitchen", "balcony", "HOME"),
)
_RIDES = (("by train", "mit dem Zug"), ("by bus", "mit dem Bus"), ("by car", "mit dem Auto"))
_NEAR_RIDES = (*_RIDES, ("by bicycle", "mit dem Fahrrad"))
_NEAR_GOALS = ("office", "station", "airport", "lake", "beach", "city", "HOME")
MOODS = tuple(a for a in ADJECTIVES if a.en in ("tired", "ill", "happy", "hungry"))
_WEATHER = tuple(a for a in ADJECTIVES if a.en in ("cold", "warm", "hot"))
_OWNED = nouns("animal vehicle gift ticket camera computer time money")
_MISSED = nouns("time money car bicycle dog cat key ticket phone umbrella computer camera")

# Where small things are put: those that lie, those that stand, and what they lie on or stand next to.
LYING = nouns("key book newspaper letter postcard phone camera umbrella shirt ticket")
STANDING = nouns("lamp suitcase cup glass bottle radio")
SPOTS = (
    ("on", "auf", nouns("table bed sofa chair")),
    ("under", "unter", nouns("table bed sofa chair")),
    ("next to", "neben", nouns("table bed sofa computer cupboard door window")),
    ("behind", "hinter", nouns("sofa door cupboard computer")),
    ("in front of", "vor", nouns("door window sofa bed")),
    ("in", "in", nouns("cupboard kitchen room")),
)


def _time(dice: Dice, use: str, tenses: Tenses, brief: bool) -> tuple[str, Modal | None, list[Part]]:
    """Tense, modal and adverbials of time of a verb whose `use` is given in the lexicon."""
    drawn = dice.pick([tense for tense in _TENSES[use] if tense in tenses] if tenses else _TENSES[use])
    if use == "timeless":
        return "simple", None, []
    when, modal, tense = drawn, None, drawn
    if drawn == "modal":
        when, modal, tense = "now", dice.pick(MODALS), "simple"
    elif drawn == "past modal":
        when, modal, tense = "past", dice.pick(MODALS[:4]), "past"
    elif drawn in ("now", "habit"):
        tense = "progressive" if drawn == "now" and use != "state" else "simple"
    elif use == "body":
        when = "recent"
    timely = use in ("any", "body") and not brief
    parts = []
    if drawn == "habit" or dice.chance(0.25 if brief else 0.65):
        part, timed = choices.day(dice, when)
        parts.append(part)
        if timed and timely and dice.chance(0.3):
            parts.append(choices.time_of_day(dice))
    elif timely and dice.chance(0.2):
        parts.append(choices.time_of_day(dice))
    return tense, modal, parts


def _negated(dice: Dice, parts: list[Part]) -> bool:
    return dice.chance(0.13) and all(part.role == "day" and not part.de.startswith("jeden") for part in parts)


def object_part(phrase: NounPhrase, case: int, preposition: str = "") -> Part:
    """A phrase as the object of a verb; its kind decides where German puts it."""
    if preposition:
        return Part(phrase.en_object, prepositional(preposition, phrase.de[case]), "goal")
    if phrase.is_pronoun:
        role = "accusative pronoun" if case == ACC else "dative pronoun"
    elif case == DAT:
        role = "dative"
    else:
        role = "definite" if phrase.definite else "indefinite"
    return Part(phrase.en_object, phrase.de[case], role)


def _company(dice: Dice, subject: NounPhrase) -> Part:
    friend = choices.other_person(dice, subject)
    return Part(f"with {friend.en_object}", f"mit {friend.de[DAT]}", "company")


def doing(
    dice: Dice, subject: NounPhrase, brief: bool = False, tenses: Tenses = (), usages: tuple[Usage, ...] = ()
) -> Clause:
    """Somebody does what a verb of the lexicon says, with its object, place, time and company."""
    usage = dice.pick(usages or _DOINGS)
    while tenses and not set(tenses) & set(_TENSES[usage.use]):
        usage = dice.pick(usages or _DOINGS)
    tense, modal, parts = _time(dice, usage.use, tenses, brief)
    negated = usage.use != "past" and _negated(dice, parts)
    if usage.case is not None:
        if usage.persons and (not usage.objects or dice.chance(0.6)):
            phrase = choices.other_person(dice, subject, definite=negated)
        else:
            negated = negated and usage.use != "timeless" and not usage.preposition
            manner = "negated" if negated else "generic" if usage.use == "timeless" else ""
            owner = "" if usage.verb.infinitive in _ACQUIRING else subject.pronoun
            phrase = choices.thing(dice, usage.objects, owner, manner)
        parts.append(object_part(phrase, usage.case, usage.preposition))
    if (
        usage.places
        and not (negated and usage.case is not None)
        and (usage.needs_place or dice.chance(0.25 if brief else 0.5))
    ):
        parts.append(choices.place(dice, usage.places))
    if usage.verb.infinitive in _SOCIAL and not negated and not brief and dice.chance(0.2):
        parts.append(_company(dice, subject))
    return Clause(subject, usage.verb, tense, modal, negated, parts)


def giving(dice: Dice, subject: NounPhrase, brief: bool = False, tenses: Tenses = ()) -> Clause:
    """Somebody gives, shows, sends, brings or lends something to somebody."""
    verb, gifts = dice.pick(GIVING)
    tense, modal, parts = _time(dice, "any", tenses, brief)
    receiver = choices.other_person(dice, subject)
    gift = choices.thing(dice, gifts, subject.pronoun)
    return Clause(subject, verb, tense, modal, False, [*parts, object_part(receiver, DAT), object_part(gift, ACC)])


def going(dice: Dice, subject: NounPhrase, brief: bool = False, tenses: Tenses = ()) -> Clause:
    """Somebody goes, rides or flies somewhere."""
    tense, modal, parts = _time(dice, "any", tenses, brief)
    negated = _negated(dice, parts)
    draw = dice.between(1, 10)
    if draw <= 2:
        verb, goals = FLY, ("TOWN",)
    elif draw <= 5:
        far = dice.chance(0.5)
        verb, goals = RIDE, ("TOWN",) if far else _NEAR_GOALS
        parts.append(Part(*dice.pick(_RIDES if far else _NEAR_RIDES), "vehicle"))
    else:
        verb, goals = GO, _GOALS
        if not negated and not brief and dice.chance(0.3):
            parts.append(_company(dice, subject))
    parts.append(choices.place(dice, goals, going=True, role="goal"))
    return Clause(subject, verb, tense, modal, negated, parts)


def spot(dice: Dice, what: Noun, going: bool) -> Part:
    """On, under or next to a piece of furniture: accusative where something is put, dative where it is."""
    en, de, landmarks = dice.pick(SPOTS)
    landmark = dice.pick(landmarks)
    phrase = noun_phrase(THE, choices.adjective(dice, landmark, 0.25), landmark)
    return Part(f"{en} {phrase.en}", prepositional(de, phrase.de[ACC if going else DAT]), "goal")


def putting(dice: Dice, subject: NounPhrase, brief: bool = False, tenses: Tenses = ()) -> Clause:
    """Somebody lays (legen) or stands (stellen) something somewhere; English has one verb for both."""
    what = dice.pick(LYING + STANDING)
    tense, modal, parts = _time(dice, "any", tenses or ("now", "past", "modal", "past modal"), brief)
    determiner = dice.pick((THE, POSSESSIVE[subject.pronoun]))
    phrase = noun_phrase(determiner, choices.adjective(dice, what, 0.3), what)
    verb = PUT[0] if what in LYING else PUT[1]
    return Clause(subject, verb, tense, modal, False, [*parts, object_part(phrase, ACC), spot(dice, what, going=True)])


def lying(dice: Dice) -> Clause:
    """Where something lies or stands; English has one verb for both."""
    what = dice.pick(LYING + STANDING)
    determiner = dice.pick((THE, POSSESSIVE[dice.pick(choices.PERSONAL)]))
    thing = noun_phrase(determiner, choices.adjective(dice, what, 0.4), what, dice.chance(0.15))
    past = dice.chance(0.25)
    parts = [spot(dice, what, going=False)]
    if past:
        parts.append(choices.day(dice, "past")[0])
    return Clause(thing, LIE if what in LYING else STAND, "past" if past else "simple", None, dice.chance(0.1), parts)


def living(dice: Dice, subject: NounPhrase, past: bool = False) -> Clause:
    """Where somebody lives: in Vienna, in a quiet village, next to the station (dative)."""
    if dice.chance(0.7):
        where = choices.place(dice, ("TOWN", "TOWN", "city", "village"))
    else:
        landmark = noun_phrase(THE, None, dice.pick(nouns("station park theatre museum supermarket library")))
        en, de, _ = dice.pick(SPOTS[2:5])
        where = Part(f"{en} {landmark.en}", prepositional(de, landmark.de[DAT]), "place")
    return Clause(subject, LIVE, "past" if past else "simple", None, dice.chance(0.15), [where])


def being(dice: Dice, subject: NounPhrase, past: bool = False) -> Clause:
    """How somebody is, or what somebody has or lacks."""
    tense = "past" if past else "simple"
    if dice.chance(0.55):
        mood = dice.pick(MOODS)
        return Clause(subject, BE, tense, None, dice.chance(0.2), [Part(mood.en, mood.de, "predicate")])
    negated = dice.chance(0.6)
    phrase = choices.thing(dice, _MISSED, subject.pronoun, "negated") if negated else choices.something(dice, _OWNED)
    return Clause(subject, HAVE, tense, None, negated, [object_part(phrase, ACC)])


def weather(dice: Dice, tense: str = "simple") -> Clause:
    """What the weather is like; `it` stands for nothing here."""
    if dice.chance(0.5):
        return Clause(IMPERSONAL, RAIN, tense)
    kind = dice.pick(_WEATHER)
    return Clause(
        IMPERSONAL, BE, "past" if tense == "past" else "simple", None, False, [Part(kind.en, kind.de, "predicate")]
    )


def anything(dice: Dice, subject: NounPhrase, brief: bool = False, tenses: Tenses = ()) -> Clause:
    """Somebody does, gives, goes to or puts something."""
    scene = dice.pick((doing,) * 13 + (giving,) * 2 + (going,) * 4 + (putting,))
    return scene(dice, subject, brief, tenses)
