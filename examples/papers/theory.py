"""Theorems of ResiDual (Xie et al. 2023) and Admin (Liu et al. 2020): closed forms and simulations.

The simulations make the assumptions of the proofs: branches are independent Gaussian vectors of variance sigma^2, and
the norm has neither gain nor bias.
"""

import math
from collections.abc import Sequence

import numpy as np


def pre_ln_change(k: int) -> float:
    """E|x_(k+1) - x_k| of what branches k and k + 1 of a Pre-LN stack read, k >= 2. ResiDual, theorem 3.3.

    omega^2 = 2 / (sqrt(k) (sqrt(k - 1) + sqrt(k))), and E|.| = sqrt(2 / pi) omega.
    """
    if k < 2:
        raise ValueError(f"k: {k} given, and the embeddings are ignored, so that k starts at 2")
    return math.sqrt(2 / math.pi * 2 / (math.sqrt(k) * (math.sqrt(k - 1) + math.sqrt(k))))


def post_ln_change(sigma_squared: float) -> float:
    """The same for Post-LN and ResiDual and any k: omega^2 = 2 - 2 / sqrt(1 + sigma^2). ResiDual, theorem 3.6."""
    return math.sqrt(2 / math.pi * (2 - 2 / math.sqrt(1 + sigma_squared)))


def simulated_changes(
    post_ln: bool, depth: int, sigma_squared: float = 1.0, size: int = 200_000, seed: int = 0
) -> list[float]:
    """Mean |x_(k+1) - x_k| for k = 2 ... depth in a stack whose branches are Gaussian noise.

    Post-LN starts from a normalized vector and Pre-LN from zero, as in the proofs.
    """
    generator = np.random.default_rng(seed)
    deviation = math.sqrt(sigma_squared)
    stream = generator.normal(0.0, 1.0 if post_ln else deviation, size)
    inputs = [normalize(stream)]
    for _ in range(depth - 1):
        stream = stream + generator.normal(0.0, deviation, size)
        if post_ln:
            stream = normalize(stream)
        inputs.append(normalize(stream))
    return [float(np.abs(after - before).mean()) for before, after in zip(inputs, inputs[1:], strict=False)]


def simulated_output_changes(
    depth: int, sigma_squared: float = 1.0, size: int = 200_000, seed: int = 0
) -> list[float]:
    """Mean |y_(N+1) - y_N| for N = 1 ... depth - 1: how much one more sub-layer changes the output of ResiDual.

    y_N = x_N + LN(d_N) with the Post-LN stream x and the sum d of all branches. `post_ln_change` is a lower bound.
    ResiDual, corollary 3.7. For Pre-LN (corollary 3.5) it is `pre_ln_change` at N + 1.
    """
    generator = np.random.default_rng(seed)
    stream = dual = generator.normal(0.0, 1.0, size)
    outputs = []
    for _ in range(depth):
        branch = generator.normal(0.0, math.sqrt(sigma_squared), size)
        stream, dual = normalize(stream + branch), dual + branch
        outputs.append(stream + normalize(dual))
    return [float(np.abs(after - before).mean()) for before, after in zip(outputs, outputs[1:], strict=False)]


def normalize(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def post_ln_gradient(distance: int) -> float:
    """|dL/dw_k| of Post-LN for d = N - k, relative to the last block: (1/2)^(d/2) e^sqrt(d). ResiDual, theorem 3.1."""
    return 0.5 ** (distance / 2) * math.exp(math.sqrt(distance))


def pre_ln_gradient(distance: int, blocks: int) -> tuple[float, float]:
    """|dL/dw_k| of Pre-LN in theorem 3.1 and at the end of its proof, which differ; distance = N - k >= 1."""
    return math.sqrt(math.log(distance) / blocks), math.log(distance) / math.sqrt(blocks)


def simulated_gradients(
    post_ln: bool, blocks: int, cross_every: int = 0, sigma_squared: float = 1.0, size: int = 256, seed: int = 0
) -> list[float]:
    """|dL/dw_k| for k = 1 ... blocks in a linear toy model, relative to the last block.

    Block k is f(x) = sigma W_k x with an orthogonal W_k, and L = <output, v> for a random v. With sigma = 1 this is
    |f(x)| = |x|, which theorem 3.1 assumes.

    Args:
        cross_every: every n-th block reads a constant vector, as cross-attention reads the encoder, so that only the
            shortcut returns its gradient to the stream; 0: none.
    """
    generator = np.random.default_rng(seed)
    weights = [math.sqrt(sigma_squared) * np.linalg.qr(generator.normal(size=(size, size)))[0] for _ in range(blocks)]
    is_cross = [cross_every > 0 and k % cross_every == cross_every - 1 for k in range(blocks)]
    memory, state = (normalize(generator.normal(size=size)) for _ in range(2))
    states, sums = [state], []
    for weight, cross in zip(weights, is_cross, strict=True):
        read = memory if cross else normalize(states[-1])
        sums.append(states[-1] + weight @ read)
        states.append(normalize(sums[-1]) if post_ln else sums[-1])
    gradient = generator.normal(size=size)
    if not post_ln:
        gradient = backward_norm(gradient, sums[-1])
    norms = []
    for k in reversed(range(blocks)):
        if post_ln:
            gradient = backward_norm(gradient, sums[k])
        norms.append(float(np.linalg.norm(gradient)))  # of dL/dW_k up to |read|, which is the same for all k
        if not is_cross[k]:
            through = weights[k].T @ gradient
            gradient = gradient + (through if post_ln else backward_norm(through, states[k]))
    return [norm / norms[0] for norm in reversed(norms)]


def backward_norm(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradient before `normalize(x)` from the gradient after it."""
    y = normalize(x)
    return (gradient - gradient.mean() - y * (gradient * y).mean()) / x.std()


def output_change_bound(betas: Sequence[float]) -> float:
    """Var[F(x, W) - F(x, W*)] / C ~ sum_i beta_ii^2. Admin, theorem 2.

    With equal branches, beta_ii^2 is 1 / i in Pre-LN, so that the sum is the harmonic number H_N ~ ln N. In Post-LN it
    is constant, so that the sum is proportional to N.
    """
    return sum(beta**2 for beta in betas)
