"""Blocks of a language model: every token is predicted once, and breaks are those of fairseq."""

import json
from itertools import islice

import datasets
import numpy as np
import pytest
from support.tiny_translator import SENTENCES, tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.data.corpus import read_parallel
from residual_hf.data.data_settings import CorpusSpec, DataSettings
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.language_modeling import (
    block_encoder,
    count_words,
    encode_chunks,
    encode_texts,
    pack,
    predicted_tokens,
)
from residual_hf.data.pair_reader import Cursor, PairReader
from residual_hf.data.pipeline import open_stream
from residual_hf.data.tokenizer import prepend_eos

END = 2
LINES = [[10, 11, 12, END], [13, END], [END], [14, 15, END], [16, 17, 18, 19, END], [END], [END], [20, END]]
"""Three documents, of 2, 2 and 1 lines."""


def lines(rows=LINES):
    both = EncodedCorpus.from_ids(rows, rows).arrays
    return EncodedCorpus({name: array for name, array in both.items() if name.startswith("source")})


def rows_of(blocks):
    return [blocks[row]["input_ids"].tolist() for row in range(len(blocks))]


def predicted(blocks):
    """What the batches of a model ask it to predict, in order."""
    labels = [Seq2SeqCollator(1, None)([blocks[row]])["labels"][0] for row in range(len(blocks))]
    return [token for row in labels for token in row[1:].tolist() if token != -100]


BLOCKS = {  # by fairseq's TokenBlockDataset with 6 tokens per sample, each row after the token before it
    "none": [
        [END, 10, 11, 12, END, 13, END],
        [END, END, 14, 15, END, 16, 17],
        [17, 18, 19, END, END, END, 20],
        [20, END],
    ],
    "complete": [
        [END, 10, 11, 12, END, 13, END],
        [END, END, 14, 15, END],
        [END, 16, 17, 18, 19, END, END],
        [END, END, 20, END],
    ],
    "complete_doc": [[END, 10, 11, 12, END, 13, END], [END, 14, 15, END], [END, 16, 17, 18, 19, END], [END, 20, END]],
    "eos": [[END, *line] for line in LINES],
}


@pytest.mark.parametrize("break_mode", BLOCKS)
def test_breaks_are_those_of_fairseq(break_mode):
    blocks = pack(lines(), 7, break_mode)
    assert rows_of(blocks) == BLOCKS[break_mode]
    tokens = [token for line in LINES for token in line if break_mode != "complete_doc" or len(line) > 1]
    assert predicted(blocks) == tokens
    assert predicted_tokens(blocks) == len(tokens)


@pytest.mark.parametrize("break_mode", ["complete", "complete_doc", "eos"])
def test_long_lines_are_divided(break_mode):
    blocks = pack(lines([[10, 11, 12, 13, 14, 15, END]]), 4, break_mode)
    assert rows_of(blocks) == [[END, 10, 11, 12], [12, 13, 14, 15], [15, END]]


@pytest.mark.parametrize("break_mode", BLOCKS)
@pytest.mark.parametrize("context", [1, 3, 5])
def test_sliding_windows_predict_every_token_once_with_its_context(break_mode, context):
    blocks = pack(lines(), 8, break_mode, context=context)
    plain = pack(lines(), 8, break_mode)
    assert predicted(blocks) == predicted(plain) and predicted_tokens(blocks) == predicted_tokens(plain)
    assert blocks.source_lengths.max() <= 8
    text = [END, *(token for line in LINES for token in line)]
    for number in range(len(blocks)):
        ids, labels = (blocks[number][name].tolist() for name in ("input_ids", "labels"))
        assert any(text[i : i + len(ids)] == ids for i in range(len(text)))  # a stretch of the text
        seen = sum(label == -100 for label in labels) - 1
        assert seen <= context and labels[seen + 1 :] == ids[seen + 1 :]
        if break_mode == "none" and ids[0] != END:
            assert seen == context
    if break_mode == "eos":
        assert all(row.count(END) <= 2 for row in rows_of(blocks))


def test_a_context_that_leaves_nothing_to_predict():
    for context in (6, -1):
        with pytest.raises(InputError, match=f"context_window: {context} given, must be >= 0 and < 6 with "):
            pack(lines(), 7, "none", context=context)


def test_words_are_counted_with_line_ends(tmp_path):
    (tmp_path / "text").write_text("one two\n\nthree\n")
    corpus = read_parallel(CorpusSpec(text=tmp_path / "text"))
    assert (count_words([corpus], "none"), count_words([corpus], "complete_doc")) == (6, 5)


def test_forms_of_text(tmp_path):
    """A file, objects and a data set are read as the same lines."""
    text = [*SENTENCES, "", "two cats"]
    written = [line or " \u200b" for line in text]  # lines of spaces are blank
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"line": line}) + "\n" for line in written))
    rows = datasets.Dataset.from_list([{"line": line} for line in written])
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "set")
    in_column = ({"jsonl": tmp_path / "rows.jsonl"}, {"dataset": tmp_path / "set"})
    for spec in (CorpusSpec(text=tmp_path / "text"), *(CorpusSpec(**each, text_column="line") for each in in_column)):
        corpus = read_parallel(spec)
        assert corpus.sources == corpus.targets == corpus.sentences == text
        reader = PairReader(spec)
        reader.take(5)
        assert reader.cursor.kept == 4  # of which the cursor can go on
        assert PairReader(spec, Cursor(**vars(reader.cursor))).take() == [("two cats", "two cats")]


def test_a_stream_in_chunks_has_the_blocks_of_the_text(tmp_path):
    tokenizer = tiny_tokenizer()
    (tmp_path / "text").write_text("\n".join([*SENTENCES, "", *SENTENCES]), encoding="utf-8")
    corpus = read_parallel(CorpusSpec(text=tmp_path / "text"))

    def packing(text):
        return pack(text, 9, "complete_doc")

    (expected,) = encode_texts([corpus], tokenizer, packing, name="train", cache_dir=tmp_path)
    (cached,) = encode_texts([corpus], tokenizer, packing, name="train", cache_dir=tmp_path)
    found = encode_chunks([corpus[:2], corpus[2:7], corpus[7:]], tokenizer, packing)
    assert rows_of(found) == rows_of(expected) == rows_of(cached)
    begins = tiny_tokenizer()  # as of a converted model
    begins.backend_tokenizer.post_processor = prepend_eos()
    assert rows_of(encode_texts([corpus], begins, packing, name="train")[0]) == rows_of(expected)
    assert rows_of(encode_chunks([corpus[:2], corpus[2:]], begins, packing)) == rows_of(expected)
    assert expected.select([1]).joined([expected, found])[len(expected)]["labels"].tolist() == rows_of(found)[0]
    assert np.array_equal(expected.target_lengths, expected.source_lengths)


def test_no_block_of_a_stream_has_text_of_two_corpora(tmp_path):
    tokenizer = tiny_tokenizer()
    specs = []
    for folder in ("one", "two"):  # with files of the same name
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text").write_text(f"{SENTENCES[0]}\n", encoding="utf-8")
        specs.append(CorpusSpec(text=tmp_path / folder / "text"))
    data = DataSettings(train=tuple(specs), valid=tuple(specs[:1]), stream=True)
    stream = open_stream(data, tokenizer, 1000, positions=1000, seed=1, encoder=block_encoder)
    (batch,) = islice(stream, 1)
    line = tokenizer(SENTENCES[0])["input_ids"]
    assert [row["input_ids"].tolist() for row in batch] == [[tokenizer.eos_token_id, *line]] * 2


def test_a_row_that_fills_up_the_batches_of_the_processes_has_no_loss():
    batch = Seq2SeqCollator(1, None)([pack(lines(), 7, "none")[None]])
    assert batch["labels"].shape == batch["input_ids"].shape and batch["labels"].eq(-100).all()


@pytest.mark.parametrize(
    ("text", "message"), [("\n \n", "text: every line is blank"), ("", "text: empty, must have at least one line")]
)
def test_a_corpus_without_text(tmp_path, text, message):
    (tmp_path / "text").write_text(text)
    with pytest.raises(InputError, match=message):
        read_parallel(CorpusSpec(text=tmp_path / "text"))


def test_a_tokenizer_that_does_not_end_lines():
    with pytest.raises(InputError, match=r"a blank line has the tokens \[\], must be \[2\], the end of the line"):
        encode_texts([], tiny_tokenizer(end=False), pack, name="train")
