# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""German inflection: cases of nouns, endings of articles and adjectives, contractions, persons of verbs."""

from __future__ import annotations

from residual_hf.data.generated.nouns import Adjective, Noun

NOM, ACC, DAT, GEN = range(4)
Cases = tuple[str, str, str, str]  # nominative, accusative, dative, genitive
Persons = tuple[str, str, str, str]  # ich, du, er/sie/es, and one form for wir and sie


def _table(m: str, f: str, n: str, p: str) -> dict[str, Cases]:
    """Endings by gender (p: plural) and case; a dash is the empty ending."""
    rows = {"m": m, "f": f, "n": n, "p": p}
    return {gender: tuple(ending.replace("-", "") for ending in row.split()) for gender, row in rows.items()}


DEFINITE_ARTICLE = _table("der den dem des", "die die der der", "das das dem des", "die die den der")
DER_WORD = _table("er en em es", "e e er er", "es es em es", "e e en er")
EIN_WORD = _table("- en em es", "e e er er", "- - em es", "e e en er")

STRONG = _table("er en em en", "e e er er", "es es em en", "e e en er")
WEAK = _table("e en en en", "e e en en", "e e en en", "en en en en")
MIXED = _table("er en en en", "e e en en", "es es en en", "en en en en")

_CONTRACTIONS = {
    ("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am", ("an", "das"): "ans",
    ("zu", "dem"): "zum", ("zu", "der"): "zur", ("von", "dem"): "vom", ("bei", "dem"): "beim",
}  # fmt: skip


def noun_cases(noun: Noun, plural: bool = False) -> Cases:
    """The noun alone in its four cases: der Nachbar, den Nachbarn; die Äpfel, den Äpfeln."""
    if plural or noun.gender == "p":
        form = noun.de_plural
        return form, form, form if form.endswith(("n", "s")) else form + "n", form
    oblique = noun.de_genitive if noun.weak else noun.de
    return noun.de, oblique, oblique, noun.de_genitive if noun.gender != "f" else noun.de


def decline(stem: str, article: dict[str, Cases], endings: dict[str, Cases], adjective: Adjective | None,
            noun: Noun, plural: bool = False) -> Cases:  # fmt: skip
    """A noun with its determiner (`stem` + ending of `article`) and an adjective in its four cases."""
    gender = "p" if plural else noun.gender
    forms = []
    for case, bare in enumerate(noun_cases(noun, plural)):
        words = [stem + article[gender][case]] if article else [stem] if stem else []
        if adjective is not None:
            words.append(adjective.de_stem + endings[gender][case])
        forms.append(" ".join([*words, bare]))
    return tuple(forms)


def prepositional(preposition: str, phrase: str) -> str:
    """`preposition` before a phrase already in its case, contracted with the article: in dem -> im."""
    article, _, rest = phrase.partition(" ")
    short = _CONTRACTIONS.get((preposition, article))
    return f"{short} {rest}" if short else f"{preposition} {phrase}"


def present(infinitive: str, changed: str = "") -> Persons:
    """Present tense of a verb without its prefix; `changed` is the stem of du and er where its vowel changes.

    arbeiten -> arbeite, arbeitest, arbeitet, arbeiten; lesen with lies -> lese, liest, liest, lesen.
    """
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    inner = changed or stem
    link = "e" if not changed and stem.endswith(("t", "d", "ffn", "gn")) else ""
    du = "t" if inner.endswith(("s", "ß", "z")) else "st"
    er = "" if changed.endswith("t") else "t"
    return stem + "e", inner + link + du, inner + link + er, infinitive


def preterite(stem: str) -> Persons:
    """Past tense from the form of `er`: war -> war, warst, war, waren; hatte -> hatte, hattest, hatte, hatten."""
    return stem, stem + "st", stem, stem + ("n" if stem.endswith("e") else "en")
