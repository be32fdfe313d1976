"""Decoding speed of Bergamot, the fork of Marian for CPUs, with a model of the size `iwslt` of decode_speed.py.

    pip install bergamot==0.4.5 sentencepiece numpy pyyaml    # its wheels are for Python 3.6 to 3.10
    python examples/benchmarks/bergamot_speed.py

Random weights; 25 source and 30 generated tokens. It prints CPU seconds of one thread, as decode_speed.py does.
"""

import argparse
import importlib.util
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import sentencepiece
import yaml

WIDTH, FFN, LAYERS, HEADS, VOCABULARY = 256, 1024, 6, 4, 10_000
WORDS, GENERATED = 24, 30  # and the end of the sentence
CASES = {"beam": (32, 5), "greedy": (32, 1), "single": (1, 5)}  # sentences, beams
PRECISIONS = ("float32", "int8shift")
CONFIG = {
    "type": "transformer",
    "dim-vocabs": [VOCABULARY, VOCABULARY],
    "dim-emb": WIDTH,
    "enc-depth": LAYERS,
    "dec-depth": LAYERS,
    "transformer-heads": HEADS,
    "transformer-dim-ffn": FFN,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "tied-embeddings-all": True,
    "input-types": ["sequence", "sequence"],
    "version": "v1.9.0",
}


def write_model(path: Path) -> None:
    """A Post-LN Transformer with random weights, in Marian's format."""
    draw, weights = np.random.default_rng(0), {}

    def matrix(name: str, *shape: int) -> None:
        weights[name] = draw.normal(0, (2 / sum(shape)) ** 0.5, shape).astype(np.float32)

    def constant(name: str, size: int, value: float = 0.0) -> None:
        weights[name] = np.full((1, size), value, np.float32)

    attentions = {"encoder": ("self",), "decoder": ("self", "context")}
    for stack, layer in itertools.product(attentions, range(1, LAYERS + 1)):
        for name in [f"{stack}_l{layer}_{kind}" for kind in attentions[stack]]:
            for role in "qkvo":
                matrix(f"{name}_W{role}", WIDTH, WIDTH)
                constant(f"{name}_b{role}", WIDTH)
            constant(f"{name}_Wo_ln_scale", WIDTH, 1)
            constant(f"{name}_Wo_ln_bias", WIDTH)
        name = f"{stack}_l{layer}_ffn"
        for number, shape in ((1, (WIDTH, FFN)), (2, (FFN, WIDTH))):
            matrix(f"{name}_W{number}", *shape)
            constant(f"{name}_b{number}", shape[1])
        constant(f"{name}_ffn_ln_scale", WIDTH, 1)
        constant(f"{name}_ffn_ln_bias", WIDTH)
    matrix("Wemb", VOCABULARY, WIDTH)
    constant("decoder_ff_logit_out_b", VOCABULARY)
    weights["decoder_ff_logit_out_b"][0, 0] = -1e4  # the end: all translations reach the limit
    weights["special:model.yml"] = np.frombuffer(yaml.safe_dump(CONFIG).encode() + b"\0", np.int8)
    np.savez(path, **weights)


def write_vocabulary(prefix: Path) -> list[str]:
    """Words of one piece each, from a vocabulary that is trained on made-up words."""
    syllables = [a + b for a in "bdfghklmnprst" for b in "aeiou"]
    draw = np.random.default_rng(1)
    words = ["".join(draw.choice(syllables, draw.integers(2, 5))) for _ in range(30_000)]
    pieces = train_pieces(map(" ".join, draw.choice(words, (40_000, 12)).tolist()), prefix)
    return [word for word in dict.fromkeys(words) if len(pieces.encode(word)) == 1]


def train_pieces(lines: Iterable[str], prefix: Path) -> sentencepiece.SentencePieceProcessor:
    options = {"bos_id": -1, "eos_id": 0, "unk_id": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=VOCABULARY, **options
    )
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def load_bergamot():
    """Its extension alone: the package asks a server for a list of models as soon as it is imported."""
    package = importlib.util.find_spec("bergamot")
    if package is None or package.origin is None:
        sys.exit("bergamot is not installed: pip install bergamot==0.4.5, with Python 3.10 or older")
    file = next(Path(package.origin).parent.glob("_bergamot*.so"))
    specification = importlib.util.spec_from_file_location("_bergamot", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    bergamot = load_bergamot()
    service = bergamot.Service(bergamot.ServiceConfig(numWorkers=1, cacheSize=0, logLevel="off"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model.npz")
        words = write_vocabulary(folder / "vocab")
        (folder / "vocab.model").rename(folder / "vocab.spm")
        draw = np.random.default_rng(2)
        sentences = [" ".join(draw.choice(words, WORDS)) for _ in range(32)]
        print("| precision | case | CPU seconds | generated words |\n|---|---|---|---|")
        for precision, (case, (count, beams)) in itertools.product(PRECISIONS, CASES.items()):
            config = {
                "models": [str(folder / "model.npz")],
                "vocabs": 2 * [str(folder / "vocab.spm")],
                "beam-size": beams,
                "normalize": 1.0,
                "max-length-break": 128,
                "max-length-factor": (GENERATED - 0.5) / (WORDS + 1),
                "mini-batch": 32,
                "mini-batch-words": 10_000,
                "workspace": 512,
                "skip-cost": True,
                "quiet": True,
                "quiet-translation": True,
                "gemm-precision": precision,
            }
            (folder / "config.yml").write_text(yaml.safe_dump(config))
            model = service.modelFromConfigPath(str(folder / "config.yml"))
            plain = bergamot.ResponseOptions(qualityScores=False, alignment=False, HTML=False, sentenceMappings=False)
            seconds = []
            for _ in range(repeats + 1):
                started = time.process_time()
                found = service.translate(model, bergamot.VectorString(sentences[:count]), plain)
                seconds.append(time.process_time() - started)
            generated = statistics.mean(len(response.target.text.split()) for response in found)
            print(f"| {precision} | {case} | {statistics.median(seconds[1:]):.4f} | {generated:.1f} |", flush=True)


if __name__ == "__main__":
    main()
