"""Memory of the vocabulary loss, forward and backward: fused with the output projection, and from full logits.

python examples/benchmarks/loss_memory.py --tokens 4096 --vocab-size 32768 --width 512

Every variant runs in its own process. Its peak memory above that of the inputs (resident memory on a CPU, allocated
memory on a GPU) is printed as JSON.
"""

import argparse
import json
import subprocess
import sys

from memory import peak_memory

VARIANTS = ("fused", "plain", "torch")


def measure(variant: str, tokens: int, vocab_size: int, width: int, device: str) -> float:
    """Peak megabytes beyond hidden states, weight and their gradients."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    from residual_hf.losses.label_smoothing import fused_linear_smoothed_cross_entropy, smoothed_cross_entropy

    def step(rows: int) -> None:
        hidden = torch.randn(rows, width, device=device, requires_grad=True)
        labels = torch.randint(vocab_size, (rows,), device=device)
        if variant == "fused":
            loss = fused_linear_smoothed_cross_entropy(hidden, weight, labels).smoothed
        elif variant == "plain":
            loss = smoothed_cross_entropy(linear(hidden, weight), labels).smoothed
        else:
            loss = cross_entropy(linear(hidden, weight), labels, label_smoothing=0.1, reduction="sum")
        loss.backward()

    def peak() -> float:
        if device == "cuda":
            return torch.cuda.max_memory_allocated() / 1e6
        return peak_memory() * 2**20 / 1e6

    weight = torch.randn(vocab_size, width, device=device, requires_grad=True)
    step(1)  # libraries, workspaces and the gradient of the weight
    before = peak()
    step(tokens)
    return peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (options.tokens, options.vocab_size, options.width)
    if options.variant:
        print(measure(options.variant, *sizes, options.device))
        return
    figures = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--variant", variant]
        figures[variant] = round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    logits = options.tokens * options.vocab_size * 4 / 1e6
    print(json.dumps({"tokens": options.tokens, "logits_mb": round(logits), "peak_mb": figures}))


if __name__ == "__main__":
    main()
