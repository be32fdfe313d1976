import re

import pytest
from support.finished_run import BAD, GOOD, REFERENCES, content, edit_json, write_lines

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.hub.card import write_card


def test_baseline_that_cannot_be_compared_is_refused(make_run):
    run, base = make_run(), make_run("base", BAD)
    write_lines(base / "test.references.txt", GOOD)
    with pytest.raises(InputError, match="base was scored on other references of data.test"):
        write_card(run, baseline=base)
    write_lines(base / "test.references.txt", REFERENCES)
    write_lines(run / "test.hypotheses.txt", BAD)
    with pytest.raises(InputError, match=r"test.hypotheses.txt has bleu .*, but metrics.json .*not of the same run"):
        write_card(run, baseline=base)
    assert not (run / "model" / "README.md").exists()


def test_files_that_were_cut_are_named(make_run):
    run = make_run()
    (run / "test.hypotheses.txt").write_text("one line\n")
    with pytest.raises(InputError, match=r"test.hypotheses.txt has 1 lines, but test.references.txt \d+: the files"):
        write_card(run)


def test_existing_card_is_kept(make_run):
    run = make_run()
    card = run / "model" / "README.md"
    card.write_text("mine")
    with pytest.raises(InputError, match=r"output: .*README.md exists; use --overwrite or another file"):
        write_card(run)
    assert card.read_text() == "mine"
    write_card(run, overwrite=True)
    assert card.read_text().startswith("---\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["not an id"]}, "datasets: .*not an id"),
        ({"model_name": "a b"}, "name: .*a b"),
        ({"output": "card.txt"}, "output: card.txt given, must end in .md"),
    ],
)
def test_bad_arguments_leave_no_card(make_run, options, message):
    run = make_run()
    with pytest.raises(InputError, match=message):
        write_card(run, **options)
    assert not list((run / "model").glob("*.md")) and not list((run / "model").glob("*.png"))


@pytest.mark.parametrize("missing", ["metrics.json", "recipe.yaml", "run.json", "model/config.json"])
def test_unfinished_run_is_refused(make_run, missing):
    run = make_run()
    (run / missing).unlink()
    with pytest.raises(InputError, match=f"run has no {missing}"):
        write_card(run)


DAMAGED = "run: a record of the run is damaged: "
NO_SCORES = "run/metrics.json: damaged, test must be scores with a `value` each"


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("run.json", {"seed": "seven"}, "run.json: seed: 'seven' given, must be an integer"),
        ("run.json", {"data": {"train": [{"pairs": 1}]}}, "run.json: data.train.name: missing, must be text"),
        ("run.json", {"speed": 1}, "run.json: speed: unknown field; did you mean 'seed'?"),
        ("metrics.json", {"updates": {"a": 1}}, DAMAGED),
        ("cleaning.json", {"dropped": [1]}, DAMAGED),
        ("model/config.json", {"decoder_ln_mode": [1]}, DAMAGED),
        ("metrics.json", {"test": [1]}, NO_SCORES),
        ("metrics.json", {"test": {"bleu": {"value": "x"}}}, NO_SCORES),
        ("metrics.json", {"test": {"corpora": {"a": {"bleu": {"value": None}}}}}, NO_SCORES),
    ],
    ids=str,
)
def test_records_that_were_changed_by_hand_are_named(make_run, file, fields, message):
    run = make_run()
    edit_json(run / file, **fields)
    with pytest.raises(InputError, match=re.escape(message)):
        write_card(run)


def test_command_writes_a_card_and_refuses_with_a_reason(make_run, capsys, refused):
    run = make_run()
    output = run.parent / "small.md"
    arguments = ["card", str(run), "--name", "small", "--data-license", "CC BY 2.0 FR", "--output", str(output)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert "Data: CC BY 2.0 FR." in content(output)
    refused("residual-hf card: --output:", *arguments)
