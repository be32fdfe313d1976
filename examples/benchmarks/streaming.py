"""Streaming of a corpus larger than memory: time to the first batch, pairs per second, time to resume, peak memory.

    python examples/benchmarks/streaming.py /tmp/corpus --pairs 20000000 --json streaming.json

Writes a made-up corpus of two text files and a tokenizer into a new folder, then streams it in a fresh process.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from memory import peak_memory
from torch.utils.data import DataLoader

from residual_hf.base.files import write_json
from residual_hf.commands.arguments import integer
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.encoding import encode
from residual_hf.data.streaming import StreamedBatches
from residual_hf.data.tokenizer_training import train_tokenizer

WORDS = 50_000
SENTENCES = 100_000  # at most so many different ones of a side; the corpus pairs them anew again and again
SIDES = ("en", "de")


def made_up_sentences(rng: np.random.Generator, lengths: np.ndarray) -> list[str]:
    """Sentences of words that follow Zipf's law."""
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(2, 11, WORDS)]
    drawn = iter((WORDS ** rng.random(lengths.sum()) - 1).astype(int).tolist())
    return [" ".join(words[i] for i in islice(drawn, length)) for length in lengths.tolist()]


def write_corpus(folder: Path, pairs: int, vocab_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sentences = min(pairs, SENTENCES)
    lengths = rng.lognormal(np.log(18), 0.6, sentences).round().astype(int).clip(1, 150)
    other = (lengths * rng.lognormal(0, 0.2, sentences)).round().astype(int).clip(1, 150)
    sides = [made_up_sentences(rng, lengths), made_up_sentences(rng, other)]
    train_tokenizer(sides[0][:10_000] + sides[1][:10_000], TokenizerSettings(vocab_size=vocab_size)).save_pretrained(
        folder / "tokenizer"
    )
    lines = [[f"{sentence}\n".encode() for sentence in side] for side in sides]
    with open(folder / f"train.{SIDES[0]}", "wb") as source, open(folder / f"train.{SIDES[1]}", "wb") as target:
        for start in range(0, pairs, sentences):
            order = rng.permutation(sentences)[: pairs - start].tolist()
            for file, side in zip((source, target), lines, strict=True):
                file.writelines(side[i] for i in order)


def measure(folder: Path, batches: int, max_tokens: int, shuffle_buffer: int, seed: int) -> dict[str, Any]:
    before = peak_memory()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    corpus = CorpusSpec(source=folder / f"train.{SIDES[0]}", target=folder / f"train.{SIDES[1]}")
    data = DataSettings(train=corpus, valid=corpus, shuffle_buffer=shuffle_buffer)
    collator = Seq2SeqCollator(tokenizer.pad_token_id, tokenizer.eos_token_id)

    def stream_from(state: dict[str, Any] | None) -> tuple[StreamedBatches, Any, float]:
        started = time.perf_counter()
        encode_text = partial(encode, tokenizer=tokenizer)
        stream = StreamedBatches(data, encode_text, max_tokens, seed=seed)
        if state is not None:
            stream.start_from(state)
        iterator = iter(DataLoader(stream, batch_size=None, collate_fn=collator))
        next(iterator)
        return stream, iterator, time.perf_counter() - started

    stream, iterator, first = stream_from(None)
    started = time.perf_counter()
    pairs = sum(len(batch["labels"]) for batch in islice(iterator, batches))
    seconds = time.perf_counter() - started
    state = stream.state(batches + 1)
    del iterator
    cpu_before = time.process_time()
    _, _, resumed = stream_from(state)
    return {
        "seconds_to_first_batch": first,
        "batches": batches,
        "pairs": pairs,
        "pairs_per_second": pairs / seconds,
        "seconds_to_resume": resumed,
        "cpu_seconds_to_resume": time.process_time() - cpu_before,
        "peak_memory_mib": peak_memory(),
        "peak_memory_mib_before": before,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a new folder for the corpus; delete it afterwards")
    parser.add_argument("--pairs", type=integer, default=20_000_000)
    parser.add_argument("--batches", type=integer, default=3000, help="batches after the first (default: %(default)s)")
    parser.add_argument("--max-tokens", type=integer, default=4096, help="of a batch (default: %(default)s)")
    parser.add_argument(
        "--shuffle-buffer", type=integer, default=100_000, help="pairs shuffled together (default: %(default)s)"
    )
    parser.add_argument("--vocab-size", type=integer, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this new file")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # the fresh process
    args = parser.parse_args()
    if args.folder.exists() and not args.measure:
        parser.error(f"folder: {args.folder} given, must be new")
    if args.json is not None and (args.json.exists() or not args.json.parent.is_dir()):
        parser.error(f"--json: {args.json} given, must be a new file in a folder that exists")
    return args


def main() -> None:
    args = parse_arguments()
    if args.measure:
        print(json.dumps(measure(args.folder, args.batches, args.max_tokens, args.shuffle_buffer, args.seed)))
        return
    args.folder.mkdir(parents=True)
    started = time.perf_counter()
    write_corpus(args.folder, args.pairs, args.vocab_size, args.seed)
    figures = {
        "corpus_pairs": args.pairs,
        "corpus_bytes": sum((args.folder / f"train.{side}").stat().st_size for side in SIDES),
        "seconds_to_write": time.perf_counter() - started,
        "shuffle_buffer": args.shuffle_buffer,
        "max_tokens": args.max_tokens,
        "cpus": os.cpu_count(),
        "tokenizers_parallelism": os.environ.get("TOKENIZERS_PARALLELISM"),
        "python": platform.python_version(),
        "transformers": transformers.__version__,
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--measure"]
    figures |= json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    print(json.dumps(figures, indent=2))
    if args.json is not None:
        write_json(args.json, figures)


if __name__ == "__main__":
    main()
