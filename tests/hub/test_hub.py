"""Push and pull against a local stand-in for the Hub. Each client runs in its own process."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from support.processes import run_forked
from support.stand_in import TOKEN, Hub, Repository
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from transformers import pipeline

from residual_hf.checkpoint import save_checkpoint
from residual_hf.model.checksums import CHECKSUMS

CARD = "---\nlibrary_name: transformers\npipeline_tag: translation\ntags: [translation]\n---\n# German to English\n"
LENGTH = 8

START = f"""
import json, os, sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1024  # so that a small file arrives in several pieces
sentences = {SENTENCES!r}

def translations(name, task="translation", **arguments):
    from transformers import pipeline
    return pipeline(task, model=name, device="cpu", **arguments)(sentences, max_new_tokens={LENGTH})
"""
WITHOUT_THE_PACKAGE = 'import sys\nsys.modules["residual_hf"] = None  # where it is installed too\n'
ERRORS = """
import contextlib, io
from residual_hf.cli import main

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return [code, out.getvalue(), err.getvalue()]
"""


@pytest.fixture(scope="module")
def hub():
    with Hub() as server:
        server.full.add("somebody/full")
        server.broken.add("somebody/broken")
        yield server


def process(script, hub, place, **values):
    """What a script prints as JSON, in a process whose Hub is the stand-in; `values` are its first variables."""
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(place / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    assigned = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HF_", "TRANSFORMERS_"))]:
            patch.delenv(name)
        done = run_forked("-c", assigned + script, cwd=place, **settings)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs with other weights, and what each translates."""
    tokenizer, place = tiny_tokenizer(), tmp_path_factory.mktemp("runs")
    found = {}
    for name, scale in (("first", 1.0), ("second", -1.0)):
        model = tiny_model(tokenizer, source_lang="de", target_lang="en")
        model.lm_head.weight.data.mul_(scale)
        save_checkpoint(model, tokenizer, place / name / "model")
        (place / name / "model" / "README.md").write_text(CARD)
        (place / name / "model" / "training_args.bin").write_bytes(b"a pickle")
        (place / name / "metrics.json").write_text("{}")
        translate = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
        found[name] = (place / name, translate(SENTENCES, max_new_tokens=LENGTH))
    assert found["first"][1] != found["second"][1]
    return found


PUSH = """
answers = {"first": run("push", first, "somebody/de-en"),
           "second": run("push", second, "somebody/de-en", "--revision", "second"),
           "again": run("push", first, "somebody/de-en"),
           "private": run("push", first, "somebody/secret", "--private"),
           "full": run("push", first, "somebody/full"),
           "broken": run("push", first, "somebody/broken"),
           "older": run("push", first, "somebody/older"),
           "public": run("push", first, "somebody/de-en", "--private"),
           "licence": run("push", licensed, "somebody/licensed")}

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
AutoModelForSeq2SeqLM.from_pretrained(first + "/model").push_to_hub("somebody/parts")
AutoTokenizer.from_pretrained(first + "/model").push_to_hub("somebody/parts")
pipeline("translation", model=first + "/model", device="cpu").push_to_hub("somebody/pipe")

os.environ["HF_TOKEN"] = "hf_wrong"
answers["wrong token"] = run("push", first, "somebody/other")
del os.environ["HF_TOKEN"]
answers["no token"] = run("push", first, "somebody/other")
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def pushed(hub, runs, tmp_path_factory):
    folders = {name: str(folder) for name, (folder, _) in runs.items()}
    folders["licensed"] = shutil.copytree(folders["first"], tmp_path_factory.mktemp("licensed") / "run").as_posix()
    Path(folders["licensed"], "model", "README.md").write_text(CARD.replace("tags:", "license: my-licence\ntags:"))
    hub.repositories["somebody/older"] = Repository()
    hub.repositories["somebody/older"].commit("main", {CHECKSUMS: b"{}", "notes.txt": b"mine"})
    answers = process(START + ERRORS + PUSH, hub, tmp_path_factory.mktemp("pushing"), **folders)
    files = hub.repositories["somebody/secret"].commits[hub.repositories["somebody/secret"].branches["main"]]
    for name, private, held in (("empty", False, ["config.json"]), ("hidden", True, list(files))):
        repository = hub.repositories[f"somebody/{name}"] = Repository(private=private)
        repository.commit("main", {name: files[name] for name in held})
    return answers


def test_a_push_is_one_commit_of_what_belongs_to_the_model(hub, runs, pushed):
    folder, _ = runs["first"]
    code, out, err = pushed["first"]
    assert code == 0, err
    repository = hub.repositories["somebody/de-en"]
    oid, paths = repository.log[1]  # after the one that the Hub makes
    assert f"{hub.url}/somebody/de-en (commit {oid})" in out and f"not uploaded: {CHECKSUMS}, training_args.bin" in out
    left_out = {CHECKSUMS, "training_args.bin"}
    assert paths == sorted({path.name for path in (folder / "model").iterdir()} - left_out)
    assert {name: repository.commits[oid][name] for name in paths} == {
        name: (folder / "model" / name).read_bytes() for name in paths
    }


def test_no_record_of_files_that_others_replace_is_left_there(hub, pushed):
    """`model.push_to_hub` replaces the weights, but would leave the record of former ones, and so a damaged model."""
    assert pushed["older"][0] == 0, pushed["older"]
    repository = hub.repositories["somebody/older"]
    files = repository.commits[repository.branches["main"]]
    assert {"config.json", "notes.txt"} < {*files} and CHECKSUMS not in files


def test_a_revision_is_a_branch_and_the_same_again_no_commit(hub, pushed):
    for case in ("second", "again", "private"):
        assert pushed[case][0] == 0, pushed[case]
    repository = hub.repositories["somebody/de-en"]
    branches = repository.branches
    assert f"{hub.url}/somebody/de-en/tree/second (commit {branches['second']})" in pushed["second"][1]
    assert branches["main"] != branches["second"] and pushed["again"][1] == pushed["first"][1]
    assert len(repository.log) == 3  # the Hub's own, and one for each branch
    assert hub.repositories["somebody/secret"].private and not repository.private


@pytest.mark.parametrize(
    ("case", "commits", "message"),
    [
        ("wrong token", 0, "somebody/other: the token is missing or not valid: run `hf auth login`"),
        ("no token", 0, "somebody/other: the token is missing or not valid: run `hf auth login`"),
        ("licence", 1, 'somebody/licensed: nothing was committed: Invalid metadata in README.md. - "license" must'),
        ("full", 1, "somebody/full: nothing was committed: .*storage limit reached"),
        ("broken", 1, "somebody/broken: nothing was committed: .*model.safetensors"),
        ("public", 3, "somebody/de-en: exists and is public"),
    ],
)
def test_a_push_that_fails_commits_nothing(hub, pushed, case, commits, message):
    code, out, error = pushed[case]
    assert code == 2 and out == "" and "Traceback" not in error and re.search(message, error)
    repository = hub.repositories.get(message.partition(":")[0])
    assert len(repository.log if repository else ()) == commits  # the Hub's own, and those of earlier pushes


PULL = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

def ids(name, **arguments):
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **trusted, **arguments)
    batch = AutoTokenizer.from_pretrained(name, **trusted, **arguments)(sentences, padding=True, return_tensors="pt")
    return model.generate(**batch, max_new_tokens=8).tolist()

name = "somebody/de-en"
pulls = {"first": lambda: translations(name, **trusted),
         "second": lambda: translations(name, revision="second", **trusted),
         "pinned": lambda: translations(name, revision=pinned, **trusted),
         "pair": lambda: translations(name, "translation_de_to_en", **trusted),
         "private": lambda: translations("somebody/secret", **trusted),
         "parts": lambda: translations("somebody/parts", **trusted),
         "pipe": lambda: translations("somebody/pipe", **trusted),
         "ids": lambda: [ids(name), ids(name, revision="second")],
         "ids of second": lambda: ids(name, revision="second")}
answers = {case: pulls[case]() for case in cases}
"""
REFUSED = """
sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"zwei Katzen\\n")))
answers["errors"] = {"empty": run("translate", "somebody/empty"), "nowhere": run("translate", "somebody/nowhere")}
os.environ["HF_TOKEN"] = "hf_wrong"
answers["errors"]["wrong token"] = run("translate", "somebody/empty")
del os.environ["HF_TOKEN"]
answers["errors"]["private"] = run("translate", "somebody/hidden")
"""
PRINT = "print(json.dumps(answers))\n"
EVERY_CASE = ["first", "second", "pinned", "pair", "private", "parts", "pipe", "ids"]
WITHOUT_THE_PACKAGE_CASES = ["first", "pair", "parts", "pipe", "ids of second"]  # each imports the downloaded code


@pytest.fixture(scope="module")
def with_the_package(hub, runs, pushed, tmp_path_factory):
    """What a process with residual_hf downloads; its first download of weights breaks off in the middle."""
    hub.cut.add("model.safetensors")
    script = START + ERRORS + "import residual_hf\ntrusted = {}\n" + PULL + REFUSED + PRINT
    place = tmp_path_factory.mktemp("pulling")
    pinned = hub.repositories["somebody/de-en"].branches["second"]
    return process(script, hub, place, pinned=pinned, cases=EVERY_CASE)


def expected(runs, answers):
    first, second = (translations for _, translations in runs.values())
    named = dict.fromkeys(("first", "pair", "private", "parts", "pipe"), first)
    named |= dict.fromkeys(("second", "pinned"), second)
    found = {case: answer for case, answer in answers.items() if case in named}
    assert found == {case: named[case] for case in found}


def test_what_was_pushed_is_what_is_pulled(runs, with_the_package):
    expected(runs, with_the_package)


def test_a_download_that_broke_off_is_resumed(hub, with_the_package):
    assert not hub.cut
    path, start = hub.ranges[0].split()
    assert path == "model.safetensors" and int(start) > 0


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("empty", "somebody/empty"),
        ("nowhere", "somebody/nowhere"),
        ("wrong token", "somebody/empty"),
        ("private", "somebody/hidden"),
    ],
)
def test_what_cannot_be_pulled_is_named(with_the_package, case, message):
    code, out, error = with_the_package["errors"][case]
    assert code == 2 and out == ""
    assert f"model {message}: no such folder, and as a name on the Hub cannot be loaded" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_without_the_package(hub, runs, pushed, with_the_package, tmp_path):
    script = START + WITHOUT_THE_PACKAGE + "trusted = {'trust_remote_code': True}\n" + PULL + PRINT
    answers = process(script, hub, tmp_path, cases=WITHOUT_THE_PACKAGE_CASES)
    expected(runs, answers)
    of_first, of_second = with_the_package["ids"]
    assert answers["ids of second"] == of_second != of_first
