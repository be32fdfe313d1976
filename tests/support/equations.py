# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The equations of all modes on plain attention and feed-forward functions: what a whole model must compute.

Written from the papers and the official code, not from `residual_hf/model`, of which it uses only the names of the
parameters. An equation maps `x`, the embeddings (batch, length, d), to the output of a stack `s`. There `s.layers` are
lists of sub-layers `c`, and `for c in s` visits them in order:

    c.f(z)   the branch (SA, CA or FF) with dropout and, if any, branch warm-up; c.f(z, norm) normalizes it
    c.kind   "SA", "CA" or "FF";  c.l: its layer from 1;  c.norm, c.omega ...: the parameters of the connection
    s.end    the parameters at the end of the stack;  s.N: its layers;  s.n: its sub-layers
"""

from __future__ import annotations

import functools
import itertools
import math
from types import SimpleNamespace

import torch
from torch.nn.functional import linear

EQUATIONS = {}


def same(x):
    return x


def LN(x, p, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return p.weight * centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() + p.bias


def RMS(x, p, eps=1e-5):
    return p.weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def affine(x, p):
    return linear(x, p.weight, getattr(p, "bias", None))


def attention(p, x, memory, allowed, heads, q=same, k=same, v=same, inside=same, outside=same, previous=0, divisor=1):
    """Multi-head attention and its scores; the functions are what modes put on q, k, v and around W^O."""
    queries, keys, values = (
        norm(affine(z, projection).unflatten(-1, (heads, -1)).transpose(1, 2))
        for norm, z, projection in ((q, x, p.q_proj), (k, memory, p.k_proj), (v, memory, p.v_proj))
    )
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5 + previous
    weights = (scores / divisor).masked_fill(~allowed, -math.inf).softmax(-1)
    return outside(affine(inside((weights @ values).transpose(1, 2).flatten(2)), p.out_proj)), scores


def feed_forward(p, x, before=same, inside=same):
    return affine(inside(before(affine(x, p.fc1)).relu()), p.fc2)


def equation(name):
    """Decorator: the equation of the mode of that name. Its keywords are the options with their defaults."""

    def add(function):
        EQUATIONS[name] = function
        return function

    return add


# Post-LN and Pre-LN


@equation("post_ln")
def post_ln(s, x):
    """x <- LN(x + a)"""
    for c in s:
        x = LN(x + c.f(x), c.norm)
    return x


@equation("pre_ln")
def pre_ln(s, x):
    """x <- x + f(LN x);  out = LN x"""
    for c in s:
        x = x + c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation("resi_dual")
def resi_dual(s, x, dual_scale=1.0, main_scale=1.0, dual_layer_norm_eps=1e-7):
    """x <- LN(x + a);  r <- r + s a, from r_0 = s x_0;  out = alpha x + LN(r)"""
    r = dual_scale * x
    for c in s:
        a = c.f(x)
        x, r = LN(x + a, c.norm), r + dual_scale * a
    return main_scale * x + LN(r, s.end.norm, dual_layer_norm_eps)


# The layer input and the outputs of earlier layers


@equation("b2t")
def b2t(s, x):
    """Post-LN, but the last norm of a layer sees x_inp + x + a"""
    for *inner, ffn in s.layers:
        start = x
        for c in inner:
            x = LN(x + c.f(x), c.norm)
        x = LN(start + x + ffn.f(x), ffn.norm)
    return x


@equation("b2t_no_ln")
def b2t_no_ln(s, x, stack_norm=False):
    """x <- x + a in a layer, at its end x <- alpha x_inp + beta x;  alpha = min(L/12, L^-.15), beta = d^-.2"""
    alpha, beta = min(s.N / 12, s.N**-0.15), x.shape[-1] ** -0.2
    for layer in s.layers:
        start = x
        for c in layer:
            x = x + c.f(x)
        x = alpha * start + beta * x
    return LN(x, s.end.norm) if stack_norm else x


@equation("span_norm")
def span_norm(s, x):
    """y = LN(x + SA x); y <- LN(y + CA y); x <- LN(x + FF y); the first attention reads LN(x)"""
    for layer, (attention, *cross, ffn) in enumerate(s.layers):
        y = LN(x + attention.f(x if layer else LN(x, attention.input_norm)), attention.norm)
        for c in cross:
            y = LN(y + c.f(y), c.norm)
        x = LN(x + ffn.f(y), ffn.norm)
    return x


def weighted(weights, outputs):
    return sum(w * y for w, y in zip(weights, outputs, strict=True))


@equation("dlcl_post")
def dlcl_post(s, x):
    """x_1 = W_00 y_0;  input of layer l+1 = LN_l(sum_k W_lk y_k);  Post-LN layers;  out = LN_L(sum_k W_Lk y_k)"""
    outputs = [x]
    for layer in s.layers:
        x = weighted(layer[0].mix.weight, outputs)
        if len(outputs) > 1:
            x = LN(x, layer[0].mix_norm)
        for c in layer:
            x = LN(x + c.f(x), c.norm)
        outputs.append(x)
    return LN(weighted(s.end.mix.weight, outputs), s.end.norm)


@equation("dlcl_pre")
def dlcl_pre(s, x):
    """z_0 = x_0, z_l = LN_l(y_l);  input of layer l+1 = sum_k W_lk z_k;  Pre-LN layers;  out = LN(sum_k W_Lk z_k)"""
    outputs = [x]
    for layer in s.layers:
        x = weighted(layer[0].mix.weight, outputs)
        for c in layer:
            x = x + c.f(LN(x, c.norm))
        outputs.append(LN(x, layer[-1].output_norm))
    return LN(weighted(s.end.mix.weight, outputs), s.end.norm)


@equation("dense_former")
def dense_former(s, x, dilation=1, period=1):
    """Pre-LN layers;  after each `period`-th x <- sum_k W_lk y_k over every `dilation`-th output back from l"""
    averages = [getattr(layer[0], "average", None) for layer in s.layers] + [getattr(s.end, "average", None)]
    outputs = [x]
    for depth, layer in enumerate(s.layers, start=1):
        for c in layer:
            x = x + c.f(LN(x, c.norm))
        outputs.append(x)
        assert (averages[depth] is None) == (depth % period != 0)
        if depth % period == 0:
            x = weighted(averages[depth].weight, outputs[depth % dilation :: dilation])
    return LN(x, s.end.norm)


@equation("attention_residuals")
def attention_residuals(s, x, block_size=1):
    """Branches read sum_i p_i v_i, p = softmax_i(w . RMS(v_i)), of v_0 = x_0 and the sums of blocks of outputs"""

    def read(p):
        blocks = [sum(outputs[i : i + block_size]) for i in range(0, len(outputs), block_size)]
        values = torch.stack([x, *blocks])
        return ((RMS(values, p.norm) @ p.query).softmax(0).unsqueeze(-1) * values).sum(0)

    outputs = []
    for c in s:
        outputs.append(c.f(LN(read(c.depth_attention) if outputs else x, c.norm)))
    return LN(read(s.end.depth_attention), s.end.norm)


# Factors on the shortcut


def scaled_shortcuts(s, x, omega):
    for c in s:
        x = LN(omega(c) * x + c.f(x), c.norm)
    return x


@equation("admin")
def admin(s, x):
    """x <- LN(omega x + a)"""
    return scaled_shortcuts(s, x, lambda c: c.omega)


@equation("admin_torch")
def admin_torch(s, x, target="log", learned=False):
    """Admin with omega^2 = (n+1)/ln(n+1) - 1 for an output change O(log n), n for O(1), 1 for O(n)"""
    square = {"log": (s.n + 1) / math.log(s.n + 1) - 1, "constant": s.n, "linear": 1.0}[target]
    return scaled_shortcuts(s, x, lambda c: c.omega if learned else square**0.5)


@equation("wskip_ln")
def wskip_ln(s, x):
    """x <- LN(w x + a)"""
    return scaled_shortcuts(s, x, lambda c: c.w)


@equation("xskip_ln")
def xskip_ln(s, x, skip_scale=2.0):
    """x <- LN(lambda x + a)"""
    return scaled_shortcuts(s, x, lambda c: skip_scale)


@equation("xskip")
def xskip(s, x, skip_scale=1.0):
    """x <- lambda x + a"""
    for c in s:
        x = skip_scale * x + c.f(x)
    return x


def deep_norm_alpha(s):
    """0.81 (N^4 M)^(1/16) in an encoder of N and (3M)^(1/4) in a decoder of M layers, (2L)^(1/4) alone"""
    if s.others is None:
        return (2 * s.N) ** 0.25
    return 0.81 * (s.N**4 * s.others) ** (1 / 16) if s.is_encoder else (3 * s.N) ** 0.25


@equation("deep_norm")
def deep_norm(s, x):
    """x <- LN(alpha x + a)"""
    return scaled_shortcuts(s, x, lambda c: deep_norm_alpha(s))


@equation("rskip_ln")
def rskip_ln(s, x, skip_order=2):
    """y_1 = LN_1(x + a), y_j = LN_j(x + y_{j-1}), x <- y_lambda"""
    for c in s:
        y = c.f(x)
        assert len(c.norms) == skip_order
        for norm in c.norms:
            y = LN(x + y, norm)
        x = y
    return x


@equation("keel")
def keel(s, x, alpha=None):
    """x <- LN_1(alpha x + f(LN_2 x)), alpha = n, in the first layer 1; the first attention has no LN_1"""
    for c in s:
        y = (1 if c.l == 1 else alpha or s.n) * x + c.f(RMS(x, c.input_norm))
        x = y if c.l == 1 and c.kind == "SA" else RMS(y, c.norm)
    return x


# Factors on the branch


@equation("branch_norm")
def branch_norm(s, x):
    """x <- LN(x + a_t f(x)), a_t = min(1, t/4000)"""
    for c in s:
        x = LN(x + min(1, s.t / 4000) * c.f(x), c.norm)
    return x


@equation("ln_scaling")
def ln_scaling(s, x):
    """x <- x + f(LN(x)/sqrt(l));  out = LN x"""
    for c in s:
        x = x + c.f(RMS(x, c.norm) / c.l**0.5)
    return RMS(x, s.end.norm)


@equation("scaled_branch")
def scaled_branch(s, x, tau=1.0, exponent=0.5):
    """x <- x + tau L^-alpha f(LN x), L sub-layers;  out = LN x"""
    for c in s:
        x = x + tau / s.n**exponent * c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation("layer_scale")
def layer_scale(s, x):
    """x <- x + w f(LN x);  out = LN x"""
    for c in s:
        x = x + c.scale * c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation("skip_init")
def skip_init(s, x):
    """x <- x + alpha f(x), a scalar per branch"""
    for c in s:
        x = x + c.alpha * c.f(x)
    return x


@equation("rezero")
def rezero(s, x, gate="layer"):
    """x <- x + alpha_l a, one scalar per layer (or per sub-layer)"""
    for layer in s.layers:
        for c in layer:
            x = x + (layer[0] if gate == "layer" else c).alpha * c.f(x)
    return x


@equation("rezero_post_ln")
def rezero_post_ln(s, x, gate="layer"):
    """x <- LN(x + alpha_l a)"""
    for layer in s.layers:
        for c in layer:
            x = LN(x + (layer[0] if gate == "layer" else c).alpha * c.f(x), c.norm)
    return x


# Without norms


@equation("t_fixup")
def t_fixup(s, x):
    """x <- x + a"""
    for c in s:
        x = x + c.f(x)
    return x


@equation("fixup")
def fixup(s, x):
    """x <- x + s f(x - b), in FF W2 (relu(W1 x - b) - b);  out = s (x - b) in an encoder, x - b in a decoder"""
    for c in s:
        if c.kind == "FF":
            inner = c.inner
            shifts = {
                "before": lambda z, p=inner: z - p.pre_activation.bias,
                "inside": lambda z, p=inner: z - p.inner.bias,
            }
            x = x + c.scale.weight * c.f(x - c.shift.bias, **shifts)
        else:
            x = x + c.scale.weight * c.f(x - c.shift.bias)
    x = x - s.end.shift.bias
    return s.end.scale.weight * x if s.is_encoder else x


# Places of norms


@equation("sandwich_ln")
def sandwich_ln(s, x):
    """x <- x + LN_2(f(LN_1 x));  out = LN x"""
    for c in s:
        x = x + c.f(LN(x, c.norm), lambda a, c=c: LN(a, c.output_norm))
    return LN(x, s.end.norm)


@equation("peri_ln")
def peri_ln(s, x):
    """Sandwich-LN with RMS norms"""
    for c in s:
        x = x + c.f(RMS(x, c.norm), lambda a, c=c: RMS(a, c.output_norm))
    return RMS(x, s.end.norm)


@equation("output_ln")
def output_ln(s, x):
    """x <- x + LN(f(x));  out = LN x"""
    for c in s:
        x = x + c.f(x, lambda a, c=c: LN(a, c.norm))
    return LN(x, s.end.norm)


@equation("mix_ln")
def mix_ln(s, x, fraction=0.25):
    """Post-LN in the first floor(fraction L) layers, then Pre-LN;  out = LN x"""
    for c in s:
        x = RMS(x + c.f(x), c.norm) if c.l <= math.floor(fraction * s.N) else x + c.f(RMS(x, c.norm))
    return RMS(x, s.end.norm)


@equation("hybrid_norm")
def hybrid_norm(s, x, star=False):
    """u = x + SA(x) with RMS norms on q, k, v of each head, CA likewise;  t = RMS(u);  x <- t + FF(t);  out = RMS x

    With `star` the first layer normalizes the input of all its branches besides, and leaves the shortcut as it is.
    """
    for c in s:
        pre = star and c.l == 1
        if c.kind == "FF":
            t = RMS(x, c.norm)
            x = (x if pre else t) + c.f(t)
        else:
            heads = {name: lambda z, p=p: RMS(z, p) for name, p in zip("qkv", c.qkv, strict=True)}
            x = x + c.f(RMS(x, c.norm) if pre else x, **heads)
    return RMS(x, s.end.norm)


@equation("siamese_norm")
def siamese_norm(s, x):
    """p = LN_x(x); a = f(LN_z(p + LN_y(y))); x <- p + a/sqrt(s l); y <- y + a;  out = LN(LN(x) + LN(y))"""
    y = x
    for c in s:
        p = LN(x, c.post_norm)
        a = c.f(LN(p + LN(y, c.pre_norm), c.input_norm))
        x, y = p + a / (len(s.layers[0]) * c.l) ** 0.5, y + a
    return LN(LN(x, s.end.post_norm) + LN(y, s.end.pre_norm), s.end.norm)


# Inside the branches


@equation("sub_ln")
def sub_ln(s, x):
    """Pre-LN with LN before W^O of self-attention and before W2"""
    for c in s:
        if c.kind == "SA":
            inner = {"inside": lambda z, c=c: LN(z, c.inner.heads)}
        else:
            inner = {"inside": lambda z, c=c: LN(z, c.inner.inner)} if c.kind == "FF" else {}
        x = x + c.f(LN(x, c.norm), **inner)
    return LN(x, s.end.norm)


@equation("normformer")
def normformer(s, x, scale_residual=False, head_scale_position="post_out"):
    """Pre-LN with x + LN(scale_heads(SA)), LN before W2, and w x as the shortcut of FF with `scale_residual`"""

    def scale_heads(z, p):
        return (z.unflatten(-1, (len(p.weight), -1)) * p.weight.unsqueeze(-1)).flatten(-2)

    for c in s:
        shortcut, inner = x, {}
        if c.kind == "FF":
            inner = {"inside": lambda z, c=c: LN(z, c.inner.inner)}
            shortcut = c.w * x if scale_residual else x
        elif c.kind == "SA" and head_scale_position == "post_out":
            inner = {"outside": lambda z, c=c: LN(scale_heads(z, c.inner.output[0]), c.inner.output[1])}
        elif c.kind == "SA":
            inner = {
                "inside": lambda z, c=c: scale_heads(z, c.inner.heads),
                "outside": lambda z, c=c: LN(z, c.inner.output),
            }
        x = shortcut + c.f(LN(x, c.norm), **inner)
    return LN(x, s.end.norm)


@equation("realformer")
def realformer(s, x, running_mean=False):
    """Post-LN with softmax of the sum (or mean) of the scores up to its layer, of SA and of CA each"""
    scores = {"SA": 0, "CA": 0}
    for c in s:
        if c.kind == "FF":
            a = c.f(x)
        else:
            a, scores[c.kind] = c.scored(x, previous=scores[c.kind], divisor=c.l if running_mean else 1)
        x = LN(x + a, c.norm)
    return x


# Several streams


@equation("hyper_connections")
def hyper_connections(s, x, streams=4, dynamic=True):
    """a = f(LN(sum_i m_i h_i));  h_j <- sum_i A_ij h_i + b_j a;  out = LN(sum_j h_j)

    m, A and b are a static part + scale * tanh(LN(h_i) W), where A has a row and m and b have a value for each h_i.
    """
    h = torch.stack([x] * streams, dim=-2)
    for c in s:
        m, A, b = c.static_read, c.static_mix, c.static_write
        if dynamic:
            normed = LN(h, c.weights_norm)
            m = m + c.dynamic_scale[0] * (normed @ c.dynamic_weight[0]).tanh()
            A = A + c.dynamic_scale[0] * (normed @ c.dynamic_weight[2:].mT).tanh()
            b = b + c.dynamic_scale[1] * (normed @ c.dynamic_weight[1]).tanh()
        a = c.f(LN((m.unsqueeze(-1) * h).sum(-2), c.norm))
        h = A.mT @ h + b.unsqueeze(-1) * a.unsqueeze(-2)
    return LN(h.sum(-2), s.end.norm)


def sinkhorn_knopp(matrix):
    """20 times: columns, then rows of sum 1."""
    for _ in range(20):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def kronecker(logits):
    """The product U_1 x U_2 x ... of [[p, 1-p], [1-p, p]] with (p, 1-p) = softmax of each pair of logits."""
    p, q = logits.softmax(-1).unbind(-1)
    factors = torch.stack([p, q, q, p], dim=-1).unflatten(-1, (2, 2))

    def product(left, right):
        return torch.einsum("...ij,...kl->...ikjl", left, right).flatten(-2).flatten(-3, -2)

    return functools.reduce(product, factors.unbind(-3))


@equation("mhc")
def mhc(s, x, streams=4, mixing="sinkhorn"):
    """Hyper-connections H <- M H + b a with m = sigmoid(.), b = 2 sigmoid(.), M = Sinkhorn(exp(.)) or Kronecker

    The logits are a static part + scale * RMS(all streams of a token) W.
    """
    h = torch.stack([x] * streams, dim=-2)
    for c in s:
        dynamic = RMS(h.flatten(-2), c.weights_norm) @ c.dynamic_weight.mT
        m = (c.static_read + c.dynamic_scale[0] * dynamic[..., :streams]).sigmoid()
        b = 2 * (c.static_write + c.dynamic_scale[1] * dynamic[..., streams : 2 * streams]).sigmoid()
        mix = dynamic[..., 2 * streams :].unflatten(-1, c.static_mix.shape)
        logits = c.static_mix + c.dynamic_scale[2] * mix
        M = sinkhorn_knopp(logits.exp()) if mixing == "sinkhorn" else kronecker(logits)
        a = c.f(LN((m.unsqueeze(-1) * h).sum(-2), c.norm))
        h = M @ h + b.unsqueeze(-1) * a.unsqueeze(-2)
    return LN(h.sum(-2), s.end.norm)


# GPAS


def gpas(x, gate):
    """x - SiLU(g) detach(x)"""
    return x - gate * gate.sigmoid() * x.detach()


@equation("pre_ln_gpas")
def pre_ln_gpas(s, x):
    """x <- GPAS(x + f(LN x)), one gate per layer"""
    for layer in s.layers:
        for c in layer:
            x = gpas(x + c.f(LN(x, c.norm)), layer[0].gate)
    return LN(x, s.end.norm)


@equation("sandwich_ln_gpas")
def sandwich_ln_gpas(s, x):
    """x <- GPAS(x + LN_2(f(LN_1 x)))"""
    for layer in s.layers:
        for c in layer:
            x = gpas(x + c.f(LN(x, c.norm), lambda a, c=c: LN(a, c.output_norm)), layer[0].gate)
    return LN(x, s.end.norm)


@equation("deep_norm_gpas")
def deep_norm_gpas(s, x):
    """x <- LN(alpha GPAS(x) + a)"""
    for layer in s.layers:
        for c in layer:
            x = LN(deep_norm_alpha(s) * gpas(x, layer[0].gate) + c.f(x), c.norm)
    return x


@equation("mix_ln_gpas")
def mix_ln_gpas(s, x, fraction=0.25):
    """First layers x <- LN(GPAS(x) + a), then x <- GPAS(x + f(LN x));  out = LN x"""
    for layer in s.layers:
        for c in layer:
            if c.l <= math.floor(fraction * s.N):
                x = RMS(gpas(x, layer[0].gate) + c.f(x), c.norm)
            else:
                x = gpas(x + c.f(RMS(x, c.norm)), layer[0].gate)
    return RMS(x, s.end.norm)


# Models


def tree(tensors):
    """Tensors by dotted names as attributes, with numbered names as lists."""
    parts = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        if rest:
            parts.setdefault(head, {})[rest] = tensor
        else:
            parts[head] = tensor
    parts = {name: tree(part) if isinstance(part, dict) else part for name, part in parts.items()}
    return list(parts.values()) if all(map(str.isdigit, parts)) else SimpleNamespace(**parts)


class Stack:
    """A stack as an equation sees it, from the parameters of our encoder or decoder."""

    def __init__(self, p, heads, masks, memory=None, others=None, is_encoder=True, dropout=same, warmup=None, t=0):
        self.N, self.others, self.is_encoder, self.t = len(p.layers), others, is_encoder, t
        self.heads, self.memory, self.dropout = heads, memory, dropout
        self.warmup = warmup or (lambda depth, t: 1.0)
        self.end = getattr(p, "boundary", None)
        names = {"SA": "self_attn", "CA": "encoder_attn", "FF": "ffn"}
        kinds = {kind: name for kind, name in names.items() if kind != "CA" or memory is not None}
        self.layers = [
            [self.sublayer(layer, depth, kind, name, masks.get(kind)) for kind, name in kinds.items()]
            for depth, layer in enumerate(p.layers, start=1)
        ]
        self.n = len(list(self))

    def __iter__(self):
        return itertools.chain.from_iterable(self.layers)

    def sublayer(self, layer, depth, kind, name, mask):
        branch = getattr(layer, name)
        connection = vars(getattr(layer, f"{name}_residual", SimpleNamespace()))
        inner = getattr(branch, "inner", SimpleNamespace())

        def scored(z, **inside):
            memory = self.memory if kind == "CA" else z
            a, scores = attention(branch, z, memory, mask, self.heads, **inside)
            return self.warmup(depth, self.t) * self.dropout(a), scores

        def f(z, norm=same, **inside):
            if kind == "FF":
                a = feed_forward(branch, z, **inside)
            else:
                a, _ = attention(branch, z, self.memory if kind == "CA" else z, mask, self.heads, **inside)
            return self.warmup(depth, self.t) * norm(self.dropout(a))

        qkv = [getattr(inner, part, None) for part in ("query", "key", "value")]
        return SimpleNamespace(f=f, scored=scored, kind=kind, l=depth, inner=inner, qkv=qkv, **connection)


def run_encoder(p, equation, heads, embeddings, real, **stack):
    """The output of an encoder for embeddings (batch, length, d), of which `real` (batch, length) are not padding."""
    s = Stack(p, heads, {"SA": real[:, None, None]}, **stack)
    return equation(s, embeddings * real.unsqueeze(-1))


def run_decoder(p, equation, heads, embeddings, memory=None, real=None, **stack):
    length = embeddings.shape[1]
    masks = {"SA": torch.ones(length, length, dtype=torch.bool).tril()}
    if real is not None:
        masks["CA"] = real[:, None, None]
    return equation(Stack(p, heads, masks, memory, is_encoder=False, **stack), embeddings)
