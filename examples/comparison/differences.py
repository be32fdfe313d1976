"""Which modes differ, also with other seeds and on other sentences?

For every pair of modes of finished runs: the difference of their mean scores, its interval, and p-values without and
with Holm's correction for the number of pairs.

    python examples/comparison/differences.py runs/multi30k_modes/*_s[0-9]
    python examples/comparison/differences.py runs/an4/*_s[0-9] --metric wer
    python examples/comparison/differences.py runs/multi30k_modes/*_s[0-9] --record examples/multi30k/runs
    python examples/comparison/differences.py examples/multi30k/runs/*_s[0-9].json

`--record` writes what these statistics need of each run, with its commit, machine and command, but no sentence of a
corpus. Such a file takes the place of the folder.

Folders whose names differ only in the seed, `_s1`, are runs of one mode, as `study.py` writes them; at least two each.
Seeds and sentences are both a sample (the mixed model of Clark 1973, by moments): the variance of a difference is that
of its modes over their seeds plus that over sentences, by a jackknife that leaves a part of the test set out; the
degrees of freedom are Satterthwaite's. The last line is the smallest difference that the runs could show.
"""

import argparse
import hashlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sacrebleu
from mpmath import betainc
from tqdm.auto import tqdm

from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json, write_json_lines
from residual_hf.base.tables import as_markdown
from residual_hf.evaluation.metrics import METRICS, corpus_scores, tokenizer_of
from residual_hf.evaluation.sentence_metrics import ROUGE
from residual_hf.evaluation.translation_metric import load_metric
from residual_hf.records.run_folder import Run
from residual_hf.training.training_settings import METRICS as OF_TRAINING

PARTS = 20  # of the test set at most, one of which is left out at a time
SPLITS = {"test": "test", "valid": "validation"}
RECORDED = ("bleu", "chrf")  # with --record, besides nll
OF_RUN = ("commit", "device", "kernels", "precision", "seed", "updates", "parameters", "finished", "tokenizer")
GREATER_IS_BETTER = {**OF_TRAINING, "ter": False}
LEVEL, POWER = 0.05, 0.8
ERROR_FUNCTION = np.frompyfunc(math.erf, 1, 1)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="folders of finished runs, or their records")
parser.add_argument("--record", type=Path, metavar="FOLDER", help="write RUN.json for each run instead")
parser.add_argument(
    "--metric", default="bleu", help=f"{', '.join(METRICS)}, wer, cer, ..., or nll: of the validation set, seeds only"
)


@dataclass(frozen=True)
class Mode:
    """The `scores` of its runs, of shape (seeds,), and their mean without each part, of shape (parts,)."""

    name: str
    scores: np.ndarray
    without_part: np.ndarray


@dataclass(frozen=True)
class Difference:
    """The difference of two modes, its standard error, and the degrees of freedom of the latter."""

    modes: tuple[Mode, Mode]
    value: float
    error: float
    freedom: float

    @classmethod
    def of(cls, a: Mode, b: Mode) -> "Difference":
        seeds = [mode.scores.var(ddof=1) / len(mode.scores) for mode in (a, b)]
        parts = a.without_part - b.without_part
        sentences = (len(parts) - 1) * parts.var()
        variances = np.maximum([*seeds, sentences], 1e-12)  # which are 0 for equal runs
        freedoms = np.array([len(a.scores), len(b.scores), len(parts)]) - 1
        freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum()
        return cls((a, b), a.scores.mean() - b.scores.mean(), variances.sum() ** 0.5, freedom)

    @property
    def p_value(self) -> float:
        return 2 * above(abs(self.value) / self.error, self.freedom)

    @property
    def interval(self) -> tuple[float, float]:
        margin = self.error * quantile(LEVEL / 2, self.freedom)
        return self.value - margin, self.value + margin

    def smallest(self, comparisons: int) -> float:
        """The true difference that a test at LEVEL / comparisons finds with a probability of POWER."""
        return self.error * noncentrality(quantile(LEVEL / comparisons / 2, self.freedom), self.freedom)


def above(t: float, freedom: float) -> float:
    """The probability of a value above `t` >= 0 under Student's distribution."""
    far = freedom / (freedom + t**2)  # the series converges up to 1/2
    if far < 0.5:
        return float(betainc(freedom / 2, 0.5, 0, far, regularized=True)) / 2
    return 0.5 - float(betainc(0.5, freedom / 2, 0, 1 - far, regularized=True)) / 2


def quantile(probability: float, freedom: float) -> float:
    """The value above which Student's distribution has a probability below 1/2."""
    return bisect(lambda t: probability - above(t, freedom), 0.0, 1e6)


def bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is 0, to the last digits."""
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return low


def noncentrality(critical: float, freedom: float) -> float:
    """That of Student's noncentral distribution which is above a critical value with the probability POWER."""
    # the estimated error, a share of the true one, whose square is chi-squared
    half, width = freedom / 2, 10 / (2 * freedom) ** 0.5
    shares = np.linspace(max(1e-9, 1 - width), 1 + width, 4001)
    logarithm = math.log(2) + half * math.log(half) - math.lgamma(half) + (freedom - 1) * np.log(shares)
    weights = np.exp(logarithm - half * shares**2) * (shares[1] - shares[0]) / 3  # by Simpson's rule
    weights[1:-1] *= np.resize([4, 2], len(shares) - 2)

    def power(shift: float) -> float:
        values = (shift - critical * shares) / math.sqrt(2)
        return float(weights @ (1 + ERROR_FUNCTION(values).astype(float)) / 2)

    return bisect(lambda shift: power(shift) - POWER, critical, 3 * critical + 3)


def scores(run: Run, metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """The score of a run, and its scores without each part of the test set."""

    def score(*texts: list[str]) -> float:
        if metric in METRICS:
            tokenizer = tokenizer_of(run.metrics[run.split]["bleu"]["signature"])
            figures = corpus_scores(*texts, [metric], tokenizer)
            if metric not in figures:
                raise InputError(f"--metric: {metric!r} given, has no meaning for references without spaces")
            return figures[metric]["value"]
        found = load_metric("rouge" if metric in ROUGE else metric).compute(*texts, [])
        if metric not in found and len(found) > 1:
            raise InputError(f"--metric: {metric!r} given, must be one of {', '.join(found)}")
        return found[metric] if metric in found else next(iter(found.values()))

    lines = np.arange(len(references))
    without = (np.setdiff1d(lines, part) for part in np.array_split(lines, min(PARTS, len(lines))))
    kept = ([[text[i] for i in part] for text in (hypotheses, references)] for part in (lines, *without))
    return [score(*texts) for texts in kept]


def values_of(run: Run | dict, metric: str) -> list[float]:
    """The score of a run, and those without each part; the NLL of the validation set has one only."""
    if isinstance(run, dict):
        if metric not in run["scores"]:
            raise InputError(f"--metric: {metric!r} given, must be one of {', '.join(run['scores'])} with records")
        return run["scores"][metric]
    if metric == "nll":
        return [run.metrics["valid"]["nll"]]
    return scores(run, metric, *run.scored_text(run.split))


def references_of(run: Run | dict) -> str:
    """A hash of the references of the test set. Raises `InputError` for several sets."""
    if isinstance(run, dict):
        return run["references"]
    if "corpora" in run.metrics[run.split]:
        raise InputError(f"{run.folder} has several test sets, must be one")
    return hashlib.sha256("\n".join(run.scored_text(run.split)[1]).encode()).hexdigest()


def recorded(run: Run) -> dict:
    """What the statistics need of a run: scores, those of its sentences (chrF2), and its curve."""
    hypotheses, references = run.scored_text(run.split)
    sentences = [sacrebleu.sentence_chrf(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
    command = (run.record.command or "").replace(f"{run.folder.absolute().parent}", "runs")
    return {
        **{name: getattr(run.record, name) for name in OF_RUN},
        "command": command,
        "split": run.split,
        "references": references_of(run),
        "scores": {metric: values_of(run, metric) for metric in ("nll", *RECORDED)},
        "sentences": {"chrf": [round(score, 2) for score in sentences]},
        "curve": [[entry["step"], entry["eval_nll"]] for entry in run.curve if "eval_nll" in entry],
    }


def split_of(run: Run | dict) -> str:
    """The split of the scores of a run; a record that does not name it is of the test set."""
    return run.get("split", "test") if isinstance(run, dict) else run.split


def modes_of(groups: Mapping[str, Sequence[Run | dict]], metric: str) -> list[Mode]:
    """The modes with their scores. Raises `InputError` for runs whose scores cannot be compared."""
    runs = [run for runs in groups.values() for run in runs]
    if metric != "nll" and len({references_of(run) for run in runs}) > 1:
        raise InputError("the runs have different test sets")
    tokenizers = [run.get("tokenizer") if isinstance(run, dict) else run.record.tokenizer for run in runs]
    known = {tuple(sorted(files.items())) for files in tokenizers if files}  # older records have none
    if metric == "nll" and len(known) > 1:
        raise InputError("the runs have different tokenizers, so that the NLL of their tokens cannot be compared")
    if metric == "nll" and len({run.predicts_tags for run in runs if isinstance(run, Run)}) > 1:
        raise InputError("in some of the runs the tag of the language is a token of the target, which has an NLL too")
    scored = [run.metrics[run.split]["bleu"] for run in runs if isinstance(run, Run) and metric in METRICS]
    if len(names := {tokenizer_of(score["signature"]) for score in scored}) > 1:
        raise InputError(f"the runs have BLEU of different tokenizers: {', '.join(sorted(names))}")
    modes = []
    for name, runs in groups.items():
        table = np.array([values_of(run, metric) for run in tqdm(runs, name, leave=False)])
        modes.append(Mode(name, table[:, 0], np.zeros(PARTS) if metric == "nll" else table[:, 1:].mean(0)))
    return modes


def is_record(folder: Path) -> bool:
    return folder.suffix == ".json" and folder.is_file()


def names_of(folders: Sequence[Path]) -> list[str]:
    """The names of runs. Raises `InputError` for one that is given twice, which would count as another seed."""
    names = [folder.stem if is_record(folder) else folder.resolve().name for folder in folders]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"given twice, or in two places: {', '.join(twice)}")
    return names


def read(folders: Sequence[Path]) -> dict[str, list[Run | dict]]:
    """The runs of each mode. Raises `InputError` for folders that cannot be compared."""
    groups = defaultdict(list)
    for folder, name in zip(folders, names_of(folders), strict=True):
        run = read_json(folder) if is_record(folder) else Run.read(folder, finished=True)
        groups[re.sub(r"_s\d+$", "", name)].append(run)
    if alone := [name for name, runs in groups.items() if len(runs) < 2]:
        raise InputError(f"one run only: {', '.join(alone)}; a mode needs two seeds or more")
    if len(groups) < 2:
        raise InputError("runs of one mode only; there must be two or more")
    return groups


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) corrected p-values."""
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected.tolist()


def tables(modes: Sequence[Mode], metric: str, split: str) -> str:
    def shown(*values: float) -> str:
        return " to ".join(f"{value:.{4 if metric == 'nll' else 2}f}" for value in values)

    modes = sorted(modes, key=lambda mode: mode.scores.mean(), reverse=GREATER_IS_BETTER.get(metric, True))
    means = [["mode", f"{metric}, {SPLITS[split]}", "range", "seeds"]]
    for mode in modes:
        spread = shown(mode.scores.min(), mode.scores.max())
        means.append([f"`{mode.name}`", shown(mode.scores.mean()), spread, str(len(mode.scores))])
    found = [Difference.of(a, b) for a, b in itertools.combinations(modes, 2)]
    rows = [["difference", "mean", "95 % interval", "p", "p, corrected"]]
    for d, p in zip(found, holm([d.p_value for d in found]), strict=True):
        name = " - ".join(f"`{mode.name}`" for mode in d.modes)
        rows.append([name, shown(d.value), shown(*d.interval), f"{d.p_value:.3f}", f"{p:.3f}"])
    smallest = [d.smallest(len(found)) for d in found]
    power = (
        f"Smallest difference that is found with a probability of {POWER:.0%} at p < {LEVEL}, corrected: "
        f"{shown(min(smallest), max(smallest))}, depending on the pair."
    )
    if metric == "bleu" and max(mode.scores.max() for mode in modes) < 1:
        power = "Below 1 BLEU no score says anything."
    return f"{as_markdown(means)}\n\n{as_markdown(rows)}\n\n{power}"


def main() -> None:
    options = parser.parse_args()
    try:
        if options.record is not None:
            options.record.mkdir(parents=True, exist_ok=True)
            for folder, name in zip(options.folders, names_of(options.folders), strict=True):
                write_json_lines(options.record / f"{name}.json", [recorded(Run.read(folder, finished=True))])
            return
        groups = read(options.folders)
        modes = modes_of(groups, options.metric)
        split = "valid" if options.metric == "nll" else min(split_of(run) for runs in groups.values() for run in runs)
        print(tables(modes, options.metric, split))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
