"""Translations of one or several models from the worst to the best, with their differences from the reference."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

SHOWN, CONTRASTS = 12, 4
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
WORD = re.compile(rf"(?<!\s)\s*(?:[{CJK}]|[^\W{CJK}]+|\S)")


@dataclass(frozen=True)
class Part:
    """Some words of a translation: "same" as in the reference, "extra", or "missing" (in the reference only)."""

    kind: str
    text: str


@dataclass(frozen=True)
class Translation:
    """The translation of a run, its sentence chrF and its differences from the reference."""

    run: int
    chrf: float
    parts: list[Part]


@dataclass(frozen=True)
class Sample:
    """A sentence with the translations of all runs. `rank` is the share of sentences that are worse, 0 to 1."""

    line: int
    source: str
    reference: str
    rank: float
    contrast: bool
    translations: list[Translation]


def choose_samples(
    texts: Sequence[tuple[str, str]], translations: Mapping[int, Sequence[str]], shown: int = SHOWN
) -> list[Sample]:
    """Sentences evenly spaced from the worst to the best mean chrF, then those in which runs differ most (`contrast`).

    Args:
        texts: sources and references.
        translations: by run, one per text.
    """
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    scores = [
        {run: metric.sentence_score(lines[i], [reference]).score for run, lines in translations.items()}
        for i, (_, reference) in enumerate(texts)
    ]
    order = sorted(range(len(texts)), key=lambda i: sum(scores[i].values()))
    last = len(order) - 1
    places = dict.fromkeys(round(k * last / max(1, shown - 1)) for k in range(shown))
    spreads = [max(scores[i].values()) - min(scores[i].values()) for i in order]
    widest = sorted(range(len(order)), key=lambda place: -spreads[place])[:CONTRASTS]
    contrasts = [place for place in widest if place not in places and spreads[place] > 0]
    return [
        Sample(
            line=(i := order[place]) + 1,
            source=texts[i][0],
            reference=texts[i][1],
            rank=place / max(1, last),
            contrast=place in contrasts,
            translations=[
                Translation(run, scores[i][run], differences(lines[i], texts[i][1]))
                for run, lines in translations.items()
            ],
        )
        for place in (*places, *contrasts)
    ]


def differences(translation: str, reference: str) -> list[Part]:
    """The words of a translation by how they relate to the reference, with the missing ones in their place."""
    ours, theirs = WORD.findall(translation.rstrip()), WORD.findall(reference.rstrip())
    matcher = SequenceMatcher(None, [w.strip() for w in ours], [w.strip() for w in theirs], autojunk=False)
    parts = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            parts.append(Part("missing", "".join(theirs[c:d])))
        parts.append(Part("same" if kind == "equal" else "extra", "".join(ours[a:b])))
    return [part for part in parts if part.text]
