"""The figures of the papers that show models at initialization, and the theorems."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import adam
import dependency
import paper_probes
import stability
import theory
from figure import BASELINES, LEGACY, Figure, fresh_model, panels_of
from points import Panel, Point

from residual_hf.base.errors import InputError
from residual_hf.model.connections import STACKS, SUBLAYERS
from residual_hf.probes import gradients
from residual_hf.probes.undisturbed import Batch

STEPS = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40)
DECODER_LAYERS = ("first decoder layer", "middle decoder layer", "last decoder layer")
SIGMAS = (0.0, 1e-9, 3e-9, 1e-8, 3e-8, 1e-7)
PLACES = {(stack, kind): f"{stack}, {kind.replace('_', '-')}" for stack, kinds in SUBLAYERS.items() for kind in kinds}


def gradients_and_changes(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    for row in gradients.gradient_norms(model, batch):
        if row.location == "weights":
            yield Point(f"{PLACES[row.stack, row.sublayer]}: |dL/dw|", series, seed, row.layer, row.norm)
    for change in paper_probes.representation_change(model, batch):
        yield Point(f"{PLACES[change.stack, change.sublayer]}: change", series, seed, change.layer, change.change)


def split_gradients(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    rows = paper_probes.gradient_split(model, batch)
    if found := {model.config.of(row.stack).ln_mode for row in rows} - {"resi_dual"}:
        raise InputError(f"resi_dual-eq5: the ln_mode of {series} is {found.pop()}, must be resi_dual")
    for row in rows:
        values = {"Post-LN part": row.parts[0], "dual part": row.parts[1], "larger part": max(row.parts)}
        for name, norm in (values | {"gradient": row.total}).items():
            yield Point(f"{PLACES[row.stack, row.sublayer]}: |dL/dw|", f"{series}, {name}", seed, row.layer, norm)


def conditioning(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    if mode == BASELINES[0]:
        for sigma in SIGMAS:
            for step, kappa in zip(STEPS, adam.condition_numbers(sigma, STEPS, seed=seed), strict=True):
                yield Point("kappa over steps", f"sigma {sigma:g}", seed, step, kappa)
        for sigma in (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
            for step, kappa in zip((1, 5, 20), adam.condition_numbers(sigma, (1, 5, 20), seed=seed), strict=True):
                yield Point("kappa over the scale of gradients", f"step {step}", seed, sigma, kappa)
    yield from scales_of_gradients(*fresh_model(mode, seed, sizes), mode, seed)


def scales_of_gradients(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    scales = sorted(row.sigma for row in adam.gradient_scales(model, batch))
    for rank, sigma in enumerate(scales):
        yield Point("measured scale of gradients", series, seed, (rank + 1) / len(scales), sigma)


def layer_gradients(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    squares: dict[tuple[str, int], float] = {}
    for row in gradients.gradient_norms(model, batch):
        if row.location == "weights":
            squares[row.stack, row.layer] = squares.get((row.stack, row.layer), 0.0) + row.norm**2
        if row.location == "output" and row.sublayer == "feed_forward":
            yield Point(f"{row.stack}: gradient of the layer's output", series, seed, row.layer, row.norm)
    for (stack, layer), square in squares.items():
        yield Point(f"{stack}: gradient of the layer's weights", series, seed, layer, square**0.5)


def norm_by_norm(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    rows = [row for row in gradients.gradient_norms(model, batch) if row.stack == "decoder"]
    last = max(row.layer for row in rows)
    shown = dict(zip((last, (last + 1) // 2, 1), reversed(DECODER_LAYERS), strict=True))
    points = [(kind, f"norm.{side}") for kind in SUBLAYERS["decoder"] for side in ("input", "output")]
    for row in rows:
        place = (row.sublayer, row.location)
        if row.layer in shown and place in points:
            yield Point(shown[row.layer], series, seed, points.index(place) + 1, row.norm)


def relative_gradients(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    for row in gradients.gradient_norms(model, batch):
        if row.location == "output":
            yield Point(PLACES[row.stack, row.sublayer], series, seed, row.layer, row.relative)


def output_changes(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    for kind in ("random", "update"):
        rows = [row for row in stability.output_change(model, batch, kind, seed=seed) if row.stack == "encoder"]
        fits = stability.growth([row.change for row in rows])
        label = ", ".join(f"{name} R2 {fit.r_squared:.2f}" for name, fit in fits.items())
        print(f"admin-4: {series}, seed {seed}, {kind}: {label}")
        for row in rows:
            yield Point(f"{kind} perturbation", series, seed, row.k + 1, row.change)


def two_depths(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    for point in dependencies(*fresh_model(mode, seed, {**sizes, "layers": 6}), mode, seed):
        yield replace(point, panel="6 layers")
    yield from dependencies(*fresh_model(mode, seed, sizes), mode, seed)


def dependencies(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    for row in dependency.dependency_matrix(model, batch):
        if row.j > 0:
            yield Point("all layers", series, seed, row.j, row.i, row.beta)


def theorems(mode: str, seed: int, sizes: dict[str, Any]) -> Iterator[Point]:
    """Values of the theorem, of its toy model and of the network, for Post-LN and Pre-LN."""
    model, batch = fresh_model(mode, seed, sizes)
    yield from theorems_on_changes(model, batch, mode, seed, depth=2 * sizes["layers"])
    rows = gradients.gradient_norms(model, batch)
    yield from theorem_on_gradients(rows, mode, seed, sizes["layers"])
    yield from admins_theorem_1(rows, mode, seed)
    yield from admins_theorem_2(model, batch, mode, seed)


def theorems_on_changes(model: Any, batch: Batch, mode: str, seed: int, depth: int) -> Iterator[Point]:
    """ResiDual's theorems 3.3 (Pre-LN) and 3.6 (Post-LN), and corollaries 3.5 and 3.7."""
    post = mode == "post_ln"
    theorem = "theorem 3.6" if post else "theorem 3.3"
    changes = [r.change for r in paper_probes.representation_change(model, batch) if r.stack == "encoder"]
    simulated = theory.simulated_changes(post, depth, sigma_squared=1.0, size=20_000, seed=seed)
    for k in range(2, depth):
        closed = theory.post_ln_change(1.0) if post else theory.pre_ln_change(k)
        yield Point(theorem, "theorem, sigma 1", seed, k, closed)
        yield Point(theorem, "simulation, sigma 1", seed, k, simulated[k - 2])
        yield Point(theorem, f"{mode} encoder", seed, k, changes[k - 2])
    if post:
        added = theory.simulated_output_changes(depth, size=20_000, seed=seed)
        for n, change in enumerate(added, start=1):
            yield Point("corollary 3.7", "lower bound, sigma 1", seed, n, theory.post_ln_change(1.0))
            yield Point("corollary 3.7", "simulation of ResiDual, sigma 1", seed, n, change)
    else:
        for n in range(1, depth - 1):
            yield Point("corollary 3.5", "theorem, sigma 1", seed, n, theory.pre_ln_change(n + 1))
            yield Point("corollary 3.5", "simulation, sigma 1", seed, n, simulated[n - 1])
            yield Point("corollary 3.5", "pre_ln encoder", seed, n, changes[n - 1])


def theorem_on_gradients(rows: Sequence[gradients.GradientNorm], mode: str, seed: int, layers: int) -> Iterator[Point]:
    """ResiDual's theorem 3.1."""
    post, panel = mode == "post_ln", f"theorem 3.1, {mode}"
    for stack, every in (("encoder", 0), ("decoder", 3)):
        blocks = (3 if every else 2) * layers
        norms = theory.simulated_gradients(post, blocks, every, sigma_squared=0.5, seed=seed)
        yield from (Point(panel, f"simulation, {stack}", seed, (k + 1) / blocks, norm) for k, norm in enumerate(norms))
        for distance in range(0 if post else 2, blocks):
            if post:
                values = {"theorem": theory.post_ln_gradient(distance)}
            else:
                (stated, proved), (first, last) = (theory.pre_ln_gradient(d, blocks) for d in (distance, 2))
                values = {"theorem": stated / first, "end of the proof": proved / last}
            for name, value in values.items():
                yield Point(panel, f"{name}, {stack}", seed, 1 - distance / blocks, value)
    for stack in STACKS:
        norms = [r.norm for r in rows if (r.stack, r.sublayer, r.location) == (stack, "feed_forward", "weights")]
        for layer, norm in enumerate(norms, start=1):
            yield Point(panel, f"{mode} {stack}", seed, layer / len(norms), norm / norms[-1])


def admins_theorem_1(rows: Sequence[gradients.GradientNorm], mode: str, seed: int) -> Iterator[Point]:
    for stack in STACKS:
        outputs = [row.norm**2 for row in rows if (row.stack, row.location) == (stack, "output")]
        outputs.reverse()  # a backward pass meets the last sub-layer first
        for k, square in enumerate(outputs, start=1):
            yield Point("Admin's theorem 1", f"{mode} {stack}", seed, k / len(outputs), square / outputs[-1])
    yield from (Point("Admin's theorem 1", "bound for Post-LN encoders", seed, x, 1.0) for x in (0.0, 1.0))


def admins_theorem_2(model: Any, batch: Batch, mode: str, seed: int) -> Iterator[Point]:
    panel = f"Admin's theorem 2, {mode}"
    betas = [row.beta for row in dependency.dependency_matrix(model, batch) if row.i == row.j]
    output = [row.change for row in stability.output_change(model, batch, seed=seed) if row.stack == "encoder"]
    for i in range(1, len(output)):
        predicted = theory.output_change_bound(betas[:i]) / theory.output_change_bound(betas[:1])
        yield Point(panel, "sum of beta_ii^2", seed, i, predicted)
        yield Point(panel, "output change of the network", seed, i, output[i] / output[1])


FIGURES = (
    Figure(
        "resi_dual-2",
        "ResiDual (Xie et al. 2023), figure 2",
        "Gradient norm of the weights of each branch, and mean change of what consecutive branches read. "
        "The paper does not say which stack it shows: only a decoder with cross-attention vanishes.",
        (
            *panels_of((f"{place}: |dL/dw|" for place in PLACES.values()), "layer", "gradient norm", log_y=True),
            *panels_of((f"{place}: change" for place in PLACES.values()), "layer", "mean |x(k+1) - x(k)|"),
        ),
        {"layers": 36, "width": 256, "ffn": 1024},
        probe=gradients_and_changes,
    ),
    Figure(
        "resi_dual-eq5",
        "ResiDual (Xie et al. 2023), equations 4 and 5",
        "Gradient norm of the weights of each branch, of the parts of the gradient that return through the Post-LN "
        "stream and through the dual stream at the end of the stack, and of the larger part.",
        panels_of((f"{place}: |dL/dw|" for place in PLACES.values()), "layer", "gradient norm", log_y=True),
        {"layers": 36, "width": 256, "ffn": 1024},
        modes=("resi_dual",),
        any_mode=False,
        probe=split_gradients,
    ),
    Figure(
        "resi_dual-3",
        "ResiDual (Xie et al. 2023), figure 3",
        "Norm of the derivative of Adam's update by the gradient (1,024 dimensions, lr 1e-4, eps 1e-6) for Gaussian "
        "gradients; then the root mean square of the gradient of each parameter of real models, in order.",
        (
            Panel("kappa over steps", "step", "kappa", log_y=True),
            Panel("kappa over the scale of gradients", "sigma", "kappa", log_y=True, log_x=True),
            Panel("measured scale of gradients", "share of the parameters", "sigma", log_y=True),
        ),
        {"layers": 18, "width": 256, "ffn": 1024},
        probe=scales_of_gradients,
        measure=conditioning,
    ),
    Figure(
        "b2t-3",
        "B2T connection (Takase et al. 2023), figure 3",
        "Gradient norms per layer.",
        panels_of(
            (f"{stack}: gradient of the layer's {what}" for stack in STACKS for what in ("weights", "output")),
            "layer",
            "gradient norm",
            log_y=True,
        ),
        modes=("post_ln", "pre_ln", "b2t"),
        probe=layer_gradients,
    ),
    Figure(
        "b2t-4",
        "B2T connection (Takase et al. 2023), figures 4 and 7",
        "Gradient norm before and after each norm of a decoder layer: 1, 2 of self-attention, 3, 4 of "
        "cross-attention, 5, 6 of the feed-forward.",
        panels_of(DECODER_LAYERS, "location", "gradient norm", log_y=True),
        modes=("post_ln",),
        probe=norm_by_norm,
    ),
    Figure(
        "admin-3",
        "Admin (Liu et al. 2020), figure 3",
        "Gradient norm of the output of each sub-layer, relative to the largest in the model.",
        panels_of(PLACES.values(), "layer", "relative gradient norm", log_y=True),
        {"layers": 18, "width": 512, "ffn": 2048, **LEGACY},
        modes=("post_ln", "pre_ln", "admin"),
        probe=relative_gradients,
    ),
    Figure(
        "admin-4",
        "Admin (Liu et al. 2020), figure 4",
        "Squared change of the input of each sub-layer of an encoder, divided by its deviation, when all "
        "weights but biases and norms move by 1e-4 in random directions, or by 1e-6 against the sign of the gradient.",
        panels_of(("random perturbation", "update perturbation"), "sub-layers", "squared change"),
        {"layers": 100, "decoder_layers": 1, "width": 512, "ffn": 2048, **LEGACY},
        modes=("post_ln", "pre_ln", "admin"),
        probe=output_changes,
    ),
    Figure(
        "admin-7",
        "Admin (Liu et al. 2020), figures 7 and 8",
        "Share of branch j in the input of sub-layer i + 1 of the encoder.",
        panels_of(("6 layers", "all layers"), "branch j", "sub-layer i", heat=True),
        {"layers": 18, "decoder_layers": 1, "width": 512, "ffn": 2048, **LEGACY},
        modes=("post_ln", "pre_ln", "admin"),
        probe=dependencies,
        measure=two_depths,
    ),
    Figure(
        "theorems",
        "ResiDual (Xie et al. 2023), theorems 3.1, 3.3 and 3.6, corollaries 3.5 and 3.7; Admin (Liu et al. 2020), "
        "theorems 1 and 2",
        "Closed form, simulation under its assumptions, and network. In theorem 3.1 x is the relative "
        "depth, and the simulation has sigma^2 = 0.5. The corollaries add a sub-layer to N others. Admin's theorem 1: "
        "variance of the gradient of the outputs of sub-layers, relative to the last; it states that it does not fall "
        "towards the first of a Post-LN encoder.",
        (
            Panel("theorem 3.6", "k", "mean change"),
            Panel("theorem 3.3", "k", "mean change", log_y=True),
            Panel("corollary 3.5", "N", "change of the output", log_y=True),
            Panel("corollary 3.7", "N", "change of the output"),
            *panels_of(("theorem 3.1, post_ln", "theorem 3.1, pre_ln"), "depth", "gradient norm", log_y=True),
            Panel("Admin's theorem 1", "depth", "variance of the gradient", log_y=True),
            *(
                Panel(f"Admin's theorem 2, {m}", "sub-layers", "relative squared change")
                for m in ("post_ln", "pre_ln")
            ),
        ),
        {"layers": 36, "width": 256, "ffn": 1024},
        modes=("post_ln", "pre_ln"),
        any_mode=False,
        measure=theorems,
    ),
)
