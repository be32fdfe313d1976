"""The examples run, at a size of seconds."""

import json
import math
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from support.example_scripts import ENGLISH, ROOT, as_module, cells, run, statistics
from support.files import read_json_lines
from support.processes import run_programs_forked, run_python
from support.tiny_translator import tiny_model, tiny_tokenizer

from residual_hf.checkpoint import save_checkpoint
from residual_hf.model.connections import LN_MODES


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
