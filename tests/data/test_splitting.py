import gzip

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data import splitting
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.splitting import SPLITS, held_out_sizes, sentence_key, split_corpus

READ = {"source_lang": "en", "target_lang": "de", "skip_empty": True}


def write(folder, pairs):
    paths = folder / "corpus.en", folder / "corpus.de"
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return CorpusSpec(source=paths[0], target=paths[1], **READ)


def read(folder, split):
    columns = ((folder / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de"))
    return list(zip(*columns, strict=True))


def test_splits_cover_the_corpus_and_share_no_sentence(tmp_path):
    pairs = [(f"sentence number {i}", f"Satz Nummer {i}") for i in range(400)]
    pairs += (
        [("Yes.", f"Ja {i}") for i in range(40)] + [(f"Maybe {i}!", "Vielleicht") for i in range(40)] + [("", "leer")]
    )
    report = split_corpus(write(tmp_path, pairs), tmp_path)
    splits = {name: read(tmp_path, name) for name in SPLITS}
    assert [len(splits[name]) for name in SPLITS] == [report.train, report.valid, report.test]
    assert (report.empty, report.shared) == (1, 0)
    assert sorted(sum(splits.values(), [])) == sorted(pairs[:-1])
    assert not {"Yes.", "Vielleicht"} & {text for name in ("valid", "test") for pair in splits[name] for text in pair}
    assert "1 with an empty side" in str(report)


def test_training_pairs_of_several_files_are_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(splitting, "SHUFFLED_TOGETHER", 30)
    specs = []
    for name in ("first", "second"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{name} {i}\n" for i in range(100)))
        files = {"source": tmp_path / f"{name}.en", "target": tmp_path / f"{name}.de"}
        specs.append(CorpusSpec(**files, source_lang="en", target_lang="de"))
    split_corpus(specs[0], tmp_path, more=specs[1:])
    sources, targets = ((tmp_path / f"train.{language}").read_text().splitlines() for language in ("en", "de"))
    assert sources == targets and len(set(sources)) == len(sources) == 180
    assert 60 < sum(a.split()[0] != b.split()[0] for a, b in zip(sources, sources[1:], strict=False)) < 120


def test_training_pairs_with_a_held_out_sentence_are_left_out(tmp_path):
    pairs = [(f"Word {i}", f"Wort {i}") for i in range(60)]
    pairs += [(f"word {i}!", f"Vokabel {i}") for i in range(60)]
    report = split_corpus(write(tmp_path, pairs), tmp_path)
    held_out = {sentence_key(source) for name in ("valid", "test") for source, _ in read(tmp_path, name)}
    assert len(held_out) == report.valid + report.test == report.shared > 0
    assert not held_out & {sentence_key(source) for source, _ in read(tmp_path, "train")}


@pytest.mark.parametrize("long", [50, 100])  # of 100 pairs
def test_long_sentences_are_held_out_only_if_there_are_no_others(long, tmp_path):
    pairs = [(f"{i} " + "Ж" * (500 if i < long else 3), f"Satz {i}") for i in range(100)]  # two bytes each
    report = split_corpus(write(tmp_path, pairs), tmp_path)
    found = [max(map(len, pair)) > 500 for name in ("valid", "test") for pair in read(tmp_path, name)]
    assert found == [long == 100] * 10 and report.train == 90


def test_the_same_seed_gives_the_same_splits_of_a_gzip_file(tmp_path):
    source, target = write(tmp_path, [(f"a {i}", f"b {i}") for i in range(100)]).files
    packed = tmp_path / "corpus.en.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    found = []
    for number, (path, seed) in enumerate(((source, 1), (packed, 1), (source, 2))):
        (tmp_path / str(number)).mkdir()
        split_corpus(CorpusSpec(source=path, target=target, **READ), tmp_path / str(number), seed)
        found.append(read(tmp_path / str(number), "test"))
    assert found[0] == found[1] != found[2]


def test_sizes_and_too_few_different_pairs(tmp_path):
    assert [held_out_sizes(pairs) for pairs in (10, 2000, 10**6)] == [(1, 1), (100, 100), (1000, 2000)]
    with pytest.raises(InputError, match="1 different sentence pairs, must be at least 10"):
        split_corpus(write(tmp_path, [("a", "b")] * 50), tmp_path)


def test_sentences_that_differ_in_vowel_signs_are_different():
    assert sentence_key("वह घर आता है") != sentence_key("वह घर आती है")
    assert sentence_key("He left!") == sentence_key("he  left")
    assert sentence_key("Café 6") == sentence_key("cafe\u0301 \uff16")
