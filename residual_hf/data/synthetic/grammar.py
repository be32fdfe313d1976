"""English and German side by side: numbers, noun phrases that agree, and clauses in the word order of each.

German puts the finite verb second (statements), first (questions) or last (subordinate clauses) and closes the clause
with a prefix, participle or infinitive: die Eule ruft den Bären an; weil die Eule den Bären angerufen hat.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from .words import BE, Noun, Pair, Verb, cells, rows

NOM, ACC, DAT, GEN = range(4)
SINGULAR, PLURAL = 2, 3  # persons of a verb, after ich and du; wir and sie share their forms


def _by_gender(*rows: str) -> dict[str, list[str]]:
    """Nominative, accusative, dative and genitive for each gender (p: plural)."""
    return {gender: cells(row) for gender, row in zip("mfnp", rows, strict=True)}


ARTICLE = _by_gender("der den dem des", "die die der der", "das das dem des", "die die den der")
STRONG = _by_gender("er en em es", "e e er er", "es es em es", "e e en er")
EIN = _by_gender("- en em es", "e e er er", "- - em es", "e e en er")
NONE = _by_gender(*["- - - -"] * 4)
CONTRACTED = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "von dem": "vom"}

IRREGULAR = {"haben": cells("habe hast hat haben"), "sein": cells("bin bist ist sind")}
SIMPLE_PAST = {"haben": cells("hatte hattest hatte hatten"), "sein": cells("war warst war waren")}  # not the perfect
MODALS = {"will": cells("werde wirst wird werden"), "can": cells("kann kannst kann können"),
          "must": cells("muss musst muss müssen")}  # fmt: skip

ENGLISH_ORDER = cells("not often verb pronoun dative definite indefinite predicate goal place clock time")
GERMAN_ORDER = cells("pronoun dative time clock definite often not place indefinite goal predicate")

ONES = cells("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
             "seventeen eighteen nineteen")  # fmt: skip
EINER = cells("null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
              "siebzehn achtzehn neunzehn")  # fmt: skip
TENS = cells("- - twenty thirty forty fifty sixty seventy eighty ninety")
ZEHNER = cells("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")


def number(n: int) -> Pair:
    """2 to 999 before a noun; German reads ones before tens: (eighty-one, einundachtzig).

    Germans disagree on 101, 201, ... before a noun: use other numbers.
    """
    hundreds, (tens, ones) = n // 100, divmod(n % 100, 10)
    if n < 20:
        return ONES[n], EINER[n]
    if hundreds:
        en, de = number(n % 100) if n % 100 else ("", "")
        return f"{ONES[hundreds]} hundred{' and ' if en else ''}{en}", f"{EINER[hundreds]}hundert{de}"
    return (f"{TENS[tens]}-{ONES[ones]}", f"{EINER[ones]}und{ZEHNER[tens]}") if ones else (TENS[tens], ZEHNER[tens])


def clock(hour: int, half: bool) -> Pair:
    """A time of day; German counts half hours to the next hour: (at half past seven, um halb acht)."""
    if half:
        return f"at half past {ONES[hour]}", f"um halb {'eins' if hour == 12 else EINER[hour + 1]}"
    return f"at {ONES[hour]} o'clock", f"um {EINER[hour]} Uhr"


class Determiner(NamedTuple):
    """English before singular and plural, a German stem and its endings; `role` as in `Phrase`."""

    en: str
    en_plural: str
    de: str
    endings: dict[str, list[str]]
    role: str = "definite"


class Phrase(NamedTuple):
    """A noun phrase, in German in four cases; `gender` chooses its pronoun, `role` its place among the objects."""

    en: str
    en_object: str
    de: tuple[str, ...]
    person: int
    gender: str
    role: str = "definite"


THE, THIS = Determiner("the", "the", "", ARTICLE), Determiner("this", "these", "dies", STRONG)
A, NO = Determiner("a", "", "ein", EIN, "indefinite"), Determiner("no", "no", "kein", EIN, "indefinite")


# Gender, person, personal and possessive pronouns; `you` is always du.
_PRONOUNS = rows("""
I    0  I     me    my     ich  mich  mir    mein
you  1  you   you   your   du   dich  dir    dein
we   3  we    us    our    wir  uns   uns    unser
m    2  he    him   his    er   ihn   ihm    sein
f    2  she   her   her    sie  sie   ihr    ihr
n    2  it    it    its    es   es    ihm    sein
p    3  they  them  their  sie  sie   ihnen  ihr
""")
PRONOUNS = {
    gender: (Phrase(en, en_object, tuple(de), int(person), gender, "pronoun"), Determiner(my, my, mein, EIN))
    for gender, person, en, en_object, my, *de, mein in _PRONOUNS
}


def noun_phrase(determiner: Determiner, adjective: Pair | None, noun: Noun, plural: bool = False) -> Phrase:
    """A determiner, an adjective or None, and a noun that agree in case, gender and number."""
    gender, head = ("p", noun.en_plural) if plural else (noun.gender, noun.en)
    en = f"{adjective[0]} {head}" if adjective else head
    an = determiner is A and en[0] in "aeiou" and not en.startswith("uni")
    en = f"{'an' if an else determiner.en_plural if plural else determiner.en} {en}"
    de = tuple(_declined(determiner, adjective, noun, gender, case) for case in (NOM, ACC, DAT, GEN))
    return Phrase(en, en, de, PLURAL if plural else SINGULAR, gender, determiner.role)


def _declined(determiner: Determiner, adjective: Pair | None, noun: Noun, gender: str, case: int) -> str:
    ending = determiner.endings[gender][case]
    words = [determiner.de + ending]
    if adjective:  # its ending is strong unless the determiner has shown the case already
        weak = "e" if gender != "p" and (case == NOM or (case == ACC and gender != "m")) else "en"
        words.append(adjective[1] + (weak if ending else STRONG[gender][case]))
    if gender == "p":
        words.append(noun.de_plural + ("n" if case == DAT and not noun.de_plural.endswith("n") else ""))
    else:
        inflected = case == GEN or (case != NOM and noun.genitive.endswith("n"))
        words.append(noun.de + noun.genitive if inflected else noun.de)
    return " ".join(words)


def owned_by(owner: Phrase, thing: Phrase) -> Phrase:
    """A thing with a definite article and its owner: the old king's hat, der Hut des alten Königs."""
    en = f"{owner.en}'s{thing.en.removeprefix('the')}"
    return thing._replace(en=en, en_object=en, de=tuple(f"{form} {owner.de[GEN]}" for form in thing.de))


class Element(NamedTuple):
    """An object, adverbial or predicate; `role` decides its place."""

    role: str
    en: str
    de: str


def object_part(phrase: Phrase, case: int, preposition: str = "") -> Element:
    """A noun phrase as an object; a German preposition is contracted with the article: in dem Wald, im Wald."""
    if preposition:
        before, _, after = phrase.de[case].partition(" ")
        before = CONTRACTED.get(f"{preposition} {before}", f"{preposition} {before}")
        return Element("goal", phrase.en_object, f"{before} {after}".rstrip())
    role = "dative" if case == DAT and phrase.role == "definite" else phrase.role
    return Element(role, phrase.en_object, phrase.de[case])


@dataclass
class Clause:
    """Who does what; `tense` is present, past or one of `MODALS`, `front` an adverbial before the subject."""

    subject: Phrase
    verb: Verb
    tense: str = "present"
    parts: list[Element] = field(default_factory=list)
    front: Pair = ("", "")


def english(clause: Clause, question: str | None = None) -> str:
    """The clause without capital and full stop; `question` is a question word, or "" if the verb is first."""
    verb, person, past = clause.verb, clause.subject.person, clause.tense == "past"
    auxiliary, lexical = "", verb.en
    if clause.tense in MODALS:
        auxiliary = clause.tense
    elif verb is BE:
        auxiliary, lexical = cells("was were was were" if past else "am are is are")[person], ""
    elif question is not None:
        auxiliary = "did" if past else "does" if person == SINGULAR else "do"
    elif past or person == SINGULAR:
        lexical = verb.en_past if past else {"have": "has", "go": "goes", "fly": "flies"}.get(verb.en, f"{verb.en}s")
    parts = [*clause.parts, Element("verb", f"{lexical} {verb.particle}".strip(), "")]
    after = [part.en for part in sorted(parts, key=lambda part: ENGLISH_ORDER.index(part.role))]
    subject = [clause.subject.en, auxiliary]
    words = [clause.front[0], *subject] if question is None else [question, *reversed(subject)]
    return " ".join(filter(None, words + after))


def german(clause: Clause, verb_place: str = "second", question: str = "") -> str:
    """The clause without capital and full stop; `verb_place` is second, first (after a question word) or last."""
    verb, subject, past = clause.verb, clause.subject.de[NOM], clause.tense == "past"
    finite, closing = IRREGULAR.get(verb.infinitive) or present(verb), ""
    if clause.tense in MODALS:
        finite, closing = MODALS[clause.tense], verb.prefix + verb.infinitive
    elif past and verb.infinitive in SIMPLE_PAST:
        finite = SIMPLE_PAST[verb.infinitive]
    elif past:
        finite, closing = IRREGULAR[verb.auxiliary], verb.participle
    inflected, prefix = finite[clause.subject.person], "" if closing else verb.prefix
    middle = [part.de for part in sorted(clause.parts, key=lambda part: GERMAN_ORDER.index(part.role))]
    if verb_place == "last":
        words = [subject, *middle, closing, prefix + inflected]
    elif verb_place == "first" or clause.front[1]:
        words = [question or clause.front[1], inflected, subject, *middle, closing, prefix]
    else:
        words = [subject, inflected, *middle, closing, prefix]
    return " ".join(filter(None, words))


def present(verb: Verb) -> list[str]:
    """The present tense without prefix: warte, wartest, wartet, warten; lese, liest, liest, lesen."""
    stem = verb.infinitive.removesuffix("en")
    changed = verb.stem or (stem + "e" if stem.endswith(("t", "d")) else stem)
    return [stem + "e", changed + ("t" if changed.endswith(("s", "z")) else "st"), changed + "t", verb.infinitive]
