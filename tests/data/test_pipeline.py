"""From the corpora of a recipe to ids: what is warned about, and what stays as it is when a run is resumed."""

import json
import random
from dataclasses import replace
from itertools import chain, islice

import datasets
import pytest
from support.tiny_translator import tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.marked_text import with_capitals
from residual_hf.data.pipeline import Preparation, mix, open_stream, prepare, read_corpora
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.options import from_mapping

WORDS = ["red", "green", "blue", "dog", "cat", "sees", "a", "the"]


@pytest.fixture
def corpora(tmp_path):
    """Specifications of three corpora of different sentences, by split."""
    dice, specs = random.Random(1), {}
    for split, size in (("train", 60), ("valid", 5), ("test", 4)):
        lines = [" ".join(dice.choices(WORDS, k=dice.randint(4, 9))) for _ in range(size)]
        for side in ("source", "target"):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{line} {split}\n" for line in lines))
        files = {side: str(tmp_path / f"{split}.{side}") for side in ("source", "target")}
        specs[split] = {**files, "source_lang": "en", "target_lang": "de"}
    return specs


def data_settings(specs, **data):
    return from_mapping(DataSettings, {**specs, **data})


def prepared(folder, specs, tokenizer=None, **data):
    settings = data_settings(specs, **data)
    (folder / "run").mkdir(parents=True, exist_ok=True)
    own = from_mapping(TokenizerSettings, {"vocab_size": 320, **(tokenizer or {})})
    config = ResidualConfig(max_position_embeddings=32)
    return prepare(Preparation(read_corpora(settings), settings, own, folder / "run", config, max_tokens=200, seed=1))


def test_the_splits_become_ids_and_the_tokenizer_is_saved(tmp_path, corpora):
    data = prepared(tmp_path, corpora, cleaning={"max_words": 9})
    assert {split: len(encoded) for split, encoded in data.encoded.items()}.items() >= {"valid": 5, "test": 4}.items()
    report = json.loads((tmp_path / "run" / "cleaning.json").read_text())
    assert report["kept"] == len(data.encoded["train"]) == len(data.longest) < report["pairs"] == 60
    again = prepared(tmp_path, corpora, tokenizer={"vocab_size": 400}, cleaning={"max_words": 9})
    assert again.tokenizer.get_vocab() == data.tokenizer.get_vocab()


def test_weights_are_shares_of_the_pairs_that_fit(tmp_path, corpora):
    lines = {"short": ["a dog"] * 40, "long": ["a cat", "a cat" + " sees" * 30] * 20}
    specs = []
    for name, text in lines.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text))
        specs.append({"source": str(tmp_path / name), "target": str(tmp_path / name), "weight": 1})
    specs = [spec | {"source_lang": "en", "target_lang": "de"} for spec in specs]
    corpora = {"train": specs, "valid": {**specs[0], "weight": None}}
    data = prepared(tmp_path, corpora, max_length=9)
    rows = (data.encoded["train"][number]["input_ids"] for number in range(len(data.encoded["train"])))
    texts = [data.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert len(texts) == 60 and texts.count("a cat") == texts.count("a dog") == 30
    specs[1]["source"] = specs[1]["target"] = specs[0]["source"]
    with pytest.raises(InputError, match="no pair of .*short.* has at most 1 tokens on both sides"):
        prepared(tmp_path / "none", corpora, max_length=1)


def test_a_warning_if_most_pairs_are_too_long(tmp_path, corpora, caplog):
    with caplog.at_level("INFO"):
        prepared(tmp_path / "some", corpora, max_length=9)
        prepared(tmp_path / "most", corpora, max_length=7)
    levels = [record.levelname for record in caplog.records if "training pairs, longer than" in record.getMessage()]
    assert levels == ["INFO", "WARNING"]


def test_corpora_of_the_same_name_are_reported_apart(tmp_path, corpora):
    twice = {**corpora, "train": [{**corpora["train"], "limit": limit} for limit in (20, 40)]}
    prepared(tmp_path, twice, cleaning={"max_words": 9})
    reports = json.loads((tmp_path / "run" / "cleaning.json").read_text())
    names = ["train.source|train.target", "train.source|train.target (2)"]
    assert {name: report["pairs"] for name, report in reports.items()} == dict(zip(names, (20, 40), strict=True))


def test_references_of_segmented_text_are_whole_words(tmp_path, corpora):
    """Translations are decoded without the marks of subword-nmt, so that references must not have them."""
    target = tmp_path / "test.target"
    lines = target.read_text().splitlines()
    target.write_text("".join(f"{line.replace('red', 'r@@ ed')} do@@\n" for line in lines))
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in [*WORDS, "r@@", "ed", "do@@"]))
    data = prepared(tmp_path, corpora, tokenizer={"kind": "pretokenized", "path": str(tmp_path / "dict.txt")})
    again = prepared(tmp_path / "again", corpora, tokenizer={"path": str(tmp_path / "run/tokenizer")})
    assert again.references == data.references
    (test,) = data.references["test"]
    assert test.targets == [f"{line} do" for line in lines]
    labels = data.encoded["test"][0]["labels"]
    decoded = data.tokenizer.decode(labels, skip_special_tokens=True).split()
    assert [word for word in decoded if word in WORDS] == [word for word in lines[0].split() if word in WORDS]


def test_a_tokenizer_that_does_not_end_texts_is_refused(tmp_path, corpora):
    tiny_tokenizer(end=False).save_pretrained(tmp_path / "endless")
    with pytest.raises(InputError, match="tokenizer.path: .*endless does not end a text with </s>"):
        prepared(tmp_path, corpora, tokenizer={"path": str(tmp_path / "endless")})


def test_text_of_which_the_tokenizer_knows_little(tmp_path, corpora, caplog):
    dictionary = {"kind": "pretokenized", "path": str(tmp_path / "dict.txt")}
    known = [*WORDS, "train", "valid", "test"]
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in known))
    prepared(tmp_path / "known", corpora, tokenizer=dictionary)
    assert "unknown" not in caplog.text
    target = tmp_path / "train.target"
    target.write_text(target.read_text().replace("train", "zug"))
    data = prepared(tmp_path / "unknown", corpora, tokenizer=dictionary)
    words = target.read_text().split()
    share = 100 * words.count("zug") / (len(words) + len(data.encoded["train"]))  # and `</s>` of each line
    assert f"data.train: {share:.0f} % of the target tokens are unknown" in caplog.text
    assert caplog.text.count("unknown to") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_text_that_cannot_be_right_is_reported_once(tmp_path, corpora, caplog, stream):
    prepared(tmp_path, corpora, stream=stream)
    assert "same text" not in caplog.text  # too few pairs
    for side in ("source", "target"):
        path = tmp_path / f"train.{side}"
        path.write_text(2 * path.read_text())
    for _ in range(2):
        prepared(tmp_path / "more", corpora, stream=stream)
    assert caplog.text.count("data.train: train.source|train.target: 100% of the pairs have the same text") == 1
    prepared(tmp_path / "summaries", {**corpora, "train": {**corpora["train"], "target_lang": "en"}}, stream=stream)
    assert caplog.text.count("same text") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_pairs_in_training_and_evaluation_are_counted(tmp_path, corpora, caplog, stream):
    """In a stream, those of a data set; files are looked through before."""
    prepared(tmp_path / "apart", corpora, stream=stream)
    assert "also training pairs" not in caplog.text
    sides = {}
    for side, language in (("source", "en"), ("target", "de")):
        lines = (tmp_path / f"test.{side}").read_text().splitlines()[:3]
        with (tmp_path / f"train.{side}").open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        sides[language] = (tmp_path / f"train.{side}").read_text().splitlines()
    if stream:
        datasets.Dataset.from_dict(sides).save_to_disk(tmp_path / "set")
        corpora["train"] = {"dataset": str(tmp_path / "set"), "source_lang": "en", "target_lang": "de"}
    prepared(tmp_path / "shared", corpora, stream=stream)
    assert "data.test: 3 of 4 pairs are also training pairs" in caplog.text
    assert "data.valid" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_placeholders_and_terms_are_tokens_of_the_vocabulary(tmp_path, corpora, caplog, stream):
    for split in ("train", "valid"):
        for side in ("source", "target"):
            path = tmp_path / f"{split}.{side}"
            path.write_text("".join(f"{line} {{x}} 1999\n" for line in path.read_text().splitlines()))
    (tmp_path / "terms.tsv").write_text("dog\tdog\n")
    marks = {"placeholders": True, "glossary": str(tmp_path / "terms.tsv"), "stream": stream}
    data = prepared(tmp_path, corpora, tokenizer={"joint": False}, **marks)
    row = next(iter(open_stream(data_settings(corpora, **marks), data.tokenizer, 200, positions=32, seed=1)))[0]
    texts = [data.tokenizer.decode(row["labels"])]
    texts += [data.tokenizer.decode(data.encoded["valid"][0][name]) for name in ("input_ids", "labels")]
    for text, (first, second) in zip(texts, [("<ph", "<ph"), ("<ph1>", "<ph2>"), ("<ph1>", "<ph2>")], strict=True):
        assert first in text and second in text and "{x}" not in text and "1999" not in text
    if not stream:
        train = data.encoded["train"]
        ids = [train[row]["input_ids"] for row in range(len(train))]
        sources = data.tokenizer.batch_decode(ids, use_source_tokenizer=True)
        assert any("<term> dog <trans> dog </term>" in source for source in sources)
    assert data.references["valid"][0].targets[0].endswith("{x} 1999")
    assert ("data.placeholders: the training text has only" in caplog.text) is not stream


def test_shares_of_the_pairs_have_copies_in_other_case(tmp_path, corpora):
    for name, size in (("train", 60), ("valid", 5), ("test", 4)):
        for side in ("source", "target"):
            lines = (f"{number} maß {{x}} <b> don't\n" for number in range(size))
            (tmp_path / f"{name}.{side}").write_text("".join(lines))
    capitals = {"upper_case": 0.3, "title_case": 0.2}
    data = prepared(tmp_path, corpora, tokenizer={"joint": False}, **capitals)
    train = data.encoded["train"]
    rows = [tuple(train[row]["labels"]) for row in range(len(train))]
    texts = data.tokenizer.batch_decode(rows, skip_special_tokens=True)
    ends = "MASS {x} <b> DON'T", "Maß {x} <b> Don't"
    upper, title = ([text for text in texts if text.endswith(end)] for end in ends)
    assert len(texts) == 60 + len(upper) + len(title) and 10 < len(upper) < 26 and 5 < len(title) < 20
    assert texts[texts.index(upper[0]) - 1].upper().startswith(upper[0][:5])  # behind its pair

    settings = data_settings(corpora, stream=True, **capitals)
    batches = {}
    for seed in (1, 2):
        stream = open_stream(settings, data.tokenizer, 200, positions=32, seed=seed)
        batches[seed] = [[tuple(row["labels"]) for row in batch] for batch in islice(iter(stream), 40)]
    assert {row for batch in batches[1] for row in batch} == {*rows} != {row for batch in batches[2] for row in batch}
    state = stream.state(38)
    stream.start_from(state)
    assert [[tuple(row["labels"]) for row in batch] for batch in islice(iter(stream), 2)] == batches[2][38:]


def test_a_source_without_case_has_no_copies_with_another_translation(corpora):
    pairs = ParallelCorpus(["今天天气很好。"], ["The weather is nice."], "x", "zh", "en")
    back = ParallelCorpus(pairs.targets, pairs.sources, "x", "en", "zh")
    once, both = (data_settings(corpora, upper_case=1.0, bidirectional=each) for each in (False, True))
    assert [len(with_capitals(*each, 1)) for each in ((pairs, once), (back, once), (back, both))] == [1, 2, 1]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_sources_of_a_tagged_corpus_begin_with_one_token(tmp_path, corpora, joint, stream):
    synthetic = {**corpora["train"], "tag": "<BT>", "name": "synthetic"}
    data = prepared(
        tmp_path,
        {**corpora, "train": [corpora["train"], synthetic]},
        tokenizer={"joint": joint},
        language_tags="source" if joint else None,
        bidirectional=joint,
        stream=stream,
    )
    tag, languages = data.tokenizer.convert_tokens_to_ids("<BT>"), data.tokenizer.convert_tokens_to_ids(["<2de>"])
    assert data.tokenizer("red dog").input_ids == data.tokenizer("<BT> red dog").input_ids[1:]
    if stream:
        settings = from_mapping(DataSettings, {**corpora, "train": [corpora["train"], synthetic], "stream": True})
        batches = open_stream(settings, data.tokenizer, 200, positions=32, seed=1)
        rows = list(chain.from_iterable(islice(batches, 15)))
        assert {tag in row["input_ids"][:1] for row in rows} == {True, False}
        return
    rows = [data.encoded["train"][row]["input_ids"].tolist() for row in range(len(data.encoded["train"]))]
    assert len(rows) == (3 if joint else 2) * 60  # synthetic text is not reversed
    first = languages + [tag] if joint else [tag]
    assert sum(row[: len(first)] == first for row in rows) == 60 == sum(tag in row for row in rows)


def test_a_given_tokenizer_gets_the_tags_that_it_lacks(tmp_path, corpora):
    first = prepared(tmp_path / "first", corpora).tokenizer
    path = {"path": str(tmp_path / "first" / "run" / "tokenizer")}
    tagged = {**corpora, "train": {**corpora["train"], "tag": "<BT>"}}
    data = prepared(tmp_path / "second", tagged, tokenizer=path)
    assert len(data.tokenizer) == len(first) + 1
    assert data.encoded["train"][0]["input_ids"][0] == len(first)


def test_tags_are_added_to_both_vocabularies_of_a_given_tokenizer(tmp_path, corpora):
    separate = {"joint": False}
    prepared(tmp_path / "plain", corpora, tokenizer=separate)
    prepared(tmp_path / "tagged", corpora, tokenizer=separate, language_tags="target")
    plain, tagged = ({"path": str(tmp_path / name / "run" / "tokenizer")} for name in ("plain", "tagged"))
    for number, (given, side) in enumerate(((plain, "source"), (plain, "target"), (tagged, "target"))):
        data = prepared(tmp_path / str(number), corpora, tokenizer=given, language_tags=side)
        row = data.encoded["train"][0]["labels" if side == "target" else "input_ids"]
        assert row[0] == data.tokenizer.convert_tokens_to_ids("<2de>")
        assert row[0] == data.tokenizer.target_tokenizer.token_to_id("<2de>")


def test_sources_too_long_and_a_corpus_of_which_nothing_is_left_are_refused(tmp_path, corpora):
    with pytest.raises(InputError, match=r"data\.cleaning: no pair of .* is left: kept 0 of 60 pairs"):
        prepared(tmp_path, corpora, cleaning={"max_words": 2})
    (tmp_path / "valid.source").write_text("red " * 40 + "\n" + "red\n" * 4)
    with pytest.raises(InputError, match=r"data\.valid: .*valid.source: line 1 has \d+ tokens"):
        prepared(tmp_path, corpora)


def test_weights_and_temperature_decide_how_often_a_pair_comes(caplog):
    encoded = EncodedCorpus.from_ids([[1]] * 30 + [[2]] * 10, [[3]] * 40)
    plain, weighted = (
        DataSettings(
            train=[CorpusSpec(tsv=name, weight=w) for name, w in zip("xy", weights, strict=True)],
            valid=[CorpusSpec(tsv="v")],
        )
        for weights in ((None, None), (1, 3))
    )

    def small(data):
        mixed = mix(encoded, [30, 10], data, seed=1)
        return len(mixed), sum(mixed[i]["input_ids"][0] == 2 for i in range(len(mixed)))

    assert mix(encoded, [30, 10], plain, seed=1) is encoded
    assert small(replace(plain, temperature=1e9)) == (40, 20)
    assert small(weighted) == (40, 30)
    assert "x: only 20 of 30 training examples are used" in caplog.text
    assert "x: only 10 of 30 training examples are used" in caplog.text and "y: only" not in caplog.text
