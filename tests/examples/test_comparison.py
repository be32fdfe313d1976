"""Studies of several modes, the differences of their runs, and the table of depths and rates."""

import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from support import small_sizes
from support.example_scripts import ENGLISH, GERMAN, ROOT, as_module, cells, refusal, run, statistics
from support.processes import run_here, run_programs_here

from residual_hf.base.errors import InputError
from residual_hf.model.connections import LN_MODES

STUDY, DIFFERENCES = "comparison/study.py", "comparison/differences.py"
WIDER = "post_ln model.d_model=32"


def of_study(folder, *arguments):
    return [folder / "recipe.yaml", "--output-dir", folder / "runs", "--layers", 1, "--modes", *arguments]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a recipe and of its runs with Post-LN and two seeds."""
    folder = tmp_path_factory.mktemp("comparison")
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (folder / f"text.{language}").write_text("\n".join(lines * 8) + "\n", encoding="utf-8")
    text = {"source": str(folder / "text.en"), "target": str(folder / "text.de")}
    recipe = {
        "source_lang": "en",
        "target_lang": "de",
        "output_dir": "unused",
        "data": {"train": text, "valid": text},
        "tokenizer": {"vocab_size": 330},
        "model": {**small_sizes(), "max_position_embeddings": 64},
        "training": {"max_tokens": 200, "max_updates": 2, "eval_every": 2},
        "decoding": {"num_beams": 1, "max_length_b": 5},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        run_programs_here(patch)
        run(STUDY, *of_study(folder, "post_ln", "--seeds", 1, 2, "--parallel", 2))
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "study")


@pytest.fixture
def runs(folder):
    """The runs of two modes, of which one has those of the other with worse scores."""
    for seed, nll in ((1, 4.0), (2, 4.2)):
        copy = shutil.copytree(folder / "runs" / f"post_ln_1l_s{seed}", folder / "runs" / f"copied_s{seed}")
        change(copy / "metrics.json", lambda metrics, nll=nll: metrics["valid"].update(nll=nll))
    return sorted((folder / "runs").glob("*_s[12]"))


def change(file, edit):
    values = json.loads(file.read_text())
    edit(values)
    file.write_text(json.dumps(values))


def test_a_study_trains_what_is_missing_and_prints_the_tables(folder, monkeypatch):
    run_programs_here(monkeypatch)
    metrics = [folder / "runs" / f"post_ln_1l_s{seed}" / "metrics.json" for seed in (1, 2)]
    written = [file.stat().st_mtime_ns for file in metrics]
    outputs = [run(STUDY, *of_study(folder, *more)) for more in (("post_ln", WIDER), ("post_ln", "--seeds", 1, 2))]
    assert [file.stat().st_mtime_ns for file in metrics] == written
    assert (folder / "runs" / "post_ln_d_model_32_1l_s1").is_dir()
    scores = [json.loads(file.read_text())["valid"]["nll"] for file in metrics]
    two_modes, two_seeds = (text.split("NLL, valid:")[1] for text in outputs)
    assert "| `ln_mode` | 1+1 |" in two_modes
    assert cells(two_modes, "post_ln") == [f"{scores[0]:.3f}"] != cells(two_modes, WIDER)
    assert cells(two_seeds, "post_ln") == ["{:.3f} ({:.3f}-{:.3f})".format(*statistics(scores))]
    assert {path.suffix for path in (folder / "runs").glob("curves.*")} == {".svg", ".png", ".csv"}


def test_runs_of_a_study_are_added_to_the_table_of_rates(folder, monkeypatch):
    rates = as_module("comparison/rates.py", monkeypatch)
    monkeypatch.setattr(rates, "FILE", folder / "rates.csv")
    rates.FILE.write_text("mode,layers,lr,seed,nll,test_nll,commit\npre_ln,6,0.001,1,,,1234567\n")
    with pytest.raises(InputError, match="must have width 64, 500 updates and no ln_mode_options"):
        rates.add(folder / "runs")
    monkeypatch.setattr(rates, "SETTING", (16, 2))
    rates.add(folder / "runs")
    metrics = folder / "runs" / "post_ln_1l_s2" / "metrics.json"
    assert rates.read()[1].nll == round(json.loads(metrics.read_text())["valid"]["nll"], 4)
    change(metrics, lambda values: values.update(test={"nll": 3.21}))
    rates.add(folder / "runs")
    found = [(run.layers, run.seed, run.test_nll) for run in rates.read()]
    assert found == [(1, 1, math.inf), (1, 2, 3.21), (6, 1, math.inf)]


def test_differences_of_modes_are_those_of_their_runs_or_of_records(runs, tmp_path):
    for more in ((), ("--metric", "wer:raw")):
        assert "| `copied` - `post_ln_1l` | 0.00 | " in run(DIFFERENCES, *runs, *more)
    assert "| `copied` | 4.1000 | 4.0000 to 4.2000 | 2 |" in run(DIFFERENCES, *runs, "--metric", "nll")
    run(DIFFERENCES, *runs, "--record", tmp_path / "records")
    records = sorted((tmp_path / "records").iterdir())
    text = records[0].read_text()
    assert not any(line in text for line in (runs[0] / "valid.references.txt").read_text().splitlines())
    for metric in ("nll", "bleu", "chrf"):
        of_folders = run(DIFFERENCES, *runs, "--metric", metric)
        assert run(DIFFERENCES, *records, "--metric", metric) == of_folders
        assert f"| mode | {metric}, validation |" in of_folders
    twice = refusal(DIFFERENCES, *runs[:2], records[0], records[2])
    assert "given twice, or in two places: copied_s1" in twice
    for record in records:  # as of earlier versions
        change(record, lambda values: values.pop("split"))
    assert "| mode | bleu, test |" in run(DIFFERENCES, *records)


def test_runs_that_cannot_be_compared_are_named(runs):
    wrong = refusal(DIFFERENCES, *runs, "--metric", "rouge")
    assert "--metric: 'rouge' given, must be one of rouge1, rouge2, rougeL" in wrong
    assert "one run only: post_ln_1l; a mode needs two seeds" in refusal(DIFFERENCES, *runs[:3])
    change(runs[0] / "run.json", lambda record: record.update(tokenizer={"tokenizer.json": "another"}))
    assert "the runs have different tokenizers" in refusal(DIFFERENCES, *runs, "--metric", "nll")
    metrics = runs[0] / "metrics.json"
    metrics.write_text(metrics.read_text().replace("tok:13a", "tok:char"))
    assert "BLEU of different tokenizers: 13a, char" in refusal(DIFFERENCES, *runs)


def test_a_study_of_rates_has_a_table_of_the_best(folder):
    for rate, nll in ((0.1, 9.0), (0.2, 4.0)):
        copy = shutil.copytree(folder / "runs" / "post_ln_1l_s1", folder / "runs" / f"post_ln_1l_lr{rate}_s1")
        (copy / "metrics.json").write_text(json.dumps({"valid": {"nll": nll, "bleu": {"value": 1.0}}}))
        values = yaml.safe_load((copy / "recipe.yaml").read_text())
        values["training"]["lr"] = rate
        (copy / "recipe.yaml").write_text(yaml.safe_dump(values))
    printed = run(STUDY, *of_study(folder, "post_ln", "--lr", 0.1, 0.2))
    bleu, best_bleu, nll, best_nll = (cells(table, "post_ln") for table in printed.split(":\n\n")[1:])
    assert nll == ["9.000", "4.000"] and best_nll == ["4.000 at 0.2"]
    assert bleu == ["1.00", "1.00"] and best_bleu == ["1.00 at 0.2"]  # compared with no other mode: no star


def test_a_study_refuses_what_it_cannot_train(folder):
    def end(*modes):
        return run_here(ROOT / "examples" / STUDY, *of_study(folder, *modes)).returncode  # what `sys.exit` was given

    another = end("post_ln", "--set", "training.max_updates=3")
    assert "post_ln_1l_s1: a finished run of another recipe" in another
    assert end("post_ln", "--set", "training.eval_bleu=false", "--set", "training.metric=bleu") == (
        f"study.py: {folder / 'recipe.yaml'}: training.eval_bleu: false given, must be true with metric 'bleu'"
    )
    same_name = [f"keel model.{stack}_ln_mode_options.alpha=8" for stack in ("encoder", "decoder")]
    assert "two of the runs have the same folder" in end(*same_name)


def test_low_scores_differ_by_chance_and_seeds_that_diverged_are_counted(trained, monkeypatch):
    study = as_module(STUDY, monkeypatch)
    low, high = (study.FinishedRun.read(trained / "runs" / "post_ln_1l_s1") for _ in range(2))
    for one, score in ((low, 0.0), (high, 0.09)):
        one.metrics["valid"]["bleu"] = {"value": score, "signature": "nrefs:1|tok:13a"}
    assert study.sign(high, low) == 0  # whatever the test says, scores below 1 say nothing
    at = {
        rate: [study.Run("post_ln", study.Column(None, None, rate), seed, trained) for seed in (1, 2)]
        for rate in (1, 2)
    }
    partly = {**dict.fromkeys(at[1]), at[2][0]: low, at[2][1]: None}  # at the rate of 1 both seeds diverged
    assert "0.00 (1 diverged) at 2" in study.table_of_best_rates(partly, ["post_ln"], "bleu")


def test_a_run_that_diverged_is_not_drawn(folder, monkeypatch):
    run_programs_here(monkeypatch)
    (folder / "runs" / "post_ln_1l_s1" / "metrics.json").unlink()
    change(folder / "runs" / "post_ln_1l_s1" / "run.json", lambda record: record.update(diverged="by update 2"))
    printed = run(STUDY, *of_study(folder, "post_ln", WIDER))
    assert cells(printed.split("NLL, valid:")[1], "post_ln") == ["diverged"]
    curves = (folder / "runs" / "curves.svg").read_text()
    assert "Not drawn, as they diverged: post_ln_1l_s1" in " ".join(re.findall(r"<!-- (.*?) -->", curves))
    assert "Commit None" not in curves and "Every run diverged" in run(STUDY, *of_study(folder, "post_ln"))


def test_difference_of_modes_covers_seeds_and_sentences(monkeypatch):
    """Figures of SciPy: Welch's test where all sentences are alike, the paired t-test where all seeds are alike."""
    differences = as_module(DIFFERENCES, monkeypatch)
    scores, none = np.array([[40.2, 39.1, 40.9, 40.0], [38.4, 39.9, 39.2, 38.9]]), np.zeros(20)
    seeds = differences.Difference.of(*(differences.Mode("", row, none) for row in scores))
    assert (seeds.p_value, seeds.freedom) == pytest.approx((0.09953317, 5.838951), rel=1e-6)
    assert seeds.interval == pytest.approx((-0.246276, 2.146276), rel=1e-6)

    sentences = np.array([np.arange(20) % 7, np.arange(20) % 3 + 1.5])
    alike = [
        differences.Mode("", np.full(4, row.mean()), np.array([np.delete(row, i).mean() for i in range(20)]))
        for row in sentences
    ]
    assert differences.Difference.of(*alike).p_value == pytest.approx(0.4307218, rel=1e-6)

    finished = SimpleNamespace(split="test", metrics={"test": {"bleu": {"signature": "tok:13a"}}})
    lines = ["a b", "c d", "e f"]
    _, *without = differences.scores(finished, "chrf", ["a b", "c x", "e f"], lines)
    assert len(without) == 3 and without[1] == 100, "one line is left out at a time"
    with pytest.raises(InputError, match="--metric: 'ter' given, has no meaning for references without spaces"):
        differences.scores(finished, "ter", ["ฉันไป"], ["ฉันไปแล้ว"])

    both = [differences.Mode("", row, mode.without_part) for row, mode in zip(scores, alike, strict=True)]
    assert differences.Difference.of(*both).error == pytest.approx(
        math.hypot(seeds.error, differences.Difference.of(*alike).error)
    )
    found = differences.Difference((alike[0], alike[1]), 1.0, 0.5, 19)
    for comparisons, critical in ((1, 2.0930), (10, 3.1737)):
        random = np.random.default_rng(0)
        shifted = random.standard_normal(10**6) + found.smallest(comparisons) / 0.5
        found_by = shifted / np.sqrt(random.chisquare(19, 10**6) / 19) > critical
        assert found_by.mean() == pytest.approx(0.8, abs=0.002)
    assert differences.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_settings_of_a_mode_in_a_study_may_have_spaces(tmp_path, monkeypatch):
    study = as_module(STUDY, monkeypatch)
    mode = "post_ln model.branch_warmup={schedule: equal, updates: 1} training.log_every=1"
    one = study.Run(mode, study.Column(None, None, None), 1, tmp_path)
    settings = ["model.ln_mode=post_ln", "model.branch_warmup={schedule: equal, updates: 1}", "training.log_every=1"]
    assert one.settings([])[:3] == settings
    assert one.folder.name == "post_ln_branch_warmup_schedule_equal_updates_1_log_every_1_s1"


def test_runs_of_a_study_import_modes_of_a_user(tmp_path, monkeypatch):
    study = as_module(STUDY, monkeypatch)
    commands = []
    failed = SimpleNamespace(returncode=1, stderr="")
    monkeypatch.setattr(study.subprocess, "run", lambda command, **options: commands.append(command) or failed)
    with pytest.raises(SystemExit):
        study.Run("gated", study.Column(None, None, None), 1, tmp_path).train("recipe.yaml", [], [Path("gated.py")])
    assert "--import=gated.py" in commands[0] and "model.ln_mode=gated" in commands[0]


def test_tables_and_picture_of_depth_and_rate_are_made_of_the_recorded_runs(tmp_path):
    page = (ROOT / "docs" / "researcher.md").read_text(encoding="utf-8")
    tables = run("comparison/rates.py", "--picture", tmp_path / "rates.png").strip().split("\n\n")
    assert len(tables) == 2 and all(f"{table}\n" in page for table in tables)
    assert len(tables[0].splitlines()) == len(LN_MODES) + 2
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
