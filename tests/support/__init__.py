"""What several tests share."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""


def small_sizes(d_model: int = 16, layers: int = 1, ffn_dim: int = 16, attention_heads: int = 2) -> dict[str, int]:
    """Fields of the config of an encoder-decoder, of this package, BART or Marian, whose stacks are of one size."""
    of_stack = {"layers": layers, "ffn_dim": ffn_dim, "attention_heads": attention_heads}
    fields = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in of_stack.items()}
    return {"d_model": d_model} | fields
