"""Which models the native kernels serve."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.model.embeddings import NormalizedLinear
from residual_hf.model.kernels import Projection
from residual_hf.model.modeling_residual import ResidualLanguageModel
from residual_hf.model.stacks import ResidualStack

from . import library, report
from .programs import StackPrograms
from .recorder import NoKernel
from .weights import ACTIVATIONS

LARGEST_HEAD = 128
LINEAR_MAPS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "gate", "fc2")
TABLES = {
    "embed_tokens": ("ScaledEmbedding",),
    "embed_positions": ("SinusoidalPositions", "MarianPositions", "LearnedPositions"),
}
"""Names of classes, also in the code of a checkpoint; without modules of their own, such as those of adapters."""


def missing_support(model: ResidualLanguageModel, dtype: str = "float32") -> str | None:
    """Why the kernels cannot decode with a model, or None if they can."""
    if dtype not in DECODING_DTYPES:
        return f"dtype: {dtype!r} given, allowed are {', '.join(DECODING_DTYPES)}"
    if library() is None:
        return report()
    if model.device.type != "cpu" or model.dtype == torch.float64:
        return f"the native kernels need a model on the CPU in fp32 or less, not {model.dtype} on {model.device}"
    quantized = {type(weight).__name__ for weight in model.parameters() if type(weight) is not nn.Parameter}
    if quantized:
        return f"the weights are of {', '.join(sorted(quantized))}"
    if not is_linear(model.lm_head) and type(model.lm_head) is not NormalizedLinear:
        return f"the output projection is a {type(model.lm_head).__name__}"
    return unsupported_stack(model.model.decoder)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a `torch.nn.Linear` or a `Projection`, also in the code of a checkpoint."""
    kind = type(module)
    return kind is nn.Linear or (kind.__name__ == Projection.__name__ and kind.__bases__ == (nn.Linear,))


def unsupported_stack(stack: ResidualStack) -> str | None:
    """Why the kernels cannot run an encoder or decoder, or None if they can."""
    config = stack.config
    if config.position_embedding_type == "relative":
        return "position_embedding_type 'relative' has no native kernel"
    if config.activation_function not in ACTIVATIONS:
        return f"activation_function {config.activation_function!r} has no native kernel"
    head_size = config.d_model // config.of(stack.stack).attention_heads
    if head_size > LARGEST_HEAD:
        return f"heads of {head_size} values are larger than {LARGEST_HEAD}"
    activation = type(ACT2FN[config.activation_function])
    for name, module in stack.named_modules():
        role, kind = name.rpartition(".")[2], type(module)
        other_table = role in TABLES and (kind.__name__ not in TABLES[role] or [*module.children()])
        other_map = role in LINEAR_MAPS and not is_linear(module)
        if other_table or other_map or (role == "activation" and kind is not activation):
            return f"{stack.stack}.{name} is a {type(module).__name__}, for which there is no native kernel"
        if name and hasattr(module, "active_adapters"):
            return f"{stack.stack}.{name} is an adapter ({type(module).__name__})"
    try:
        StackPrograms(stack)
    except (NoKernel, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        return f"ln_mode {config.of(stack.stack).ln_mode!r} computes {error}, for which there is no native kernel"
    return None
