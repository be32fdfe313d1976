"""The equations of the GPAS modes, as in `support/equations.py`."""

import math

from support.plain_models import LN, RMS, deep_norm_alpha, equation, gpas


@equation
def pre_ln_gpas(s, x):
    """x <- GPAS(x + f(LN x)), one gate per layer"""
    for c in s:
        x = gpas(x + c.f(LN(x, c.norm)), c.first.gate)
    return LN(x, s.end.norm)


@equation
def ln_scaling_gpas(s, x):
    """x <- GPAS(x + f(LN(x)/sqrt(l)))"""
    for c in s:
        x = gpas(x + c.f(RMS(x, c.norm) / c.l**0.5), c.first.gate)
    return RMS(x, s.end.norm)


@equation
def sandwich_ln_gpas(s, x):
    """x <- GPAS(x + LN_2(f(LN_1 x)))"""
    for c in s:
        x = gpas(x + c.f(LN(x, c.norm), lambda a, c=c: LN(a, c.output_norm)), c.first.gate)
    return LN(x, s.end.norm)


@equation
def deep_norm_gpas(s, x):
    """x <- LN(alpha GPAS(x) + a)"""
    for c in s:
        x = LN(deep_norm_alpha(s) * gpas(x, c.first.gate) + c.f(x), c.norm)
    return x


@equation
def mix_ln_gpas(s, x, fraction=0.25):
    """First layers x <- LN(GPAS(x) + a), then x <- GPAS(x + f(LN x));  out = LN x"""
    for c in s:
        if c.l <= math.floor(fraction * s.N):
            x = RMS(gpas(x, c.first.gate) + c.f(x), c.norm)
        else:
            x = gpas(x + c.f(RMS(x, c.norm)), c.first.gate)
    return RMS(x, s.end.norm)
