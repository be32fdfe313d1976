"""Corpora are read as they lie on disk, what cannot be used is named, and pairs of a mixture are equally frequent."""

import gzip
import hashlib
import json
import math

import numpy as np
import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus, mixed_indices, mixing_probabilities, read_parallel
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.pair_reader import PairReader, check_files

PAIRS = [("A dog.", "Ein Hund."), ("Two  cats ", "\tZwei Katzen"), ("ﬁve\u00a0“x”", "fünf\u2028„y“\x85\x0b\x0c\x1e")]


def write_pair(folder, source: bytes, target: bytes, suffix: str = ""):
    paths = folder / f"train.en{suffix}", folder / f"train.de{suffix}"
    for path, data in zip(paths, (source, target), strict=True):
        path.write_bytes(data)
    return {"source": str(paths[0]), "target": str(paths[1])}


def lines(side: int, end: str = "\n") -> bytes:
    return "".join(pair[side] + end for pair in PAIRS).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: data.removesuffix(b"\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
    ],
    ids=["plain", "no_last_newline", "bom", "crlf"],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_text_files(tmp_path, change, suffix):
    pack = gzip.compress if suffix else bytes
    spec = CorpusSpec(**write_pair(tmp_path, pack(change(lines(0))), pack(change(lines(1))), suffix))
    corpus = read_parallel(spec)
    assert list(corpus) == PAIRS
    assert corpus.sha256 == {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in spec.files}


def test_corpus_is_a_sequence_of_pairs():
    corpus = ParallelCorpus(["a", "b", "c"], ["x", "y", "z"], name="toy", source_lang="en", target_lang="de")
    assert len(corpus) == 3
    assert corpus[1] == ("b", "y")
    assert corpus[-1] == ("c", "z")
    assert list(corpus[1:]) == [("b", "y"), ("c", "z")]
    assert corpus[1:].source_lang == "en"
    with pytest.raises(IndexError):
        corpus[3]
    with pytest.raises(InputError, match="toy: 1 sources, but 2 targets"):
        ParallelCorpus(["a"], ["x", "y"], name="toy")


def test_tsv_with_two_columns_and_with_chosen_columns(tmp_path):
    two, more, said = tmp_path / "two.tsv", tmp_path / "more.tsv.gz", tmp_path / "said.tsv"
    two.write_text("A dog.\tEin Hund.\nA cat.\tEine Katze.\n", encoding="utf-8")
    more.write_bytes(gzip.compress(b"1\tEin Hund.\tcc0\tA dog.\n2\tEine Katze.\tcc0\tA cat.\textra\n"))
    expected = [("A dog.", "Ein Hund."), ("A cat.", "Eine Katze.")]
    assert list(read_parallel(CorpusSpec(tsv=two))) == expected
    assert list(read_parallel(CorpusSpec(tsv=more, source_column=4, target_column=2))) == expected
    said.write_text('"Yes."\t"Ja."\n"No," she said.\t"Nein", sagte sie.\n')
    assert list(read_parallel(CorpusSpec(tsv=said)))[0] == ('"Yes."', '"Ja."')


def test_jsonl_nested_and_flat(tmp_path):
    nested, flat = tmp_path / "nested.jsonl", tmp_path / "flat.jsonl"
    nested.write_text("".join(json.dumps({"translation": {"en": a, "de": b}}) + "\n" for a, b in PAIRS))
    flat.write_text("".join(json.dumps({"src": a, "tgt": b, "id": 1}, ensure_ascii=False) + "\n" for a, b in PAIRS))
    corpus = read_parallel(CorpusSpec(jsonl=nested, source_lang="en", target_lang="de", name="mine"))
    assert list(corpus) == PAIRS
    assert (corpus.name, corpus.source_lang, corpus.target_lang) == ("mine", "en", "de")
    reverse = read_parallel(CorpusSpec(jsonl=nested, source_lang="de", target_lang="en"))
    assert list(reverse) == [pair[::-1] for pair in PAIRS]
    assert list(read_parallel(CorpusSpec(jsonl=flat, source_column="src", target_column="tgt"))) == PAIRS


def test_limit_and_skip_empty(tmp_path, caplog):
    files = write_pair(tmp_path, b"a\n\nc\nd\ne\n", b"v\nw\n  \ny\nz\n")
    corpus = read_parallel(CorpusSpec(**files, skip_empty=True))
    assert list(corpus) == [("a", "v"), ("d", "y"), ("e", "z")]
    assert "skipped 2 pairs with an empty side" in caplog.text
    assert list(read_parallel(CorpusSpec(**files, skip_empty=True, limit=2))) == [("a", "v"), ("d", "y")]


def test_raw_targets(tmp_path, monkeypatch):
    files = write_pair(tmp_path, b"a\nb\nc\n", b"x &apos;\ny\nz\n")
    (tmp_path / "raw").write_text("x'\ny\nz\n")
    corpus = read_parallel(CorpusSpec(**files, raw_target=tmp_path / "raw", limit=2))
    assert (corpus.targets, corpus.raw_targets) == (["x &apos;", "y"], ["x'", "y"])
    assert corpus[1:].raw_targets == ["y"]
    assert corpus.sha256[str(tmp_path / "raw")] == hashlib.sha256(b"x'\ny\nz\n").hexdigest()
    (tmp_path / "raw").write_text("x'\ny\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_parallel(CorpusSpec(**files, raw_target="~/raw", limit=2)).raw_targets == ["x'", "y"]
    with pytest.raises(InputError, match="no such file: ~nobody-here/x"):
        read_parallel(CorpusSpec(source="~nobody-here/x", target=files["target"]))
    with pytest.raises(InputError, match=r"corpus.raw_target: .*raw has 2 lines for 3 pairs"):
        read_parallel(CorpusSpec(**files, raw_target=tmp_path / "raw"))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\n", b"x\n", r"train\.en has 2 lines, but .*train\.de has 1"),
        (b"", b"x\n", r"train\.en has 0 lines, but .*train\.de has 1"),
        (b"", b"", r"train\.en: empty, must have at least one sentence pair"),
        (b"a\n", b"\xef\xbb\xbf", r"train\.de: line 1 has an empty target; remove the pair, or set skip_empty: true"),
        (b"a\nb\nc\nd\n", b"x\n\nz\n \t\n", r"train\.de: line 2 has an empty target"),
    ],
)
def test_bad_text_files(tmp_path, source, target, message):
    with pytest.raises(InputError, match=message):
        read_parallel(CorpusSpec(**write_pair(tmp_path, source, target)))


def test_every_missing_file_is_named_before_reading(tmp_path):
    (tmp_path / "there.tsv").write_bytes(b"\xff")
    specs = [
        CorpusSpec(tsv=tmp_path / "there.tsv"),
        CorpusSpec(source=tmp_path / "a.en", target=tmp_path / "a.de"),
        CorpusSpec(jsonl=tmp_path / "b.jsonl", source_lang="en", target_lang="de"),
    ]
    with pytest.raises(InputError, match=r"no such file: .*a\.en, .*a\.de, .*b\.jsonl$"):
        check_files(specs)
    with pytest.raises(InputError, match=f"{tmp_path}: not a regular file"):
        check_files([CorpusSpec(tsv=tmp_path)])
    with pytest.raises(InputError, match=r"no such file: .*a\.en"):
        read_parallel(specs[1])


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a\tx\nb\n", {}, r"line 2 has 1 tab-separated fields, must have 2"),
        ("a\tx\tmore\n", {}, r"line 1 has 3 .* set source_column and target_column"),
        ("a\tx\tmore\nb\ty\n", {"source_column": 1, "target_column": 3}, r"line 2 has 2 .* columns 1 and 3"),
        ("a\tx\n\tx\n", {}, r"line 2 has an empty source"),
        ("Source\tTarget\na\tx\n", {}, r"line 1 names the columns; to read such a table, give it as file"),
        ("de\ten\na\tx\n", {"source_lang": "en", "target_lang": "de"}, r"line 1 names the columns"),
        ('"en"\t"de"\n"a"\t"x"\n', {}, r'"en" is quoted as in CSV; give it as file, with a name that ends in \.csv'),
        ('a\tx\n"a ""b"""\tx\n', {}, r'"a ""b""" is quoted as in CSV'),
    ],
)
def test_bad_tsv(tmp_path, text, columns, message):
    (tmp_path / "bad.tsv").write_text(text)
    with pytest.raises(InputError, match=r"bad\.tsv: " + message):
        read_parallel(CorpusSpec(tsv=tmp_path / "bad.tsv", **columns))


@pytest.mark.parametrize(
    ("second_line", "message"),
    [
        ('{"translation": {"en": "a"', r"is not JSON: .*char \d+"),
        ("", r"has an empty source; remove the pair, or set skip_empty"),
        ('{"text": "a", "label": 1}', r"no key `translation`; the keys are 'text', 'label'"),
        ('{"translation": {"en": "a", "fr": "x"}}', r"`translation`: no key `de`; the keys are 'en', 'fr'"),
        ('{"translation": ["a", "x"]}', r"no key `en` in \['a', 'x'\]"),
        ('["a", "x"]', r"no key `translation` in \['a', 'x'\]"),
        ('{"translation": {"en": "a", "de": null}}', r"`de` is None, must be a string"),
        (r'{"translation": {"en": "a", "de": "\ud800"}}', r"`de` has an unpaired surrogate"),
        (r'{"translation": {"en": "a", "de": "x\u0000"}}', r"`de` has a NUL character"),
    ],
)
def test_bad_jsonl(tmp_path, second_line, message):
    good = '{"translation": {"en": "a", "de": "x"}}'
    (tmp_path / "bad.jsonl").write_text(f"{good}\n{second_line}\n{good}\n")
    with pytest.raises(InputError, match=r"bad\.jsonl: line 2.*" + message):
        read_parallel(CorpusSpec(jsonl=tmp_path / "bad.jsonl", source_lang="en", target_lang="de"))


@pytest.mark.parametrize(
    ("fields", "message"), [({"source_lang": "en"}, "target_lang: missing"), ({}, "source_lang: missing")]
)
def test_records_are_not_read_without_their_languages(tmp_path, fields, message):
    (tmp_path / "a.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n', encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_parallel(CorpusSpec(jsonl=tmp_path / "a.jsonl", **fields))


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def test_dataset_saved_to_disk(tmp_path, datasets):
    rows = [{"translation": {"en": a, "de": b}} for a, b in PAIRS]
    data = datasets.Dataset.from_list(rows)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "test": data.select([2])}).save_to_disk(tmp_path / "splits")
    languages = {"source_lang": "en", "target_lang": "de"}
    corpus = read_parallel(CorpusSpec(dataset=tmp_path / "one", **languages))
    assert list(corpus) == PAIRS
    assert [len(value) for value in corpus.sha256.values()] == [64]
    assert list(read_parallel(CorpusSpec(dataset=tmp_path / "splits", split="test", **languages))) == PAIRS[2:]
    with pytest.raises(InputError, match="corpus.split: .*splits has no split 'dev'"):
        read_parallel(CorpusSpec(dataset=tmp_path / "splits", split="dev", **languages))
    with pytest.raises(InputError, match=r"corpus.split: .*one has no split 'train\[:2\]'"):
        read_parallel(CorpusSpec(dataset=tmp_path / "one", split="train[:2]", **languages))
    with pytest.raises(InputError, match="row 1, `translation`: no key `fr`; the keys are 'en', 'de'"):
        read_parallel(CorpusSpec(dataset=tmp_path / "one", source_lang="en", target_lang="fr"))


def test_dataset_folder(tmp_path, datasets):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"src": a, "tgt": b}) + "\n" for a, b in PAIRS))
    columns = {"source_column": "src", "target_column": "tgt"}
    assert list(read_parallel(CorpusSpec(dataset=str(folder), **columns))) == PAIRS
    with pytest.raises(InputError, match="corpus.dataset: .*validation"):
        read_parallel(CorpusSpec(dataset=str(folder), split="validation", **columns))


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_file_format_is_not_a_dataset(name):
    """The `datasets` library would read the files of the working directory."""
    with pytest.raises(InputError, match=f"corpus.dataset: '{name}' is a file format, must be a name on the Hub or a"):
        read_parallel(CorpusSpec(dataset=name, source_lang="en", target_lang="de"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_damaged_dataset_is_named_with_the_cause(tmp_path, datasets, streaming):
    rows = ['{"translation": {"en": "one", "de": "eins"}}', "{half"]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    spec = CorpusSpec(dataset=str(tmp_path), source_lang="en", target_lang="de")
    with pytest.raises(InputError, match=r"cannot be (loaded|read past row 0): .*JSON"):
        PairReader(spec, streaming=streaming).take()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.01, 0.99]),
        ({"temperature": 2}, [1 / (1 + math.sqrt(99)), math.sqrt(99) / (1 + math.sqrt(99))]),
        ({"temperature": math.inf}, [0.5, 0.5]),
        ({"weights": [3, 1]}, [0.75, 0.25]),
        ({"weights": [3, 1], "temperature": 5}, [0.75, 0.25]),
    ],
)
def test_probabilities(options, expected):
    assert mixing_probabilities([10**7, 99 * 10**7], **options) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [[7, 100, 1], [1000, 10], [5]])
@pytest.mark.parametrize("temperature", [1, 1.7, 5, math.inf])
def test_every_pair_is_there_floor_or_one_more_times(sizes, temperature):
    total = sum(sizes)
    probabilities = mixing_probabilities(sizes, temperature=temperature)
    indices = mixed_indices(sizes, probabilities, seed=1)
    assert len(indices) == total
    times = np.bincount(indices, minlength=total)
    for size, share, own in zip(sizes, probabilities, np.split(times, np.cumsum(sizes)[:-1]), strict=True):
        assert abs(own.sum() - share * total) < 1
        least = math.floor(share * total / size + 1e-9)
        assert set(own) <= {least, least + 1}
    if temperature == 1:
        assert (times == 1).all()


def test_the_seed_draws_the_extra_ones():
    draw = {seed: tuple(mixed_indices([100, 50], [0.5, 0.5], seed)) for seed in (1, 2)}
    assert draw[1] != draw[2]
    assert draw[1] == tuple(mixed_indices([100, 50], [0.5, 0.5], 1))
    extra = [i - 100 for i in range(100, 150) if draw[1].count(i) == 2]
    assert len(extra) == 25 and max(extra) - min(extra) > 25  # spread, not the first ones
