"""How deep each mode trains: every mode at several depths, with and without warm-up, for a fixed number of updates.

    python examples/depth/study.py depth.jsonl                                      # all of it: minutes on a GPU
    python examples/depth/study.py depth.jsonl --modes post_ln resi_dual --depths 6 18 --seeds 1 --updates 300

The corpus is the one that `residual-hf quickstart` makes. Every finished run is a line of the file; when
started again, the script continues after the last one. The table shows the NLL per target token of a held-out part, as
the mean over seeds.
"""

import argparse
import itertools
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from residual_hf.analysis.short_training import ShortCorpus, train
from residual_hf.base.errors import InputError
from residual_hf.base.files import append_json_lines, undamaged_entries
from residual_hf.base.modes import check_modes, import_modes
from residual_hf.base.tables import as_markdown
from residual_hf.model.connections import LN_MODES
from residual_hf.probes.undisturbed import mean_loss
from residual_hf.training.launch import keep_freed_memory

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from generated import generated_corpus, new_model


def run(mode: str, depth: int, warmup: int, seed: int, args: argparse.Namespace, data: ShortCorpus) -> dict[str, Any]:
    """One training; it ends early if the loss is not finite."""
    fields = {**data.fields, "max_position_embeddings": 128}
    model = new_model(mode, depth, args.width, ffn=2 * args.width, seed=seed, **fields).to(data.device)
    gradients: list[float] = []

    def lr(update: int) -> float:
        return args.lr * min(1.0, (update - 1) / warmup) if warmup else args.lr

    def clip(update: int) -> None:
        gradients.append(clip_grad_norm_(model.parameters(), args.clip_norm or math.inf).item())

    started = time.time()
    losses = train(model, data.train(seed), lr, args.updates, after_backward=clip)
    nll = mean_loss(model.eval(), data.valid()) if len(losses) == args.updates else math.inf
    return {
        "mode": mode,
        "depth": depth,
        "warmup": warmup,
        "seed": seed,
        "nll": nll if math.isfinite(nll) else None,
        "unigram_entropy": data.unigram_entropy,
        "largest_gradient": max(filter(math.isfinite, gradients), default=None),
        "seconds": round(time.time() - started, 1),
        "setting": setting(args),
    }


def setting(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that all runs of one table share."""
    return {name: getattr(args, name) for name in ("width", "updates", "lr", "clip_norm", "max_tokens")}


def outcome(run: dict[str, Any]) -> str:
    """A run that predicts no better than word frequencies has not trained."""
    if run["nll"] is None:
        return "diverged"
    return "stuck" if run["nll"] > 0.95 * run["unigram_entropy"] else "trained"


def table(runs: list[dict[str, Any]]) -> str:
    """Rows are modes, columns depth and warm-up: mean NLL (and range) of the runs that trained, and of those stuck."""
    cells: dict[tuple[str, tuple[int, int]], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        cells[run["mode"], (run["depth"], run["warmup"])].append(run)
    columns = sorted({column for _, column in cells})

    def cell(group: list[dict[str, Any]]) -> str:
        texts = []
        for name in ("trained", "stuck", "diverged"):
            these = [run["nll"] for run in group if outcome(run) == name]
            if these:
                figure = "" if name == "diverged" else f" {sum(these) / len(these):.2f}"
                spread = f" ({min(these):.2f}-{max(these):.2f})" if figure and len(these) > 1 else ""
                word = "" if name == "trained" else f" **{name}**"
                texts.append(f"{figure}{spread}{word}{f' x{len(these)}' if len(these) < len(group) else ''}".strip())
        return ", ".join(texts)

    heads = [f"{depth}+{depth}, {f'warm-up {warmup}' if warmup else 'none'}" for depth, warmup in columns]
    rows = [
        [f"`{mode}`", *(cell(cells.get((mode, c), [])) for c in columns)] for mode in sorted({m for m, _ in cells})
    ]
    return as_markdown([["`ln_mode`", *heads], *rows])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="JSON lines, one per finished run; read first if it exists")
    parser.add_argument("--modes", nargs="+", default=sorted(LN_MODES), help="default: all of the package")
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], type=Path, help="file with your modes"
    )
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 18, 50])
    parser.add_argument("--warmups", type=int, nargs="+", default=[0, 200], help="updates; 0 is no warm-up")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip-norm", type=float, default=0.0, help="0 (default): gradients are not clipped")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    try:
        for path in args.imports:
            import_modes(path)
        check_modes(args.modes)
    except InputError as error:
        parser.error(str(error))
    return args


def main() -> None:
    args = parse_arguments()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    if args.threads:
        torch.set_num_threads(args.threads)
    keep_freed_memory()
    runs = [run for run in undamaged_entries(args.file) if run["setting"] == setting(args)]
    done = {(run["mode"], run["depth"], run["warmup"], run["seed"]) for run in runs}
    data = generated_corpus(args.max_tokens, args.device)
    # shallow models first: all modes have a figure before the expensive depths start
    for cell in itertools.product(args.seeds, args.depths, args.warmups, args.modes):
        seed, depth, warmup, mode = cell
        if (mode, depth, warmup, seed) in done:
            continue
        found = run(mode, depth, warmup, seed, args, data)
        runs.append(found)
        append_json_lines(args.file, found)
        print(f"{mode:20} {depth:3}+{depth:<3} warm-up {warmup:4} seed {seed}: {outcome(found)}, nll {found['nll']}")
    print("\n" + table(runs))


if __name__ == "__main__":
    main()
