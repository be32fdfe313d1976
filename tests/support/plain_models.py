"""Norms, branches and stacks as plain functions of a model's parameters, for `support/equations.py`."""

import functools
import itertools
import math
from types import SimpleNamespace

import torch
from torch.nn.functional import linear

EQUATIONS = {}


def equation(function):
    """Decorator: the equation of the mode of that name. Its keywords are the options with their defaults."""
    EQUATIONS[function.__name__] = function
    return function


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


def weighted(weights, outputs):
    return sum(w * y for w, y in zip(weights, outputs, strict=True))


def gpas(x, gate):
    """x - SiLU(g) detach(x)"""
    return x - gate * gate.sigmoid() * x.detach()


def deep_norm_alpha(s):
    """0.81 (N^4 M)^(1/16) in an encoder of N and (3M)^(1/4) in a decoder of M layers, (2L)^(1/4) alone"""
    if s.others is None:
        return (2 * s.N) ** 0.25
    return 0.81 * (s.N**4 * s.others) ** (1 / 16) if s.is_encoder else (3 * s.N) ** 0.25


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
        for layer in self.layers:
            for c in layer:
                c.first = layer[0]
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
