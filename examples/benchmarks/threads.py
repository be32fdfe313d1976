"""Speed by number of threads, alone or beside other programs: decoding, training and CTranslate2.

    python examples/benchmarks/threads.py --threads 1 2 --json threads.json
    python examples/benchmarks/threads.py --threads 1 2 --busy 1

Wall-clock time: run it on a machine without other work. See README.md in this folder.
"""

import argparse
import importlib.util
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

# as `residual-hf` does, before PyTorch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import numpy as np
import torch
from decode_speed import GENERATED, SIZES, load_ctranslate2, make_model, measure
from train_speed import SHAPES, build_candidate, quartiles, synthetic_batches

from residual_hf.base.files import write_json
from residual_hf.generation.decode import search
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest
from residual_hf.training.acceleration import accelerated
from residual_hf.training.launch import keep_freed_memory

MODE, BEAMS = "resi_dual", 5
SHORTEST, LONGEST = 5, 45  # source tokens
TASKS = ("decode", "train", "ctranslate2")
Run = Callable[[int], Any]
"""What one task does with as many threads."""


def sentences(size: str, count: int) -> list[list[int]]:
    config, draw = make_model(size, MODE).config, np.random.default_rng(1)
    lengths = draw.integers(SHORTEST, LONGEST, count, endpoint=True)
    return [[*draw.integers(4, config.vocab_size, length - 1).tolist(), config.eos_token_id] for length in lengths]


def decoding(options: argparse.Namespace) -> Run:
    model, sources = make_model(options.size, MODE), sentences(options.size, options.sentences)
    settings = DecodingSettings(num_beams=BEAMS, dtype=options.dtype, max_length_a=0, max_length_b=GENERATED)

    def run(threads: int) -> None:
        torch.set_num_threads(threads)
        search(model, sources, settings, SearchRequest.of(min_new_tokens=GENERATED))

    return run


def ctranslate2_decoding(options: argparse.Namespace) -> Run:
    """With the better of its two ways to use threads: several batches at a time, or each batch in several parts."""
    words = [[str(token) for token in row] for row in sentences(options.size, options.sentences)]
    lengths = {"beam_size": BEAMS, "min_decoding_length": GENERATED, "max_decoding_length": GENERATED}
    batches = {"max_batch_size": 32, "batch_type": "examples"}
    ways = [way for threads in options.threads for way in ((threads, 1), (1, threads))]
    loaded = load_ctranslate2(options.size, options.dtype, ways)
    fastest: dict[int, Any] = {}

    def run(threads: int) -> None:
        if threads not in fastest:
            times = {}
            for way in ((threads, 1), (1, threads)):
                started = time.perf_counter()
                loaded[way].translate_batch(words, **lengths, **batches)
                times[time.perf_counter() - started] = loaded[way]
            fastest[threads] = times[min(times)]
        fastest[threads].translate_batch(words, **lengths, **batches)

    return run


def training(options: argparse.Namespace, stack: ExitStack) -> Run:
    shape = SHAPES["multi30k_tiny"]
    candidate = build_candidate(f"{MODE}_native", shape, "cpu", seed=1, compiled=False)
    stack.enter_context(accelerated(candidate.model, "fp32"))
    batches = list(itertools.islice(synthetic_batches(shape, shape.max_tokens, seed=1), options.updates))

    def run(threads: int) -> None:
        torch.set_num_threads(threads)
        for batch in batches:
            candidate.step(batch, nullcontext)

    return run


@contextmanager
def others(count: int) -> Iterator[None]:
    """As many processes that compute all the time."""
    processes = [multiprocessing.Process(target=compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def compute() -> None:
    torch.set_num_threads(1)
    matrix = torch.rand(64, 64)
    while True:
        torch.mm(matrix, matrix)


def seconds_of(run: Run, threads: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """Quartiles of the seconds by number of threads, and the largest, a stall."""
    seconds = measure({count: partial(run, count) for count in threads}, rounds, time.perf_counter)
    return {count: {**quartiles(found), "most": max(found)} for count, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside (default: none)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--size", choices=SIZES, default="iwslt", help="of the models that decode")
    parser.add_argument("--dtype", choices=("float32", "int8"), default="float32")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--updates", type=int, default=4, help="of a training (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    options.threads = list(dict.fromkeys(options.threads))
    keep_freed_memory()
    report: dict[str, Any] = {name: getattr(options, name) for name in ("size", "dtype", "busy", "sentences")}
    with ExitStack() as stack:
        ways = {"decode": partial(decoding, options), "train": partial(training, options, stack)}
        ways["ctranslate2"] = partial(ctranslate2_decoding, options)
        if importlib.util.find_spec("ctranslate2") is None:
            del ways["ctranslate2"]
        runs = {task: ways[task]() for task in options.tasks if task in ways}
        stack.enter_context(others(options.busy))
        print("| task | threads | seconds | slowest | speed of one thread x |\n|---|---|---|---|---|")
        for task, run in runs.items():
            report[task] = found = seconds_of(run, options.threads, options.rounds)
            first = found[options.threads[0]]["median"]
            for count, row in found.items():
                times = f"{row['median']:.2f} ({row['q1']:.2f}-{row['q3']:.2f}) | {row['most']:.2f}"
                print(f"| {task} | {count} | {times} | {first / row['median']:.2f} |", flush=True)
    if options.json is not None:
        write_json(options.json, report)


if __name__ == "__main__":
    main()
