"""Where the time of a decoding or training step goes, and how near its products are to the peak of a core.

    python examples/benchmarks/shares.py --sizes iwslt base --dtypes float32 int8
    python examples/benchmarks/shares.py --training multi30k_tiny multi30k_small --precision fp32

CPU time of one thread; of training, times of PyTorch's profiler. See README.md in this folder.
"""

import argparse
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import byref
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from decode_speed import CASES, DTYPES, SIZES, SOURCE_LENGTH, make_model, measure
from torch.profiler import ProfilerActivity, profile, record_function
from train_speed import PRECISIONS, SHAPES, build_candidate, synthetic_batches

from residual_hf import native
from residual_hf.native.decoder import NativeDecoder
from residual_hf.native.structures import CONSTANTS
from residual_hf.native.weights import round_up
from residual_hf.training.acceleration import accelerated, cpu_precision
from residual_hf.training.launch import keep_freed_memory

STEPS = 30
GROUPS = {
    "self-attention": ("own.query", "own.key_value", "own.output"),
    "cross-attention": ("cross.query", "cross.output"),
    "feed-forward": ("ffn_in", "ffn_out"),
}
PARTS = {
    "output layer and loss": ("FusedLinearLoss",),
    "other matrix products": ("aten::linear", "Addmm", "MmBackward", "LinearBF16"),
    "attention": ("DotAttention",),
    "dropout and norms": ("Dropout", "layer_norm", "LayerNorm"),
    "embeddings": ("mbedding",),
    "optimizer": ("Optimizer",),
}
"""Parts of a training step and names of their operations for the profiler, forward and backward."""


def seconds_of(run: Callable[[], Any], repeats: int) -> float:
    return statistics.median(measure({"run": run}, repeats)["run"])


def product(decoder: NativeDecoder, linear: Any, rows: int) -> Callable[[], Any]:
    """One linear map of random states."""
    library = native.loaded_library()
    inputs = torch.rand(round_up(rows, CONSTANTS["ROW_PADDING"]), linear.inputs).to(decoder.dtype)
    output = torch.empty(len(inputs), linear.outputs)
    scratch = torch.empty(library.linear_scratch_size(linear.type, rows, linear.inputs), dtype=torch.uint8)
    return lambda: library.linear(byref(linear), rows, inputs.data_ptr(), 0, output.data_ptr(), 0, scratch.data_ptr())


def steps(decoder: NativeDecoder, sentences: int, beams: int) -> Callable[[], Any]:
    """Decoding of random sources without the bookkeeping of a search."""
    memory = torch.rand(sentences, SOURCE_LENGTH, decoder.config.d_model)
    tokens = np.full(sentences * beams, 5)

    def run() -> None:
        state = decoder.start(memory, None, beams, STEPS)
        for _ in range(STEPS):
            state.best(tokens, max(1, 2 * beams))

    return run


def peak() -> float:
    """Multiplications per second of the fastest large product of PyTorch in float32."""
    size = 1536
    matrix = torch.rand(size, size)
    return size**3 / seconds_of(lambda: torch.mm(matrix, matrix), 7)


def table(size: str, dtype: str, case: str, repeats: int, best: float) -> None:
    sentences, beams = CASES[case]
    rows, decoder = sentences * beams, NativeDecoder(make_model(size, "resi_dual"), dtype)
    stack = decoder.decoder
    step = seconds_of(steps(decoder, sentences, beams), repeats) / STEPS
    print(f"\n{size}, {dtype}, {rows} rows, {native.instruction_set()}: {1000 * step:.2f} ms a step\n")
    print("| | share of the step | multiplications, relative to the peak |\n|---|---|---|")
    rest = step
    groups = {name: [attrgetter(member)(stack.layer[0]) for member in members] for name, members in GROUPS.items()}
    for name, linears in {**groups, "output layer": [stack.logits]}.items():
        times = 1 if name == "output layer" else stack.layers
        seconds = sum(seconds_of(product(decoder, linear, rows), 20 * repeats) for linear in linears)
        done = rows * sum(linear.inputs * linear.outputs for linear in linears) / seconds / best
        rest -= times * seconds
        print(f"| products of {name} | {100 * times * seconds / step:.0f} % | {done:.2f} |")
    print(f"| attention, norms, sums, ranking | {100 * rest / step:.0f} % | |", flush=True)


def part_of(event: Any) -> str:
    """The part of the outermost operation that has one."""
    part = "the rest"
    while event is not None:
        part = next((own for own, names in PARTS.items() if any(name in event.name for name in names)), part)
        event = event.cpu_parent
    return part


def multiplications(event: Any) -> int:
    """Of a matrix product of PyTorch; 0 for other operations."""
    if event.name not in ("aten::mm", "aten::addmm", "aten::addmm_"):
        return 0
    left, right = [shape for shape in event.input_shapes if len(shape) == 2][-2:]
    return math.prod(left) * right[1]


def training_table(size: str, precision: str, repeats: int, best: float, changed: dict[str, int]) -> None:
    shape, precision = SHAPES[size], cpu_precision(precision)
    shape = replace(shape, sizes={**shape.sizes, **changed})
    candidate = build_candidate("resi_dual_native", shape, "cpu", seed=1, compiled=False)
    first, *batches = itertools.islice(synthetic_batches(shape, shape.max_tokens, seed=1), repeats + 1)
    with accelerated(candidate.model, precision):
        candidate.step(first, nullcontext)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for batch in batches:
                with record_function("step"):
                    candidate.step(batch, nullcontext)
    seconds, products = Counter[str](), Counter[str]()
    for event in profiler.events():
        seconds[part_of(event)] += event.self_cpu_time_total / 1e6
        products[part_of(event)] += multiplications(event)
    total = seconds.total()
    name = ", ".join([size, *(f"{field} {value:,}" for field, value in changed.items())])
    print(f"\n{name}, {precision}, {native.instruction_set()}: {1000 * total / repeats:.0f} ms a step\n")
    print("| | share of the step | multiplications, relative to the peak |\n|---|---|---|")
    for part in (*PARTS, "the rest"):
        done = f"{products[part] / seconds[part] / best:.2f}" if products[part] else ""
        print(f"| {part} | {100 * seconds[part] / total:.1f} % | {done} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["iwslt", "base"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "int8"])
    parser.add_argument("--cases", nargs="+", choices=("greedy", "beam", "single"), default=["beam", "single"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--training", nargs="+", choices=SHAPES, help="shares of a training step of these instead")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="of training")
    parser.add_argument("--vocab-size", type=int, help="of training (default: that of the shape)")
    options = parser.parse_args()
    changed = {} if options.vocab_size is None else {"vocab_size": options.vocab_size}
    torch.set_num_threads(1)
    best = peak()
    print(f"peak: {best / 1e9:.1f}e9 multiplications per second in float32")
    if options.training:
        keep_freed_memory()
        for size, precision in itertools.product(options.training, options.precision):
            training_table(size, precision, options.repeats, best, changed)
        return
    for size in options.sizes:
        for dtype in options.dtypes:
            for case in options.cases:
                table(size, dtype, case, options.repeats, best)


if __name__ == "__main__":
    main()
