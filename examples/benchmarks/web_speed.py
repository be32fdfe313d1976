"""Speed of `export --to web` next to ONNX Runtime and Bergamot in WebAssembly, each with one thread.

    npm install onnxruntime-web@1.30.0 @browsermt/bergamot-translator@0.4.9    # in this or another folder
    python examples/benchmarks/web_speed.py --modules node_modules
    python examples/benchmarks/web_speed.py --modules node_modules --browser chromium --corpus train.en.gz train.de.gz

Random weights of the size `iwslt` of decode_speed.py in int8; 25 source and 30 generated tokens. Of the milliseconds
of each, the least of several repeats in turns. ONNX Runtime decodes as many rows as beams, but chooses among no
hypotheses. With a corpus, its sentences are translated, also with its lexical shortlist, the same lists for both. In a
browser, each runtime also has a page of its own, in a new browser, whose first sentence and downloads are measured.
"""

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from bergamot_speed import FFN, HEADS, LAYERS, VOCABULARY, WIDTH, WORDS, train_pieces, write_model, write_vocabulary

from residual_hf import ResidualConfig, ResidualForConditionalGeneration
from residual_hf.conversion.to_onnx import OnnxTarget
from residual_hf.conversion.to_web import WebTarget
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.shortlist import BEST, FREQUENT, Shortlist, build_shortlist
from residual_hf.data.text_files import iter_lines
from residual_hf.data.tokenizer_training import train_tokenizer

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGE = "@browsermt/bergamot-translator"
ALIGNMENT = 256
TYPES = {np.dtype("f4"): 0x404, np.dtype("i1"): 0x101}
QUANTIZED = 0x4101
"""Of Marian's binary format: int8, of a product's weights transposed, and then what one is multiplied by."""
MAGIC = 0xF11A48D5013417F5
"""Of its shortlists: this, a checksum that browsers do not look at, and four sizes, before offsets and ids."""
SENTENCES = 16  # of a batch
PAGE = "<!doctype html><title>web_speed</title><script type=module src=web_speed.mjs></script>"
Found = dict[str, Any]
"""What a run of the script has measured."""


def write_binary(weights: dict[str, np.ndarray], path: Path) -> None:
    """The content of a `.npz` of Marian in its binary format, which its WebAssembly reads, with matrices in int8."""
    headers, names, shapes, values = b"", b"", b"", b""
    for name, array in weights.items():
        key, shape, kind = (
            name.encode() + b"\0",
            array.shape if array.ndim == 2 else (1, array.size),
            TYPES[array.dtype],
        )
        data = array.tobytes()
        if "_W" in name and "_ln_" not in name or name == "Wemb":
            unit = np.float32(127 / abs(array).max())
            rounded = np.rint(array * unit).astype(np.int8)
            data, kind = (rounded if name == "Wemb" else rounded.T).tobytes() + unit.tobytes(), QUANTIZED
        data += bytes(-len(data) % ALIGNMENT)
        headers += struct.pack("<4Q", len(key), kind, len(shape), len(data))
        names, shapes, values = names + key, shapes + struct.pack(f"<{len(shape)}i", *shape), values + data
    start = struct.pack("<2Q", 1, len(weights)) + headers + names + shapes
    offset = -(len(start) + 8) % ALIGNMENT
    path.write_bytes(start + struct.pack("<Q", offset) + bytes(offset) + values)


def write_binary_shortlist(shortlist: Shortlist, path: Path) -> None:
    """A shortlist whose frequent tokens are those of the first ids, in Marian's binary format."""
    lists = [np.sort(own[own >= 0]) for own in shortlist.candidates]
    ids, starts = np.concatenate(lists).astype("<u4"), np.cumsum([0, *map(len, lists)]).astype("<u8")
    sizes = len(shortlist.frequent), shortlist.candidates.shape[1], len(starts), len(ids)
    path.write_bytes(struct.pack("<6Q", MAGIC, 0, *sizes) + starts.tobytes() + ids.tobytes())


def read_corpus(paths: Sequence[Path], prefix: Path) -> tuple[list[str], list[list[int]], Shortlist]:
    """Sentences of the wanted length, their ids in a vocabulary that is trained on a corpus, and its shortlist."""
    sides = [list(iter_lines(path)) for path in paths]
    pieces = train_pieces(chain(*sides), prefix)
    sources, targets = ([[*row, 0] for row in pieces.encode(side)] for side in sides)
    corpus = EncodedCorpus.from_ids(sources, targets)
    shortlist = build_shortlist(corpus, VOCABULARY, always=range(FREQUENT), joint=True, best=BEST, frequent=0)
    plain = [i for i, row in enumerate(sources) if len(row) == WORDS + 1 and sum(map(sides[0][i].count, ".!?:")) < 2]
    if len(plain) < SENTENCES:
        sys.exit(f"--corpus: fewer than {SENTENCES} sentences of {WORDS} pieces")
    return [sides[0][i] for i in plain[:SENTENCES]], [sources[i] for i in plain[:SENTENCES]], shortlist


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Queue[Found], dict[str, int]]]:
    """The address of a server of the files of a folder, what its pages send, and the sizes of what they have read."""
    found: Queue[Found] = Queue()
    sizes: dict[str, int] = {}

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {
            **SimpleHTTPRequestHandler.extensions_map,
            ".wasm": "application/wasm",
            ".mjs": "text/javascript",
        }

        def do_POST(self) -> None:
            found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def send_head(self) -> Any:
            path = Path(self.translate_path(self.path))
            if path.is_file() and path.parent != folder:  # not those of this benchmark
                sizes[self.path] = path.stat().st_size
            return super().send_head()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/page.html", found, sizes
    server.shutdown()


def in_browser(program: str, folder: Path, options: dict[str, Any]) -> tuple[Found, int]:
    """What a page measures in a new browser, and the bytes that it has read."""
    own_folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # its processes end a little later
    with served(folder) as (address, found, sizes), own_folder as own:
        address += "#" + quote(json.dumps(options))
        command = [program, "--headless", "--no-sandbox", f"--user-data-dir={own}", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return found.get(timeout=600), sum(sizes.values())
        finally:
            process.terminate()
            process.wait()


def in_node(program: str, folder: Path, options: dict[str, Any]) -> Found:
    run = subprocess.run([program, SCRIPT.name, json.dumps(options)], cwd=folder, stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def checked(found: Found) -> Found:
    if "error" in found:
        sys.exit(found["error"])
    return found


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modules", type=Path, help="the folder node_modules with the other runtimes; default: none")
    parser.add_argument("--corpus", type=Path, nargs=2, help="parallel text files, of which shortlists are made")
    parser.add_argument("--repeats", type=int, default=10, help="of one sentence")
    parser.add_argument("--batches", type=int, default=0, help=f"repeats of {SENTENCES} sentences; default: none")
    parser.add_argument("--pages", type=int, default=3, help="openings of the page of each runtime in a browser")
    parser.add_argument("--browser", help="program; default: Node")
    parser.add_argument("--node", default="node", help="program")
    options = parser.parse_args()
    if shutil.which(program := options.browser or options.node) is None:
        sys.exit(f"{program}: not found")
    return options


def make_model() -> ResidualForConditionalGeneration:
    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "max_position_embeddings": 512, "ln_mode": "post_ln"}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": LAYERS, f"{stack}_ffn_dim": FFN, f"{stack}_attention_heads": HEADS}
    torch.manual_seed(0)
    model = ResidualForConditionalGeneration(ResidualConfig(**sizes)).eval()
    model.generation_config.max_length_a, model.generation_config.max_length_b = 0.0, 30
    return model


@torch.no_grad()
def write_runtimes(folder: Path, options: argparse.Namespace) -> list[str]:
    """Write the models, the sentences and the script into a folder; returns the names of the runtimes."""
    for each in ("site", "onnx", "marian", "bergamot"):
        (folder / each).mkdir()
    model, text, names, shortlist = make_model(), ["a few words of a text"], ["web"], None
    if options.corpus is not None:
        sentences, ids, shortlist = read_corpus(options.corpus, folder / "marian" / "vocab")
        text = [line for path in options.corpus for line in iter_lines(path)]
        names.append("web, shortlist")
        counts = [len(shortlist.tokens_for(row)) for row in ids]
        print(f"tokens in the list of a sentence: {counts[0]}, on average {sum(counts) / len(counts):.0f}")
    else:
        words = write_vocabulary(folder / "marian" / "vocab") if options.modules else ["word"]
        draw = np.random.default_rng(2)
        sentences = [" ".join(draw.choice(words, WORDS)) for _ in range(SENTENCES)]
        ids = [[10 + 37 * i for i in range(WORDS + 1)]] * SENTENCES
    entries = VOCABULARY if options.corpus else 300
    tokenizer = train_tokenizer(text, TokenizerSettings(vocab_size=entries, min_frequency=1))
    rows = [{"text": own, "ids": row} for own, row in zip(sentences, ids, strict=True)]
    (folder / "sentences.json").write_text(json.dumps(rows))
    (folder / "page.html").write_text(PAGE)
    shutil.copyfile(SCRIPT, folder / SCRIPT.name)
    if options.modules is not None:
        (folder / "node_modules").symlink_to(options.modules.resolve(), target_is_directory=True)
        OnnxTarget().write(model, tokenizer, folder / "onnx")
        OnnxTarget().quantize(model, tokenizer, folder / "onnx")
        write_model(folder / "marian" / "model.npz")
        write_binary(dict(np.load(folder / "marian" / "model.npz")), folder / "marian" / "model.bin")
        for file in (options.modules / PACKAGE / "worker").iterdir():
            shutil.copyfile(file, folder / "bergamot" / file.name)
        worker = folder / "bergamot" / "translator-worker.js"  # with translations of 30 tokens
        worker.write_text(worker.read_text().replace("max-length-factor: 2.0", "max-length-factor: 1.18"))
        names += ["onnxruntime-web", "bergamot"]
        if shortlist is not None:
            write_binary_shortlist(shortlist, folder / "marian" / "shortlist.bin")
            names.append("bergamot, shortlist")
    WebTarget().write(model, tokenizer, folder / "site")
    if shortlist is not None:
        WebTarget().write_shortlist(shortlist, model, tokenizer, folder / "site")
    tokenizer.save_pretrained(folder / "site")
    return names


def print_speeds(found: Found) -> None:
    for kind, what in (("single", "one sentence"), ("batch", f"{SENTENCES} sentences")):
        if not found[kind]["1"]:
            continue
        print(f"\n| beams | {what} | milliseconds each | sentences/s | times `web` |\n|---|---|---|---|---|")
        for beams, times in found[kind].items():
            for runtime, time in times.items():
                speeds = f"{1000 / time:.1f} | {time / times['web']:.1f}"
                print(f"| {beams} | {runtime} | {time:.0f} | {speeds} |")


def print_pages(program: str, folder: Path, names: Sequence[str], count: int) -> None:
    """The first sentence and the downloads of a page of each runtime alone."""
    print("\n| page | first sentence, milliseconds | MB |\n|---|---|---|")
    for runtime in names:
        wanted = {"repeats": 0, "batches": 0, "runtimes": [runtime]}
        pages = [in_browser(program, folder, wanted) for _ in range(count)]
        first = min(checked(page)["first"] for page, _ in pages)
        print(f"| {runtime} | {first:.0f} | {pages[0][1] / 1e6:.1f} |", flush=True)


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        names = write_runtimes(folder, options)
        wanted = {"repeats": options.repeats, "batches": options.batches, "runtimes": names}
        if options.browser is None:
            print_speeds(checked(in_node(options.node, folder, wanted)))
        else:
            print_speeds(checked(in_browser(options.browser, folder, wanted)[0]))
            print_pages(options.browser, folder, names, options.pages)
        download = sum(file.stat().st_size for file in (folder / "site").iterdir())
    print(f"size of the page with its model: {download / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
