"""The verdict of `residual-hf check`, by stated rules. Losses are means over `SMOOTH` updates.

1. "will not train": the loss is not finite or spikes at the learning rate of the recipe; or nothing is learned: it
   falls by less than `NOTHING` of the way to the entropy of the word frequencies, and that of another mode by half;
2. "at risk": the loss never gets below `STUCK` times that entropy, and that of another mode does: a slow mode looks
   like one that is stuck there; or the gradient ratio is below `VANISHING`; or the loss is not finite or spikes in
   the ramp; or fp16 has less than `HEADROOM` doublings left with `precision: fp16`;
3. "undecided": no mode got below that entropy, the updates were too few;
4. "trains".

A spike exceeds the minimum by a quarter of the progress made (at least `MARGIN` nats) and does not return.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from residual_hf.base.tables import as_table

RAMP = 4.0
SMOOTH = 5
MARGIN = 0.5
STUCK = 0.97
NOTHING = 0.1
VANISHING = 0.05
HEADROOM = 2.0
VERDICTS = ("trains", "undecided", "at risk", "will not train")


@dataclass(frozen=True)
class ModeCheck:
    """Measurements of a mode.

    Attributes:
        gradient_ratio, vanishing: the smallest ratio of the first layer's gradient to the largest, and where.
        fp16_headroom: doublings left until fp16 overflows.
        losses: of the short training, up to the last finite one.
        rates: learning rate of each of its updates.
        ramp: updates before the ramp.
    """

    mode: str
    gradient_ratio: float
    vanishing: str
    fp16_headroom: float
    losses: list[float]
    rates: list[float]
    ramp: int

    @property
    def loss(self) -> float:
        """The loss at the end of the updates at the rate of the recipe; infinite if it diverged before."""
        return math.inf if self.broken_at < self.ramp else smoothed(self.losses, SMOOTH)[self.ramp - 1]

    @property
    def lowest(self) -> float:
        """The lowest loss, including that of the ramp."""
        return min(smoothed(self.losses, SMOOTH), default=math.inf)

    def learned(self, unigram_entropy: float) -> float:
        """Share of the way from the first loss to the entropy of the word frequencies; above 1 is below it."""
        first = max(self.losses[:1], default=math.inf)
        return (first - self.lowest) / (first - unigram_entropy) if unigram_entropy < first < math.inf else 0.0

    @property
    def broken_at(self) -> int:
        """Updates before the loss diverged, see `spike`, or was not finite; the number of updates if it was not."""
        found = spike(smoothed(self.losses, SMOOTH))
        return len(self.losses) if found is None else found

    @property
    def largest_lr(self) -> float:
        return self.rates[max(0, self.broken_at - 1)]


@dataclass(frozen=True)
class CheckReport:
    """The verdict on a recipe with the findings that it rests on; `str` is the report.

    Attributes:
        verdict: one of `VERDICTS`.
        findings: sentences.
        own, others: the mode of the recipe and those with a complete measurement.
        compared: number of modes that were tried at all.
        unigram_entropy: NLL of a model that knows word frequencies only.
        setting: one line about size and time.
    """

    verdict: str
    findings: list[str]
    own: ModeCheck
    others: list[ModeCheck]
    compared: int
    unigram_entropy: float
    setting: str

    @property
    def better(self) -> list[ModeCheck]:
        """Other modes with a lower loss after the same updates, by at least 0.1 nats, best first."""
        return sorted((m for m in self.others if m.loss < self.own.loss - 0.1), key=lambda m: m.loss)

    def __str__(self) -> str:
        header = ("mode", "loss", "lowest", "largest rate survived", "gradient first/largest", "fp16 head-room")
        rows: list[tuple[str, ...]] = [header]
        for m in (self.own, *sorted(self.others, key=lambda m: m.loss)):
            ratio = f"{m.gradient_ratio:.2g} ({m.vanishing})"
            rows.append(
                (m.mode, f"{m.loss:.2f}", f"{m.lowest:.2f}", f"{m.largest_lr:.2g}", ratio, f"{m.fp16_headroom:.1f}")
            )
        better = ", ".join(m.mode for m in self.better) or "none of those measured"
        ramp, updates = self.own.ramp, len(self.own.rates)
        return "\n".join(
            [
                f"verdict: {self.verdict}",
                *(f"- {finding}" for finding in self.findings),
                "",
                as_table(rows),
                "",
                f"loss: after {ramp} updates at up to the learning rate of the recipe; lowest: in all {updates}, "
                f"at up to {RAMP:g} times this rate",
                f"word frequencies alone: loss {self.unigram_entropy:.2f}",
                f"lower loss after {ramp} updates: {better} ({self.compared} modes tried, {len(self.others)} to the "
                "end). So few updates do not tell which mode is best after a training",
                self.setting,
            ]
        )


def judge(
    own: ModeCheck, others: Sequence[ModeCheck], unigram_entropy: float, precision: str
) -> tuple[str, list[str]]:
    """The verdict and its findings, by the rules above."""
    lr, bound, updates = own.rates[own.ramp - 1], STUCK * unigram_entropy, len(own.rates)
    learned = ", ".join(m.mode for m in others if m.lowest < bound)
    halfway = [f"{m.mode} to {m.lowest:.2f}" for m in others if m.learned(unigram_entropy) > 0.5]
    fell = f"the loss falls to {own.lowest:.2f} in {updates} updates"
    fatal, risks, unclear, good = [], [], [], []
    if own.broken_at < own.ramp:
        fatal.append(f"the loss diverges at update {own.broken_at + 1}, at a learning rate of at most {lr:g}")
    elif own.lowest < bound:
        good.append(fell)
    elif halfway and own.learned(unigram_entropy) < NOTHING:
        fatal.append(f"nothing is learned: {fell}, that of {halfway[0]}")
    elif learned:
        risks.append(f"{fell}, not below {bound:.2f}; {learned} did: slow or stuck, which more --seconds can tell")
    else:
        unclear.append(f"{updates} updates are too few: no mode got below {bound:.2f}")
    if own.gradient_ratio < VANISHING:
        risks.append(f"the gradient vanishes: {own.vanishing}, first layer {own.gradient_ratio:.2g} of the largest")
    if own.ramp <= own.broken_at < updates:
        risks.append(f"the loss diverges at {own.largest_lr / lr:.1f} times the learning rate of the recipe")
    elif own.broken_at >= own.ramp:
        good.append(f"the loss does not diverge at {RAMP:g} times the learning rate of the recipe")
    if precision == "fp16" and own.fp16_headroom < HEADROOM:
        risks.append(f"fp16 has {own.fp16_headroom:.1f} doublings left at the start")
    findings = [good, unclear, risks, fatal]
    worst = max((i for i, found in enumerate(findings) if found), default=0)
    return VERDICTS[worst], [finding for found in reversed(findings) for finding in found]


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    return [sum(part) / len(part) for part in (losses[max(0, i - window + 1) : i + 1] for i in range(len(losses)))]


def spike(loss: Sequence[float]) -> int | None:
    """Updates before the loss left the range of its minimum for good, None if it did not."""
    if not loss:
        return None
    limit = min(loss) + max(MARGIN, 0.25 * (loss[0] - min(loss)))
    return None if loss[-1] <= limit else max(i for i, value in enumerate(loss, start=1) if value <= limit)
