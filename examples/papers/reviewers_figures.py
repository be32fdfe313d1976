"""Measurements of what reviewers asked of ResiDual (ICLR 2024) and no published figure answers."""

import math
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import adam
from figure import INITIAL, VOCABULARY, Figure, fresh_model, panels_of
from generated import shape
from points import Panel, Point
from trained_figures import DIVERGED, SMALL, TRAINED, depths, final_nll, learning_curves, untrained, warmed_up

from residual_hf.analysis.short_training import profiled, train
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_single_stack import ResidualForCausalLM
from residual_hf.probes import gradients

LRS = (1e-3, 3e-3)
WARM_UPS = {"without warm-up": 0.0, "warm-up of 40 % of the updates": 0.4}
SHORT = SMALL | {"updates": 100}
GRADIENT = "gradient norm"


def stacks_apart(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    """Gradients of self-attention in an encoder, in a decoder with cross-attention, and in a decoder alone."""
    model, batch = fresh_model(mode, seed, sizes)
    fields = shape(mode, sizes["layers"], sizes["width"], sizes["ffn"])
    fields = {name: value for name, value in fields.items() if not name.startswith("encoder_")}
    alone = ResidualForCausalLM(ResidualConfig(is_decoder_only=True, vocab_size=VOCABULARY, **fields))
    tokens = {"input_ids": batch["labels"], "labels": batch["labels"]}
    for name, network, inputs in (("", model, batch), ("decoder alone", profiled(alone, tokens), tokens)):
        for row in gradients.gradient_norms(network, inputs):
            if (row.sublayer, row.location) == ("self_attention", "weights"):
                place = name or {"encoder": "encoder", "decoder": "decoder with cross-attention"}[row.stack]
                yield Point(place, mode, seed, row.layer, row.norm)


def seeds_apart(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    yield from (point for point in learning_curves(mode, seed, sizes) if point.panel == "validation NLL")


def scales_in_training(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    model, corpus = untrained(mode, seed, sizes)
    batch = next(corpus.train(seed + 1000))
    every = max(1, sizes["updates"] // 5)

    found: dict[int, list[adam.GradientScale]] = {}

    def measure(update: int) -> None:
        if update == 1 or update % every == 0:
            found[update] = adam.gradient_scales(model, batch)

    train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"], after_update=measure)
    for update, rows in found.items():
        size = sum(row.size for row in rows)
        for limit in ("1e_6", "1e_4", "1e_3"):
            share = sum(getattr(row, f"below_{limit}") * row.size for row in rows) / size
            yield Point(f"share of entries below {limit.replace('_', '-')}", mode, seed, update, share)
        sigma = math.sqrt(sum(row.sigma**2 * row.size for row in rows) / size)
        yield Point("root mean square of the gradient", mode, seed, update, sigma)
        (kappa,) = adam.condition_numbers(sigma, [update], seed=seed)
        yield Point("kappa at that scale", mode, seed, update, kappa)


def costs(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    """Time of forward and backward pass relative to Post-LN, in pairs of one update each."""
    for width in (64, 128, 256):
        pair = [fresh_model(name, seed, {**sizes, "width": width, "ffn": 4 * width}) for name in ("post_ln", mode)]
        times: list[list[float]] = [[], []]
        for _ in range(sizes["updates"]):
            for (model, batch), found in zip(pair, times, strict=True):
                started = time.perf_counter()
                model(**batch).loss.backward()
                found.append(time.perf_counter() - started)
        ratios = [ours / post for post, ours in zip(*times, strict=True)]
        yield Point("time of an update", mode, seed, width, statistics.median(ratios[1:]))


def warm_ups(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    for panel, share in WARM_UPS.items():
        for lr in LRS:
            nll = final_nll(mode, seed, sizes, warmed_up(sizes, lr, share))
            yield Point(panel, mode, seed, lr, nll)


def starts_of_the_dual_stream(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    for series, factor in (("from the embeddings", 1.0), ("from zero", 0.0)):
        model, corpus = untrained(mode, seed, sizes)
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.boundary.begin = lambda hidden, factor=factor: (hidden, hidden * factor)
        for row in gradients.gradient_norms(model, next(corpus.valid())):
            if (row.stack, row.sublayer, row.location) == ("decoder", "self_attention", "weights"):
                yield Point("decoder self-attention: |dL/dw| at the start", series, seed, row.layer, row.norm)
        losses = train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"])
        for end in range(10, len(losses) + 1, 10):
            yield Point("training NLL", series, seed, end, statistics.fmean(losses[end - 10 : end]))


def figure(number: int, title: str, protocol: str, panels: tuple[Panel, ...], **fields: Any) -> Figure:
    source = f"Question {number} of the reviewers of ResiDual (ICLR 2024): {title}"
    fields = {"sizes": {"layers": 6, **SHORT}, "models": TRAINED, **fields}
    return Figure(f"reviewer-{number}", source, protocol, panels, **fields)


FIGURES = (
    figure(
        1,
        "which stack figure 2(a) shows",
        "Gradient norm of the weights of self-attention. The decoder alone predicts the next token.",
        panels_of(("decoder with cross-attention", "decoder alone", "encoder"), "layer", GRADIENT, log_y=True),
        sizes={"layers": 36, "width": 256, "ffn": 1024},
        models=INITIAL,
        measure=stacks_apart,
    ),
    figure(
        2,
        "seeds and standard deviation",
        "Validation NLL in nats per token; bands are the range over seeds.",
        (Panel("validation NLL", "update", "nats per token"),),
        measure=seeds_apart,
    ),
    figure(
        4,
        "the scale of gradients in training",
        "Gradients of the mean loss per token of a batch that is not trained on, after an update; kappa of Adam as "
        "in theorem 3.2 (1,024 dimensions, lr 1e-4, eps 1e-6) for Gaussian gradients of that scale.",
        (
            Panel("root mean square of the gradient", "update", "sigma", log_y=True),
            *(Panel(f"share of entries below {limit}", "update", "share") for limit in ("1e-6", "1e-4", "1e-3")),
            Panel("kappa at that scale", "update", "kappa", log_y=True),
        ),
        measure=scales_in_training,
    ),
    figure(
        5,
        "the cost",
        "Time of forward and backward pass relative to Post-LN, in alternation: the median over updates.",
        (Panel("time of an update", "width", "relative to Post-LN"),),
        sizes={"layers": 6, "updates": 12},
        models="Fresh models without dropout, 16 sentences of 20 random tokens, in PyTorch without native kernels.",
        measure=costs,
    ),
    figure(
        6,
        "a curve over depth",
        f"Validation NLL in nats per token, {DIVERGED:g} if the run diverged.",
        (Panel("validation NLL", "layers in each stack", "nats per token"),),
        sizes={"layers": 12, **SHORT},
        measure=partial(depths, among=(2, 6)),
    ),
    figure(
        7,
        "without warm-up",
        f"Validation NLL in nats per token, {DIVERGED:g} if the run diverged.",
        panels_of(WARM_UPS, "learning rate", "nats per token", log_x=True),
        models="Trained on the generated corpus, 1,024 tokens per update, Adam at a constant rate after the warm-up.",
        sizes={"layers": 6, **SHORT, "updates": 80},
        full={"updates": 100},
        measure=warm_ups,
    ),
    figure(
        9,
        "where the dual stream starts",
        "The official code starts the dual stream from the embeddings.",
        (
            Panel("decoder self-attention: |dL/dw| at the start", "layer", GRADIENT, log_y=True),
            Panel("training NLL", "update", "nats per token"),
        ),
        modes=("resi_dual",),
        any_mode=False,
        measure=starts_of_the_dual_stream,
    ),
)
