"""The equations of all modes on the plain functions of `support/plain_models.py`: what a stack must compute.

Written from the papers and the official code, not from `residual_hf/model`, of which it uses only the names of the
parameters. An equation maps `x`, the embeddings (batch, length, d), to the output of a stack `s`. There `s.layers` are
lists of sub-layers `c`, and `for c in s` visits them in order:

    c.f(z)   the branch (SA, CA or FF) with dropout and, if any, branch warm-up; c.f(z, norm) normalizes it
    c.kind   "SA", "CA" or "FF";  c.l: its layer from 1;  c.first: the first sub-layer of its layer
    c.norm, c.omega ...: the parameters of the connection;  c.inner: those that a mode has inside the branch
    s.end    the parameters at the end of the stack;  s.N: its layers;  s.n: its sub-layers
"""

import math

import torch

from support import gpas_equations  # noqa: F401  registers them
from support.plain_models import (
    EQUATIONS,  # noqa: F401
    LN,
    RMS,
    deep_norm_alpha,
    equation,
    kronecker,
    sinkhorn_knopp,
    weighted,
)


@equation
def post_ln(s, x):
    """x <- LN(x + a)"""
    for c in s:
        x = LN(x + c.f(x), c.norm)
    return x


@equation
def pre_ln(s, x):
    """x <- x + f(LN x);  out = LN x"""
    for c in s:
        x = x + c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation
def resi_dual(s, x, dual_scale=1.0, main_scale=1.0, dual_layer_norm_eps=1e-7):
    """x <- LN(x + a);  r <- r + s a, from r_0 = s x_0;  out = alpha x + LN(r)"""
    r = dual_scale * x
    for c in s:
        a = c.f(x)
        x, r = LN(x + a, c.norm), r + dual_scale * a
    return main_scale * x + LN(r, s.end.norm, dual_layer_norm_eps)


# The layer input and the outputs of earlier layers


@equation
def b2t(s, x, around="inner"):
    """Post-LN, but the last norm of a layer sees x_inp + x + a; around all norms: x_inp + LN(x + a)"""
    for *inner, ffn in s.layers:
        start = x
        for c in inner:
            x = LN(x + c.f(x), c.norm)
        x = x + ffn.f(x)
        x = start + LN(x, ffn.norm) if around == "all" else LN(start + x, ffn.norm)
    return x


@equation
def b2t_no_ln(s, x, stack_norm=False):
    """x <- x + a in a layer, at its end x <- alpha x_inp + beta x;  alpha = min(L/12, L^-.15), beta = d^-.2"""
    alpha, beta = min(s.N / 12, s.N**-0.15), x.shape[-1] ** -0.2
    for layer in s.layers:
        start = x
        for c in layer:
            x = x + c.f(x)
        x = alpha * start + beta * x
    return LN(x, s.end.norm) if stack_norm else x


@equation
def span_norm(s, x):
    """y = LN(x + SA x); y <- LN(y + CA y); x <- LN(x + FF y); the first attention reads LN(x)"""
    for layer, (attention, *cross, ffn) in enumerate(s.layers):
        y = LN(x + attention.f(x if layer else LN(x, attention.input_norm)), attention.norm)
        for c in cross:
            y = LN(y + c.f(y), c.norm)
        x = LN(x + ffn.f(y), ffn.norm)
    return x


@equation
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


@equation
def dlcl_pre(s, x):
    """z_0 = x_0, z_l = LN_l(y_l);  input of layer l+1 = sum_k W_lk z_k;  Pre-LN layers;  out = LN(sum_k W_Lk z_k)"""
    outputs = [x]
    for layer in s.layers:
        x = weighted(layer[0].mix.weight, outputs)
        for c in layer:
            x = x + c.f(LN(x, c.norm))
        outputs.append(LN(x, layer[-1].output_norm))
    return LN(weighted(s.end.mix.weight, outputs), s.end.norm)


@equation
def dense_former(s, x, dilation=1, period=1, dynamic=False):
    """Pre-LN layers;  after each `period`-th x <- sum_k W_lk y_k over every `dilation`-th output back from l

    `dynamic`: W_l + W2 GELU(W1 RMS(y_l)) for each token
    """
    averages = [getattr(layer[0], "average", None) for layer in s.layers] + [getattr(s.end, "average", None)]
    outputs = [x]
    for depth, layer in enumerate(s.layers, start=1):
        for c in layer:
            x = x + c.f(LN(x, c.norm))
        outputs.append(x)
        assert (averages[depth] is None) == (depth % period != 0)
        if depth % period == 0:
            p, weights = averages[depth], averages[depth].weight
            if dynamic:
                z = RMS(x, p.norm) @ p.inner_weight.mT
                z = z * (1 + torch.tanh((2 / math.pi) ** 0.5 * (z + 0.044715 * z**3))) / 2
                weights = (weights + z @ p.outer_weight.mT).unsqueeze(-1).unbind(-2)
            x = weighted(weights, outputs[depth % dilation :: dilation])
    return LN(x, s.end.norm)


@equation
def attention_residuals(s, x, block_size=1, delta=False):
    """Branches read sum_i p_i v_i, p = softmax_i(w . RMS(v_i)), of v_0 = x_0 and the sums of blocks of outputs

    `delta`: h = x + sum_i p_i v_i of the complete blocks with the Pre-LN state x;  out = LN x
    """

    def read(p):
        seen = outputs[: len(outputs) // block_size * block_size] if delta else outputs
        blocks = [sum(seen[i : i + block_size]) for i in range(0, len(seen), block_size)]
        values = torch.stack([x, *blocks])
        state = x + sum(outputs) if delta else 0
        return state + ((RMS(values, p.norm) @ p.query).softmax(0).unsqueeze(-1) * values).sum(0)

    outputs = []
    for c in s:
        outputs.append(c.f(LN(read(c.depth_attention) if outputs else x, c.norm)))
    return LN(x + sum(outputs) if delta else read(s.end.depth_attention), s.end.norm)


# Factors on the shortcut


def scaled_shortcuts(s, x, omega, branch_scale=1.0):
    for c in s:
        x = LN(omega(c) * x + branch_scale * c.f(x), c.norm)
    return x


@equation
def admin(s, x):
    """x <- LN(omega x + a)"""
    return scaled_shortcuts(s, x, lambda c: c.omega)


@equation
def admin_torch(s, x, target="log", learned=False):
    """Admin with omega^2 = (n+1)/ln(n+1) - 1 for an output change O(log n), n for O(1), 1 for O(n)"""
    square = {"log": (s.n + 1) / math.log(s.n + 1) - 1, "constant": s.n, "linear": 1.0}[target]
    return scaled_shortcuts(s, x, lambda c: c.omega if learned else square**0.5)


@equation
def wskip_ln(s, x):
    """x <- LN(w x + a)"""
    return scaled_shortcuts(s, x, lambda c: c.w)


@equation
def xskip_ln(s, x, skip_scale=2.0, branch_scale=1.0):
    """x <- LN(lambda x + c a)"""
    return scaled_shortcuts(s, x, lambda c: skip_scale, branch_scale)


@equation
def xskip(s, x, skip_scale=1.0):
    """x <- lambda x + a"""
    for c in s:
        x = skip_scale * x + c.f(x)
    return x


@equation
def deep_norm(s, x):
    """x <- LN(alpha x + a)"""
    return scaled_shortcuts(s, x, lambda c: deep_norm_alpha(s))


@equation
def rskip_ln(s, x, skip_order=2):
    """y_1 = LN_1(x + a), y_j = LN_j(x + y_{j-1}), x <- y_lambda"""
    for c in s:
        y = c.f(x)
        assert len(c.norms) == skip_order
        for norm in c.norms:
            y = LN(x + y, norm)
        x = y
    return x


@equation
def keel(s, x, alpha=None):
    """x <- LN_1(alpha x + f(LN_2 x)), alpha = n, in the first layer 1; the first attention has no LN_1"""
    for c in s:
        y = (1 if c.l == 1 else alpha or s.n) * x + c.f(RMS(x, c.input_norm))
        x = y if c.l == 1 and c.kind == "SA" else RMS(y, c.norm)
    return x


# Factors on the branch


@equation
def branch_norm(s, x):
    """x <- LN(x + a_t f(x)), a_t = min(1, t/4000)"""
    for c in s:
        x = LN(x + min(1, s.t / 4000) * c.f(x), c.norm)
    return x


@equation
def ln_scaling(s, x):
    """x <- x + f(LN(x)/sqrt(l));  out = LN x"""
    for c in s:
        x = x + c.f(RMS(x, c.norm) / c.l**0.5)
    return RMS(x, s.end.norm)


@equation
def scaled_branch(s, x, tau=1.0, exponent=0.5):
    """x <- x + tau L^-alpha f(LN x), L sub-layers;  out = LN x"""
    for c in s:
        x = x + tau / s.n**exponent * c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation
def layer_scale(s, x):
    """x <- x + w f(LN x);  out = LN x"""
    for c in s:
        x = x + c.scale * c.f(LN(x, c.norm))
    return LN(x, s.end.norm)


@equation
def skip_init(s, x):
    """x <- x + alpha f(x), a scalar per branch"""
    for c in s:
        x = x + c.alpha * c.f(x)
    return x


@equation
def rezero(s, x, gate="layer"):
    """x <- x + alpha_l a, one scalar per layer (or per sub-layer)"""
    for c in s:
        x = x + (c.first if gate == "layer" else c).alpha * c.f(x)
    return x


@equation
def rezero_post_ln(s, x, gate="layer"):
    """x <- LN(x + alpha_l a)"""
    for c in s:
        x = LN(x + (c.first if gate == "layer" else c).alpha * c.f(x), c.norm)
    return x


# Without norms


@equation
def t_fixup(s, x):
    """x <- x + a"""
    for c in s:
        x = x + c.f(x)
    return x


@equation
def fixup(s, x):
    """x <- x + s f(x - b), in FF W2 (relu(W1 x - b) - b);  out = s (x - b) in an encoder, x - b in a decoder"""
    for c in s:
        if c.kind == "FF":
            before, inside = (lambda z, p=p: z - p.bias for p in (c.inner.pre_activation, c.inner.inner))
            a = c.f(x - c.shift.bias, before=before, inside=inside)
        else:
            a = c.f(x - c.shift.bias)
        x = x + c.scale.weight * a
    x = x - s.end.shift.bias
    return s.end.scale.weight * x if s.is_encoder else x


# Places of norms


@equation
def sandwich_ln(s, x):
    """x <- x + LN_2(f(LN_1 x));  out = LN x"""
    for c in s:
        x = x + c.f(LN(x, c.norm), lambda a, c=c: LN(a, c.output_norm))
    return LN(x, s.end.norm)


@equation
def peri_ln(s, x):
    """Sandwich-LN with RMS norms"""
    for c in s:
        x = x + c.f(RMS(x, c.norm), lambda a, c=c: RMS(a, c.output_norm))
    return RMS(x, s.end.norm)


@equation
def output_ln(s, x):
    """x <- x + LN(f(x));  out = LN x"""
    for c in s:
        x = x + c.f(x, lambda a, c=c: LN(a, c.norm))
    return LN(x, s.end.norm)


@equation
def mix_ln(s, x, fraction=0.25):
    """Post-LN in the first floor(fraction L) layers, then Pre-LN;  out = LN x"""
    for c in s:
        x = RMS(x + c.f(x), c.norm) if c.l <= math.floor(fraction * s.N) else x + c.f(RMS(x, c.norm))
    return RMS(x, s.end.norm)


@equation
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


@equation
def siamese_norm(s, x, hybrid=False):
    """p = LN_x(x); a = f(LN_z(p + LN_y(y))); x <- p + a/sqrt(s l); y <- y + a;  out = LN(LN(x) + LN(y))

    `hybrid`: attention has p = x, reads w x + LN_y(y) and has RMS norms on q, k, v of each head
    """
    y = x
    for c in s:
        if hybrid and c.kind != "FF":
            p, heads = x, {name: lambda z, p=p: RMS(z, p) for name, p in zip("qkv", c.qkv, strict=True)}
            a = c.f(c.gain * x + LN(y, c.pre_norm), **heads)
        else:
            p = LN(x, c.post_norm)
            a = c.f(LN(p + LN(y, c.pre_norm), c.input_norm))
        x, y = p + a / (len(s.layers[0]) * c.l) ** 0.5, y + a
    return LN(LN(x, s.end.post_norm) + LN(y, s.end.pre_norm), s.end.norm)


# Inside the branches


@equation
def sub_ln(s, x):
    """Pre-LN with LN before W^O of self-attention and before W2"""
    for c in s:
        if c.kind == "SA":
            inner = {"inside": lambda z, c=c: LN(z, c.inner.heads)}
        else:
            inner = {"inside": lambda z, c=c: LN(z, c.inner.inner)} if c.kind == "FF" else {}
        x = x + c.f(LN(x, c.norm), **inner)
    return LN(x, s.end.norm)


@equation
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


@equation
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


@equation
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


@equation
def mhc(s, x, streams=4, mixing="sinkhorn", learned_end=False):
    """Hyper-connections H <- M H + b a with m = sigmoid(.), b = 2 sigmoid(.), M = Sinkhorn(exp(.)) or Kronecker

    The logits are a static part + scale * RMS(all streams of a token) W. `learned_end`: out = LN(sum_i m_i h_i).
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
    if learned_end:
        dynamic = RMS(h.flatten(-2), s.end.weights_norm) @ s.end.dynamic_weight.mT
        h = (s.end.static_read + s.end.dynamic_scale * dynamic).sigmoid().unsqueeze(-1) * h
    return LN(h.sum(-2), s.end.norm)
