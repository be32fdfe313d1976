# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Where the time of a decoding step goes, and how near its products are to the peak of a core.

    python examples/benchmarks/shares.py --sizes iwslt base --dtypes float32 int8

CPU time of one thread. See README.md in this folder.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from ctypes import byref
from typing import Any

import numpy as np
import torch
from decode_speed import CASES, DTYPES, SIZES, SOURCE_LENGTH, make_model

from residual_hf import native
from residual_hf.native.decoder import NativeDecoder
from residual_hf.native.structures import CONSTANTS
from residual_hf.native.weights import round_up

STEPS = 30
GROUPS = {
    "self-attention": ("own.query", "own.key_value", "own.output"),
    "cross-attention": ("cross.query", "cross.output"),
    "feed-forward": ("ffn_in", "ffn_out"),
}


def seconds_of(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return statistics.median(times[1:])


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
    for name, members in {**GROUPS, "output layer": ("logits",)}.items():
        layer = stack if name == "output layer" else stack.layer[0]
        linears = []
        for member in members:
            linear = layer
            for part in member.split("."):
                linear = getattr(linear, part)
            linears.append(linear)
        times = 1 if name == "output layer" else stack.layers
        seconds = sum(seconds_of(product(decoder, linear, rows), 20 * repeats) for linear in linears)
        done = rows * sum(linear.inputs * linear.outputs for linear in linears) / seconds / best
        rest -= times * seconds
        print(f"| products of {name} | {100 * times * seconds / step:.0f} % | {done:.2f} |")
    print(f"| attention, norms, sums, ranking | {100 * rest / step:.0f} % | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["iwslt", "base"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "int8"])
    parser.add_argument("--cases", nargs="+", choices=("greedy", "beam", "single"), default=["beam", "single"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    best = peak()
    print(f"peak: {best / 1e9:.1f}e9 multiplications per second in float32")
    for size in options.sizes:
        for dtype in options.dtypes:
            for case in options.cases:
                table(size, dtype, case, options.repeats, best)


if __name__ == "__main__":
    main()
