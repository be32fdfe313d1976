# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes with several copies of the hidden state, or with attention over all previous outputs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .connections import Stream, StreamBoundary, Sublayer, SublayerPlace, register_ln_mode
from .initialization import BareParameters
from .kernels import Kernel
from .ln_modes import NormAtEnd, PreLN
from .norms import RMSNorm, at_least_fp32, build_norm
from .options import Settings, option
from .stack_config import StackConfig


def weighted_sum(weights: Tensor, members: Stream) -> Tensor:
    """sum_k w_k v_k of n members (batch, length, d_model) with weights (n) or (batch, length, n)."""
    mixed = weights[..., 0, None] * members[0]
    for k, member in enumerate(members[1:], start=1):
        mixed = mixed + weights[..., k, None] * member
    return mixed


@torch.overrides.wrap_torch_function(lambda weights, members: (weights, members))  # one operation in a trace
def weighted_sums(weights: Tensor, members: Tensor) -> Tensor:
    """sum_k w_jk v_k for all j, (..., m, d_model), with weights (..., m, n) and members v (..., n, d_model)."""
    if members.is_meta:  # which autocast does not know
        return weights.to(members.dtype) @ members
    with torch.autocast(members.device.type, enabled=False):  # in the precision of the stream
        return weights.to(members.dtype) @ members


def total(members: Stream) -> Tensor:
    return sum(members[1:], start=members[0])


class CopiedStream(NormAtEnd):
    """n copies of the embeddings at the start, the norm of the sum of the streams at the end."""

    def begin(self, hidden_states: Tensor) -> Stream:
        return (hidden_states,) * self.options.streams

    def end(self, stream: Stream) -> Tensor:
        return self.norm(total(stream))


class MultiStream(PreLN):
    """n streams h_1..h_n with weights for reading (input of the branch), mixing, and writing (its output)."""

    Boundary = CopiedStream
    shortcut_at = None

    def weights(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reading m (..., n), mixing A (..., from, to) and writing b (..., n), of states (..., n, d_model)."""
        raise NotImplementedError(f"{type(self).__name__} must implement weights")

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        states = torch.stack(stream, dim=-2)
        read, mix, write = self.weights(states)
        a = sublayer(self.norm(weighted_sums(read[..., None, :], states).squeeze(-2)))
        mix_and_write = torch.cat([mix, write[..., None, :]], dim=-2).transpose(-1, -2)
        return weighted_sums(mix_and_write, torch.stack((*stream, a), dim=-2)).unbind(-2)


@register_ln_mode("hyper_connections")
class HyperConnections(MultiStream):
    """Several streams with learned weights for reading (input of a branch), mixing, and writing (its output).

    A fresh model equals Pre-LN up to eps of the last norm: sub-layer k reads stream k mod n, A = I, b = 1, and the
    dynamic part 0.01 * tanh(LN(h_i) W) has W = 0. Implemented after a public re-implementation of the paper's
    algorithm (lucidrains/hyper-connections, with RMS norms). The initial scale of the branches is unchanged. The paper
    exempts the static weights from weight decay.
    """

    equation = "a = f(LN(sum_i m_i h_i));  h_j <- sum_i A_ij h_i + b_j a;  m, A, b learned;  out = LN(sum_j h_j)"
    source = "Zhu et al. 2024, Hyper-Connections"
    bibtex = "zhu2024hyper"
    no_weight_decay = ("static_read", "static_mix", "static_write")
    starts_from = "pre_ln"

    @dataclass(frozen=True)
    class Options:
        streams: int = option(4, minimum=1, help="n, the number of copies of the hidden state")
        dynamic: bool = option(True, help="add weights that depend on the token to the learned constants")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        n = self.options.streams
        self.static_read = nn.Parameter(torch.eye(n)[place.index % n])
        self.static_mix = nn.Parameter(torch.eye(n))
        self.static_write = nn.Parameter(torch.ones(n))
        if self.options.dynamic:
            self.weights_norm = build_norm(config)
            self.dynamic_weight = nn.Parameter(torch.zeros(n + 2, config.d_model))
            self.dynamic_scale = nn.Parameter(torch.full((2,), 0.01))  # of reading and mixing, of writing

    def starting_values(self) -> dict[str, Tensor | float]:
        """Every stream holds x / n: the first sub-layer divides, later ones read n * h_k, and the sum of all is x."""
        n, index = self.options.streams, self.place.index
        values = {
            "static_read": torch.eye(n)[index % n] * (n if index > 0 else 1),
            "static_mix": torch.eye(n) / (1 if index > 0 else n),
            "static_write": 1 / n,
        }
        return {**values, "dynamic_weight": 0.0} if self.options.dynamic else values

    def weights(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.options.dynamic:
            return self.static_read, self.static_mix, self.static_write
        dynamic = torch.tanh(nn.functional.linear(self.weights_norm(states), self.dynamic_weight))
        reading, writing = self.dynamic_scale
        return (
            self.static_read + reading * dynamic[..., 0],
            self.static_mix + reading * dynamic[..., 2:],
            self.static_write + writing * dynamic[..., 1],
        )


SINKHORN_ROUNDS = 20


@torch.overrides.wrap_torch_function(lambda logits: (logits,))  # one operation in a trace
def sinkhorn(logits: Tensor) -> Tensor:
    """Doubly stochastic matrices from logits (..., n, n): exp, then normalize columns and rows in turn.

    Rows sum to 1, columns approximately. Convergence is slow, with an error of a few per cent, for matrices whose
    entries differ by orders of magnitude.
    """
    # entries of all matrices side by side: norms over contiguous dimensions of size n are slow
    logits = logits.to(at_least_fp32(logits.dtype)).movedim((-2, -1), (0, 1)).contiguous()
    for _ in range(SINKHORN_ROUNDS):
        logits = logits.log_softmax(0).log_softmax(1)
    return logits.exp().movedim((0, 1), (-2, -1))


def kronecker(logits: Tensor, count: int) -> Tensor:
    """Doubly stochastic matrices U_1 x ... x U_k (..., 2^k, 2^k) from logits (..., k, 2) with k = `count`.

    U = [[p, 1 - p], [1 - p, p]] with (p, 1 - p) = softmax of two logits, and x the Kronecker product.
    """
    stay, swap = logits.softmax(-1, dtype=at_least_fp32(logits.dtype)).unbind(-1)
    factors = torch.stack([stay, swap, swap, stay], dim=-1).unflatten(-1, (2, 2))
    product = factors[..., 0, :, :]
    for k in range(1, count):
        product = product[..., :, None, :, None] * factors[..., k, None, :, None, :]
        product = product.flatten(-4, -3).flatten(-2)
    return product


class WeightedEnd(CopiedStream):
    """End of a stack; with `learned_end` it weights the streams as for a branch."""

    no_weight_decay = ("static_read",)

    def __init__(self, config: StackConfig):
        super().__init__(config)
        if self.options.learned_end:
            n = self.options.streams
            self.static_read = nn.Parameter(torch.zeros(n))
            self.weights_norm = RMSNorm(n * config.d_model, eps=config.layer_norm_eps)
            self.dynamic_weight = nn.Parameter(torch.zeros(n, n * config.d_model))
            self.dynamic_scale = nn.Parameter(torch.full((1,), 0.01))

    def end(self, stream: Stream) -> Tensor:
        if not self.options.learned_end:
            return super().end(stream)
        states = torch.stack(stream, dim=-2)
        dynamic = nn.functional.linear(self.weights_norm(states.flatten(-2)), self.dynamic_weight)
        read = torch.sigmoid(self.static_read + self.dynamic_scale * dynamic)
        return self.norm(weighted_sums(read[..., None, :], states).squeeze(-2))


@register_ln_mode("mhc")
class MHC(MultiStream):
    """Hyper-connections whose mixing matrix is doubly stochastic and whose other weights are positive.

    All weights depend on all n streams: the logits are b + 0.01 * RMSNorm(h_1..h_n) W. The initial values are those of
    a public re-implementation (FFTYYY/mhc-lite): W = 0; for reading and writing b = 1 for stream k mod n and -1 for
    the others; for the matrix b = 0 on the diagonal and -8 elsewhere, nearly the identity. The static weights b are
    exempt from weight decay, as in hyper-connections.

    With `mixing="kronecker"` (KromHC, after the authors' code) the matrix is exactly doubly stochastic, needs no
    iterations, and has 2 log2(n) logits instead of n^2: half the parameters for n = 4.

    The mode computes what DeepSeek-V4 in Transformers does, up to its 1e-6 on weights and with `learned_end`.
    """

    equation = "hyper-connections with m = sigmoid(.), b = 2 sigmoid(.), A = Sinkhorn(exp(.)) or Kronecker product"
    source = "Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections; Zhou et al. 2026, KromHC"
    bibtex = ("xie2025mhc", "zhou2026kromhc")
    Boundary = WeightedEnd
    no_weight_decay = ("static_read", "static_mix", "static_write")

    @dataclass(frozen=True)
    class Options(Settings):
        streams: int = option(4, minimum=1, help="n, the number of copies of the hidden state")
        mixing: str = option(
            "sinkhorn",
            choices=("sinkhorn", "kronecker"),
            help="how the mixing matrix is made: by 20 iterations, or as a Kronecker product of 2 x 2 matrices "
            "(KromHC)",
        )
        learned_end: bool = option(
            False,
            help="out = LN(sum_i m_i h_i) with learned m = sigmoid(.), as in DeepSeek-V4, instead of the plain sum",
        )

        def check(self) -> None:
            if self.mixing == "kronecker":
                n = self.streams
                self.require(n > 1 and n & (n - 1) == 0, "streams", "a power of 2 above 1 with mixing 'kronecker'")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        n = self.options.streams
        own, near_identity = 2 * torch.eye(n)[place.index % n] - 1, 8 * torch.eye(n) - 8
        if self.options.mixing == "kronecker":
            near_identity = torch.tensor([0.0, -8.0]).repeat(n.bit_length() - 1, 1)
        self.static_read = nn.Parameter(own)
        self.static_mix = nn.Parameter(near_identity)
        self.static_write = nn.Parameter(own.clone())
        self.weights_norm = RMSNorm(n * config.d_model, eps=config.layer_norm_eps)
        self.dynamic_weight = nn.Parameter(torch.zeros(2 * n + self.static_mix.numel(), n * config.d_model))
        self.dynamic_scale = nn.Parameter(torch.full((3,), 0.01))  # of reading, writing and mixing

    def weights(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = self.options.streams
        dynamic = nn.functional.linear(self.weights_norm(states.flatten(-2)), self.dynamic_weight)
        read, write, mix = dynamic.split((n, n, self.static_mix.numel()), dim=-1)
        reading, writing, mixing = (self.dynamic_scale[i] for i in range(3))
        logits = self.static_mix + mixing * mix.unflatten(-1, self.static_mix.shape)
        is_product = self.options.mixing == "kronecker"
        matrix = kronecker(logits, self.static_mix.shape[0]) if is_product else sinkhorn(logits)
        return (
            torch.sigmoid(self.static_read + reading * read),
            matrix.transpose(-1, -2),
            2 * torch.sigmoid(self.static_write + writing * write),
        )


class DepthAttention(BareParameters):
    """Attention over the depth: sum_i p_i v_i with p = softmax_i(w . RMSNorm(v_i)) and learned w, initially 0."""

    kernel: Kernel | None = None

    def __init__(self, config: StackConfig):
        super().__init__()
        self.norm = RMSNorm(config.d_model, eps=config.layer_norm_eps)
        self.query = nn.Parameter(torch.zeros(config.d_model))

    def probabilities(self, members: Stream) -> Tensor:
        logits = torch.stack([(self.norm(v) * self.query).sum(-1) for v in members], dim=-1)
        return logits.softmax(-1, dtype=at_least_fp32(logits.dtype))

    def forward(self, members: Stream) -> Tensor:
        return self.attend(members) if self.kernel is None else self.kernel(self, members)

    def attend(self, members: Stream) -> Tensor:
        return weighted_sum(self.probabilities(members).to(members[0].dtype), members)


class DepthAttentionAtEnd(StreamBoundary):
    """Attention over the depth, or with `delta` the sum of all members, then a norm."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        if not self.options.delta:
            self.depth_attention = DepthAttention(config)
        self.norm = build_norm(config)

    def end(self, stream: Stream) -> Tensor:
        return self.norm(total(stream) if self.options.delta else self.depth_attention(stream))


@register_ln_mode("attention_residuals")
class AttentionResiduals(PreLN):
    """Each branch reads a softmax-weighted mean of the embeddings and all previous outputs, with a learned query.

    The stream holds the outputs, newest first, and the embeddings last. The newest member is the running sum of the
    current block. The first sub-layer has only one member to read and therefore no query.

    With `delta` a branch reads the plain sum x besides. Of blocks, its attention sees those that are complete. In the
    official code blocks are layers, an attention sees a block one sub-layer later, and from the third block on its
    member is x minus the member before; here it is the sum of its outputs.
    """

    equation = "h = sum_i p_i v_i, p = softmax_i(w . RMSNorm(v_i));  v_new = f(LN(h));  out = LN(sum_i p_i v_i)"
    source = "Kimi Team 2026, Attention Residuals, sections 3.1 and 3.2; Luo et al. 2026, Delta Attention Residuals"
    bibtex = ("kimi2026attention", "luo2026delta")
    Boundary = DepthAttentionAtEnd
    shortcut_at = None

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(
            1, minimum=1, help="number of sub-layers whose outputs are summed into one member; 1 keeps all outputs"
        )
        delta: bool = option(
            False, help="h = x + sum_i p_i v_i with the state x = sum_i v_i and out = LN(x): Delta Attention Residuals"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.depth_attention: Any = DepthAttention(config) if place.index > 0 else None

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        # whether the block of the newest member is complete; LayerDrop may have left only the embeddings
        is_complete = len(stream) == 1 or self.place.index % self.options.block_size == 0
        h = stream[0] if self.depth_attention is None else self.read(stream, is_complete)
        a = sublayer(self.norm(h))
        if is_complete:
            return a, *stream
        return stream[0] + a, *stream[1:]

    def read(self, stream: Stream, is_complete: bool) -> Tensor:
        if not self.options.delta:
            return self.depth_attention(stream)
        return total(stream) + self.depth_attention(stream if is_complete else stream[1:])
