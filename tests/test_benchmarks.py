"""The benchmark scripts run and write the figures that they promise."""

import importlib
import importlib.util
import json
import os
import re
import shutil
import sys

import pytest
import torch
from support import ROOT
from support.example_scripts import refusal, run
from support.native_library import needs_kernels
from support.processes import run_python
from support.tiny_translator import tiny_model, tiny_tokenizer

from residual_hf import native
from residual_hf.generation.translator import Translator
from residual_hf.native.image import KERNELS

BENCHMARKS = ROOT / "examples/benchmarks"
MODES = {"post_ln", "pre_ln", "resi_dual"}
OURS = MODES | {"post_ln_fused_loss", "resi_dual_fused_loss"}
NATIVE = {f"{mode}_native{suffix}" for mode in MODES for suffix in ("", "_bf16")}


@pytest.mark.slow
def test_train_speed_writes_positive_figures_of_models_of_one_size(tmp_path):
    file = tmp_path / "speed.json"
    options = "--device cpu --batches 2 --warmup 0 --max-tokens 64 --threads 1 --json"
    arguments = (*options.split(), str(file))
    printed = run(BENCHMARKS / "train_speed.py", *arguments)
    figures = json.loads(file.read_text(encoding="utf-8"))

    assert (figures["batches"], figures["threads"]) == (2, 1)
    assert 0 < figures["target_tokens_per_batch"] <= 64
    assert 0 <= figures["target_padding"] < 1
    rows = {(row["precision"], row["candidate"]): row for row in figures["rows"]}
    everywhere = {"marian", "marian_no_bias"} | OURS
    assert set(rows) == {("fp32", c) for c in everywhere | NATIVE} | {("bf16", c) for c in everywhere}
    for (precision, candidate), row in rows.items():
        assert row["tokens_per_second"]["q1"] > 0, candidate
        assert all(ratio["q1"] > 0 for ratio in row["ratios"].values()), candidate
        assert candidate in printed
        marian = rows[precision, "marian"]
        norms_at_the_ends = 0 if "post_ln" in candidate or "marian" in candidate else 2 * 2 * 128
        assert row["parameters"] == marian["parameters"] + norms_at_the_ends
    assert rows["fp32", "marian"]["ratios"]["marian"]["median"] == 1

    assert str(file) in refusal(BENCHMARKS / "train_speed.py", *arguments)


@pytest.mark.slow
def test_streaming_writes_a_corpus_and_positive_figures(tmp_path):
    arguments = ("--pairs", "3000", "--batches", "20", "--vocab-size", "400", "--json", str(tmp_path / "figures.json"))
    printed = run(BENCHMARKS / "streaming.py", str(tmp_path / "corpus"), *arguments)
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert json.loads(printed) == figures
    for side in ("en", "de"):
        assert len((tmp_path / f"corpus/train.{side}").read_text(encoding="utf-8").splitlines()) == 3000
    assert figures["pairs"] > figures["batches"] == 20
    for name in ("seconds_to_first_batch", "pairs_per_second", "seconds_to_resume", "cpu_seconds_to_resume"):
        assert figures[name] > 0
    assert figures["peak_memory_mib"] > figures["peak_memory_mib_before"] > 0

    assert "must be new" in refusal(BENCHMARKS / "streaming.py", str(tmp_path / "corpus"), "--pairs", "10")


def test_alignment_counts_the_links_of_a_text(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    alignment = importlib.import_module("alignment")
    words = alignment.dictionary(["zwei Hunde", "zwei Katzen"] * 20, ["two dogs", "two cats"] * 20)
    assert words == {"zwei": "two", "hunde": "dogs", "katzen": "cats"}
    pairs = [("zwei Hunde Anna", "two dogs Anna"), ("zwei Katzen 12", "12 two cats"), ("nichts", "nothing")]
    tokenizer = tiny_tokenizer()
    figures = alignment.measure(Translator(tiny_model(tokenizer), tokenizer), pairs, words)
    assert figures["number"] == {"translated": 4, "same": 2, "phrases": 3}
    assert figures["tags, order of words"]["translated"] >= 0.5 and figures["tags"]["same"] == 1
    assert set(figures["words"]) == {"translated", "same"} and "words, layer 1" in figures


@pytest.mark.slow
def test_loss_memory_shows_that_the_fused_loss_holds_no_logits():
    done = run_python(BENCHMARKS / "loss_memory.py", "--tokens", "2048", "--vocab-size", "20000", "--width", "16")
    figures = json.loads(done.stdout)
    assert figures["logits_mb"] == 164
    assert figures["peak_mb"]["fused"] < figures["logits_mb"] < figures["peak_mb"]["plain"]


@pytest.mark.slow
def test_decode_speed_compares_all_candidates_by_default(tmp_path, monkeypatch):
    """Four sentences of four tokens each."""
    pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")
    file = tmp_path / "decode.json"
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("decode_speed")
    monkeypatch.setattr(script, "GENERATED", 4)
    monkeypatch.setattr(script, "CASES", {name: (min(4, rows), beams) for name, (rows, beams) in script.CASES.items()})
    monkeypatch.setattr(sys, "argv", f"decode_speed.py --size tiny --repeats 1 --json {file}".split())
    with script.held:
        script.main()
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    assert list(cases) == ["encode", "greedy", "beam", "single"]
    for results in cases.values():
        assert {"marian", "ctranslate2_int8", "post_ln_pytorch", "resi_dual_bfloat16"} < results.keys()
        assert results["ctranslate2_float32"]["ratio"] == 1 and all(row["seconds"] > 0 for row in results.values())
        assert results["post_ln_int8"]["isa"] in (
            native.instruction_set(),
            torch.backends.cpu.get_cpu_capability().lower(),
        )


@pytest.mark.slow
def test_the_command_of_the_speed_table_runs(tmp_path):
    options = "--size iwslt --threads 1 --repeats 1"
    assert "resi_dual_int8" in run(BENCHMARKS / "decode_speed.py", *options.split())


@pytest.mark.slow
def test_decode_speed_compares_candidates_of_one_size(tmp_path):
    file, picture = tmp_path / "decode.json", tmp_path / "decode.svg"
    options = "--size tiny --cases greedy encode --repeats 1 --candidates marian post_ln_pytorch resi_dual_float32"
    run(BENCHMARKS / "decode_speed.py", *options.split(), "--json", str(file), "--plot", str(picture))
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    assert list(cases) == ["greedy", "encode"]
    for results in cases.values():
        assert list(results) == ["marian", "post_ln_pytorch", "resi_dual_float32"]
        assert results["marian"]["ratio"] == 1 and all(row["seconds"] > 0 for row in results.values())
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_an_instruction_set_limits_all_libraries(monkeypatch):
    started = []
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    restart_with = importlib.import_module("instruction_sets").restart_with
    restart_with(None)
    assert not started
    restart_with("avx2")
    ((program, command, environment),) = started
    assert program == command[0] == sys.executable and command[1:] == sys.orig_argv[1:]
    assert environment["RESIDUAL_HF_ISA"] == "avx2" and environment["CT2_FORCE_CPU_ISA"] == "AVX2"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    restart_with("avx2")
    assert len(started) == 1


@pytest.mark.slow
def test_threads_are_compared_beside_another_program(tmp_path):
    small = "--size tiny --sentences 8 --updates 1 --rounds 1 --threads 1 2 --busy 1 --json"
    run(BENCHMARKS / "threads.py", *small.split(), tmp_path / "threads.json")
    figures = json.loads((tmp_path / "threads.json").read_text(encoding="utf-8"))
    assert figures["busy"] == 1 and {"decode", "train"} <= set(figures)
    assert all(figures[task][count]["median"] > 0 for task in ("decode", "train") for count in ("1", "2"))


@pytest.mark.slow
def test_shares_of_a_step_add_up():
    small = "--sizes tiny --dtypes int8 --cases greedy --repeats 1"
    printed = run(BENCHMARKS / "shares.py", *small.split())
    shares = [int(share) for share in re.findall(r"\| (-?\d+) % \|", printed)]
    assert len(shares) == 5 and abs(sum(shares) - 100) <= 3


@pytest.mark.slow
@needs_kernels
def test_shares_of_a_training_step_add_up_and_each_part_has_one():
    options = "--training multi30k_tiny --repeats 1 --vocab-size 9000"
    printed = run(BENCHMARKS / "shares.py", *options.split())
    shares = {part: float(share) for part, share in re.findall(r"\| ([a-z ]+) \| ([\d.]+) % \|", printed)}
    assert len(shares) == 7 and min(shares.values()) > 0.05
    assert sum(shares.values()) == pytest.approx(100, abs=0.4)
    assert shares["output layer and loss"] > shares["attention"] > shares["optimizer"]
    assert len(re.findall(r"% \| 0\.\d\d \|", printed)) == 2  # products relative to the peak


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("bergamot") is None, reason="bergamot has no wheel for this Python")
def test_bergamot_translates_to_the_same_length():
    assert run(BENCHMARKS / "bergamot_speed.py", "--repeats", "1").count("| 30.0 |") == 6


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(shutil.which("node") is None or not KERNELS.exists(), reason="node or kernels.wasm is missing")
def test_the_page_translates_in_node():
    printed = run(BENCHMARKS / "web_speed.py", "--repeats", "1")
    row = r"\| 5 \| web \| [1-9]\d* \| \d+\.\d \| 1.0 \|"
    assert re.search(row + r"\nsize of the page with its model: \d\d.\d MB", printed)


@needs_kernels
def test_shortlist_compares_with_the_whole_vocabulary():
    printed = run(BENCHMARKS / "shortlist.py", "--size", "tiny", "--repeats", "1", "--dtypes", "int8")
    assert printed.count("int8, shortlist") == 3
