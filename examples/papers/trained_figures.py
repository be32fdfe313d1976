"""The figures of the papers that need a training: similarity of layers, gradients over time, grids of settings."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import paper_probes
from figure import LEGACY, Figure, model_of_sizes, panels_of
from generated import generated_corpus
from initial_figures import dependencies
from points import Panel, Point

from residual_hf.analysis.short_training import ShortCorpus, profiled, train
from residual_hf.probes import gradients
from residual_hf.probes.undisturbed import Batch, mean_loss

PROJECTIONS = {"q_proj": "W^Q", "k_proj": "W^K", "v_proj": "W^V", "out_proj": "W^O"}
LRS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
BETAS2 = (0.99, 0.995, 0.999)
DIVERGED = 20.0
DEPTHS = {"6 layers": 6, "all layers": 0}
SMALL = {"width": 64, "ffn": 128, "updates": 200}
DEEP = {**SMALL, "layers": 18, "updates": 100}
OF_PAPER = {"width": 512, "ffn": 2048, "updates": 50000}
TRAINED = (
    "Trained on the generated corpus, 1,024 tokens per update, Adam at 1e-3 after a warm-up of a fifth of the updates."
)


def untrained(mode: str, seed: int, sizes: dict[str, Any], **fields: Any) -> tuple[Any, ShortCorpus]:
    """A model for the generated corpus, and the corpus."""
    corpus = generated_corpus(sizes.get("tokens", 1024))
    return model_of_sizes(mode, seed, sizes, **fields, **corpus.fields), corpus


def warmed_up(sizes: dict[str, Any], lr: float = 1e-3, share: float = 0.2) -> Callable[[int], float]:
    """A constant rate after a linear warm-up over a share of the updates."""
    return lambda update: lr * min(1.0, update / max(share * sizes["updates"], 1.0))


def similarity(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    for row in paper_probes.layer_cosines(model, batch):
        yield Point(row.stack, series, seed, row.layer, row.other, row.cosine)


def similarity_after_training(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    model, corpus = untrained(mode, seed, sizes)
    train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"])
    yield from similarity(model, next(corpus.valid()), mode, seed)


def gradients_over_time(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """Relative gradient norm, and relative update since the last point, of the projections of the encoder."""
    model, corpus = untrained(mode, seed, sizes)
    every = max(1, sizes["updates"] // 20)
    weights = {
        (layer, role): getattr(module.self_attn, name).weight
        for layer, module in enumerate(model.model.encoder.layers, start=1)
        for name, role in PROJECTIONS.items()
    }
    previous = {key: weight.detach().clone() for key, weight in weights.items()}
    found: dict[str, dict[tuple[int, int, str], float]] = defaultdict(dict)

    def seen(update: int) -> None:
        if update % every == 0:
            for key, weight in weights.items():
                found["gradient"][(update,) + key] = weight.grad.norm().item()

    def moved(update: int) -> None:
        if update % every == 0:
            for key, weight in weights.items():
                found["update"][(update,) + key] = (weight.detach() - previous[key]).norm().item()
                previous[key] = weight.detach().clone()

    train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"], seen, moved)
    for quantity, values in found.items():
        largest = max(values.values())
        for (update, layer, role), value in values.items():
            if layer in (1, (sizes["layers"] + 1) // 2, sizes["layers"]):
                yield Point(f"relative {quantity} of {role}", f"{mode}, layer {layer}", seed, update, value / largest)


def curves_of_two_depths(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    for panel, layers in DEPTHS.items():
        for point in learning_curves(mode, seed, {**sizes, "layers": layers or sizes["layers"]}):
            if point.panel == "validation NLL":
                yield replace(point, panel=panel)


def dependencies_after_training(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    for panel, layers in DEPTHS.items():
        model, corpus = untrained(mode, seed, {**sizes, "layers": layers or sizes["layers"]}, decoder_layers=1)
        train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"])
        yield from (replace(p, panel=panel) for p in dependencies(model, next(corpus.valid()), mode, seed))


def mixed_stacks(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """Relative gradients of the layers of the decoder at the start, and the loss of a training."""
    for encoder in ("post_ln",) if mode == "post_ln" else ("post_ln", "pre_ln"):
        series = f"{encoder} / {mode}"
        model, corpus = untrained(mode, seed, sizes, encoder_ln_mode=encoder)
        batch = next(corpus.train(seed))
        for row in gradients.gradient_norms(profiled(model, batch), batch):
            if (row.stack, row.sublayer, row.location) == ("decoder", "self_attention", "output"):
                yield Point("decoder: relative gradient", series, seed, row.layer, row.relative)
        losses = train(model, corpus.train(seed), warmed_up(sizes, 3e-3), sizes["updates"])
        yield from training_curve(series, seed, losses, sizes)


def learning_rates_and_betas(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """NLL at the end of a training without warm-up at each learning rate and beta_2; diverged runs have `DIVERGED`."""
    for lr, beta2 in product(LRS, BETAS2):
        nll = final_nll(mode, seed, sizes, warmed_up(sizes, lr, share=0), (0.9, beta2))
        yield Point("NLL", mode, seed, lr, beta2, nll)


SCALES: dict[str, tuple[str, tuple[float, ...]]] = {
    "rskip_ln": ("skip_order", (1, 2, 3)),
    "xskip": ("skip_scale", (0.5, 1, 2, 3)),
    "xskip_ln": ("skip_scale", (0.5, 1, 2, 3)),
}


def scaled(mode: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Name and options of a mode with its shortcut scaled by each of `SCALES`, or only as it is."""
    if mode not in SCALES:
        yield mode, {}
        return
    option, scales = SCALES[mode]
    for scale in scales:
        yield f"{mode}, {scale}", {option: scale}


def skip_scales(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """Gradient of each layer's output, and the NLL after a training, for scaled shortcuts."""
    for series, options in scaled(mode):
        model, corpus = untrained(mode, seed, sizes, ln_mode_options=options)
        batch = next(corpus.train(seed))
        for row in gradients.gradient_norms(profiled(model, batch), batch):
            place = (row.stack, row.sublayer, row.location)
            if place == ("decoder", "feed_forward", "output") and math.isfinite(row.norm) and row.norm > 0:
                yield Point("decoder: gradient of the layer's output", series, seed, row.layer, row.norm)
        losses = train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"])
        yield from training_curve(series, seed, losses, sizes)


def training_curve(series: str, seed: int, losses: list[float], sizes: dict[str, Any]) -> Iterator[Point]:
    """Means over a tenth of the updates each; `DIVERGED` from where a run diverged."""
    updates = sizes["updates"]
    every = max(1, updates // 10)
    for start in range(0, updates, every):
        end = min(start + every, updates)
        part = losses[start:end] if end <= len(losses) else [DIVERGED]
        yield Point("training loss", series, seed, end, min(sum(part) / len(part), DIVERGED))


def learning_curves(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """Loss of the training, and NLL of the validation set at every fifth of the updates."""
    model, corpus = untrained(mode, seed, sizes)
    found: list[Point] = []

    every = sizes["updates"] // 5 or 1

    def measure(update: int) -> None:
        if update % every == 0:
            found.append(Point("validation NLL", mode, seed, update, bounded(mean_loss(model, corpus.valid()))))

    losses = train(model, corpus.train(seed), warmed_up(sizes), sizes["updates"], after_update=measure)
    for update in range((len(found) + 1) * every, sizes["updates"] + 1, every):
        found.append(Point("validation NLL", mode, seed, update, DIVERGED))
    yield from (*found, *training_curve(mode, seed, losses, sizes))


def depths(mode: str, seed: int, sizes: dict[str, Any], among: tuple[int, ...] = (6, 12, 18, 36)) -> Iterator[Point]:
    """NLL after a training over the number of layers: that of `sizes`, and those of `among` that are smaller."""
    for layers in (*(n for n in among if n < sizes["layers"]), sizes["layers"]):
        nll = final_nll(mode, seed, {**sizes, "layers": layers}, warmed_up(sizes))
        yield Point("validation NLL", mode, seed, layers, nll)


def final_nll(
    mode: str,
    seed: int,
    sizes: dict[str, Any],
    lr: Callable[[int], float],
    betas: tuple[float, float] = (0.9, 0.98),
) -> float:
    """NLL per token of the validation set after a training with `lr(update)`; at most `DIVERGED`."""
    model, corpus = untrained(mode, seed, sizes)
    losses = train(model, corpus.train(seed), lr, sizes["updates"], betas=betas)
    nll = mean_loss(model.eval(), corpus.valid()) if len(losses) == sizes["updates"] else math.inf
    return bounded(nll)


def bounded(nll: float) -> float:
    return min(nll, DIVERGED) if math.isfinite(nll) else DIVERGED


FIGURES = (
    Figure(
        "admin-1",
        "Admin (Liu et al. 2020), figures 1 and 9",
        "Validation NLL in nats per token over updates.",
        panels_of(DEPTHS, "update", "nats per token"),
        {**DEEP, "tokens": 512, **LEGACY},
        {**OF_PAPER, "tokens": 4096},
        modes=("post_ln", "pre_ln", "admin"),
        models="Trained on the generated corpus, Adam at 1e-3 after a warm-up of a fifth of the updates.",
        measure=curves_of_two_depths,
    ),
    Figure(
        "admin-table-1",
        "Admin (Liu et al. 2020), table 1",
        "Encoder / decoder. Gradient of the output of self-attention in the decoder, relative to the largest of the "
        f"model, and the loss of a training at 3e-3; {DIVERGED:g} after a loss that was not finite.",
        (
            Panel("decoder: relative gradient", "layer", "relative gradient norm", log_y=True),
            Panel("training loss", "update", "loss"),
        ),
        {**DEEP, "tokens": 512, **LEGACY},
        {**OF_PAPER, "tokens": 4096},
        modes=("post_ln", "pre_ln"),
        any_mode=False,
        models="Trained on the generated corpus, Adam after a warm-up of a fifth of the updates.",
        measure=mixed_stacks,
    ),
    Figure(
        "admin-8",
        "Admin (Liu et al. 2020), figures 7 and 8, after a training",
        "Share of branch j in the input of sub-layer i + 1 of the encoder.",
        panels_of(DEPTHS, "branch j", "sub-layer i", heat=True),
        {**DEEP, "tokens": 512, **LEGACY},
        {**OF_PAPER, "tokens": 4096},
        modes=("post_ln", "pre_ln", "admin"),
        models="Trained on the generated corpus with one decoder layer, Adam at 1e-3 after a warm-up of a fifth.",
        measure=dependencies_after_training,
    ),
    Figure(
        "b2t-1",
        "B2T connection (Takase et al. 2023), figures 1 and 6",
        f"Loss of the training and NLL of the validation set, {DIVERGED:g} if the run diverged.",
        (Panel("training loss", "update", "loss"), Panel("validation NLL", "update", "nats per token")),
        DEEP,
        OF_PAPER,
        modes=("post_ln", "pre_ln", "b2t"),
        models=TRAINED,
        measure=learning_curves,
    ),
    Figure(
        "b2t-9",
        "B2T connection (Takase et al. 2023), figure 9",
        f"Validation NLL at the end of a training, {DIVERGED:g} if it diverged.",
        (Panel("validation NLL", "layers in each stack", "nats per token"),),
        DEEP,
        {**OF_PAPER, "layers": 50},
        modes=("post_ln", "pre_ln", "b2t"),
        models=TRAINED,
        measure=depths,
    ),
    Figure(
        "b2t-5",
        "B2T connection (Takase et al. 2023), figure 5",
        "Mean cosine between the outputs of two layers over the tokens of a batch.",
        panels_of(("encoder", "decoder"), "layer", "layer", heat=True),
        {"layers": 6, **SMALL},
        OF_PAPER,
        modes=("post_ln", "pre_ln", "b2t"),
        models=TRAINED,
        probe=similarity,
        measure=similarity_after_training,
    ),
    Figure(
        "admin-5",
        "Admin (Liu et al. 2020), figures 5 and 11",
        "Gradient norms, and changes of the weights between points, of the projections of encoder "
        "self-attention, relative to the largest.",
        tuple(
            Panel(f"relative {quantity} of {role}", "update", quantity, log_y=True)
            for quantity in ("gradient", "update")
            for role in PROJECTIONS.values()
        ),
        {"layers": 18, **SMALL, **LEGACY},
        OF_PAPER,
        modes=("pre_ln",),
        models=TRAINED,
        measure=gradients_over_time,
    ),
    Figure(
        "admin-10",
        "Admin (Liu et al. 2020), figure 10",
        f"Validation NLL in nats per token, {DIVERGED:g} if the run diverged.",
        (Panel("NLL", "learning rate", "beta_2", heat=True),),
        {"layers": 6, **SMALL, "updates": 60, "tokens": 512, **LEGACY},
        {"width": 512, "ffn": 2048, "updates": 20000, "tokens": 4096},
        modes=("post_ln", "pre_ln", "admin"),
        models="Trained on the generated corpus without warm-up at a constant learning rate.",
        measure=learning_rates_and_betas,
    ),
    Figure(
        "skip-3",
        "Rethinking Skip Connection (Liu et al. 2020), figure 3",
        "Gradient at the start and loss for shortcuts scaled by 0.5 to 3; not the protocol of the paper.",
        (
            Panel("decoder: gradient of the layer's output", "layer", "gradient norm", log_y=True),
            Panel("training loss", "update", "loss"),
        ),
        {"layers": 6, **SMALL, "updates": 100},
        {"width": 512, "ffn": 2048, "updates": 20000},
        modes=("xskip", "xskip_ln", "rskip_ln"),
        models=TRAINED,
        measure=skip_scales,
    ),
)
