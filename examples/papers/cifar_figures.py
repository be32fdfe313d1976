"""The figures of "Rethinking Skip Connection" (Liu et al. 2020) with ResNets, trained on coloured squares."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from figure import Figure
from points import Panel, Point
from skip_scale import effective_scale
from trained_figures import scaled, training_curve, warmed_up

from residual_hf.analysis.short_training import train
from residual_hf.model.configuration_image import STAGES, ResidualImageConfig
from residual_hf.model.modeling_image import ResidualForImageClassification
from residual_hf.probes.gradients import gradient_norms
from residual_hf.probes.undisturbed import Batch

GRADIENT, SCALE = "gradient of the output of blocks", "effective scale"
TRAINED = "ResNets, trained on squares of eight colours in noise, 32 images per update, Adam at 1e-3 after a warm-up."
SIZES = {"depth": 20, "updates": 200}


def squares(seed: int, count: int = 32, size: int = 16) -> Iterator[dict[str, torch.Tensor]]:
    """Batches without end; the class of an image is the colour of its square, one bit for each channel."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(8, (count,), generator=generator)
        images = torch.randn(count, 3, size, size, generator=generator)
        for image, label in zip(images, labels.tolist(), strict=True):
            top, left = torch.randint(size // 2, (2,), generator=generator).tolist()
            colour = torch.tensor([float(label >> bit & 1) for bit in range(3)]) - 0.5
            image[:, top : top + size // 2, left : left + size // 2] += colour[:, None, None]
        yield {"pixel_values": images, "labels": labels}


def trained(mode: str, seed: int, sizes: dict[str, int], options: dict[str, float]) -> tuple[Any, list[float]]:
    """A ResNet after a training, and its losses."""
    torch.manual_seed(seed)
    config = ResidualImageConfig(depth=sizes["depth"], ln_mode=mode, ln_mode_options=options, num_labels=8)
    model = ResidualForImageClassification(config)
    return model, train(model, squares(seed), warmed_up(sizes), sizes["updates"])


def middle_stage(model: Any, batch: Batch, series: str, seed: int) -> Iterator[Point]:
    """Gradient norms of the outputs of the blocks of the middle stage, and the effective scale of their shortcuts."""
    norms = [(GRADIENT, row.layer, row.norm) for row in gradient_norms(model, batch) if row.location == "output"]
    scales = [(SCALE, row.layer, row.scale) for row in effective_scale(model, batch)]
    blocks = model.config.encoder_layers // STAGES
    for panel, layer, value in norms + scales:
        if blocks < layer <= 2 * blocks and math.isfinite(value) and value > 0:
            yield Point(panel, series, seed, layer, value)


def stages_after_training(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    for series, options in scaled(mode):
        model, _ = trained(mode, seed, sizes, options)
        yield from middle_stage(model, next(squares(seed + 1)), series, seed)


def curves(mode: str, seed: int, sizes: dict[str, int]) -> Iterator[Point]:
    _, losses = trained(mode, seed, sizes, {})
    yield from training_curve(mode, seed, losses, sizes)


FIGURES = (
    Figure(
        "skip-cifar-3",
        "Rethinking Skip Connection (Liu et al. 2020), figure 3",
        "Middle stage, in eval mode. The paper has CIFAR-10 and depth 110, see examples/images.",
        (Panel(GRADIENT, "block", "gradient norm", log_y=True), Panel(SCALE, "block", "scale")),
        SIZES,
        {"depth": 110, "updates": 1000},
        modes=("xskip", "xskip_ln", "rskip_ln"),
        models=TRAINED,
        measure=stages_after_training,
    ),
    Figure(
        "skip-cifar-4",
        "Rethinking Skip Connection (Liu et al. 2020), figure 4",
        "The paper has CIFAR-10 and depth 110, see examples/images.",
        (Panel("training loss", "update", "loss"),),
        SIZES,
        {"depth": 110, "updates": 1000},
        modes=("rskip_ln", "wskip_ln"),
        models=TRAINED,
        measure=curves,
    ),
)
