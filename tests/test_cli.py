import argparse
import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from support.files import write_metric
from support.processes import run_forked, run_python
from support.tiny_translator import SENTENCES, stdin

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.base.lock import Lock
from residual_hf.cli import GROUPS, main
from residual_hf.commands import imports, training, using
from residual_hf.commands.arguments import add_field, add_fields, given_fields, print_scores
from residual_hf.model import connections
from residual_hf.model.options import option


def test_imports_show_no_warnings_and_leave_the_garbage_collector_as_it_was(monkeypatch, caplog):
    frozen = gc.get_freeze_count()
    with imports():
        pass
    assert gc.get_freeze_count() <= frozen  # this process has more than modules
    monkeypatch.delitem(sys.modules, "torch")
    log = logging.getLogger("torchao")
    try:
        with pytest.raises(ImportError), imports():
            log.warning("Failed to load an extension")
            log.error("an error")
            raise ImportError
        assert gc.isenabled()
        log.warning("a warning")
    finally:
        gc.unfreeze()
    assert [record.message for record in caplog.records] == ["an error", "a warning"]


def files_of(folder, source, reference=None):
    """The options of `evaluate` for a test set, whose files are written."""
    for name, text in (("source", source), ("reference", reference or source)):
        (folder / name).write_text(text, encoding="utf-8")
    return ["--source", str(folder / "source"), "--reference", str(folder / "reference")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "corpus.ne"], "no such file: corpus.ne; did you mean corpus.en?"),
        (["train", "x.yml"], "no such file: x.yml"),
    ],
)
def test_a_missing_file_is_named_before_libraries_load(monkeypatch, tmp_path, refused, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.en").touch()
    monkeypatch.setattr(training, "load_package", lambda: pytest.fail("loads PyTorch"))
    refused(message, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.en", "text.de", "--trial", "-1"], "--trial: -1.0 given, must be a number >= 0"),
        (["text.en", "text.de", "--trial", "nan"], "--trial: nan given, must be a number >= 0"),
        (["text.en", "text.de", "--target-lang", "en"], "--target-lang: 'en' given, must differ"),
        (["text.en", "text.de", "--target-lang", "../x"], "--target-lang: '../x' given, must be a language code"),
        (["text.en", "pairs.csv"], "source: text.en given among 2 files, must be a file of .tmx"),
        (["text.en", "text.de", "pairs.csv"], "source: text.en given among 3 files, must be a file of .tmx"),
        (["text.en"], "file: 'text.en' given, must be *.tmx"),
        (["pairs.csv", "--source-column", "fr", "--target-column", "de"], "pairs.csv: no column 'fr'; the first"),
        (["empty.en", "text.de"], "empty.en has 0 lines, but text.de has 1"),
        (["text.en", "text.de", "--from", "full"], "--from: full: not a saved model: no config.json in it"),
        (["text.en", "text.de", "--output-dir", "full"], "residual-hf init: --output-dir: full exists and is not "),
        (["text.en", "text.de", "--output-dir=full"], "residual-hf init: --output-dir: full exists and is not empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_init_checks_its_arguments_before_libraries_load(arguments, message, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    for name, text in {"text.en": "one\n", "text.de": "eins\n", "empty.en": "", "pairs.csv": "en,de\na,b\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    monkeypatch.setattr(training, "load_package", lambda: pytest.fail("loads PyTorch"))
    refused(message, "init", *arguments)


def test_the_checks_of_init_need_no_pytorch(tmp_path):
    script = "import sys\nfrom residual_hf_cli import main\nprint(main(sys.argv[1:]), 'torch' in sys.modules)"
    (tmp_path / "text.en").write_text("one\n")
    (tmp_path / "text.de").write_text("eins\n")
    files = ["text.en", "text.de"]
    done = run_python("-c", script, "init", *files, "--from", str(tmp_path), cwd=tmp_path)
    assert done.stdout.split() == ["2", "False"] and "no config.json in it" in done.stderr


@pytest.mark.parametrize("name", ["letter.docx", "page.html", "text.en"])
def test_a_missing_text_is_named_first(name, model_folder, tmp_path, capsys):
    assert main(["translate", str(model_folder), str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"residual-hf translate: no such file: {tmp_path / name}\n"


def test_an_interrupted_run_is_named_with_its_checkpoints(tmp_path, capsys):
    for number in (5, 20):
        (tmp_path / "run" / "checkpoints" / f"checkpoint-{number}").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert main(["translate", str(tmp_path / "run")]) == 2
    places = ", ".join(str(tmp_path / "run" / "checkpoints" / f"checkpoint-{number}") for number in (5, 20))
    expected = f"a run that has not finished: continue it with train --resume, or use a checkpoint: {places}"
    assert expected in capsys.readouterr().err


def test_scores_are_a_line_and_a_table(capsys):
    bleu = {"value": 12.345678, "signature": "nrefs:1", "baseline": 9.5, "p_value": 0.0123456}
    report = {"updates": 2000, "valid": {"nll": 2.18123456, "bleu": bleu, "corpora": {"one": {"nll": 1.0}}}}
    report["test"] = {"ppl": 3.0, "metrics": {"rouge": {"rouge1": 0.5}}}
    print_scores(report, argparse.Namespace(json=False))
    printed = capsys.readouterr().out
    assert "12.35" in printed and "12.345" not in printed
    lines = [re.split(" {2,}", line) for line in printed.splitlines()]
    assert lines[0] == ["test rouge rouge1 0.500; valid bleu 12.35"]
    assert lines[2] == ["", "valid", "valid one", "test"] and ["nll", "2.181", "1.000"] in lines
    assert ["bleu p_value", "0.012"] in lines and lines[-1] == ["bleu: nrefs:1"]
    print_scores(report, argparse.Namespace(json=True))
    assert json.loads(capsys.readouterr().out) == report


def test_evaluate_scores_several_test_sets_and_writes_translations(model_folder, tmp_path, capsys, refused):
    for name, lines in (("one", SENTENCES[:3]), ("two", SENTENCES[3:])):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [
        word
        for name in ("one", "two")
        for word in ("--source", str(tmp_path / f"{name}.de"), "--reference", str(tmp_path / f"{name}.en"))
    ]
    scores = tmp_path / "scores"
    chosen = ["--output-dir", str(scores), "--baseline", str(model_folder), "--tokenize", "char", "--num-beams", "1"]
    evaluate = ["evaluate", str(model_folder), *files]
    assert main([*evaluate, *chosen, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    one, two = printed["corpora"]["one"], printed["corpora"]["two"]
    assert set(one) == {"bleu", "chrf", "chrf++", "ter", "bleu_lowercase", "sentences", "seconds"}
    assert all("version:" in one[name]["signature"] for name in ("bleu", "chrf", "chrf++", "ter"))
    assert printed["bleu"]["value"] == (one["bleu"]["value"] + two["bleu"]["value"]) / 2
    assert (one["sentences"], two["sentences"]) == (3, 1) and one["seconds"] > 0
    assert "tok:char" in one["bleu"]["signature"] and one["bleu"]["p_value"] == 1.0  # the model against itself
    assert len((scores / "one.translations.txt").read_text(encoding="utf-8").splitlines()) == 3
    record = json.loads((scores / "scores.json").read_text(encoding="utf-8"))
    assert record["scores"] == printed and record["decoding"]["num_beams"] == 1
    assert len(record["sha256"]) == 4
    refused("--output-dir", *evaluate, *chosen)
    assert main(["evaluate", str(model_folder), *files[:4], "--output-dir", str(scores), "--overwrite"]) == 0
    assert {path.name for path in scores.iterdir()} == {"scores.json", "one.translations.txt"}
    refused("must be a model if there are several test sets", *evaluate, "--baseline", tmp_path / "one.en")
    refused("--reference: 2 files given for 3 of --source", *evaluate, "--source", tmp_path / "one.de")


def test_evaluate_detokenizes_text_of_moses(model_folder, tmp_path, capsys):
    files = files_of(tmp_path, f"{SENTENCES[0]}\n", "the cat &apos;s milk , warm .\n")
    (tmp_path / "other").write_text("the cat's milk, warm.\n")
    options = ["--target-lang", "en", "--baseline", str(tmp_path / "other"), "--pretokenized", "moses"]
    assert main(["evaluate", str(model_folder), *files, *options, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["references"] == "detokenized" and scores["tokenized_bleu"]["reference_length"] == 7
    assert scores["ter"]["baseline"] == 0


def test_evaluate_compares_with_a_baseline_and_adds_metrics(model_folder, tmp_path, capsys, refused):
    arguments = ["evaluate", str(model_folder), *files_of(tmp_path, "\n".join(SENTENCES) + "\n")]
    arguments += ["--metric", str(tmp_path / "exact.py")]
    (tmp_path / "short").write_text("one line\n")
    equal = 'sum(map(str.__eq__, inputs["predictions"], inputs["references"])) / len(inputs["references"])'
    write_metric(tmp_path / "exact.py", '"predictions": text, "references": text', f'"exact": {equal}')
    assert main([*arguments, "--baseline", str(tmp_path / "reference"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu"]["baseline"] == pytest.approx(100)
    assert scores["bleu"]["p_value"] == 0.125  # the lowest of four sentences
    assert scores["metrics"] == {str(tmp_path / "exact.py"): {"exact": 0.0}}
    message = f"--baseline: {tmp_path / 'short'}: 1 lines for {len(SENTENCES)} references"
    refused(message, *arguments, "--baseline", tmp_path / "short")
    refused("'not_there' cannot be loaded", *arguments, "--metric", "not_there")


def without(folder, tmp_path, *names):
    return str(shutil.copytree(folder, tmp_path / "damaged", ignore=lambda place, found: names))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda f, t: ["train", str(t / "no.yaml")], "no.yaml"),
        (lambda f, t: ["train", str(t)], "cannot be read: Is a directory"),
        (lambda f, t: ["train", "recipe.yaml", "--set", "seed"], "--set seed: must have the form FIELD=VALUE"),
        (lambda f, t: ["translate", str(t / "nowhere")], "nowhere: no such folder"),
        (lambda f, t: ["translate", str(t)], "no config.json in it"),
        (
            lambda f, t: ["translate", str([(t / f"checkpoint-{n}").mkdir() for n in (2, 10)] and t)],
            "checkpoint-10, of 2 checkpoints",
        ),
        (lambda f, t: ["translate", "nofile.docx"], "no such file: nofile.docx; the model must be before the text"),
        (
            lambda f, t: ["translate", without(f, t, "tokenizer.json", "tokenizer_config.json")],
            "no tokenizer (tokenizer.json) in it",
        ),
        (lambda f, t: ["translate", without(f, t, "tokenizer.json")], "cannot be loaded: tokenizer.json is missing: "),
        (lambda f, t: ["translate", __file__, str(f)], "is a file, must be a folder or a name on the Hub, before the"),
        (lambda f, t: ["train", "a.yaml", "--set", "training.freeze=*"], "put text with special characters into qu"),
        (lambda f, t: ["translate", str(f), "zwei Katzen " * 30], "no such file: zwei Katzen"),
        (lambda f, t: ["translate", str(f), "--num-beams", "0"], "--num-beams: 0 given"),
        (lambda f, t: ["translate", str(f), "--num-beams", "99999"], "--num-beams: 99999 given"),
        (lambda f, t: ["translate", ""], "model: '' given, must be a folder or a name on the Hub"),
        (lambda f, t: ["export", __file__, "--to", "torch", "--output-dir", str(t / "x")], "must be a folder, not a"),
        (lambda f, t: ["translate", str(f), "--device", "meta"], "device 'meta'"),
        (lambda f, t: ["translate", str(f), "--device", "abacus"], "device 'abacus'"),
        (lambda f, t: ["evaluate", str(f), "--source", "a", "--reference", "b"], "no such file: a, b"),
        (lambda f, t: ["evaluate", str(f), "--source", "a.html", "--reference", "b"], "a.html: has no lines of text"),
        (lambda f, t: ["evaluate", str(f), "--source", "a.tsv", "--reference", "b"], "a.tsv: has no lines of text"),
        (lambda f, t: ["quickstart", "--output-dir", str(f)], "exists and is not empty"),
    ],
    ids=lambda value: None if callable(value) else value[:30],
)
def test_bad_input_is_named_and_exits_with_2(model_folder, tmp_path, monkeypatch, refused, arguments, message):
    monkeypatch.setattr(sys, "stdin", stdin(b"zwei Katzen\n"))
    refused(message, *arguments(model_folder, tmp_path))


def test_evaluate_names_the_sentences_that_were_too_long(model_folder, tmp_path, caplog, refused):
    arguments = files_of(tmp_path, f"zwei\n{'Katzen ' * 70}\n", "zwei\ncats\n")
    short = ["--source", str(tmp_path / "reference"), "--reference", str(tmp_path / "reference")]
    refused(f"{tmp_path / 'source'}: line 2 has", "evaluate", model_folder, *short, *arguments)
    assert main(["evaluate", str(model_folder), *arguments, "--long", "truncate"]) == 0
    assert "truncated: 1 (line 2)" in caplog.text


def test_evaluate_warns_about_references_that_cannot_be_right(model_folder, tmp_path, caplog, capsys):
    arguments = files_of(tmp_path, "zwei Katzen\ndrei\n" * 60)
    assert main(["evaluate", str(model_folder), *arguments, "--num-beams", "1"]) == 0
    assert f"{tmp_path / 'source'}: 100% of the pairs have the same text on both sides" in caplog.text


def test_home_is_known_by_its_short_name(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in").write_text("zwei\n")
    assert main(["translate", str(model_folder), "--input=~/in", "--output=~/out"]) == 0
    files = ["--source=~/in", "--reference=~/in"]
    assert main(["evaluate", str(model_folder), *files, "--output-dir=~/scores"]) == 0
    assert (tmp_path / "out").is_file() and (tmp_path / "scores" / "scores.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evalute"], "did you mean 'evaluate'?"),
        (["translate", "run", "--long", "trunkate"], "did you mean 'truncate'?"),
        (["translate", "run", "text", "--sourc-lang=de"], "did you mean '--source-lang'?"),
        (["translate", "run", "text", "--input", "text"], "argument --input: not allowed with argument file"),
        (["translate", "run", "--devices", "0"], "argument --devices: 0 given, must be at least 1"),
        (["translate", "run", "--devices", "x"], "argument --devices: invalid integer value: 'x'"),
        (["average", "run", "--output-dir", "a", "--best", "0"], "argument --best: 0 given, must be at least 1"),
    ],
)
def test_arguments_that_cannot_be_parsed_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_the_newcomer_reads_six_verbs_first_and_each_in_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    groups = dict(re.findall(r"^(\w+):\n((?:  \w+ .*\n)+)", printed, re.MULTILINE))
    assert list(groups) == ["train", "use", "share", "study"]
    verbs = {group: [line.split()[0] for line in lines.splitlines()] for group, lines in groups.items()}
    assert verbs["train"] == ["quickstart", "init", "check", "train", "average", "distill"]
    assert {group: list(members) for group, members in GROUPS.items()} == verbs
    assert max(map(len, printed.splitlines())) <= 80


@dataclass(frozen=True)
class Drawing(InputSettings):
    line_width: float = option(0.5, above=0, help="width in % of the page; see `unit`")
    unit: str = option("mm", choices=("mm", "in"), help="`mm` or `in`, of `line_width`")
    layers: tuple[int, ...] = option((), minimum=1, help="layers to draw")
    seed: int | None = option(None, help="seed of colors")
    grid: bool = option(False, help="draw a grid")


def test_options_are_generated_from_the_declarations_of_settings(capsys):
    parser = argparse.ArgumentParser()
    add_fields(parser, Drawing, "line_width", "unit", "layers", "grid")
    add_field(parser, Drawing, "seed", flag="--color-seed", default="that of the page")

    def parsed(*words):
        return given_fields(Drawing, parser.parse_args(words))

    assert parsed() == Drawing()
    given = parsed("--line-width", "2", "--unit", "in", "--layers", "1", "--layers", "2", "--grid")
    assert given == Drawing(line_width=2.0, unit="in", layers=(1, 2), grid=True)
    assert parser.parse_args(["--color-seed", "3"]).color_seed == 3
    with pytest.raises(InputError, match=r"^--line-width: 0.0 given, must be a number > 0$"):
        parsed("--line-width", "0")
    with pytest.raises(SystemExit):
        parsed("--unit", "km")
    printed = " ".join(parser.format_help().split())
    assert "--line-width X width in % of the page; see --unit (default: 0.5)" in printed
    assert "--unit {mm,in} mm or in, of --line-width (default: mm)" in printed
    assert "--layers N layers to draw; repeatable" in printed and "--grid draw a grid" in printed
    assert "--color-seed N seed of colors (default: that of the page)" in printed


def test_the_command_is_installed():
    printed = run_forked("-m", "residual_hf.cli", "--help").stdout
    assert all(verb in printed for verb in ("train", "translate", "evaluate", "quickstart"))


STARTED = """
import os, sys
from residual_hf_cli import main

code = main(["modes"])
slow = ["transformers.modeling_utils", "transformers.activations", "torch._dynamo", "sacrebleu", "datasets"]
print(code, [name for name in slow if name in sys.modules], os.environ["TQDM_DISABLE"], file=sys.stderr)
"""


def test_modes_are_listed_without_slow_imports_and_a_pipe_gets_no_progress_bars():
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"}
    finished = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, env=environment)
    openmp, _, own = finished.stderr.rpartition("OPENMP DISPLAY ENVIRONMENT END\n")
    assert own == "0 [] 1\n"
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in openmp  # threads block where they wait
    assert "GOMP_SPINCOUNT = '3000'" in openmp  # but not at once


SCRIPT = """
from residual_hf_cli import main
from residual_hf.cli import script_parser

def run(options):
    print("ж")

raise SystemExit(main([], script_parser("", lambda parser: parser.set_defaults(loads=False), run)))
"""


def test_output_is_utf_8_in_every_locale():
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, env=environment)
    assert finished.stdout.decode() == "ж\n", finished.stderr


@pytest.mark.parametrize(("reader", "code"), [("| true", 141), ("> /dev/full", 1)])
def test_short_output_that_cannot_be_written_is_an_error(reader, code):
    command = f"{sys.executable} -c '{SCRIPT}' {reader}; exit ${{PIPESTATUS[0]}}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert finished.returncode == code and "Exception ignored" not in finished.stderr
    assert ("No space left" in finished.stderr) == (code == 1)


OWN = """
from residual_hf import register_ln_mode
from residual_hf.model.ln_modes import PostLN

@register_ln_mode("own_plus")
class OwnPlus(PostLN):
    pass
"""


def test_all_verbs_with_models_or_recipes_import_modes_of_a_user(tmp_path, monkeypatch, capsys):
    file, recipe = tmp_path / "own_plus.py", tmp_path / "recipe.yaml"
    file.write_text(OWN)
    text = {"source": str(tmp_path / "missing.de"), "target": str(tmp_path / "missing.en")}
    values = {"data": {"train": text, "valid": text}, "source_lang": "de", "target_lang": "en"}
    values |= {"output_dir": str(tmp_path / "run"), "model": {"ln_mode": "own_plus"}}
    recipe.write_text(json.dumps(values))
    folder = str(tmp_path / "nothing")
    verbs = {
        "train": [str(recipe)],
        "check": [str(recipe)],
        "distill": [folder, "--recipe", str(recipe), "--output-dir", folder],
    }
    for verb, arguments in verbs.items():
        assert main([verb, *arguments]) == 2
        assert re.search("unknown ln_mode 'own_plus'.*--import FILE", capsys.readouterr().err), verb
    for verb, arguments in verbs.items():
        with monkeypatch.context() as patch:
            patch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
            assert main([verb, *arguments, "--import", str(file)]) == 2
            sys.modules.pop("own_plus")
            assert "own_plus" in connections.LN_MODES, verb
        assert "no such fo" in (error := capsys.readouterr().err) or "no such file" in error, verb
    for verb in (verb for group in GROUPS.values() for verb in group):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert ("--import" in capsys.readouterr().out) == (verb not in ("init", "quickstart", "convert")), verb


def test_distill_refuses_a_glossary_for_several_target_languages(tmp_path, refused):
    values = {"data": {"train": (text := {"source": "a", "target": "b"}), "valid": text, "bidirectional": True}}
    values["data"]["language_tags"] = "source"
    values |= {"source_lang": "de", "target_lang": "en", "output_dir": "o"}
    (tmp_path / "r.yaml").write_text(json.dumps(values))
    arguments = ["--recipe", str(tmp_path / "r.yaml"), "--output-dir", str(tmp_path / "out"), "--glossary", "g.tsv"]
    refused("--glossary: given for de and en, must be for one target language", "distill", "teacher", *arguments)


def test_train_does_not_overwrite_the_file_of_a_mode(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    file, recipe, run = tmp_path / "run" / "own_plus.py", tmp_path / "recipe.yaml", tmp_path / "run"
    run.mkdir()
    file.write_text(OWN)
    (run / "run.json").write_text("{}")
    (tmp_path / "text").write_text("a dog\ntwo cats\n")
    text = {"source": str(tmp_path / "text"), "target": str(tmp_path / "text")}
    values = {"data": {"train": text, "valid": text}, "source_lang": "de", "target_lang": "en", "output_dir": str(run)}
    recipe.write_text(json.dumps(values))
    assert main(["train", str(recipe), "--import", str(file), "--overwrite"]) == 2
    sys.modules.pop("own_plus")
    assert "own_plus.py" in capsys.readouterr().err and file.exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own_bad", "import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("json", OWN, "a module 'json' with other code is in use"),
        ("time", OWN, "a module 'time' with other code is in use"),
    ],
)
def test_file_that_cannot_be_imported_is_named(name, text, message, tmp_path, capsys):
    (tmp_path / f"{name}.py").write_text(text)
    assert main(["modes", "--import", str(tmp_path / f"{name}.py")]) == 2
    assert f"{name}.py" in (error := capsys.readouterr().err) and message in error
    assert sys.modules.get(name) is not None or name == "own_bad"


def test_two_evaluations_do_not_share_a_folder(model_folder, tmp_path, refused):
    files = files_of(tmp_path, "a\n")
    with Lock(tmp_path / ".scores.lock", "scores"):
        refused("scores is in use by", "evaluate", model_folder, *files, "--output-dir", tmp_path / "scores")


def test_a_worker_of_the_server_knows_the_modes_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "served.py").write_text(OWN.replace("own_plus", "served_mode"))
    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    monkeypatch.setattr(using, "load_translator", lambda options, model: connections.get_ln_mode(model))
    monkeypatch.setattr("residual_hf.serving.languages.Languages", lambda translators, *languages: translators)
    options = SimpleNamespace(
        models=["served_mode"], imports=[tmp_path / "served.py"], source_lang="a", target_lang="b"
    )
    assert using.load_languages(options)["served_mode"].name == "served_mode"
    sys.modules.pop("served")
