"""Probes of the residual stream: does its basis matter, and can positions be read from it?"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from paper_probes import layer_outputs, record
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.connections import STACKS
from residual_hf.probes.representations import real_tokens
from residual_hf.probes.sites import sublayers
from residual_hf.probes.undisturbed import Batch, Batches, as_list, undisturbed


@torch.no_grad()
def rotation_change(model: nn.Module, batch: Batch, seed: int = 0) -> float:
    """Change of the decoder's output when the streams of a Pre-LN model are rotated, relative to its largest value.

    Gains and biases of the norms are moved into the weights that read them. Then the embeddings with their positions
    and all weights that write to a stream are rotated, and all weights that read from it are rotated back. With RMS
    norms this changes nothing but the last digits: no direction of the stream is special. A layer norm subtracts the
    mean, which is one.

    Args:
        batch: with `labels`, from which the inputs of the decoder are made.
        seed: of the rotation, the same for encoder and decoder.

    Raises:
        InputError: not an encoder-decoder of this package with Pre-LN and layer or RMS norms in both stacks.
    """
    config: Any = getattr(model, "config", None)
    stacks = [*STACKS] if getattr(config, "is_encoder_decoder", False) and hasattr(config, "stack_configs") else []
    kinds = {(config.of(s).ln_mode, config.of(s).norm_type) for s in stacks}
    if not kinds or not kinds <= {("pre_ln", "rms_norm"), ("pre_ln", "layer_norm")}:
        given = ", ".join(" with ".join(kind) for kind in sorted(kinds)) or type(model).__name__
        raise InputError(f"rotation_change: {given} given, must be pre_ln with layer_norm or rms_norm")
    width = config.d_model
    noise = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rotation = torch.linalg.qr(noise)[0].to(model.device)
    with undisturbed(model, training=False):
        plain = copy.deepcopy(model).double().eval()
        expected = last_states(plain, batch)
        gain, bias = rotate(plain, rotation)
        actual = last_states(plain, batch) @ rotation.T * gain + bias
    return float((actual - expected).abs().max() / expected.abs().max())


def last_states(model: Any, batch: Batch) -> Tensor:
    """The output of the decoder (batch, length, d_model)."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    return model.model(**inputs, use_cache=False).last_hidden_state


def rotate(model: Any, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the streams of a model in place; returns gain and bias of the last norm, which it no longer applies."""

    def absorb(linears: list[nn.Linear], gain: Tensor, bias: Tensor) -> None:
        for linear in linears:
            linear.bias.add_(linear.weight @ bias)
            linear.weight.copy_(linear.weight * gain @ rotation)

    ends = [neutral(getattr(model.model, stack).boundary.norm) for stack in STACKS]
    for part in sublayers(model):
        branch: Any = part.branch[0]
        norm = neutral(part.norms["norm"])
        if part.sublayer == "feed_forward":
            absorb([branch.fc1], *norm)
        else:
            memory = part.sublayer == "cross_attention"
            absorb([branch.q_proj], *norm)
            absorb([branch.k_proj, branch.v_proj], *(ends[0] if memory else norm))
        writer = branch.fc2 if part.sublayer == "feed_forward" else branch.out_proj
        writer.weight.copy_(rotation.T @ writer.weight)
        writer.bias.copy_(writer.bias @ rotation)
    for stack in STACKS:
        getattr(model.model, stack).boundary.begin = lambda hidden_states: (hidden_states @ rotation,)
    return ends[1]


def neutral(norm: Any) -> tuple[Tensor, Tensor]:
    """Gain and bias of a norm, which then has none."""
    gain, bias = norm.weight.clone(), getattr(norm, "bias", None)
    bias = torch.zeros_like(gain) if bias is None else bias
    found = gain, bias.clone()
    norm.weight.fill_(1.0)
    bias.zero_()
    return found


@dataclass(frozen=True)
class PositionRecall:
    """R^2 of the position of a token, read from the output of a layer by linear regression on other tokens.

    Layer 0: the embeddings with their positions. At most 1; 0 and less: positions cannot be read.
    """

    stack: str
    layer: int
    r_squared: float


@torch.no_grad()
def position_recall(model: nn.Module, batches: Batches, ridge: float = 1e-3) -> list[PositionRecall]:
    """How well positions survive in the stream: fitted on every second token, measured on the others.

    Args:
        batches: more tokens than 2 * d_model for a fit that means something.
        ridge: penalty relative to the mean square of the states.
    """
    inputs = record(model, batches, "input")
    states = {(s.stack, 0): x for s, x in inputs.items() if (s.layer, s.sublayer) == (1, "self_attention")}
    states |= layer_outputs(model, batches)
    found = [real_tokens(model, batch) for batch in as_list(batches)]
    positions: dict[str, Tensor] = {}
    for stack in {stack for stack, _ in states}:
        if any(stack not in masks for masks in found):
            raise InputError("position_recall needs batches with attention_mask and labels, of text or speech")
        masks = [masks[stack] for masks in found]
        positions[stack] = torch.cat([(mask.cumsum(-1) - 1)[mask] for mask in masks]).double()
    rows = [PositionRecall(*at, fit(state.double(), positions[at[0]], ridge)) for at, state in states.items()]
    return sorted(rows, key=lambda row: (STACKS.index(row.stack), row.layer))


def fit(states: Tensor, values: Tensor, ridge: float) -> float:
    """R^2 on the odd rows of a ridge regression on the even ones."""
    states = torch.cat([states, states.new_ones(len(states), 1)], dim=-1)
    x, y = states[::2], values[::2]
    penalty = ridge * x.square().mean() * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    residual = values[1::2] - states[1::2] @ torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    return float(1 - residual.square().sum() / (values[1::2] - values[1::2].mean()).square().sum())
