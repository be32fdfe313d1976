"""Speed of `export --to web` in Node, next to ONNX Runtime and Bergamot in WebAssembly, each with one thread.

    npm install onnxruntime-web@1.30.0 @browsermt/bergamot-translator@0.4.9    # in this or another folder
    python examples/benchmarks/web_speed.py --modules node_modules

Random weights of the size `iwslt` of decode_speed.py in int8; 25 source and 30 generated tokens, one sentence. Of the
milliseconds of each, the least of several repeats in turns. ONNX Runtime decodes as many rows as beams, but chooses
among no hypotheses; Bergamot rounds its float32 weights when it loads them, and has no shortlist.
"""

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from bergamot_speed import FFN, HEADS, LAYERS, VOCABULARY, WIDTH, WORDS, write_model, write_vocabulary

from residual_hf import ResidualConfig, ResidualForConditionalGeneration
from residual_hf.conversion.to_onnx import OnnxTarget
from residual_hf.conversion.to_web import WebTarget
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.tokenizer_training import train_tokenizer

SCRIPT = Path(__file__).with_suffix(".mjs")
ALIGNMENT, FLOAT32, INT8 = 256, 0x404, 0x101  # of Marian's binary format


def write_binary(weights: dict[str, np.ndarray], path: Path) -> None:
    """The content of a `.npz` of Marian in its binary format, which its WebAssembly reads."""
    headers, names, shapes, values = b"", b"", b"", b""
    for name, array in weights.items():
        data, key = array.tobytes(), name.encode() + b"\0"
        data += bytes(-len(data) % ALIGNMENT)
        shape = array.shape if array.ndim == 2 else (1, array.size)
        headers += struct.pack("<4Q", len(key), FLOAT32 if array.dtype == np.float32 else INT8, len(shape), len(data))
        names, shapes, values = names + key, shapes + struct.pack(f"<{len(shape)}i", *shape), values + data
    start = struct.pack("<2Q", 1, len(weights)) + headers + names + shapes
    offset = -(len(start) + 8) % ALIGNMENT
    path.write_bytes(start + struct.pack("<Q", offset) + bytes(offset) + values)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modules", type=Path, help="the folder node_modules with the other runtimes; default: none")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--node", default="node", help="program")
    options = parser.parse_args()
    if shutil.which(options.node) is None:
        sys.exit(f"{options.node}: not found")
    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "max_position_embeddings": 512, "ln_mode": "post_ln"}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": LAYERS, f"{stack}_ffn_dim": FFN, f"{stack}_attention_heads": HEADS}
    torch.manual_seed(0)
    model = ResidualForConditionalGeneration(ResidualConfig(**sizes)).eval()
    model.generation_config.max_length_a, model.generation_config.max_length_b = 0.0, 30
    tokenizer = train_tokenizer(["a few words of a text"], TokenizerSettings(vocab_size=300, min_frequency=1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("site", "onnx", "marian"):
            (folder / each).mkdir()
        if options.modules is not None:
            (folder / "node_modules").symlink_to(options.modules.resolve(), target_is_directory=True)
            OnnxTarget().write(model, tokenizer, folder / "onnx")
            OnnxTarget().quantize(model, tokenizer, folder / "onnx")
            write_model(folder / "marian" / "model.npz")
            write_binary(dict(np.load(folder / "marian" / "model.npz")), folder / "marian" / "model.bin")
            words = write_vocabulary(folder / "marian" / "vocab")
            sentence = " ".join(np.random.default_rng(2).choice(words, WORDS))
            (folder / "marian" / "text").write_text(sentence)
        WebTarget().write(model, tokenizer, folder / "site")
        tokenizer.save_pretrained(folder / "site")
        shutil.copyfile(SCRIPT, folder / SCRIPT.name)
        arguments = [options.node, SCRIPT.name, str(options.repeats), str(options.modules is not None)]
        run = subprocess.run(arguments, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(run.stdout.splitlines()[-1])
        download = sum(file.stat().st_size for file in (folder / "site").iterdir())
    print("| beams | runtime | milliseconds | times `web` |\n|---|---|---|---|")
    for beams, times in found.items():
        for runtime, time in times.items():
            print(f"| {beams} | {runtime} | {time:.0f} | {time / times['web']:.1f} |")
    print(f"size of the page with its model: {download / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
