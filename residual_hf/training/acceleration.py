"""Training on a CPU with the native kernels.

`accelerated(model)` registers kernels for dropouts, attention over the depth and residual connections
(`model.kernels`) and for dot-product attention (an `attn_implementation`), for as long as it lasts. Dropout masks have
the distribution of PyTorch's, but other values for the same seed. With `precision="bf16"` linear maps and the
criterion round the operands of their matrix products to bf16. Weights, sums, attention, norms and gradients remain in
fp32.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from residual_hf.model.connections import ResidualConnection, Stream
from residual_hf.model.fingerprint import is_changed
from residual_hf.model.kernels import Dropout, Kernel, Projection
from residual_hf.model.layers import SAME_ATTENTION
from residual_hf.model.modeling_residual import ResidualLanguageModel
from residual_hf.model.modes_multi_stream import DepthAttention
from residual_hf.model.stacks import ResidualPreTrainedModel
from residual_hf.native import autograd, library, multiplies_bf16, products
from residual_hf.native.dot_attention import dot_attention, fits

from .fusion import JoinedConnection, is_plain, is_served, rate_of

logger = logging.getLogger(__name__)

ATTENTION = "residual_native"
"""The `attn_implementation` of the kernel."""
OTHER_ATTENTION = ("is_causal", "position_bias", "softcap")  # options of Transformers' `sdpa` that have no kernel


@contextmanager
def accelerated(model: Any, precision: str = "fp32") -> Iterator[None]:
    """Context in which the modules of a model on a CPU that have native kernels use them for training.

    Args:
        model: with parameters in fp32; `model.criterion` is a loss, see `ResidualForConditionalGeneration`.
        precision: "fp32", or "bf16" for matrix products with AMX or AVX512_BF16. Without these, it is fp32 and a line
            is logged.
    """
    on_cpu = {model.device.type, torch.get_default_device().type} == {"cpu"}
    bf16 = on_cpu and cpu_precision(precision) == "bf16"
    if library() is None or not on_cpu:
        yield
        return
    with ExitStack() as restored:
        for module in model.modules():
            name = "criterion_products" if isinstance(module, ResidualLanguageModel) else "kernel"
            if name not in vars(module) and (kernel := kernel_of(module, bf16)):
                setattr(module, name, kernel)
                restored.callback(delattr, module, name)
            if isinstance(module, ResidualPreTrainedModel) and module.config._attn_implementation == "sdpa":
                module.config._attn_implementation = ATTENTION
                restored.callback(setattr, module.config, "_attn_implementation", "sdpa")
        yield


def kernel_of(module: nn.Module, bf16: bool) -> Kernel | None:
    """The kernel of a module for training, None if it has none."""
    if isinstance(module, ResidualConnection):
        return JoinedConnection()
    if type(module) is DepthAttention and is_served(module.norm):
        return depth_attention
    if type(module) is Projection and bf16:
        return linear
    if isinstance(module, ResidualLanguageModel) and bf16:
        return products.bf16_products
    return dropout if type(module) is Dropout else None


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """Attention as Transformers calls it, by its `sdpa` where the kernel does not fit."""
    plain = torch.compiler.is_compiling() or any(options.get(name) is not None for name in OTHER_ATTENTION)
    if plain or not fits(query, key, value, mask):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **options)
    causal = module.is_causal and mask is None and query.shape[2] > 1
    rate, scale = options["dropout"], options["scaling"]
    return dot_attention(query, key, value, mask, scale=scale, rate=rate, causal=causal), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
SAME_ATTENTION.add(ATTENTION)


def cpu_precision(precision: str) -> str:
    """The precision in which a CPU trains where `precision` is requested."""
    if precision == "bf16" and multiplies_bf16():
        return precision
    if precision != "fp32":
        needs = "native kernels and AMX or AVX512_BF16 on a CPU" if precision == "bf16" else "a GPU"
        logger.warning("precision %s needs %s: training in fp32", precision, needs)
    return "fp32"


def dropout(module: nn.Dropout, values: Tensor) -> Tensor:
    if is_plain([values]):
        return nn.Dropout.forward(module, values)
    return autograd.dropout(values, rate_of(module))


def linear(module: nn.Linear, inputs: Tensor) -> Tensor:
    if is_plain([inputs, *module.parameters()]):
        return nn.Linear.forward(module, inputs)
    return products.linear_bf16(inputs, module.weight, module.bias)


def depth_attention(module: Any, members: Stream) -> Tensor:
    norm = module.norm
    if is_plain([members[0], module.query]) or is_changed(norm) or any(v.shape != members[0].shape for v in members):
        return module.attend(members)
    return autograd.depth_attention(members, norm.weight * module.query, norm.eps)
