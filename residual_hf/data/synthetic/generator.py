"""Random sentences, and a corpus of them in parts that share none."""

from collections.abc import Mapping
from random import Random

from residual_hf.base.errors import InputError

from . import grammar
from .grammar import ACC, DAT, NO, NOM, PRONOUNS, THE, THIS, A, Clause, Determiner, Element, Phrase, english, german
from .words import ADJECTIVES, BE, COST, HAVE, LIVE, NEED, NOUNS, PLACES, SAY, VERBS, Noun, Pair

MAX_PAIRS = 1_000_000
CAST = [noun for noun in NOUNS if noun.kind == "cast"]
BELONGINGS = [noun for noun in NOUNS if noun.kind in ("tool", "wear", "text")]
TIMES = {  # by tense; a time of day may follow the first one
    "present": (("every day", "jeden Tag"), ("every morning", "jeden Morgen"), ("in winter", "im Winter")),
    "past": (("yesterday", "gestern"), ("this morning", "heute Morgen"), ("last week", "letzte Woche")),
    "future": (("tomorrow", "morgen"), ("tonight", "heute Abend"), ("next week", "nächste Woche")),
}
OFTEN = (("often", "oft"), ("always", "immer"), ("never", "nie"))
MOODS = (("hungry", "hungrig"), ("sad", "traurig"), ("happy", "glücklich"), ("tired", "müde"))
WEATHER = (("it rains", "es regnet"), ("it snows", "es schneit"), ("it is cold", "es kalt ist"))


def described(dice: Random, determiner: Determiner, noun: Noun, plural: float = 0.0) -> Phrase:
    """A noun phrase, sometimes with an adjective, and with the probability `plural` in the plural."""
    adjective = dice.choice(ADJECTIVES[noun.kind]) if dice.random() < 0.35 else None
    return grammar.noun_phrase(determiner, adjective, noun, dice.random() < plural)


def somebody(dice: Random, other_than: Phrase | None = None) -> Phrase:
    """A pronoun, or one or several of the cast; nobody visits himself here."""
    while True:
        someone = PRONOUNS[dice.choice(("I", "you", "we", "m", "f", "p"))][0]
        if dice.random() < 0.75:
            someone = described(dice, dice.choice((THE, THE, THE, THIS)), dice.choice(CAST), plural=0.2)
        if other_than is None:
            return someone
        same_noun = someone.en.split()[-1] == other_than.en.split()[-1]
        if not same_noun and {someone.gender, other_than.gender} != {"I", "we"}:
            return someone


def same_or_other(dice: Random, phrase: Phrase) -> Phrase:
    """The pronoun that replaces a phrase, or somebody else."""
    return PRONOUNS[phrase.gender][0] if dice.random() < 0.6 else somebody(dice, phrase)


def something(dice: Random, noun: Noun, user: Phrase) -> Phrase:
    """One or several things that belong to nobody, to `user`, or to somebody else."""
    kind = dice.choice(("some", "some", "some", "own", "own", "other's", "the", "the", "a", "a"))
    if kind == "some":
        en, de = grammar.number(dice.randint(2, dice.choice((9, 99))))
        return described(dice, Determiner(en, en, de, grammar.NONE, "indefinite"), noun, plural=1.0)
    if kind == "own":
        return described(dice, PRONOUNS[user.gender][1], noun, plural=0.2)
    if kind == "other's":
        return grammar.owned_by(described(dice, THE, dice.choice(CAST)), described(dice, THE, noun))
    return described(dice, A if kind == "a" else THE, noun)


def place(dice: Random, going: bool = False) -> Element:
    """A place where something happens (dative), or where somebody goes (accusative)."""
    noun = dice.choice([noun for noun in NOUNS if noun.kind == "place"])
    en, de = PLACES[noun.en].split()[2 * going :][:2]
    part = grammar.object_part(described(dice, THE, noun), ACC if going else DAT, de)
    return Element("goal" if going else "place", f"{en} {part.en}", part.de)


def times(dice: Random, tense: str) -> list[Element]:
    if tense == "present" and dice.random() < 0.4:
        return [Element("often", *dice.choice(OFTEN))]
    days = TIMES.get(tense, TIMES["future"])
    day, time = dice.choice(days), grammar.clock(dice.randint(1, 12), dice.random() < 0.5)
    return [Element("time", *day), *([Element("clock", *time)] if day is days[0] and dice.random() < 0.6 else [])]


def deed(dice: Random, who: Phrase, detail: float = 0.6, tenses: str = "present past past will can") -> Clause:
    """Somebody does something, perhaps to somebody or something, somewhere, at some time."""
    what, tense = dice.choice(VERBS), dice.choice(tenses.split())
    parts = times(dice, tense) if dice.random() < detail else []
    if what.cases == "goal" or dice.random() < detail / 2:
        parts.append(place(dice, going=what.cases == "goal"))
    if what.cases == "dat,acc":
        parts.append(grammar.object_part(somebody(dice, who), DAT))
    if what.objects:
        noun = dice.choice([noun for noun in NOUNS if noun.kind in what.objects.split(",")])
        whom = somebody(dice, who) if noun.kind == "cast" else something(dice, noun, who)
        parts.append(grammar.object_part(whom, DAT if what.cases == "dat" else ACC, what.preposition))
    return Clause(who, what, tense, parts)


def state(dice: Random, who: Phrase, tense: str = "present") -> Clause:
    """How somebody feels, or what somebody lacks."""
    if dice.random() < 0.6:
        denied = [Element("not", "not", "nicht")] if dice.random() < 0.2 else []
        return Clause(who, BE, tense, [*denied, Element("predicate", *dice.choice(MOODS))])
    lacking = described(dice, NO, dice.choice(BELONGINGS), plural=0.3)
    return Clause(who, HAVE, tense, [grammar.object_part(lacking, ACC)])


def sentence(en: str, de: str, mark: str = ".") -> Pair:
    return en[0].upper() + en[1:] + mark, de[0].upper() + de[1:] + mark


def statement(dice: Random) -> Pair:
    """Yesterday the fox lent the owl three umbrellas. Gestern hat der Fuchs der Eule drei Regenschirme geliehen."""
    clause = deed(dice, somebody(dice))
    day = next((part for part in clause.parts if part.role == "time"), None)
    if day and dice.random() < 0.4:
        clause.parts.remove(day)
        clause.front = day.en, day.de
    return sentence(english(clause), german(clause))


def question(dice: Random) -> Pair:
    """Did you wake the dragon? Hast du den Drachen geweckt?"""
    clause, (en, de) = deed(dice, somebody(dice)), dice.choice((("", ""), ("", ""), ("why", "warum")))
    return sentence(english(clause, en), german(clause, "first", de), "?")


def reason(dice: Random) -> Pair:
    """The bear helps me because he is happy. Der Bär hilft mir, weil er glücklich ist."""
    main = deed(dice, somebody(dice), detail=0.3)
    why = state(dice, same_or_other(dice, main.subject), "past" if main.tense == "past" else "present")
    return sentence(f"{english(main)} because {english(why)}", f"{german(main)}, weil {german(why, 'last')}")


def condition(dice: Random) -> Pair:
    """When it rains, the mice dance in the kitchen. Wenn es regnet, tanzen die Mäuse in der Küche."""
    (en, de), who = dice.choice(WEATHER), somebody(dice)
    if dice.random() < 0.5:
        mood = state(dice, who)
        en, de, who = english(mood), german(mood, "last"), same_or_other(dice, who)
    main = deed(dice, who, detail=0.0, tenses="present must")
    main.front = f"{'when' if main.tense == 'present' else 'if'} {en},", f"wenn {de},"
    return sentence(english(main), german(main))


def claim(dice: Random) -> Pair:
    """The owl says that you stole the crown. Die Eule sagt, dass du die Krone gestohlen hast."""
    main = Clause(somebody(dice), SAY)
    said = deed(dice, same_or_other(dice, main.subject), detail=0.3)
    return sentence(f"{english(main)} that {english(said)}", f"{german(main)}, dass {german(said, 'last')}")


def relative(dice: Random) -> Pair:
    """The king that lost his crown lives in the castle. Der König, der seine Krone verloren hat, wohnt im Schloss."""
    who = described(dice, THE, dice.choice(CAST), plural=0.3)
    did = deed(dice, who, detail=0.3, tenses="present past")
    did.subject = who._replace(en="that", de=tuple(grammar.ARTICLE[who.gender]))
    who = who._replace(en=f"{who.en} {english(did)}", de=(f"{who.de[NOM]}, {german(did, 'last')},",))
    main = Clause(who, LIVE, parts=[place(dice)]) if dice.random() < 0.5 else state(dice, who)
    return sentence(english(main), german(main))


def lost(dice: Random) -> Pair:
    """Where is my old lantern? I need it. Wo ist meine alte Laterne? Ich brauche sie."""
    owner = PRONOUNS[dice.choice(("I", "you", "we", "m", "f", "p"))][1]
    what = described(dice, owner, dice.choice(BELONGINGS), plural=0.3)
    it = PRONOUNS[what.gender][0]
    it = it if what.gender == "p" else it._replace(en_object="it")
    where = Clause(what, BE)
    need = Clause(PRONOUNS[dice.choice(("I", "we"))][0], NEED, parts=[grammar.object_part(it, ACC)])
    first = sentence(english(where, "where"), german(where, "first", "wo"), "?")
    second = sentence(english(need), german(need))
    return f"{first[0]} {second[0]}", f"{first[1]} {second[1]}"


def figure(dice: Random) -> Pair:
    """The dragon is eighty-one years old. Der Drache ist einundachtzig Jahre alt."""
    en, de = grammar.number(dice.choice((0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)) * 100 + dice.randint(2, 99))
    if dice.random() < 0.4:
        old = Element("predicate", f"{en} years old", f"{de} Jahre alt")
        clause = Clause(grammar.noun_phrase(THE, None, dice.choice(CAST)), BE, parts=[old])
    else:
        price = Element("predicate", f"{en} gold coins", f"{de} Goldmünzen")
        clause = Clause(described(dice, THIS, dice.choice(BELONGINGS), plural=0.2), COST, parts=[price])
    return sentence(english(clause), german(clause))


SHARES = {statement: 8, question: 3, reason: 3, condition: 2, claim: 2, relative: 2, lost: 1, figure: 3}


def generate_corpus(sizes: Mapping[str, int], seed: int = 0) -> dict[str, list[Pair]]:
    """Random (English, German) sentence pairs by part; no sentence of either language occurs twice.

    The same arguments give the same pairs. The smallest part is drawn first, so that held-out parts stay the same
    when the training part grows.

    Args:
        sizes: number of pairs by part, as in {"train": 20000, "valid": 500, "test": 500}.

    Raises `InputError` for sizes that add up to more than `MAX_PAIRS`.
    """
    if sum(sizes.values()) > MAX_PAIRS:
        raise InputError(f"sizes: {sum(sizes.values())} pairs in all given, must be at most {MAX_PAIRS}")
    dice, seen = Random(seed), set[str]()
    parts: dict[str, list[Pair]] = {name: [] for name in sizes}
    for name in sorted(sizes, key=lambda part: sizes[part]):
        while len(parts[name]) < sizes[name]:
            (pattern,) = dice.choices(list(SHARES), list(SHARES.values()))
            pair = pattern(dice)
            if seen.isdisjoint(pair):
                seen.update(pair)
                parts[name].append(pair)
    return parts
