"""Repeat the updates before a loss spike, from the checkpoint before it, with probes at every update.

    python examples/papers/replay.py runs/my_run --at 1200

A run on several processes needs as many: `torchrun --nproc-per-node N examples/papers/replay.py RUN`.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from transformers import TrainerCallback, set_seed

from residual_hf.base.errors import InputError
from residual_hf.base.files import RECORD, entries_until, number_of, undamaged_entries, write_json_lines
from residual_hf.base.processes import this_process
from residual_hf.base.tables import as_table, figure
from residual_hf.cli import main, script_parser
from residual_hf.data.glossary import Glossary
from residual_hf.data.pipeline import read_corpora
from residual_hf.records.run_record import RunRecord
from residual_hf.runs.building import build_model, load_start_of
from residual_hf.runs.preparation import prepare_data, training_data
from residual_hf.runs.recipe import Recipe, load_recipe
from residual_hf.runs.resuming import other_text
from residual_hf.training.callbacks import show_progress
from residual_hf.training.checkpoints import complete_checkpoints
from residual_hf.training.diagnostics import DiagnosticsCallback, spikes
from residual_hf.training.launch import check_launch, keep_freed_memory
from residual_hf.training.spikes import FILE, spike_scores
from residual_hf.training.trainer import ResidualTrainer

logger = logging.getLogger(__name__)

SHOWN = 12
"""Updates before the last one, and sub-layers, in the tables."""

HEADER = ("update", "loss", "score", "grad norm", "score", "largest growth of a gradient", "fp16 head-room")


class StopAt(TrainerCallback):
    """Ends training after an update."""

    def __init__(self, update: int):
        self.update = update

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step >= self.update


@dataclass(frozen=True)
class Replay:
    """Measurements of a replay; `str` is a report.

    Attributes:
        start: update of the checkpoint; 0: the run's beginning.
        at: the last update.
        lines: of `diagnostics.jsonl`, those of the run up to `start` included.
        recorded: losses of the run itself, by update.
        folder: of the file.
    """

    start: int
    at: int
    lines: list[dict[str, Any]]
    recorded: dict[int, float]
    folder: Path

    @cached_property
    def measured(self) -> dict[int, dict[str, Any]]:
        """The lines with sub-layers and activations by update."""
        return {line["step"]: line for line in self.lines if "sublayers" in line}

    def __str__(self) -> str:
        parts = [f"Updates {self.start + 1} to {self.at}; all figures are in {self.folder / FILE}.", self.updates()]
        losses = series(self.lines, "losses")
        gaps = [abs(losses[step] / self.recorded[step] - 1) for step in losses if step in self.recorded]
        if gaps and self.start < self.at:
            parts.append(f"The losses differ by at most {max(gaps):.1g} (relative) from those of the run.")
        return "\n\n".join([*parts, self.sublayers()])

    def updates(self) -> str:
        """The last updates: loss, gradient norm, their spike scores, and the sub-layer that grew most."""
        losses, norms = series(self.lines, "losses"), series(self.lines, "grad_norms")
        table = np.array([list(losses.values()), list(norms.values())]).T
        rows: list[tuple[str, ...]] = [HEADER]
        for index, step in enumerate(losses):
            if step > max(self.start, self.at - SHOWN) and (growth := self.growth(step)):
                scores = spike_scores(table[index], table[:index])
                name, factor = max(growth.items(), key=lambda item: item[1])
                headroom = min(row["fp16_headroom"] for row in self.measured[step]["activations"])
                figures = (figure(losses[step]), f"{scores[0]:.1f}", figure(norms[step]), f"{scores[1]:.1f}")
                rows.append((str(step), *figures, f"{name} x{factor:.3g}", f"{headroom:.1f}"))
        return as_table(rows)

    def sublayers(self) -> str:
        """The sub-layers whose gradient grew most at the last update."""
        line, growth = self.measured[self.at], self.growth(self.at)
        headroom: dict[str, float] = {}
        for row in line["activations"]:
            headroom[name_of(row)] = min(row["fp16_headroom"], headroom.get(name_of(row), np.inf))
        rows: list[tuple[str, ...]] = [
            (f"update {self.at}", "gradient", "growth", "update ratio", "branch share", "fp16 head-room")
        ]
        for row in sorted(line["sublayers"], key=lambda row: -growth[name_of(row)])[:SHOWN]:
            share, name = row["branch_share"], name_of(row)
            figures = (row["gradient"], growth[name], row["update_ratio"], share, headroom.get(name))
            rows.append((name, *("" if value is None else f"{value:.3g}" for value in figures)))
        return as_table(rows)

    def growth(self, step: int) -> dict[str, float]:
        """Gradient norm of each sub-layer divided by its median over the replayed updates before; 1 at the first."""
        before: dict[str, list[float]] = {}
        for earlier, line in self.measured.items():
            if self.start < earlier < step:
                for row in line["sublayers"]:
                    before.setdefault(name_of(row), []).append(row["gradient"])
        usual = {name: median(values) for name, values in before.items()}
        return {
            name_of(row): row["gradient"] / (usual.get(name_of(row)) or row["gradient"] or 1.0)
            for row in self.measured.get(step, {}).get("sublayers", ())
        }


def replay(run: Path, at: int | None = None) -> Replay:
    """Train from the last checkpoint before an update to this update, with probes at every one.

    The batches, the random state and the schedule are those of the run. The folder of the run only gets
    `replays/update-N/diagnostics.jsonl`.

    Args:
        run: folder of a run; it may be diverged, finished or interrupted.
        at: the update; default: that of the last spike.

    Raises:
        InputError: no such run or update, no spike, or another text or number of processes than that of the run.
    """
    if not (run / RECORD).is_file():
        raise InputError(f"{run} has no {RECORD}, must be the folder of a run")
    record, recipe = RunRecord.read(run), load_recipe(run / "recipe.yaml")
    check_launch(replace(recipe.training, report_to=()))
    if at is None:
        found = spikes(run)
        if not found:
            raise InputError(f"{run} has no spikes (training.diagnostics); name an update by --at")
        at = number_of(found[-1])
    last = record.updates or recipe.training.max_updates
    if at < 1 or (last is not None and at > last):
        raise InputError(f"--at: {at} given, must be an update of the run, from 1 to {last or 'the last one'}")
    processes = this_process().num_processes
    if record.processes != processes:
        raise InputError(f"{run} has {record.processes} processes, but {processes} are running: use torchrun")
    checkpoints = [path for path in complete_checkpoints(run / "checkpoints") if number_of(path) < at]
    start = number_of(checkpoints[-1]) if checkpoints else 0
    earlier = undamaged_entries(run / FILE)
    folder = run / "replays" / f"update-{at}"
    if this_process().is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        write_json_lines(folder / FILE, entries_until(start, run / FILE))
    this_process().wait_for_everyone()
    logger.info("replaying updates %d to %d", start + 1, at)
    with tempfile.TemporaryDirectory() as work:
        trainer = make_trainer(recipe, record, run, Path(work))
        trainer.add_callback(DiagnosticsCallback(folder, every=1))
        trainer.add_callback(StopAt(at))
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    if trainer.state.global_step < at:
        raise InputError(f"--at: {at} given, but training ends after {trainer.state.global_step} updates")
    return Replay(start, at, undamaged_entries(folder / FILE), series(earlier, "losses"), folder)


def make_trainer(recipe: Recipe, record: RunRecord, run: Path, work: Path) -> ResidualTrainer:
    """The trainer of a run with its batches, without evaluations, logs and averages.

    Its data are prepared in the folder `work`.
    """
    for name in ("tokenizer", "cache"):
        if (run / name).exists():
            (work / name).symlink_to((run / name).resolve())
    texts = read_corpora(recipe.data)
    if recipe.data.glossary is not None:
        Glossary.read(recipe.data.glossary)
    for split in other_text(recipe, texts, record):
        raise InputError(f"data.{split} of {run}: other text than that of the run")
    if record.max_tokens is None or record.tokens_per_update is None:
        raise InputError(f"{RECORD}: no max_tokens: the run has not begun to train")
    start = load_start_of(recipe)
    keep_freed_memory()
    set_seed(recipe.training.seed)  # after the start, as in training: a change of its mode draws random numbers
    data = prepare_data(recipe, texts, work, start)
    model = build_model(recipe, data.tokenizer, start)
    settings = replace(
        recipe.training,
        max_tokens=record.max_tokens,
        update_freq=record.tokens_per_update // (record.max_tokens * record.processes),
        tokens_per_update=None,
        log_every=10**9,
        divergence_factor=0.0,
        patience=None,
        ema_decay=0.0,
        report_to=(),
    )
    train = training_data(recipe, settings, data, model)
    trainer = ResidualTrainer(
        model, settings, str(work / "checkpoints"), train, data.encoded["valid"], processing_class=data.tokenizer
    )
    trainer.args.load_best_model_at_end = False
    trainer.args.eval_strategy = trainer.args.save_strategy = "no"
    show_progress(trainer)
    return trainer


def series(lines: Iterable[dict[str, Any]], name: str) -> dict[int, float]:
    """`losses` or `grad_norms` by update."""
    found: dict[int, float] = {}
    for line in lines:
        values = line.get(name, ())
        found |= dict(zip(range(line["step"] - len(values) + 1, line["step"] + 1), values, strict=True))
    return dict(sorted(found.items()))


def name_of(row: dict[str, Any]) -> str:
    return f"{row['stack']} {row['layer']} {row['sublayer']}"


def add_options(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("folder", type=Path, metavar="RUN", help="output folder of `residual-hf train`")
    replay.add_argument("--at", type=int, metavar="UPDATE", help="update of the spike (default: the last spike)")


def run(options: argparse.Namespace) -> None:
    found = replay(options.folder, options.at)
    if this_process().is_main_process:
        print(found)


if __name__ == "__main__":
    sys.exit(main(parser=script_parser(__doc__, add_options, run)))
