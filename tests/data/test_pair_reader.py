"""Sentence pairs in order, from any position of a corpus."""

import gzip
import json

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.pair_reader import Cursor, PairReader, locate_pair

PAIRS = [
    ("a dog", "ein Hund"),
    ("", "leer"),
    ("two cats", "zwei Katzen"),
    ("unseen", "\u200b\ufeff"),
    ("Straße\u2028end", "x"),
    ("last", "letzte"),
]
KEPT = [PAIRS[0], PAIRS[2], *PAIRS[4:]]


@pytest.fixture(params=["text", "gzip", "tsv", "jsonl", "columns"])
def spec(request, tmp_path):
    """The same corpus in every format, with `skip_empty`."""
    if request.param in ("text", "gzip"):
        for side, name in enumerate(("source", "target")):
            content = "".join(f"{pair[side]}\n" for pair in PAIRS).encode()
            (tmp_path / name).write_bytes(gzip.compress(content) if request.param == "gzip" else content)
        return CorpusSpec(source=tmp_path / "source", target=tmp_path / "target", skip_empty=True)
    file = tmp_path / "pairs"
    if request.param == "tsv":
        file.write_text("".join(f"0.5\t{target}\t{source}\n" for source, target in PAIRS))
        return CorpusSpec(tsv=file, source_column=3, target_column=2, skip_empty=True)
    if request.param == "columns":
        file.write_text("".join(json.dumps({"from": source or None, "to": target}) + "\n" for source, target in PAIRS))
        return CorpusSpec(jsonl=file, source_column="from", target_column="to", skip_empty=True)
    rows = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return CorpusSpec(jsonl=file, source_lang="en", target_lang="de", skip_empty=True)


def test_a_pass_ends_and_the_next_begins_and_reading_continues_from_every_position(spec):
    reader = PairReader(spec)
    assert reader.take() == KEPT and reader.skipped_empty == 2
    assert reader.take(2) == KEPT[:2] and reader.cursor.passes == 1
    for count in range(1, len(KEPT)):
        first = PairReader(spec)
        first.take(count)
        assert PairReader(spec, first.cursor).take() == KEPT[count:]


def test_a_limit_ends_a_pass_early(spec):
    object.__setattr__(spec, "limit", 2)
    reader = PairReader(spec)
    assert [reader.take(), reader.take(2), reader.take(5)] == [KEPT[:2], KEPT[:2], []]
    assert reader.cursor == Cursor(2, 0, 0, reader.cursor.offsets)


def test_a_pair_is_located_by_its_line(spec):
    where = locate_pair(spec, 1, side=1)
    assert where.endswith(": line 3") and str(spec.files[-1]) in where


@pytest.mark.parametrize("line", ["[" * 100_000 + "]" * 100_000, "9" * 5000], ids=["deep", "long number"])
def test_json_that_python_does_not_read_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    spec = CorpusSpec(jsonl=tmp_path / "a.jsonl", source_lang="en", target_lang="de")
    with pytest.raises(InputError, match=r"a\.jsonl: line 1 is not JSON"):
        PairReader(spec).take()
