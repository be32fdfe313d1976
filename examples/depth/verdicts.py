"""How often `residual-hf check` is right: its verdict on each run of `study.py`, next to what the training did.

    python examples/depth/study.py depth.jsonl --updates 200 --max-tokens 1024 --warmups 0 --seeds 1
    python examples/depth/verdicts.py depth.jsonl verdicts.jsonl

The check has the model, the corpus, the seed and the learning rate of the run, and its own number of updates. Every
measurement is a line of the second file; when started again, the script continues after the last one. The rules of the
verdict are applied when the tables are printed.
"""

import argparse
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from study import outcome

from residual_hf.base.files import append_json_lines, undamaged_entries
from residual_hf.base.tables import as_markdown
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.runs.check import Check
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.verdict import VERDICTS, ModeCheck, judge
from residual_hf.training.training_settings import TrainingSettings

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from generated import generated_corpora, generated_corpus, shape

OUTCOMES = ("trained", "stuck", "diverged")
RUN = ("mode", "depth", "warmup", "seed", "setting")  # what tells runs apart


def recipe_of(run: dict[str, Any]) -> Recipe:
    setting = run["setting"]
    text = CorpusSpec(source="generated.en", target="generated.de")  # not read: `Check` receives the corpus
    return Recipe(
        output_dir="unused",
        data=DataSettings(train=(text,), valid=(text,)),
        source_lang="en",
        target_lang="de",
        tokenizer=TokenizerSettings(),
        model=shape(run["mode"], run["depth"], setting["width"], ffn=2 * setting["width"])
        | {"max_position_embeddings": 128},
        training=TrainingSettings(
            max_updates=setting["updates"],
            lr=setting["lr"],
            warmup_updates=run["warmup"],
            clip_norm=setting["clip_norm"],
            seed=run["seed"],
        ),
    )


def check(run: dict[str, Any], seconds: float, modes: list[str]) -> dict[str, Any]:
    corpus = generated_corpus(run["setting"]["max_tokens"], "cuda" if torch.cuda.is_available() else "cpu")
    report = Check(recipe_of(run), generated_corpora()[1], corpus).run(seconds, modes)
    return {
        **{name: run[name] for name in RUN},
        "outcome": outcome(run),
        "nll": run["nll"],
        "unigram_entropy": report.unigram_entropy,
        "modes": [asdict(mode) for mode in (report.own, *report.others)],
        "check": report.setting,
    }


def tables(lines: list[dict[str, Any]]) -> str:
    """How often each verdict met each outcome, and the verdicts one by one."""
    counts: Counter[tuple[str, str]] = Counter()
    single = [["run", "verdict", "training", "findings"]]
    for line in lines:
        own, *others = (ModeCheck(**mode) for mode in line["modes"])
        verdict, findings = judge(own, others, line["unigram_entropy"], "fp32")
        counts[verdict, line["outcome"]] += 1
        cell = f"`{line['mode']}` {line['depth']}+{line['depth']}, warm-up {line['warmup']}, seed {line['seed']}"
        nll = "" if line["nll"] is None else f" ({line['nll']:.2f})"
        single.append([cell, verdict, line["outcome"] + nll, "; ".join(findings)])
    summary = [["verdict", *OUTCOMES]]
    summary += [[f"**{verdict}**", *(str(counts[verdict, name]) for name in OUTCOMES)] for verdict in VERDICTS]
    return f"{as_markdown(summary)}\n\n{as_markdown(single)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="the file of study.py")
    parser.add_argument("file", type=Path, help="JSON lines, one per verdict; read first if it exists")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each check")
    parser.add_argument(
        "--modes", nargs="+", default=[], help="the other modes of each check; default: its own choice"
    )
    args = parser.parse_args()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    lines = undamaged_entries(args.file)
    done = [[line.get(name) for name in RUN] for line in lines]
    for run in undamaged_entries(args.runs):
        if [run[name] for name in RUN] in done:
            continue
        lines.append(check(run, args.seconds, args.modes))
        append_json_lines(args.file, lines[-1])
    print(tables(lines))


if __name__ == "__main__":
    main()
