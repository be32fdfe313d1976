"""The report is one valid HTML page without a network, and says what the records of the runs say."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import yaml
from support.finished_run import GOOD, REFERENCES, edit_json, score, write_lines
from support.processes import run_python

from residual_hf.analysis.report.charts import Axis, heat_map, line_chart
from residual_hf.analysis.report.layer_maps import QUANTITIES, read_grids
from residual_hf.analysis.report.page import write_report
from residual_hf.analysis.report.sampled_translations import Part, choose_samples, differences
from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.evaluation.translation_metric import TranslationMetric

BAD = ["the dog is here <script>alert(1)</script>" for _ in REFERENCES]
VOID = {"meta", "link", "input"}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def make_run(tmp_path):
    """Makes a folder as `residual-hf train` leaves it; without translations, one of a run that has not finished."""

    def make(name, hypotheses=None, references=REFERENCES, **training):
        run = tmp_path / name
        run.mkdir(parents=True)
        recipe = {"data": {"test": {"source": "/home/me/test.de"}}, "training": {"lr": 0.004, "seed": 7, **training}}
        (run / "recipe.yaml").write_text(yaml.safe_dump({"model": {"ln_mode": "post_ln"}, **recipe}))
        (run / "run.json").write_text(json.dumps({"seed": 7, "finished": "2026-01-01" if hypotheses else None}))
        curve = [{"step": s, "nll": 5 - s / 100, "grad_norm": 0.5 + s / 10} for s in range(10, 200, 10)]
        curve += [
            {"step": 100, "eval_nll": 4.2, "eval_bleu": 3.0},
            {"step": 190, "eval_nll": 3.1, "eval_wer": 9.0, "eval_cer": 4.0},
        ]
        curve += [{"step": 195, "nll": float("nan")}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in curve))
        if hypotheses:
            scores = {"nll": 3.0, **score(hypotheses, references)}
            (run / "metrics.json").write_text(json.dumps({"updates": 190, "test": scores}))
            texts = {"hypotheses": hypotheses, "references": references, "sources": [f"Satz {r}" for r in references]}
            for kind, lines in texts.items():
                write_lines(run / f"test.{kind}.txt", lines)
        return run

    return make


NEEDS = """
import sys
from residual_hf_cli import main
code = main(["report", *sys.argv[1:]])
print(code, *({"torch", "transformers"} & set(sys.modules)), file=sys.stderr)
"""


def test_report_needs_neither_torch_nor_transformers(make_run, tmp_path):
    runs = [make_run("one", GOOD), make_run("two", BAD)]
    alert = {"step": 10, "loss_score": 8.0, "grad_norm_score": 9.0, "first": None}
    (runs[0] / "diagnostics.jsonl").write_text(json.dumps({"step": 10, "alert": alert}) + "\n")
    done = run_python("-c", NEEDS, *runs, "--output-file", tmp_path / "report.html")
    assert done.stderr.split() == ["0"]
    assert "Spike at update 10" in (tmp_path / "report.html").read_text()


class Page(HTMLParser):
    """Checks that tags close in order; collects addresses and text outside of scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.open, self.addresses, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data.strip())


def read(path):
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\(|https?://", html)
    return page


def test_two_runs_are_compared(make_run, resamples, tmp_path, capsys):
    runs = [make_run("bad", BAD), make_run("good", GOOD, lr=0.001)]
    output = tmp_path / "report.html"
    assert main(["report", *map(str, runs), "--output-file", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    page = read(output)
    text = " ".join(page.texts)
    charts = (
        "Training NLL per token (nats)",
        *("Validation BLEU", "Validation WER", "Validation CER"),
        "Gradient norm before clipping",
    )
    for title in (*charts, "bad", "good"):
        assert title in page.texts
    assert any(re.fullmatch(r"update \d+: 4\.\d+", tip) for tip in page.texts)  # at the pointer
    assert re.search(r"\+\d\d\.\d\d, p = 0\.002", text)  # the difference in BLEU
    assert "<script>alert(1)</script>" in text  # as text, not as a tag
    assert "/home/me" not in text and "test.de" in text
    differing = text[text.index("differs") :]
    assert differing.index("training.lr") < differing.index("settings that are equal") < differing.index("seed")


@pytest.mark.parametrize(("sizes", "tokenizers"), [((100, 100), "aa"), ((100, 200), "aa"), ((100, 100), "ab")])
def test_perplexity_per_token_is_best_among_equal_vocabularies_only(sizes, tokenizers, make_run, tmp_path):
    runs = [make_run(name, GOOD) for name in ("a", "b")]
    for run, size, tokenizer, lower_is_better in zip(runs, sizes, tokenizers, (90.25, 80.25), strict=True):
        hashes = {"tokenizer.json": tokenizer, "tokenizer_config.json": run.name}
        (run / "run.json").write_text(json.dumps({"seed": 7, "finished": "2026-01-01", "tokenizer": hashes}))
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text(json.dumps({"ln_mode": "post_ln", "vocab_size": size}))
        figures = {"nll": 2.25, "word_ppl": lower_is_better, "wer": {"value": lower_is_better, "signature": "s"}}
        edit_json(run / "metrics.json", test=score(GOOD, REFERENCES) | figures)
    html = write_report(runs, tmp_path / "report.html").read_text()
    assert ("<b>2.25</b>" in html) == ((sizes, tokenizers) == ((100, 100), "aa"))
    assert html.count("<b>80.25</b>") == 2 and "<b>90.25</b>" not in html
    assert "perplexity per word ↓" in html and "WER ↓" in html


@pytest.mark.parametrize("windows", [(0, 0), (0, 20)])
def test_perplexity_is_best_among_equal_contexts_only(windows, make_run, tmp_path):
    runs = [make_run(name, GOOD) for name in ("a", "b")]
    for run, window, value in zip(runs, windows, (90.25, 80.25), strict=True):
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"evaluation": {"context_window": window}}))
        edit_json(run / "metrics.json", test={"nll": 2.0, "word_ppl": value})
        (run / "test.hypotheses.txt").unlink(missing_ok=True)
    html = write_report(runs, tmp_path / "report.html").read_text()
    assert ("<b>80.25</b>" in html) == (windows == (0, 0)) and "80.25" in html
    assert "is not compared" not in html


def test_further_metrics_and_means_of_corpora_are_shown(make_run, tmp_path):
    runs = [make_run(name, GOOD) for name in ("a", "b")]
    for run, value in zip(runs, (33.25, 44.5), strict=True):
        test = score(GOOD, REFERENCES) | {"metrics": {"rouge": {"rougeL": value}}}
        edit_json(run / "metrics.json", test=test, valid={"corpora": {"x": {}, "y": {}}, "nll": 2.0})
    html = write_report(runs, tmp_path / "report.html").read_text()
    assert "rouge rougeL" in html and "33.25" in html and "<b>44.50</b>" not in html  # lower may be better


def test_scores_of_other_tokenizers_are_not_compared(make_run, tmp_path):
    runs = [make_run(name, GOOD) for name in ("words", "characters")]
    chars = TranslationMetric().compute(predictions=GOOD, references=REFERENCES, tokenize="char")
    edit_json(runs[1] / "metrics.json", test=chars)
    page = read(write_report(runs, tmp_path / "report.html"))
    assert any("BLEU of the tokenizer '13a', must be 'char'" in text for text in page.texts)


def test_modes_of_the_stacks_of_a_run_that_has_not_finished(make_run, tmp_path):
    run = make_run("run")
    model = {"encoder_ln_mode": "deep_norm", "decoder_ln_mode": "pre_ln"}
    (run / "recipe.yaml").write_text(yaml.safe_dump({"model": model}))
    assert "deep_norm, pre_ln" in read(write_report([run], tmp_path / "report.html")).texts


def test_a_resumed_run_has_the_time_of_all_starts(make_run, tmp_path):
    runs = [make_run(name) for name in ("once", "resumed")]
    for run, resumed in zip(runs, ([], ["2026-01-02"]), strict=True):
        (run / "run.json").write_text(json.dumps({"seconds": 90.0, "resumed": resumed}))
    assert read(write_report(runs, tmp_path / "report.html")).texts.count("time") == 2


def test_run_that_has_not_finished(make_run, tmp_path):
    page = read(write_report([make_run("run")], tmp_path / "report.html"))
    assert "not finished, last entry at update 195" in page.texts
    assert not {"Scores", "Translations from worst to best"} & set(page.texts)


def test_maps_of_the_layers(make_run, tmp_path):
    runs = [make_run("run"), make_run("other")]
    lines = []
    for step in (1, 100):
        row = {"stack": "decoder", "sublayer": "feed_forward", "update_ratio": 0.01, "branch_share": None}
        rows = [{**row, "layer": layer, "gradient": 10.0**-layer} for layer in (1, 2)]
        lines += [{"step": step, "sublayers": rows, "activations": []}, {"step": step, "losses": [], "grad_norms": []}]
    first = {"stack": "decoder", "layer": 2, "sublayer": "feed_forward", "step": 119, "score": 9.0}
    lines.append({"step": 120, "alert": {"step": 120, "loss_score": 8.0, "grad_norm_score": 2.0, "first": first}})
    (runs[0] / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = read(write_report(runs, tmp_path / "report.html"))
    assert "Decoder: gradient norm of the weights" in page.texts
    assert {"1 ffn, update 1: 0.1", "2 ffn, update 100: 0.01"} <= set(page.texts)
    assert any("decoder layer 2 feed_forward moved first, at update 119" in text for text in page.texts)
    assert not any("share of the branch" in text for text in page.texts)


def test_dropped_layers_have_no_color_and_keep_their_place():
    """A gradient of 0 would make the colors of all layers and runs linear."""
    lines = []
    for step, dropped in ((1, 1), (2, 2)):
        rows = [{"stack": "decoder", "sublayer": "feed_forward", "layer": layer} for layer in (1, 2)]
        gradients = [{**row, "gradient": 0.0 if row["layer"] == dropped else 0.1} for row in rows]
        outputs = [{**row, "location": "output", "rms": 1.0} for row in rows if row["layer"] != dropped]
        lines.append({"step": step, "sublayers": gradients, "activations": outputs})
    for quantity in QUANTITIES[0], QUANTITIES[3]:
        value = 0.1 if quantity.name == "gradient" else 1.0
        grid = read_grids(lines, quantity)["decoder"]
        assert list(grid.items()) == [("1 ffn", {2.0: value}), ("2 ffn", {1.0: value})]


def test_runs_on_other_test_sets_are_not_compared(make_run, tmp_path):
    runs = [make_run("a/run", GOOD), make_run("b/run", BAD, references=[f"{line} now" for line in REFERENCES])]
    page = read(write_report(runs, tmp_path / "report.html"))
    assert any("b/run is not compared with the first run" in text for text in page.texts)
    assert not any("p = " in text for text in page.texts)


def test_input_is_checked(make_run, tmp_path):
    run = make_run("run")
    with pytest.raises(InputError, match=r"must end in .html"):
        write_report([run], tmp_path / "report.md")
    with pytest.raises(InputError, match="must differ"):
        write_report([run, run / "."], tmp_path / "report.html")
    with pytest.raises(InputError, match="has no recipe.yaml"):
        write_report([tmp_path], tmp_path / "report.html")
    write_report([run], tmp_path / "report.html")
    with pytest.raises(InputError, match="--output-file: .* exists"):
        write_report([run], tmp_path / "report.html")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_page_in_a_browser(make_run, tmp_path, width):
    """Nothing is wider than the window."""
    runs = [make_run("bad", BAD), make_run("a-run-with-a-rather-long-name", GOOD)]
    page = write_report(runs, tmp_path / "report.html")
    probe = """<script>addEventListener("load", () => {
        document.body.dataset.seen = document.documentElement.scrollWidth <= innerWidth ? "fits" : "too wide";
    });</script></body>"""
    page.write_text(page.read_text().replace("</body>", probe))
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--window-size={width},900", "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 'data-seen="fits"' in result.stdout
    assert "CONSOLE" not in result.stderr


def test_differences_of_words():
    assert differences("ein Hund bellt .", "ein großer Hund .") == [
        Part("same", "ein"),
        Part("missing", " großer"),
        Part("same", " Hund"),
        Part("extra", " bellt"),
        Part("same", " ."),
    ]
    assert [part.kind for part in differences("猫は寝る", "犬は寝る")] == ["missing", "extra", "same"]


def test_samples_go_from_worst_to_best_and_to_contrasts():
    texts = [("source", "the dog sees a cat")] * 5
    ours = ["no", "the dog sees a cat", "a dog", "the dog", "the dog sees"]
    theirs = ["no", "the dog sees a cat", "a dog", "the dog", "zzz"]
    samples = choose_samples(texts, {0: ours, 2: theirs}, shown=2)
    assert [(sample.line, sample.rank, sample.contrast) for sample in samples[:3]] == [
        (1, 0.0, False),
        (2, 1.0, False),
        (5, 0.75, True),
    ]
    assert [translation.run for translation in samples[0].translations] == [0, 2]


def test_axes_and_charts_of_unusual_values():
    assert Axis([0.0, 8.2], 0, 100, rounded=True).ticks() == [0, 2, 4, 6, 8, 10]
    assert Axis([0.4, 9.0], 0, 100, log=True).ticks() == [0.5, 1, 2, 5]
    assert Axis([1e-4, 10], 0, 100, log=True).ticks() == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1, 10])
    assert line_chart("nothing", {0: {1.0: float("nan")}}) == ""
    assert "<circle" in line_chart("one point", {0: {1.0: 0.0}})
    many = line_chart("many points", {0: {float(step): 1.0 for step in range(41)}})
    assert many.count('class="run0 hidden"') == many.count("<title>update") == 41
    assert heat_map("nothing", {}) == ""
    assert heat_map("one", {"layer 1": {1.0: 0.0}, "<2>": {}}).count("<rect") == 1 + 9
