"""The script that makes the tokens of the official code."""

import gzip
from collections import Counter

import pytest
from support.example_scripts import refusal, run

from residual_hf.data.text_files import iter_lines

SENTENCES = ['The boys don\'t say "stop." ', "A green-grey boy & a girl."]


def test_tokens_of_moses_in_subwords_and_their_frequencies(tmp_path):
    pytest.importorskip("subword_nmt")
    prepare = ("multi30k/prepare.py", tmp_path / "raw", tmp_path / "bpe")
    (tmp_path / "raw").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            with gzip.open(tmp_path / "raw" / f"{part}.{language}.gz", "wt") as file:
                file.writelines(f"{sentence}\n" for sentence in SENTENCES * 3)
    run(*prepare)
    segmented = {path.name: list(iter_lines(path)) for path in (tmp_path / "bpe").glob("*.gz")}
    assert len(segmented) == 6 and all(len(lines) == 6 for lines in segmented.values())
    words = [line.replace("@@ ", "") for line in segmented["val.bpe.en.gz"][:2]]
    assert words == ['The boys don \'t say " stop . "', "A green @-@ grey boy & a girl ."]
    counts = Counter(
        token for name in ("en", "de") for line in segmented[f"train.bpe.{name}.gz"] for token in line.split()
    )
    entries = [line.split() for line in iter_lines(tmp_path / "bpe" / "dict.txt")]
    frequencies = [int(count) for _, count in entries]
    assert {token: int(count) for token, count in entries if count != "0"} == counts
    assert (len(entries) + 4) % 8 == 0 and frequencies == sorted(frequencies, reverse=True)
    assert "bpe exists" in refusal(*prepare)
