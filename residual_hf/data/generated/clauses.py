# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A clause as one meaning and its word order in both languages.

German sets the finite verb second, first (questions) or last (subordinate clauses), closes the clause with prefix,
participle or infinitive, and orders what stands between by role; English keeps subject, verb, object, place and time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from residual_hf.data.generated.english import verb_group
from residual_hf.data.generated.phrases import NounPhrase
from residual_hf.data.generated.verbs import AUXILIARIES, Modal, Verb

_ENGLISH_ROLES = (
    "accusative pronoun", "dative pronoun", "dative", "definite", "indefinite", "predicate", "goal",
    "vehicle", "place", "company", "clock", "day",
)  # fmt: skip
_GERMAN_ROLES = (
    "accusative pronoun", "dative pronoun", "frequency", "day", "clock", "company", "vehicle", "dative",
    "definite", "place", "indefinite", "goal", "predicate",
)  # fmt: skip
# A negated clause moves its definite objects before the time, so that `nicht` follows both.
_NEGATED_ROLES = (
    "accusative pronoun", "dative pronoun", "dative", "definite", "frequency", "day", "clock", "company",
    "not", "vehicle", "place", "indefinite", "goal", "predicate",
)  # fmt: skip
_ENGLISH = {role: rank for rank, role in enumerate(_ENGLISH_ROLES)}
_GERMAN = {role: rank for rank, role in enumerate(_GERMAN_ROLES)}
_NEGATED = {role: rank for rank, role in enumerate(_NEGATED_ROLES)}

Pair = tuple[str, str]  # English, German


class Part(NamedTuple):
    """An object, an adverbial or a predicate, in both languages; `role` decides its place."""

    en: str
    de: str
    role: str


_NICHT = Part("", "nicht", "not")


@dataclass
class Clause:
    """What is said: `tense` is simple, progressive, past or future; `front` is a part set before the subject.

    An indefinite object of a negated clause carries the German negation itself (kein).
    """

    subject: NounPhrase
    verb: Verb
    tense: str = "simple"
    modal: Modal | None = None
    negated: bool = False
    parts: list[Part] = field(default_factory=list)
    front: Part | None = None


def english(clause: Clause, question: bool = False, asked: str = "") -> str:
    """The clause in English, without capital and full stop; `asked` is a question word or phrase set first."""
    subject, modal = clause.subject, clause.modal.en if clause.modal is not None else None
    support = question or clause.negated
    auxiliary, lexical = verb_group(clause.verb.en, clause.tense, subject.agreement, modal, support)
    words = [asked] if asked else []
    if clause.front is not None:
        words.append(clause.front.en)
    words += [auxiliary, subject.en] if question else [subject.en, auxiliary]
    if clause.negated:
        if words[-1] == "can":
            words[-1] = "cannot"
        else:
            words.append("not")
    words += [part.en for part in clause.parts if part.role == "frequency"]
    words.append(lexical)
    parts = sorted((part for part in clause.parts if part.role != "frequency"), key=lambda part: _ENGLISH[part.role])
    if clause.verb.en.particle:
        late = clause.verb.en.shifts and bool(parts) and parts[0].role == "accusative pronoun"
        words += [parts.pop(0).en, clause.verb.en.particle] if late else [clause.verb.en.particle]
    words += [part.en for part in parts]
    return " ".join(filter(None, words))


def _german_verbs(clause: Clause) -> tuple[str, str]:
    """The finite verb, and the participle or infinitive that closes the clause."""
    person, verb = clause.subject.agreement, clause.verb
    if clause.modal is not None:
        return (clause.modal.preterite if clause.tense == "past" else clause.modal.present)[person], verb.infinitive
    if clause.tense == "future":
        return AUXILIARIES["werden"][person], verb.infinitive
    if clause.tense == "past":
        if verb.preterite is not None:
            return verb.preterite[person], ""
        return AUXILIARIES[verb.auxiliary][person], verb.participle
    return verb.present[person], ""


def german(clause: Clause, order: str = "main", asked: str = "") -> str:
    """The clause in German; `order` is main (verb second), question (verb first or after `asked`) or subordinate."""
    finite, closing = _german_verbs(clause)
    parts = list(clause.parts)
    ranks = _GERMAN
    if clause.negated:
        ranks = _NEGATED
        if all(part.role != "indefinite" for part in parts):
            parts.append(_NICHT)
    middle = [part.de for part in sorted(parts, key=lambda part: ranks[part.role])]
    prefix = "" if closing else clause.verb.prefix
    subject = clause.subject.de[0]
    if order == "subordinate":
        words = [subject, *middle, closing, prefix + finite]
    else:
        first = clause.front.de if clause.front is not None else asked
        words = [subject, finite] if order == "main" and not first else [first, finite, subject]
        words += [*middle, closing, prefix]
    return " ".join(filter(None, words))


def finished(en: str, de: str, mark: str = ".") -> Pair:
    """A sentence with its capital and its closing mark."""
    return en[0].upper() + en[1:] + mark, de[0].upper() + de[1:] + mark


def asked(clause: Clause, en: str = "", de: str = "") -> Pair:
    """The clause as a question, after a question word or phrase if one is given."""
    return finished(english(clause, question=True, asked=en), german(clause, "question", asked=de), "?")
