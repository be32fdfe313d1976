"""Will a recipe train? A minute of probes on its own data and model, and the same of other modes.

Each mode is measured alike, in fp32, with the weights of the recipe's seed, on the same batches:

- the gradient at the start: per kind of sub-layer, that of its first layer divided by the largest; the smallest ratio;
- the range of the activations at the start: doublings left until fp16 overflows;
- a short training: two thirds at the learning rate of the recipe, after a warm-up of at most half of these, none if
  the recipe has none; then a ramp up to `RAMP` times this rate.

The rules of the verdict are in `verdict`.
"""

import math
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from residual_hf.analysis.short_training import ShortCorpus, profiled, train
from residual_hf.base.errors import InputError
from residual_hf.base.modes import check_modes
from residual_hf.model.branch_warmup import branch_warmups, finished_branch_warmup
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.probes.gradients import GradientNorm, gradient_norms
from residual_hf.probes.representations import activation_ranges
from residual_hf.training.launch import keep_freed_memory

from .building import build_config
from .preparation import prepare_first_pairs
from .recipe import Recipe
from .verdict import RAMP, CheckReport, ModeCheck, judge
from .warm_start import MODES

PAIRS = 20_000
"""Sentence pairs of the training text that are read."""
TOKENS = {"cpu": 1024, "cuda": 4096}
FEWEST_UPDATES = 24
"""Updates of the short training, if the time is too short for more."""
FINALISTS = 2


def check(recipe: Recipe, seconds: float = 60.0, modes: Sequence[str] = ()) -> CheckReport:
    """Measure the mode of a recipe and others.

    Args:
        recipe: its corpora (the first `PAIRS` pairs), tokenizer, model, seed, learning rate, betas, clipping and
            warm-up are used.
        seconds: time for the measurements, without reading the text.
        modes: other modes to measure to the end; default: all are trained for a few updates, as far as the time
            allows, and the best `FINALISTS` to the end.

    Raises:
        InputError: input that cannot be read, an unknown mode, `seconds` that are not above 0 and finite,
            `model.from`, `optimizer: sgd`, or another `task`.
    """
    check_modes(modes)
    if not 0 < seconds < math.inf:
        raise InputError(f"seconds: {seconds!r} given, must be more than 0 and finite")
    recipe.require(recipe.chosen_task.translates, "task", "'translation' for a check")
    allowed = "another for a check, which trains with Adam at the rate of the recipe"
    recipe.require(recipe.training.optimizer != "sgd", "training.optimizer", allowed)
    recipe.require(recipe.starts_from is None, "model.from", "absent: a check is of models with random weights")
    keep_freed_memory()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_first_pairs(recipe, PAIRS, Path(folder))
        tokens = max(int(data.longest.max()), min(TOKENS[device], recipe.max_tokens or TOKENS[device]))
        corpus = ShortCorpus(data.encoded, data.tokenizer, {}, tokens, device)
        return Check(recipe, data.tokenizer, corpus).run(seconds, modes)


class Check:
    """The measurements of one recipe."""

    def __init__(self, recipe: Recipe, tokenizer: Any, corpus: ShortCorpus):
        self.recipe, self.tokenizer, self.corpus = recipe, tokenizer, corpus
        self.settings = recipe.training

    def run(self, seconds: float, modes: Sequence[str]) -> CheckReport:
        started = time.perf_counter()
        config = build_config(self.recipe, self.tokenizer)
        own_name = "/".join(dict.fromkeys(own.ln_mode for own in config.stack_configs))
        per_update = self.seconds_per_update()
        shares = 1 + (len(modes) or FINALISTS)
        updates = max(FEWEST_UPDATES, int(0.7 * seconds / shares / per_update))
        own_started = time.perf_counter()
        own = self.measure(None, own_name, updates)
        per_mode = time.perf_counter() - own_started
        tried, chosen = list(modes), list(modes)
        if not modes:
            left = seconds - (time.perf_counter() - started) - FINALISTS * per_mode
            tried, chosen = self.choose(own_name, left, per_mode / updates)
        others = [self.measure(mode, mode, updates) for mode in tqdm(chosen, desc="check", unit="mode", disable=None)]
        entropy = self.corpus.unigram_entropy
        verdict, findings = judge(own, others, entropy, self.settings.precision)
        setting = (
            f"{updates} updates of {self.corpus.max_tokens} tokens each, seed {self.settings.seed}, "
            f"{time.perf_counter() - started:.0f} s"
        )
        return CheckReport(verdict, findings, own, others, len(tried), entropy, setting)

    def model(self, mode: str | None) -> ResidualForConditionalGeneration:
        """The model of the recipe, or the same with another mode."""
        recipe = self.recipe
        if mode is not None:
            recipe = replace(recipe, model={**recipe.model, **dict.fromkeys(MODES), "ln_mode": mode})
        config = build_config(recipe, self.tokenizer)
        torch.manual_seed(self.settings.seed)
        return ResidualForConditionalGeneration(config).to(self.corpus.device)

    def train(self, model: Any, rates: Sequence[float]) -> list[float]:
        warmups = branch_warmups(model)  # which end here with the warm-up of the learning rate
        longest = max((warmup.duration for warmup in warmups), default=1)
        share = min(1.0, len(rates) / (3 * longest))
        for warmup in warmups:
            warmup.start = int(warmup.start * share)
            warmup.duration = max(warmup.start + 1, int(warmup.duration * share))

        def clipped(update: int) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.clip_norm or math.inf)

        return train(
            model,
            self.corpus.train(self.settings.seed),
            lambda update: rates[update - 1],
            len(rates),
            after_backward=clipped,
            betas=self.settings.betas,
        )

    def seconds_per_update(self) -> float:
        """Time of an update; halves the batches until the fewest updates of one mode take at most 20 s."""
        longest = int(self.corpus.corpora["train"].longest.max())
        while True:
            self.train(model := self.model(None), [self.settings.lr * 1e-3])
            started = time.perf_counter()
            self.train(model, [self.settings.lr * 1e-3] * 2)
            seconds = (time.perf_counter() - started) / 2
            if seconds * FEWEST_UPDATES <= 20 or self.corpus.max_tokens <= longest * 2:
                return seconds
            self.corpus.max_tokens //= 2

    def choose(self, own: str, seconds: float, per_update: float) -> tuple[list[str], list[str]]:
        """Modes that were trained for a few updates, as many as the time allows, and the best of them."""
        names = sorted(set(LN_MODES) - {own})
        updates = max(3, int(seconds / per_update / len(names)))
        rates = [self.settings.lr * (i + 1) / updates for i in range(updates)]
        random.Random(self.settings.seed).shuffle(names)
        started = time.perf_counter()
        losses: dict[str, float] = {}
        for name in tqdm(names, desc="first updates", unit="mode", disable=None):
            if len(losses) >= FINALISTS and time.perf_counter() - started > seconds:
                break
            try:
                model = self.model(name)
            except InputError:  # a mode that does not allow another field of the recipe
                continue
            found = self.train(model, rates)
            losses[name] = math.inf if len(found) < updates else sum(found[-2:]) / 2
        return list(losses), sorted(losses, key=lambda name: losses[name])[:FINALISTS]

    def measure(self, mode: str | None, name: str, updates: int) -> ModeCheck:
        model, settings = self.model(mode), self.settings
        batch = next(self.corpus.train(settings.seed))
        with finished_branch_warmup(model):
            norms = gradient_norms(profiled(model, batch), batch)
            headroom = min(row.fp16_headroom for row in activation_ranges(model, batch))
        ratio, where = vanishing(norms)
        ramp = round(2 / 3 * updates)
        warm = min(settings.warmup_updates, ramp // 2)
        rates = [settings.lr * min(1.0, (i + 1) / (warm + 1)) for i in range(ramp)]
        rates += [settings.lr * RAMP ** ((i + 1) / (updates - ramp)) for i in range(updates - ramp)]
        return ModeCheck(name, ratio, where, headroom, self.train(model, rates), rates, ramp)


def vanishing(norms: Sequence[GradientNorm]) -> tuple[float, str]:
    """The smallest ratio of the first layer's gradient to the largest of a kind of sub-layer, and where."""
    found: dict[str, list[float]] = {}
    for row in norms:
        if row.location == "weights":
            found.setdefault(f"{row.stack} {row.sublayer}", []).append(row.norm)
    ratios = {place: values[0] / max(values) for place, values in found.items() if max(values) > 0}
    place = min(ratios, key=lambda name: ratios[name], default="")
    return (ratios[place], place) if place else (1.0, "all are 0")
