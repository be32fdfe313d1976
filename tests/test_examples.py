"""The examples run, at a size of seconds."""

import importlib.util
import json
import math
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import yaml
from support.example_scripts import ENGLISH, GERMAN, ROOT, run
from support.files import read_json_lines
from support.processes import run_here, run_programs_forked, run_programs_here, run_python
from support.tiny_translator import tiny_model, tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.model.connections import LN_MODES


def as_module(script, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        script.replace("/", "_").removesuffix(".py"), ROOT / "examples" / script
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def statistics(values):
    return sum(values) / len(values), min(values), max(values)


def cells(output, mode):
    line = next(line for line in output.splitlines() if line.startswith(f"| `{mode}` |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_image_of_the_server_has_all_packages():
    copied = (ROOT / "examples" / "serve" / "Dockerfile").read_text()
    assert all(f"COPY {path.parent.name} /source/" in copied for path in ROOT.glob("residual_hf*/__init__.py"))


def test_the_health_check_of_the_image_asks_no_proxy():
    copied = (ROOT / "examples" / "serve" / "Dockerfile").read_text()
    _, option, check = json.loads(re.search(r"^HEALTHCHECK .*\n +CMD (.*)", copied, re.MULTILINE)[1])
    healthy = {"do_GET": lambda self: self.send_error(204), "log_message": lambda *_: None}
    with HTTPServer(("127.0.0.1", 0), type("Healthy", (BaseHTTPRequestHandler,), healthy)) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        run_python(option, check.replace("5000", str(server.server_port)), **proxy)


def test_load_counts_translations_only(monkeypatch):
    load = as_module("serve/load.py", monkeypatch)
    answers = [(200, '{"translatedText": "b"}'), (429, '{"error": "busy"}'), (200, "no JSON"), (None, "")]
    client = load.Client(0, {"source": "de", "target": "en"}, ["a"], math.inf, seed=0)
    client.connection = MagicMock()

    def answer():
        status, text = answers.pop(0)
        client.end = math.inf if answers else 0
        if status is None:
            raise ConnectionResetError
        return SimpleNamespace(status=status, read=text.encode)

    client.connection.getresponse = answer
    client.run()
    assert len(client.seconds) == 1 and len(client.errors) == 3
    found = load.summary([client], 2.0, 1.0)
    assert "1 translations, 3 errors" in found and "served 0.5 sentences/s" in found and "latency" not in found
    client.seconds *= 3
    assert "served 1.5 sentences/s" in load.summary([client], 2.0, 1.0) and "latency" in load.summary([client], 2.0, 1)


@pytest.mark.slow
def test_custom_mode_trains_and_comes_back_through_remote_code(tmp_path, monkeypatch):
    run_programs_forked(monkeypatch)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")  # of an earlier run
    try:
        output = run("custom_mode/run.py", tmp_path / "run", "--updates", 5, "--pairs", 500, "--overwrite")
    finally:
        del LN_MODES["highway"], sys.modules["highway"]
    assert "ln_mode: highway" in output
    assert "translation_text" in output


@pytest.mark.parametrize(
    ("layers", "of_xskip"), [(4, "finite"), pytest.param(100, "**overflow**", marks=pytest.mark.slow)]
)
def test_deep_models_are_checked_at_their_start(layers, of_xskip):
    """100+100 layers of the default mode stay finite in all precisions; without norms and gates they do not."""
    modes = ("--modes", "resi_dual", "xskip")
    output = run("depth/initial.py", *modes, "--layers", layers, "--width", 16, "--device", "cpu")
    assert cells(output, "resi_dual")[2:] == ["finite"] * 3
    assert cells(output, "xskip")[2:] == [of_xskip] * 3


@pytest.mark.slow
def test_depth_study_goes_on_where_it_stopped(tmp_path):
    file = tmp_path / "runs.jsonl"
    small = ("--depths", 2, "--warmups", 0, "--updates", 3, "--max-tokens", 128, "--width", 16, "--device", "cpu")
    run("depth/study.py", file, "--modes", "post_ln", "--seeds", 1, *small)
    output = run("depth/study.py", file, "--modes", "post_ln", "admin", "--seeds", 1, 2, *small)
    runs = read_json_lines(file)
    assert [(r["mode"], r["seed"]) for r in runs] == [("post_ln", 1), ("admin", 1), ("post_ln", 2), ("admin", 2)]
    assert all(0 < r["nll"] < 20 for r in runs)
    (cell,) = cells(output, "admin")
    assert cell == "{:.2f} ({:.2f}-{:.2f}) **stuck**".format(
        *statistics([r["nll"] for r in runs if r["mode"] == "admin"])
    )


def test_verdicts_of_the_check_are_held_against_the_depth_study(tmp_path, small_generated_corpus):
    setting = {"width": 16, "updates": 3, "lr": 1e-3, "clip_norm": 0.0, "max_tokens": 512}
    trained = {"mode": "post_ln", "depth": 1, "warmup": 0, "seed": 1, "unigram_entropy": 5.0, "setting": setting}
    runs, verdicts = tmp_path / "runs.jsonl", tmp_path / "verdicts.jsonl"
    cells = [{"nll": 3.2, "warmup": 0}, {"nll": 5.1, "warmup": 1}]
    cells.append({"nll": 3.2, "warmup": 1, "setting": setting | {"lr": 2e-3}})  # another run of the same mode and seed
    runs.write_text("".join(json.dumps(trained | cell) + "\n" for cell in cells))
    mode = {"mode": "post_ln", "gradient_ratio": 1.0, "vanishing": "", "fp16_headroom": 9.0, "rates": [1e-3] * 3}
    modes = [
        mode | {"losses": [7.0, 7.0, 7.0], "ramp": 2},
        mode | {"mode": "b2t", "losses": [7.0] + [1.0] * 9, "ramp": 2},
    ]
    measured = trained | {"warmup": 1, "nll": 5.1, "outcome": "stuck", "modes": modes}
    verdicts.write_text(json.dumps(measured) + "\n")
    output = run("depth/verdicts.py", runs, verdicts, "--seconds", 0.1, "--modes", "pre_ln")
    lines = read_json_lines(verdicts)
    assert [(line["warmup"], line["outcome"]) for line in lines] == [(1, "stuck"), (0, "trained"), (1, "trained")]
    assert [mode["mode"] for mode in lines[1]["modes"]] == ["post_ln", "pre_ln"]
    assert "| **will not train** | 0 | 1 | 0 |" in output
    assert "| `post_ln` 1+1, warm-up 1, seed 1 | will not train | stuck (5.10) | nothing is learned: " in output


def test_comparison_trains_what_is_missing_and_prints_the_tables(tmp_path, monkeypatch):
    run_programs_here(monkeypatch)
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"text.{language}").write_text("\n".join(lines * 8) + "\n", encoding="utf-8")
    text = {"source": str(tmp_path / "text.en"), "target": str(tmp_path / "text.de")}
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
    recipe = {
        "source_lang": "en",
        "target_lang": "de",
        "output_dir": "unused",
        "data": {"train": text, "valid": text},
        "tokenizer": {"vocab_size": 330},
        "model": {**sizes, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
        "training": {"max_tokens": 200, "max_updates": 2, "eval_every": 2},
        "decoding": {"num_beams": 1, "max_length_b": 5},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    study = ["comparison/study.py", tmp_path / "recipe.yaml", "--output-dir", tmp_path / "runs", "--layers", 1]
    wider = "post_ln model.d_model=32"
    first = run(*study, "--modes", "post_ln", wider, "--parallel", 2)
    metrics = tmp_path / "runs" / "post_ln_1l_s1" / "metrics.json"
    written = metrics.stat().st_mtime_ns
    both = run(*study, "--modes", "post_ln", "--seeds", 1, 2)
    assert metrics.stat().st_mtime_ns == written
    scores = [
        json.loads((tmp_path / "runs" / f"post_ln_1l_s{seed}" / "metrics.json").read_text())["valid"]["nll"]
        for seed in (1, 2)
    ]
    nll = {name: text.split("NLL, valid:")[1] for name, text in (("first", first), ("both", both))}
    assert "| `ln_mode` | 1+1 |" in nll["first"]
    assert cells(nll["first"], "post_ln") == [f"{scores[0]:.3f}"] != cells(nll["first"], wider)
    assert cells(nll["both"], "post_ln") == ["{:.3f} ({:.3f}-{:.3f})".format(*statistics(scores))]
    assert (tmp_path / "runs" / "post_ln_d_model_32_1l_s1").is_dir()
    rates = as_module("comparison/rates.py", monkeypatch)
    monkeypatch.setattr(rates, "FILE", tmp_path / "rates.csv")
    rates.FILE.write_text("mode,layers,lr,seed,nll,test_nll,commit\npre_ln,6,0.001,1,,,1234567\n")
    with pytest.raises(InputError, match="must have width 64, 500 updates and no ln_mode_options"):
        rates.add(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "post_ln_d_model_32_1l_s1")
    monkeypatch.setattr(rates, "SETTING", (sizes["d_model"], 2))
    rates.add(tmp_path / "runs")
    added = {run.seed: run for run in rates.read() if run.layers == 1}
    assert (added[2].nll, added[2].test_nll) == (round(scores[1], 4), math.inf)
    tested = shutil.copytree(tmp_path / "runs" / "post_ln_1l_s2", tmp_path / "tested" / "post_ln_1l_s2")
    (tested / "metrics.json").write_text(json.dumps({"valid": {"nll": scores[1]}, "test": {"nll": 3.21}}))
    rates.add(tested.parent)
    assert [run.test_nll for run in rates.read() if (run.layers, run.seed) == (1, 2)] == [3.21]
    assert {path.suffix for path in (tmp_path / "runs").glob("curves.*")} == {".svg", ".png", ".csv"}

    finished = tmp_path / "runs" / "post_ln_1l_s1"
    for seed, nll in ((1, 4.0), (2, 4.2)):
        copy = shutil.copytree(finished, tmp_path / "runs" / f"copied_s{seed}")
        record = json.loads((copy / "metrics.json").read_text())
        record["valid"]["nll"] = nll
        (copy / "metrics.json").write_text(json.dumps(record))
    compared = sorted((tmp_path / "runs").glob("copied_s?")), sorted((tmp_path / "runs").glob("post_ln_1l_s[12]"))
    assert "| `copied` - `post_ln_1l` | 0.00 | " in run("comparison/differences.py", *compared[0], *compared[1])
    assert "| `copied` | 4.1000 | 4.0000 to 4.2000 | 2 |" in run(
        "comparison/differences.py", *compared[0], *compared[1], "--metric", "nll"
    )
    assert "| `copied` - `post_ln_1l` | 0.00 | " in run(
        "comparison/differences.py", *compared[0], *compared[1], "--metric", "wer:raw"
    )
    run("comparison/differences.py", *compared[0], *compared[1], "--record", tmp_path / "records")
    records = sorted((tmp_path / "records").iterdir())
    text = records[0].read_text()
    assert not any(line in text for line in (finished / "valid.references.txt").read_text().splitlines())
    for metric in ("nll", "bleu", "chrf"):
        of_folders = run("comparison/differences.py", *compared[0], *compared[1], "--metric", metric)
        assert run("comparison/differences.py", *records, "--metric", metric) == of_folders
        assert f"| mode | {metric}, validation |" in of_folders
    for record in records:  # as of earlier versions
        record.write_text(json.dumps({k: v for k, v in json.loads(record.read_text()).items() if k != "split"}))
    assert "| mode | bleu, test |" in run("comparison/differences.py", *records)
    wrong = run_here(
        ROOT / "examples" / "comparison" / "differences.py", *compared[0], *compared[1], "--metric", "rouge"
    )
    other = tmp_path / "runs" / "copied_s1" / "metrics.json"
    metrics = other.read_text()
    other.write_text(metrics.replace("tok:13a", "tok:char"))
    mixed = run_here(ROOT / "examples" / "comparison" / "differences.py", *compared[0], *compared[1])
    assert mixed.returncode == 2 and "BLEU of different tokenizers: 13a, char" in mixed.stderr
    other.write_text(metrics)
    assert wrong.returncode == 2 and "--metric: 'rouge' given, must be one of rouge1, rouge2, rougeL" in wrong.stderr
    twice = run_here(ROOT / "examples" / "comparison" / "differences.py", *compared[0], records[0], records[2])
    assert twice.returncode == 2 and "given twice, or in two places: copied_s1" in twice.stderr
    run_json = tmp_path / "runs" / "copied_s1" / "run.json"
    record = run_json.read_text()
    run_json.write_text(json.dumps({**json.loads(record), "tokenizer": {"tokenizer.json": "another"}}))
    tokens = run_here(
        ROOT / "examples" / "comparison" / "differences.py", *compared[0], *compared[1], "--metric", "nll"
    )
    assert tokens.returncode == 2 and "the runs have different tokenizers" in tokens.stderr
    run_json.write_text(record)
    alone = run_here(ROOT / "examples" / "comparison" / "differences.py", *compared[0], compared[1][0])
    assert alone.returncode == 2 and "one run only: post_ln_1l; a mode needs two seeds" in alone.stderr

    for rate, nll in ((0.1, 9.0), (0.2, 4.0)):
        copy = shutil.copytree(finished, tmp_path / "runs" / f"post_ln_1l_lr{rate}_s1")
        (copy / "metrics.json").write_text(json.dumps({"valid": {"nll": nll, "bleu": {"value": 1.0}}}))
        values = yaml.safe_load((copy / "recipe.yaml").read_text())
        values["training"]["lr"] = rate
        (copy / "recipe.yaml").write_text(yaml.safe_dump(values))
    printed = run(*study, "--modes", "post_ln", "--lr", 0.1, 0.2)
    bleu, best_bleu, nll, best_nll = (cells(table, "post_ln") for table in printed.split(":\n\n")[1:])
    assert nll == ["9.000", "4.000"] and best_nll == ["4.000 at 0.2"]
    assert bleu == ["1.00", "1.00"] and best_bleu == ["1.00 at 0.2"]  # compared with no other mode: no star

    def refusal(*arguments):
        return run_here(ROOT / "examples" / study[0], *study[1:], *arguments).returncode  # what `sys.exit` was given

    another = refusal("--modes", "post_ln", "--set", "training.max_updates=3")
    assert "post_ln_1l_s1: a finished run of another recipe" in another
    assert refusal("--modes", "post_ln", "--set", "training.eval_bleu=false", "--set", "training.metric=bleu") == (
        f"study.py: {tmp_path / 'recipe.yaml'}: training.eval_bleu: false given, must be true with metric 'bleu'"
    )
    same_name = [f"keel model.{stack}_ln_mode_options.alpha=8" for stack in ("encoder", "decoder")]
    assert "two of the runs have the same folder" in refusal("--modes", *same_name)

    study_module = as_module("comparison/study.py", monkeypatch)
    low, high = (study_module.FinishedRun.read(finished) for _ in range(2))
    for one, score in ((low, 0.0), (high, 0.09)):
        one.metrics["valid"]["bleu"] = {"value": score, "signature": "nrefs:1|tok:13a"}
    assert study_module.sign(high, low) == 0  # whatever the test says, scores below 1 say nothing
    at = {
        rate: [study_module.Run("post_ln", study_module.Column(None, None, rate), s, tmp_path) for s in (1, 2)]
        for rate in (1, 2)
    }
    partly = {**dict.fromkeys(at[1]), at[2][0]: low, at[2][1]: None}  # at the rate of 1 both seeds diverged
    assert "0.00 (1 diverged) at 2" in study_module.table_of_best_rates(partly, ["post_ln"], "bleu")

    (finished / "metrics.json").unlink()
    record = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**record, "diverged": "diverged by update 2"}))
    assert cells(run(*study, "--modes", "post_ln", wider).split("NLL, valid:")[1], "post_ln") == ["diverged"]
    curves = (tmp_path / "runs" / "curves.svg").read_text()
    assert "Not drawn, as they diverged: post_ln_1l_s1" in " ".join(re.findall(r"<!-- (.*?) -->", curves))
    assert "Commit None" not in curves and "Every run diverged" in run(*study, "--modes", "post_ln")


def test_difference_of_modes_covers_seeds_and_sentences(monkeypatch):
    """Figures of SciPy: Welch's test where all sentences are alike, the paired t-test where all seeds are alike."""
    differences = as_module("comparison/differences.py", monkeypatch)
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
    study = as_module("comparison/study.py", monkeypatch)
    mode = "post_ln model.branch_warmup={schedule: equal, updates: 1} training.log_every=1"
    one = study.Run(mode, study.Column(None, None, None), 1, tmp_path)
    settings = ["model.ln_mode=post_ln", "model.branch_warmup={schedule: equal, updates: 1}", "training.log_every=1"]
    assert one.settings([])[:3] == settings
    assert one.folder.name == "post_ln_branch_warmup_schedule_equal_updates_1_log_every_1_s1"


def test_runs_of_a_study_import_modes_of_a_user(tmp_path, monkeypatch):
    study = as_module("comparison/study.py", monkeypatch)
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


@pytest.mark.parametrize(("language_tags", "choices"), [("source", ["de", "en"]), (None, ["de"])])
def test_space_offers_the_languages_of_its_model(language_tags, choices, tmp_path, monkeypatch):
    """`<2` may be a word of the vocabulary, and a model of one pair may have tags that it does not read."""
    tokenizer = tiny_tokenizer("<2", "<2en>", "<2de>")
    languages = {"source_lang": "en", "target_lang": "de"} if language_tags is None else {}
    model = tiny_model(tokenizer, language_tags=language_tags, **languages)
    save_checkpoint(model, tokenizer, tmp_path / "model")
    gradio = MagicMock()
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    run("space/app.py")
    assert gradio.Dropdown.call_args.args[0] == choices
    translate = gradio.Interface.call_args.args[0]
    assert translate(f"{ENGLISH[0]}\n", choices[0]).endswith("\n")
