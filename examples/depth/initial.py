"""Which modes stay finite at the start of a deep model: one forward and backward pass in fp32, bf16 and fp16.

    python examples/depth/initial.py --layers 100 --modes post_ln resi_dual

Per mode: the largest activation of the residual stream and the gradient norm in fp32, and for each precision
(autocast, weights in fp32) whether outputs, loss and gradients are finite. The loss is not scaled; Admin is profiled.
"""

import argparse
import sys
from pathlib import Path

import torch

from residual_hf.analysis.short_training import profiled
from residual_hf.model.connections import LN_MODES

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from generated import new_model

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(model: torch.nn.Module, dtype: torch.dtype, device: str) -> tuple[bool, float, float]:
    """(everything finite, largest activation of the stream, norm of the gradient)."""
    largest = torch.zeros((), device=device)

    def watch(module: torch.nn.Module, inputs: object, stream: tuple[torch.Tensor, ...]) -> None:
        nonlocal largest
        largest = torch.maximum(largest, torch.stack([x.detach().float().abs().max() for x in stream]).max())

    torch.manual_seed(1)
    source, labels = (torch.randint(4, 200, (8, n), device=device) for n in (12, 10))
    profiled(model, {"input_ids": source, "labels": labels})
    hooks = [
        m.register_forward_hook(watch) for stack in (model.model.encoder, model.model.decoder) for m in stack.layers
    ]
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        output = model(source, labels=labels)
    output.loss.backward()
    for hook in hooks:
        hook.remove()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    finite = bool(output.logits.isfinite().all() and output.loss.isfinite() and norm.isfinite())
    model.zero_grad()
    return finite, largest.item(), norm.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--modes", nargs="+", choices=sorted(LN_MODES), default=sorted(LN_MODES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    print(f"{args.layers}+{args.layers} layers of width {args.width}\n")
    print("| `ln_mode` | largest activation | gradient norm | fp32 | bf16 | fp16 |\n|---|---|---|---|---|---|")
    for mode in args.modes:
        fields = {"vocab_size": 200, "dropout": 0.1}
        model = new_model(mode, args.layers, args.width, ffn=2 * args.width, seed=0, **fields).to(args.device).train()
        results = {name: check(model, dtype, args.device) for name, dtype in PRECISIONS.items()}
        _, largest, norm = results["fp32"]
        verdicts = " | ".join("finite" if finite else "**overflow**" for finite, _, _ in results.values())
        print(f"| `{mode}` | {largest:.3g} | {norm:.3g} | {verdicts} |", flush=True)


if __name__ == "__main__":
    main()
