"""A recipe for a language model, end to end on made-up text."""

import json
import math
import random
import re
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from support.files import same_weights
from support.recipes import changed
from support.single_stacks import causal
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.evaluation.perplexity import evaluate_text
from residual_hf.hub.card import write_card
from residual_hf.model.options import from_mapping
from residual_hf.records.run_folder import Run
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train

CIRCLE = ["a", "red", "dog", "sees", "the", "green", "cat", "and"]
NEXT = dict(zip(CIRCLE, [*CIRCLE[1:], CIRCLE[0]], strict=True))


def write_text(path, lines, seed):
    """Lines of words that follow from each other, in documents of about five lines."""
    dice, written = random.Random(seed), []
    for _ in range(lines):
        words = [dice.choice(list(NEXT))]
        while len(words) < dice.randint(3, 7):
            words.append(NEXT[words[-1]])
        written.append("" if dice.random() < 0.2 else " ".join(words))
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    return {"text": str(path)}


def make_recipe(folder, data=None, evaluation=None, **training):
    folder.mkdir(exist_ok=True)
    corpora = {name: write_text(folder / name, size, i) for i, (name, size) in enumerate(SIZES.items())}
    values = {
        "task": "language_modeling",
        "language": "en",
        "output_dir": str(folder / "run"),
        "data": {**corpora, "block_size": 33, **(data or {})},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": {
            "d_model": 32,
            "decoder_layers": 1,
            "decoder_ffn_dim": 64,
            "decoder_attention_heads": 2,
            "dropout": 0.1,
            "max_position_embeddings": 64,
        },
        "training": {
            "max_tokens": 264,
            "max_updates": 40,
            "warmup_updates": 4,
            "lr": 1e-2,
            "label_smoothing": 0.0,
            "eval_every": 20,
            "log_every": 5,
            **training,
        },
        "evaluation": evaluation or {},
    }
    return from_mapping(Recipe, values)


SIZES = {"train": 300, "valid": 30, "test": 30}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, train(make_recipe(folder, evaluation={"context_window": 8}))


def test_run_learns_and_its_folder_is_complete(finished):
    folder, metrics = finished
    run = folder / "run"
    assert json.loads((run / "metrics.json").read_text()) == metrics
    assert metrics["updates"] == 40 and metrics["test"]["ppl"] < 10
    lines = (folder / "test").read_text().splitlines()
    assert metrics["test"]["words"] == sum(len(line.split()) + 1 for line in lines)
    total = metrics["test"]["nll"] * metrics["test"]["tokens"]
    assert metrics["test"]["word_ppl"] == pytest.approx(math.exp(total / metrics["test"]["words"]))
    log = (run / "train.log").read_text()
    assert "resi_dual, 1 layers of width 32" in log and "word_ppl" in log
    card = ModelCard.load(run / "model" / "README.md")
    assert (card.data.pipeline_tag, card.data.language) == ("text-generation", ["en"])
    for part in (
        "Continues text in English: a Transformer",
        'generate("The", add_special_tokens=False, max_new_tokens=40',  # no </s> after the prompt
        "perplexity per word",
        "| layers | 1 |",
    ):
        assert part in card.content, part
    text = card.content.partition("## Citation")[0].lower()
    described = re.sub("`[^`]*`", "", text)  # without the command, which names files of tests
    assert "translat" not in described and "encoder" not in described


def test_saved_model_has_the_perplexity_that_was_scored(finished, capsys):
    """Computed window by window, by the model as Transformers loads it."""
    folder, metrics = finished
    model = AutoModelForCausalLM.from_pretrained(folder / "run" / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "model")
    lines = tokenizer((folder / "test").read_text().splitlines())["input_ids"]
    ids = [tokenizer.bos_token_id, *(token for line in lines for token in line)]
    total, step = 0.0, 33 - 1 - 8
    for begin in range(0, len(ids) - 1, step):
        first = max(begin - 8, 0)
        window = torch.tensor([ids[first : begin + step + 1]])
        with torch.no_grad():
            log_probs = model(window).logits.log_softmax(-1)[0, begin - first : -1]
        total -= log_probs.gather(1, window[0, begin - first + 1 :, None]).sum().item()
    assert metrics["test"]["tokens"] == len(ids) - 1
    assert metrics["test"]["nll"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    options = ["--text", str(folder / "test"), "--context-window", "8", "--json"]  # in the blocks of the run
    assert main(["evaluate", str(folder / "run"), *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nll"] == pytest.approx(metrics["test"]["nll"], rel=1e-5)
    assert [report[name] for name in ("tokens", "words")] == [metrics["test"][name] for name in ("tokens", "words")]
    assert pipeline("text-generation", model=model, tokenizer=tokenizer)("a red", max_new_tokens=3)


def test_a_text_begins_with_the_end_of_another(finished):
    """As lm-evaluation-harness and `evaluate` begin it, and `generate` without a prompt."""
    folder = finished[0] / "run" / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.bos_token == tokenizer.eos_token == "</s>"
    assert model.config.bos_token_id == model.generation_config.bos_token_id == tokenizer.bos_token_id
    assert model.generate(max_new_tokens=1)[0, 0] == tokenizer.eos_token_id
    assert tokenizer.decode([0, *tokenizer("a red dog")["input_ids"]], skip_special_tokens=True) == "a red dog"


def test_text_is_scored_in_examples_as_the_run_was_trained_on(finished, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    recipe = yaml.safe_load((folder / "run" / "recipe.yaml").read_text())
    recipe["data"]["sample_break_mode"] = "eos"
    (folder / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.chdir(folder / "run" / "model")
    found = []
    for options in ([], ["--sample-break-mode", "eos"], ["--sample-break-mode", "none"]):
        assert main(["evaluate", ".", "--text", str(folder / "test"), "--json", *options]) == 0
        found.append(json.loads(capsys.readouterr().out)["nll"])
    assert found[0] == found[1] != found[2]
    assert (
        "--block-size 33 --sample-break-mode eos --context-window 8\n"
        in write_card(folder / "run", overwrite=True).read_text()
    )


def test_blocks_have_as_many_tokens_as_in_training(finished):
    run = Run.read(finished[0] / "run")
    card = (finished[0] / "run" / "model" / "README.md").read_text()
    assert run.block_size == 33 and "--text FILE --block-size 33" in card
    for size, most, expected in ((None, 48, 48), (None, 100, None), (None, "auto", None), (20, 48, 20)):
        recipe = {**run.recipe, "data": {"block_size": size}, "training": {"max_tokens": most}}
        assert replace(run, recipe=recipe).block_size == expected


def test_words_of_segmented_text_are_whole_words(tmp_path):
    (tmp_path / "dict.txt").write_text("re@@ 5\nd 4\ndog 3\n")
    (tmp_path / "text").write_text("a re@@ d dog\nre@@ d\n")
    tokenizer = pretokenized_tokenizer(tmp_path / "dict.txt")
    found = evaluate_text(causal(ln_mode="post_ln", vocab_size=len(tokenizer)), tokenizer, [tmp_path / "text"])
    assert (found["tokens"], found["words"]) == (8, 6)  # with the ends of lines


def test_context_lowers_the_perplexity_of_the_same_tokens(finished, capsys):
    folder, _ = finished
    found = []
    for window in (0, 6):
        arguments = ["--text", str(folder / "valid"), "--block-size", "12", "--context-window", str(window)]
        assert main(["evaluate", str(folder / "run"), *arguments, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["nll"] < found[0]["nll"] and found[1]["tokens"] == found[0]["tokens"]


def test_files_of_the_same_name_are_scored_both(finished, tmp_path, capsys):
    folder, _ = finished
    shutil.copy(folder / "valid", tmp_path / "test")
    texts = ["--text", str(folder / "test"), "--text", str(tmp_path / "test")]
    assert main(["evaluate", str(folder / "run"), *texts, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["test", "test (2)"] and report["test"]["nll"] != report["test (2)"]["nll"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scores.json").write_text("{}")
    (tmp_path / "out" / "old.translations.txt").touch()
    options = ["--text", str(folder / "test"), "--output-dir", str(tmp_path / "out"), "--overwrite"]
    assert main(["evaluate", str(folder / "run"), *options]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["scores.json"]


@pytest.mark.parametrize("data", [{}, {"stream": True, "shuffle_buffer": 40}], ids=["in memory", "stream"])
def test_interrupted_run_resumes_to_the_same_weights(tmp_path, interrupted, data):
    complete = make_recipe(tmp_path / "complete", data, max_updates=16, eval_every=8)
    train(complete)
    recipe = replace(complete, output_dir=str(tmp_path / "resumed"))

    interrupted(recipe, 10)
    train(recipe, resume=True)
    assert same_weights(*(tmp_path / run / "model" / "model.safetensors" for run in ("complete/run", "resumed")))


def test_stream_has_the_batches_of_the_text_in_memory(tmp_path):
    for name, data in (("memory", {}), ("stream", {"stream": True})):
        recipe = make_recipe(tmp_path / name, data, max_updates=10, eval_every=10)
        train(replace(recipe, model={**recipe.model, "dropout": 0.0}))
    assert same_weights(*(tmp_path / run / "run/model/model.safetensors" for run in ("memory", "stream")))


def test_average_is_a_model(finished, tmp_path):
    folder, _ = finished
    output = tmp_path / "average"
    assert main(["average", str(folder / "run"), "--last", "2", "--output-dir", str(output)]) == 0
    assert type(AutoModelForCausalLM.from_pretrained(output)).__name__ == "ResidualForCausalLM"
    assert "text-generation" in (output / "README.md").read_text()


def test_training_goes_on_from_a_trained_model(finished, tmp_path):
    folder, metrics = finished
    recipe = make_recipe(tmp_path, max_updates=2, eval_every=2, lr=1e-6)
    recipe = replace(
        recipe, model={"from": str(folder / "run")}, tokenizer=replace(recipe.tokenizer, path=folder / "run/model")
    )
    assert train(recipe)["valid"]["nll"] == pytest.approx(metrics["valid"]["nll"], abs=0.2)


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        ("data", {"block_size": 65}, "data.block_size: 65 given, must be <= 64, the max_position_embeddings"),
        ("data", {"max_length": 9}, "data.max_length: 9 given, must be null with task 'language_modeling'"),
        ("data", {"block_size": 265}, r"data.block_size: 265 given, must be <= training.max_tokens \(264\)"),
        ("training", {"label_smoothing": 0.1}, "training.label_smoothing: 0.1 given, must be 0 with"),
        ("training", {"metric": "bleu"}, "training.metric: 'bleu' given, must be one of nll, loss with"),
        ("training", {"r_drop": 5.0}, "training.r_drop: 5.0 given, must be 0 with"),
        ("evaluation", {"metrics": ("comet",)}, "evaluation.metrics: .* must be empty with"),
        ("evaluation", {"context_window": 32}, "evaluation.context_window: 32 given, must be <= 31 for blocks of 33"),
        ("tokenizer", {"joint": False}, "tokenizer.joint: false given, must be true with"),
        ("decoding", {"shortlist": True}, "decoding.shortlist: true given, must be false with"),
    ],
)
def test_bad_recipes_are_refused(tmp_path, section, fields, message):
    with pytest.raises(InputError, match=message):
        train(changed(make_recipe(tmp_path), section, **fields))


PAIRS = {"data": {split: {"source": "a", "target": "b"} for split in ("train", "valid")}}
TEXT = {"data": {split: {"text": "a"} for split in ("train", "valid")}}
OF_TEXT = {"task": "language_modeling", "language": "en"}
OF_PAIRS = {"source_lang": "en", "target_lang": "de"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (PAIRS | OF_TEXT, "data.train: sentence pairs given, must be text with task 'language_modeling'"),
        (TEXT | OF_PAIRS, "data.train: text given, must be source and target with task 'translation'"),
        (TEXT | OF_TEXT | {"source_lang": "de"}, "source_lang: 'de' given, must be null with task 'language_mod"),
        (OF_PAIRS | {"data": PAIRS["data"] | {"block_size": 8}}, "data.block_size: 8 given, must be null with"),
        (OF_PAIRS | {"data": PAIRS["data"] | {"sample_break_mode": "eos"}}, "'eos' given, must be none with"),
        (
            TEXT | OF_PAIRS | {"model": {"is_decoder_only": True}},
            "model.is_decoder_only: true given, must be absent",
        ),
    ],
)
def test_task_and_data_belong_together(values, message):
    with pytest.raises(InputError, match=message):
        from_mapping(Recipe, {"output_dir": "out", "training": {"max_updates": 1}, **values})


def test_a_folder_without_text_is_refused_before_training(tmp_path):
    recipe = make_recipe(tmp_path)
    (tmp_path / "train").write_text("\n\n")
    with pytest.raises(InputError, match="train: every line is blank"):
        train(recipe)


def test_evaluate_names_what_does_not_fit(finished, tmp_path, refused):
    folder, _ = finished
    model, text = str(folder / "run"), str(folder / "test")
    for arguments, message in (
        (["--text", text, "--block-size", "65"], "--block-size: 65 given, must be from 2 to "),
        (["--text", text, "--device", "abacus"], "device 'abacus'"),
        (["--text", text, "--source", text, "--reference", text], "--text: must be given for a language model, --sou"),
        ([], "--text: must be given for a language model, --source and"),
        (["--text", text, "--metric", "rouge"], "--metric: given with --text, which is scored by perplexity"),
        (["--text", text, "--glossary", text], "--glossary: given with --text"),
        (["--text", text, "--long", "skip"], "--long: given with --text"),
        (["--text", text, "--dtype", "int8"], "--dtype: given with --text"),
        (["--source", text, "--reference", text, "--block-size", "9"], "--block-size: only with --text"),
        (["--source", text, "--reference", text, "--sample-break-mode", "eos"], "--sample-break-mode: only"),
        (["--text", text, "--context-window", "63"], "--context-window: 63 given"),
    ):
        refused(message, "evaluate", model, *arguments)
