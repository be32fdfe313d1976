"""`residual-hf translate` as its users see it."""

import builtins
import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from support.tiny_translator import SENTENCES, save_tiny, stdin, tiny_model, tiny_tokenizer

from residual_hf.base.lock import Lock
from residual_hf.checkpoint import save_checkpoint
from residual_hf.cli import main
from residual_hf.generation import resumable_file, stream
from residual_hf.generation.devices import run_on_devices
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.generation.stream import Review, translate_stream
from residual_hf.generation.translator import Hypothesis, Translator

LINES = [*SENTENCES, "", *SENTENCES[::-1], "zwei"]
LONG = " ".join(SENTENCES * 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config.num_beams = 3
    return save_checkpoint(model, tokenizer, tmp_path_factory.mktemp("stream") / "model")


@pytest.fixture(scope="module")
def expected(model):
    return Translator.from_pretrained(model).translate(LINES)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    return tmp_path / "in"


@pytest.fixture
def translate(model, source, capsysbinary):
    """Exit code, lines of standard output and standard error of the command."""

    def run(*arguments, model=model):
        code = main(["translate", str(model), *map(str, arguments)])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode().splitlines(), captured.err.decode()

    return run


@pytest.mark.parametrize(("window", "tokens"), [(1, 12_000), (3, 100_000), (100, 1)])
def test_lines_keep_their_order_in_any_window_and_batch(translate, source, expected, window, tokens):
    assert translate("--input", source, "--window", window, "--batch-tokens", tokens) == (0, expected, "")


def test_without_a_terminal_lines_tell_the_progress(translate, source, expected, monkeypatch):
    monkeypatch.setattr(stream, "SECONDS_BETWEEN", 0.0)
    code, lines, error = translate("--input", source, "--window", 4)
    assert (code, lines) == (0, expected)
    found = re.findall(r"\d\d translated (.*)", error)
    assert found == ["4 of 10 (40%) lines", "8 of 10 (80%) lines", "10 of 10 (100%) lines"]


def test_paragraphs_are_split_into_sentences(translate, expected, tmp_path, model):
    pytest.importorskip("sentencex", reason="the extra [documents] is not installed")
    dog, _, cats, _ = SENTENCES
    lines = [f"1. Zwei Katzen. {dog}.  {cats}.", "", "12", f"{LONG}. {LONG}."]
    (tmp_path / "paragraphs").write_text("\n".join(lines) + "\n")
    arguments = ("--input", tmp_path / "paragraphs", "--split-sentences", "--scores", "--num-return-sequences", 2)
    code, written, error = translate(*arguments)
    assert (code, len(written), error) == (0, 8, "")
    translator = Translator.from_pretrained(model)
    found = translator.hypotheses(["Zwei Katzen.", f"{dog}.", f"{cats}."], 2)
    for rank in range(2):
        texts, scores = zip(*((best[rank].text, best[rank].score) for best in found), strict=True)
        assert written[rank] == f"{sum(scores) / 3:.4f}\t1. {texts[0]} {texts[1]}  {texts[2]}"
    assert written[2:6] == ["0.0000\t", "0.0000\t", "0.0000\t12", "0.0000\t12"]
    aligned = translate("--input", tmp_path / "paragraphs", "--split-sentences", "--alignments")[1]
    assert aligned[0].split("\t")[0].startswith("1. ") and re.fullmatch(r"(\d+-\d+ ?)+", aligned[0].split("\t")[1])


def test_standard_input_is_read_as_files_are(translate, source, expected, monkeypatch):
    content = source.read_bytes()
    for given in (b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), gzip.compress(content)):
        monkeypatch.setattr(sys, "stdin", stdin(given))
        assert translate() == (0, expected, "")
    monkeypatch.setattr(sys, "stdin", stdin("zwei\ngr\xfcn\n".encode("latin-1")))
    code, lines, error = translate("--window", 1)
    assert code == 2 and len(lines) == 1
    assert "standard input: line 2, byte 3 (0xFC) is not UTF-8" in error


def test_a_named_pipe_is_read_once(translate, source, expected, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(source.read_bytes()), daemon=True).start()
    assert translate("--input", tmp_path / "pipe") == (0, expected, "")


def test_output_grows_and_an_interrupted_one_is_continued(translate, source, expected, tmp_path, monkeypatch):
    answer, calls, output = Translator.answer, [], tmp_path / "out"

    def interrupt(self, sentences, request):
        calls.append(sentences)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(self, sentences, request)

    arguments = ["--input", source, "--output", output, "--window", 4]
    monkeypatch.setattr(Translator, "answer", interrupt)
    code, _, error = translate(*arguments)
    assert code == 130 and not output.exists()
    partial = tmp_path / "out.partial"
    assert partial.read_text().splitlines() == expected[:8]
    with open(partial, "a") as file:  # killed in the middle of a line
        file.write("half a li")
    code, _, error = translate(*arguments)
    assert code == 2 and "out.partial is from an interrupted run; use --resume or --overwrite" in error
    code, _, error = translate(*arguments, "--resume", "--num-beams", 2)
    assert code == 2 and "was made with num_beams None, now 2" in error
    changed = tmp_path / "changed"
    changed.write_text("\n".join(["neu", *LINES[1:]]))
    code, _, error = translate("--input", changed, "--output", output, "--resume")
    assert code == 2 and "the first 8 lines of the input are not those of" in error
    record = tmp_path / "out.partial.json"
    content, recorded = partial.read_text(), record.read_text()
    was_changed = "out.partial was changed after it was written; use --overwrite"
    for file, damaged, message in (
        (partial, content[:5], was_changed),  # as a power failure leaves it
        (partial, content.replace(content[:1], "#", 1), was_changed),
        (record, recorded.replace('"glossary": null', '"glossary": "0f"'), "was made with glossary '0f', now None"),
        (record, "{}", "out.partial.json: made_with: missing"),
        (record, recorded.replace(": 8", ": -8"), "out.partial.json: lines: -8 given"),
        (record, "", "out.partial.json: not JSON"),
    ):
        file.write_text(damaged)
        code, _, error = translate(*arguments, "--resume")
        assert code == 2 and message in error
        partial.write_text(content)
        record.write_text(recorded)
    assert translate(*arguments, "--resume") == (0, [], "")
    assert calls[3:] == [LINES[8:]]
    assert output.read_text().splitlines() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed", "in", "out"]
    code, _, error = translate(*arguments, "--resume")
    assert code == 2 and "nothing to continue" in error and "out is complete, --overwrite replaces it" in error
    record.write_text(recorded)  # as a run leaves it that is killed once the output has its name
    code, _, error = translate(*arguments, "--resume")
    assert code == 2 and "out is complete, --overwrite replaces it" in error
    assert translate("--input", source, "--resume")[0] == 2


def test_a_first_window_that_could_not_be_written_is_continued(translate, source, expected, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    arguments = ["--input", source, "--output", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(resumable_file, "open", fail, raising=False)
        code, _, error = translate(*arguments)
    assert code == 1 and "No space left on device" in error
    assert f"{tmp_path / 'out.partial'}: a file could not be written" in error
    assert translate(*arguments, "--resume") == (0, [], "")
    assert (tmp_path / "out").read_text().splitlines() == expected


def test_several_translations_with_scores(translate, source, expected):
    code, lines, _ = translate("--input", source, "--num-return-sequences", 3, "--scores")
    rows = [line.split("\t") for line in lines]
    assert code == 0 and [text for _, text in rows[::3]] == expected
    scores = [float(score) for score, _ in rows]
    assert all(scores[i] >= scores[i + 1] >= scores[i + 2] for i in range(0, len(rows), 3))


def test_columns_after_a_translation(translate, source, expected, model):
    plain = Translator.from_pretrained(model).hypotheses(LINES, alignments=True)
    code, lines, error = translate("--input", source, "--scores", "--alignments", "--word-scores", "--flags")
    assert code == 0 and error == ""
    for line, translation, (best,) in zip(lines, expected, plain, strict=True):
        score, text, links, words, flags = line.split("\t")
        assert (score, text, links) == (f"{best.score:.4f}", translation, str(best.alignment))
        assert [float(word) for word in words.split()] == pytest.approx(best.alignment.word_scores, abs=1e-4)
        assert len(words.split()) == len(text.split())
        assert "repetition" in flags if translation else flags == links == words == ""
    assert translate("--input", source, "--flags")[1] == ["\t".join(line.split("\t")[1::3]) for line in lines]


def test_review_lists_the_worst_lines(translate, source, model, monkeypatch):
    worst = {3: ("zwei 12 13", "two 12", -0.1), 4: ("ein Hund", "a dog", -9.0), 1: ("ja", "yes", -0.5)}
    lines = ["ja", "nein", "zwei 12 13", "ein Hund", ""]
    found = {source: Hypothesis(text, score) for source, text, score in worst.values()}
    found |= {"nein": Hypothesis("no", -0.2), "": Hypothesis("", 0.0)}
    monkeypatch.setattr(Translator, "answer", lambda self, window, request: [[found[line]] for line in window])
    source.write_text("\n".join(lines) + "\n")
    for window in (1, 100):
        code, out, error = translate("--input", source, "--review", 3, "--window", window)
        assert code == 0 and out == [found[line].text for line in lines]
        assert error.splitlines() == [
            "1 of 5 lines are suspicious; look first at",
            *("line 3, score -0.1000, numbers", "  zwei 12 13", "  two 12"),
            *("line 4, score -9.0000", "  ein Hund", "  a dog"),
            *("line 1, score -0.5000", "  ja", "  yes"),
        ]
    review = Review(2)
    review.add(1, ["", " "], [Hypothesis("", 0.0)] * 2)  # without words
    assert str(review) == "0 of 2 lines are suspicious"
    assert str(Review(2, done=7)) == "0 of 0 lines after the 7 that were translated before are suspicious"


def test_sampling_follows_the_seed_and_its_settings(translate, source):
    def sample(*arguments):
        code, lines, _ = translate("--input", source, "--sample", *arguments)
        assert code == 0 and lines[4] == ""
        return lines

    assert sample() == sample("--seed", 1) != sample("--seed", 2)
    greedy = translate("--input", source, "--num-beams", 1)[1]
    assert sample("--top-k", 1) == sample("--temperature", "0.001") == greedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-k", 3], "--top-k: 3 given, must be absent without --sample"),
        (["--sample", "--num-beams", 3], "--num-beams: 3 given, must be absent with --sample"),
        (["--seed", 3], "--seed: 3 given, must be absent without --sample"),
        (["--split-sentences", "--long", "skip"], "--long: 'skip' given, must be error or split with --split-"),
        (["--output", "out.gz"], "--output: out.gz given, must be the name of an uncompressed file"),
        (["--num-return-sequences", 0], "--num-return-sequences: 0 given, must be an integer >= 1"),
        (["--window", 0], "window: 0 given"),
        (["--input", "nowhere"], "no such file: nowhere"),
        (["--target-lang", "xx"], "source_lang, target_lang: this model does not translate de to xx"),
    ],
)
def test_settings_are_checked(translate, source, model, tmp_path, arguments, message):
    if "xx" in arguments:
        model = save_tiny(tmp_path / "model", source_lang="de", target_lang="en")
        source.write_text("")  # refused without a line to translate
    arguments = arguments if "--input" in arguments else ["--input", source, *arguments]
    code, lines, error = translate(*arguments, model=model)
    assert code == 2 and lines == [] and message in error


def test_long_lines(translate, source, expected, tmp_path):
    source.write_text("\n".join([SENTENCES[0], LONG, *SENTENCES[1:], LONG]))
    output = tmp_path / "out"
    code, lines, error = translate("--input", source, "--output", output, "--window", 2)
    assert code == 2 and f"{source}: line 2 has" in error and "use the option --long truncate, split or skip" in error
    assert not output.with_name("out.partial").exists()  # found before the first translation
    code, lines, error = translate("--input", source, "--long", "skip", "--window", 2)
    assert lines == [expected[0], "", *expected[1:4], ""]
    assert error == "lines with more than 64 tokens, skipped: 2 (line 2, 6)\n"
    for treatment, verb in {"truncate": "truncated", "split": "split"}.items():
        code, lines, error = translate("--input", source, "--long", treatment)
        assert code == 0 and len(lines) == 6 and lines[1] == lines[5] != "" and verb in error


def test_a_terminal_is_translated_line_by_line(translate, expected, monkeypatch, capsysbinary):
    typed, shown = [SENTENCES[0], LONG, SENTENCES[1]], []

    def read(prompt):
        shown.append(capsysbinary.readouterr().out.decode())
        if not typed:
            raise EOFError
        return typed.pop(0)

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(builtins, "input", read)
    assert translate()[0] == 0
    assert shown == ["", f"{expected[0]}\n", "", f"{expected[1]}\n"]  # the line that is too long was reported


@pytest.mark.slow
def test_several_processes_write_what_one_writes(model, source, expected, tmp_path):
    command = [sys.executable, "-m", "residual_hf.cli", "translate", str(model), "--devices", "2", "--window", "6"]
    with open(source) as lines:
        finished = subprocess.run(command, stdin=lines, capture_output=True, text=True, timeout=200)
    assert (finished.returncode, finished.stdout.splitlines()) == (0, expected), finished.stderr


SEARCHED = """
import sys
from residual_hf.generation import decode
from residual_hf.cli import main

batch, searched = decode.search_batch, []
decode.search_batch = lambda model, rows, *args, **kwargs: searched.extend(rows) or batch(model, rows, *args, **kwargs)
code = main(sys.argv[1:])
print(len(searched), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
def test_each_of_several_processes_searches_a_share(model, source, tmp_path, monkeypatch, capfd):
    popen = subprocess.Popen
    started = lambda command, **options: popen([sys.executable, "-c", SEARCHED, *command[3:]], **options)  # noqa: E731
    monkeypatch.setattr("residual_hf.generation.devices.subprocess.Popen", started)
    assert run_on_devices(2, ["translate", str(model), "--input", str(source), "--num-beams", "1"]) == 0
    mine = int(capfd.readouterr().err.splitlines()[-1])
    assert 0 < mine < len(source.read_text().splitlines())


def test_every_process_continues_the_samples_of_an_interrupted_run(monkeypatch):
    messages = iter([[6, False], [["zwei"]], [[]]])  # of the first process: lines that are done, and windows
    seeds, receive = [], lambda values: values.__setitem__(slice(None), next(messages))
    monkeypatch.setattr(stream, "broadcast_object_list", receive)
    second = SimpleNamespace(is_main_process=False, process_index=1)
    monkeypatch.setattr(stream, "this_process", lambda **options: second)
    monkeypatch.setattr(stream.torch, "manual_seed", seeds.append)
    inputs, model = SimpleNamespace(positions=8), SimpleNamespace(device=torch.device("cpu"))
    translator = SimpleNamespace(inputs=inputs, model=model, answer=lambda sentences, request: None, glossary=None)
    translate_stream(translator, iter([]), print, StreamSettings(sample=True, seed=3))
    assert seeds == [3 + 6 + (1 << 32)]


def test_an_error_in_several_processes_is_shown_once(capfd):
    assert run_on_devices(3, ["translate"]) == 2
    assert capfd.readouterr().err.count("the following arguments are required: model") == 1


def test_processes_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "argparse.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert run_on_devices(1, ["--version"]) == 0


def test_the_process_that_failed_first_is_the_one_that_is_shown(capfd, monkeypatch):
    code = "import os, sys, time; rank = int(os.environ['RANK']); time.sleep(0.5 * (not rank)); "
    code += "sys.exit(f'lost another' if rank == 0 else 'the disk is full')"
    popen = subprocess.Popen
    started = lambda command, **options: popen([sys.executable, "-c", code], **options)  # noqa: E731
    monkeypatch.setattr("residual_hf.generation.devices.subprocess.Popen", started)
    assert run_on_devices(2, ["translate"]) == 1
    assert "the disk is full" in capfd.readouterr().err


def test_an_output_is_kept_from_other_processes_and_files(translate, source, tmp_path):
    output = tmp_path / "out"
    with Lock(tmp_path / "out.partial.lock", "--output"):
        code, _, error = translate("--input", source, "--output", output, "--overwrite")
    assert code == 2 and f"--output: {output} is in use by" in error
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "out.partial").symlink_to(tmp_path / "notes")
    code, _, error = translate("--input", source, "--output", output)
    assert code == 2 and "out.partial exists, where the output would grow" in error
    assert translate("--input", source, "--output", output, "--overwrite")[0] == 0
    assert (tmp_path / "notes").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "notes", "out"]


def test_an_input_with_the_name_of_the_partial_output_is_kept(translate, tmp_path):
    source = tmp_path / "out.partial"
    source.write_text(SENTENCES[0])
    code, _, error = translate("--input", source, "--output", tmp_path / "out", "--overwrite")
    assert code == 2 and "out.partial is the input" in error and source.read_text() == SENTENCES[0]


def test_an_output_in_the_folder_of_its_model_is_continued(tmp_path):
    options = {"made_with": {}, "inputs": [tmp_path]}
    with resumable_file.ResumableFile(tmp_path / "out", **options) as file:
        file.append(["zwei"], "two\n")
    with resumable_file.ResumableFile(tmp_path / "out", resume=True, **options) as file:
        assert file.lines == 1


def test_the_record_says_what_a_partial_file_is_made_with(translate, source, tmp_path, model):
    output = tmp_path / "out"
    source.write_text("\n".join([*SENTENCES, LONG]))
    assert translate("--input", source, "--output", output, "--long", "split")[0] == 0
    output.unlink()
    (tmp_path / "late").write_text(f"{SENTENCES[0]}\n{LONG}\n")
    with open(tmp_path / "late") as lines:
        sys.stdin, before = lines, sys.stdin
        try:
            code, _, error = translate("--output", output, "--window", 1)
        finally:
            sys.stdin = before
    assert code == 2 and "line 2 has" in error
    record = json.loads((tmp_path / "out.partial.json").read_text())
    assert record["lines"] == 1 and record["made_with"]["model"] == str(model)
    assert translate("--input", tmp_path / "late", "--output", output, "--long", "split", "--resume")[0] == 0
    assert len(output.read_text().splitlines()) == 2
