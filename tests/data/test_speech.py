import os
import pickle
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile
import torch
from support.tones import tones, write_tones
from transformers import Speech2TextFeatureExtractor

from residual_hf.base.errors import InputError, for_all
from residual_hf.checkpoint import extractor
from residual_hf.data.audio import RATE, Recording, cut_at_pauses, features, recording, recordings
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.data.corpus import read_parallel
from residual_hf.data.data_settings import SPEC_AUGMENT, CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.pair_reader import folder_pairs
from residual_hf.data.pipeline import Preparation
from residual_hf.data.speech import SpeechCorpus, prepare_speech, spec_augment
from residual_hf.model.configuration_residual import ResidualConfig

CONFIG = ResidualConfig(conv_channels=8, max_source_positions=200, max_position_embeddings=16)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("tones"))


def prepared(spec, folder, valid=None, **settings):
    splits = {"train": spec, "valid": valid or spec}
    data = DataSettings(**{name: (each,) for name, each in splits.items()}, **settings)
    texts = {name: [read_parallel(each)] for name, each in splits.items()}
    tokenizer = TokenizerSettings(vocab_size=300, max_token_length=2)
    return prepare_speech(Preparation(texts, data, tokenizer, folder, CONFIG, max_tokens=None, seed=1))


@pytest.fixture(scope="module")
def data(manifest, tmp_path_factory):
    return prepared(CorpusSpec(tsv=manifest), tmp_path_factory.mktemp("run"), spec_augment="ld")


def test_features_are_those_of_transformers(data, manifest):
    samples, _ = soundfile.read(manifest.with_name("3.wav"), dtype="float32")
    expected = Speech2TextFeatureExtractor()(samples, sampling_rate=RATE)["input_features"][0]
    assert data.encoded["valid"].source_lengths[3] == len(expected) == 98
    np.testing.assert_array_equal(data.encoded["valid"][3]["input_features"], expected)
    assert abs(expected.mean()) < 1e-4 and abs(expected.std() - 1) < 1e-2


def test_rows_are_transcripts(data):
    valid, lines = data.encoded["valid"], data.references["valid"][0].targets
    texts = data.tokenizer.batch_decode([row["labels"] for row in valid], skip_special_tokens=True)
    assert texts == lines and all(row["labels"][-1] == 2 for row in valid)
    assert (valid[None]["labels"] == -100).all()
    chosen = valid.select([4, 1])
    for row, index in enumerate((4, 1)):
        np.testing.assert_array_equal(chosen[row]["input_features"], valid[index]["input_features"])
        np.testing.assert_array_equal(chosen[row]["labels"], valid[index]["labels"])


def test_masks_depend_on_seed_epoch_and_row(data):
    train, plain = data.encoded["train"], data.encoded["valid"]

    def masked(epoch):
        train.set_epoch(epoch)
        return train[3]["input_features"]

    first = masked(0)
    np.testing.assert_array_equal(first, masked(0))
    assert not np.array_equal(first, masked(1))
    np.testing.assert_array_equal(train.source(3), plain.source(3))


@pytest.mark.parametrize("policy", SPEC_AUGMENT)
def test_policies_of_fairseq(policy):
    frames = np.random.default_rng(0).normal(size=(300, 80)).astype(np.float32)
    bands, stretches = [], []
    for seed in range(200):
        changed = spec_augment(frames, SPEC_AUGMENT[policy], np.random.default_rng(seed)) != frames
        bands.append(int(changed.all(axis=0).sum()))
        stretches.append(int(changed.all(axis=1).sum()))
    count = {"lb": 1, "ld": 2}[policy]
    assert count * 20 < max(bands) <= count * 26 and count * 75 < max(stretches) <= count * 99
    assert abs(np.mean(bands) - 13 * count) < 3 * count and abs(np.mean(stretches) - 49.5 * count) < 12 * count
    spec_augment(frames[:3, :2], SPEC_AUGMENT[policy], np.random.default_rng(0))  # smaller than the masks


def test_features_are_computed_once(manifest, tmp_path, monkeypatch):
    spec = CorpusSpec(tsv=manifest)
    prepared(spec, tmp_path / "a", features=tmp_path / "features")
    shutil.copytree(manifest.parent, tmp_path / "moved")
    monkeypatch.setattr("residual_hf.data.speech.features", None)
    prepared(CorpusSpec(tsv=tmp_path / "moved" / manifest.name), tmp_path / "b", features=tmp_path / "features")


def replaced(path):
    """Write another recording of the same size and time."""
    stat, samples = path.stat(), soundfile.read(path, dtype="float32")[0]
    soundfile.write(path, samples[::-1].copy(), RATE)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size


def test_features_of_replaced_recordings_are_not_used(tmp_path):
    spec = CorpusSpec(tsv=write_tones(tmp_path / "tones"))
    before = prepared(spec, tmp_path / "a", features=tmp_path / "features").encoded["valid"]
    replaced(tmp_path / "tones" / "3.wav")
    after = prepared(spec, tmp_path / "b", features=tmp_path / "features").encoded["valid"]
    samples = recording(tmp_path / "tones" / "3.wav").samples()
    np.testing.assert_array_equal(after.source(3), features(samples, extractor(80)))
    assert not np.array_equal(after.source(3), before.source(3))
    np.testing.assert_array_equal(after.source(2), before.source(2))
    with pytest.raises(InputError, match=r"^data\.valid: other recordings than those that the run was started with"):
        prepared(spec, tmp_path / "a", features=tmp_path / "features")


@pytest.mark.parametrize("suffix", ["f32", "npy"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_damaged_features_are_computed_again(damage, suffix, manifest, tmp_path, caplog):
    spec = CorpusSpec(tsv=manifest)
    prepared(spec, tmp_path / "run")
    (path,) = (tmp_path / "run" / "cache").glob(f"valid-*.{suffix}")
    content = bytearray(path.read_bytes())
    content[-7] ^= 16
    path.write_bytes({"flipped": content, "cut": content[:-7], "empty": b""}[damage])
    found = prepared(spec, tmp_path / "run").encoded["valid"]
    assert f"{path} is damaged" in caplog.text
    for row in range(len(found)):
        samples = recording(manifest.with_name(f"{row}.wav")).samples()
        np.testing.assert_array_equal(found.source(row), features(samples, extractor(80)))


def test_collator_pads_frames_with_zeros(data):
    valid = data.encoded["valid"]
    batch = Seq2SeqCollator(1, 2)([valid[0], valid[3]])
    lengths = valid.source_lengths[[0, 3]].tolist()
    assert batch["input_features"].dtype == torch.float32 and batch["input_features"].shape == (2, 98, 80)
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert not batch["input_features"][0, lengths[0] :].any()
    assert batch["decoder_input_ids"][:, 0].tolist() == [2, 2]


def cut_off(path, **form):
    """Write two words, of which the end is missing."""
    soundfile.write(path, tones("low high"), RATE, **form)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("write", "message"),
    {
        "missing": (lambda path: None, "no such file"),
        "damaged": (lambda path: path.write_bytes(b"RIFF no sound"), "cannot be read as audio"),
        "empty": (lambda path: soundfile.write(path, np.zeros(0), RATE), "has 0 samples, must have at least 560"),
        "of one frame": (lambda path: soundfile.write(path, tones("low")[:559], RATE), "has 559 samples, must have"),
        "silent": (lambda path: soundfile.write(path, np.zeros(RATE), RATE), "is silent"),
        "another rate": (lambda path: soundfile.write(path, tones("low", 8000), 8000), "has 8,000 samples per second"),
        "cut off": (cut_off, r"is cut off or damaged: has 7,978 bytes of samples, its header says 16,000"),
        "MP3": (
            lambda path: cut_off(path, format="MP3"),
            r"is cut off or damaged: has 2,\d+ samples, its header says 8,000",
        ),
    }.values(),
    ids=["missing", "damaged", "empty", "of one frame", "silent", "another rate", "cut off", "MP3"],
)
def test_bad_recordings_are_named(write, message, tmp_path):
    write(tmp_path / "bad.wav")
    (tmp_path / "bad.tsv").write_text("bad.wav\tlow\n")
    with pytest.raises(InputError, match=rf"{tmp_path}/bad\.wav: {message}"):
        prepared(CorpusSpec(tsv=tmp_path / "bad.tsv"), tmp_path / "run")


def test_recordings_whose_header_does_not_know_their_length(tmp_path):
    path = tmp_path / "x.wav"
    soundfile.write(path, tones("low high"), RATE)
    content = bytearray(path.read_bytes())
    for size in (0x7FFFF000, 0xFFFFFFFF):  # of sox and ffmpeg, written to a pipe
        content[40:44] = size.to_bytes(4, "little")
        path.write_bytes(content)
        assert len(recording(path).samples()) == 8000
    soundfile.write(path, tones("low high"), RATE, format="MP3", bitrate_mode="CONSTANT")
    content = path.read_bytes()
    frames = content[content.index(content[:2], 2) :]  # without the first one, with the length
    path.write_bytes(b"ID3\3\0\0\0\1\0\0" + bytes(2**14) + frames)  # a tag that libsndfile takes for frames
    assert len(recording(path).samples()) > 8000


def test_all_bad_recordings_are_named_at_once(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("residual_hf.data.speech.features", None)  # before any features are computed
    good = manifest.with_name("1.wav")
    names = [f"{number:02}.wav" for number in range(12)]
    (tmp_path / "train.tsv").write_text(f"{good}\tlow\n" + "".join(f"{name}\tlow\n" for name in names))
    (tmp_path / "valid.tsv").write_text("damaged.wav\tlow\n")
    train, valid = (CorpusSpec(tsv=tmp_path / f"{name}.tsv") for name in ("train", "valid"))
    with pytest.raises(InputError) as missing:
        recordings(train, read_parallel(train))
    assert str(missing.value).splitlines()[1:] == [
        *(f"train.tsv: {tmp_path / name}: no such file" for name in names[1:10]), "and 2 more"
    ]  # fmt: skip
    for name in names:
        soundfile.write(tmp_path / name, np.zeros(RATE), RATE)
    (tmp_path / "damaged.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(InputError) as bad:
        prepared(train, tmp_path / "run", valid=valid)
    first, *others = str(bad.value).splitlines()
    assert first.startswith(f"{tmp_path / 'damaged.wav'}: cannot be read as audio")
    assert others == [*(f"{tmp_path / name}: is silent" for name in names[:9]), "and 3 more"]


def test_the_shortest_recording_has_features():
    assert np.isfinite(features(tones("low")[:560], extractor(80))).all()


def test_long_recordings(manifest, tmp_path, monkeypatch):
    spec = CorpusSpec(tsv=manifest)
    assert len(prepared(spec, tmp_path / "dropped", max_length=50).encoded["train"]) == 4
    monkeypatch.setattr("residual_hf.data.speech.features", None)  # before any features are computed
    with pytest.raises(InputError, match=r"data\.train: .*0\.wav has \d+ frames and \d+ tokens, must have .* 10 "):
        prepared(spec, tmp_path / "none", max_length=10)
    soundfile.write(tmp_path / "long.wav", tones("low high " * 5), RATE)
    (tmp_path / "long.tsv").write_text("long.wav\tlow\n")
    long = CorpusSpec(tsv=tmp_path / "long.tsv")
    texts = {"train": [read_parallel(spec)], "valid": [read_parallel(long)]}
    settings = DataSettings(train=(spec,), valid=(long,)), TokenizerSettings(vocab_size=300)
    with pytest.raises(InputError, match=r"data\.valid: .*long\.wav has 248 frames and \d+ tokens, must have .* 200"):
        prepare_speech(Preparation(texts, *settings, tmp_path / "run", CONFIG, max_tokens=None, seed=1))


def test_without_soundfile(manifest, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputError, match=r"^soundfile is not installed: pip install 'residual_hf\[speech\]'$"):
        for_all(Recording.frames, [recording(manifest.with_name(f"{number}.wav")) for number in (1, 2)])


def test_channels_are_averaged(tmp_path):
    mono = tones("high")
    soundfile.write(tmp_path / "two.wav", np.stack([mono, np.zeros_like(mono)], 1), RATE, subtype="FLOAT")
    np.testing.assert_allclose(recording(tmp_path / "two.wav").samples(), mono / 2)


def test_folders(tmp_path):
    for name in ("a/one.flac", "a/two.WAV", "a/._two.WAV", "b/three.flac"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/a.trans.txt").write_text("one FIRST WORDS\n\ntwo SECOND\n")
    (tmp_path / "b/three.txt").write_text("third\ntext\n")
    pairs = [("a/one.flac", "FIRST WORDS"), ("a/two.WAV", "SECOND"), ("b/three.flac", "third text")]
    assert list(folder_pairs(tmp_path)) == pairs
    spec = CorpusSpec(audio_folder=tmp_path)
    corpus = read_parallel(spec)
    assert list(corpus) == pairs and corpus.name == tmp_path.name
    assert [each.source for each in recordings(spec, corpus)] == [tmp_path / path for path, _ in pairs]
    (tmp_path / "b/three.flac").unlink()
    with pytest.raises(InputError, match="three: has 0 audio files"):
        list(folder_pairs(tmp_path))
    (tmp_path / "a/four.wav").touch()
    (tmp_path / "a/one.wav").touch()
    (tmp_path / "a/two.txt").write_text("another text")
    with pytest.raises(InputError) as error:
        folder_pairs(tmp_path)
    found = re.findall(r"(\w/\w+): has (\d) audio files \([\w., ]+\), and (\d) texts", str(error.value))
    assert found == [("a/four", "1", "0"), ("a/one", "2", "1"), ("a/two", "1", "2"), ("b/three", "0", "1")]
    with pytest.raises(InputError, match="nowhere: no such folder"):
        read_parallel(replace(spec, audio_folder=tmp_path / "nowhere"))


def test_names_of_files_are_not_text(tmp_path):
    name = "two  spaces, ü 語.WAV"
    soundfile.write(tmp_path / name, tones("low"), RATE)
    (tmp_path / "files.csv").write_text(f'audio,text\n"{name}","low  tone"\n', encoding="utf-8")
    spec = CorpusSpec(file=tmp_path / "files.csv", source_column="audio", target_column="text")
    corpus = read_parallel(spec)
    assert [each.source for each in recordings(spec, corpus)] == [tmp_path / name] and corpus.targets == ["low tone"]


@pytest.mark.parametrize("embedded", [True, False])
def test_data_sets_with_audio(embedded, tmp_path):
    manifest = write_tones(tmp_path / "tones", 4)
    lines = [line.split("\t") for line in manifest.read_text().splitlines()]
    paths = [str(manifest.with_name(name)) for name, _ in lines]
    audio = [{"bytes": Path(path).read_bytes(), "path": "x.wav"} for path in paths] if embedded else paths
    texts = ["" if row == 1 else text for row, (_, text) in enumerate(lines)]
    rows = datasets.Dataset.from_dict({"audio": audio, "text": texts})
    rows.cast_column("audio", datasets.Audio()).save_to_disk(tmp_path / "set")
    spec = CorpusSpec(dataset=tmp_path / "set", source_column="audio", target_column="text", skip_empty=True)
    corpus = read_parallel(spec)
    assert corpus.targets == [text for i, (_, text) in enumerate(lines) if i != 1]
    for each, row in zip(recordings(spec, corpus), (0, 2, 3), strict=True):
        np.testing.assert_array_equal(each.samples(), recording(manifest.with_name(f"{row}.wav")).samples())


def test_data_sets_with_names_of_files(tmp_path):
    datasets.Dataset.from_dict({"audio": ["1.wav"], "text": ["low"]}).save_to_disk(tmp_path / "set")
    spec = CorpusSpec(dataset=tmp_path / "set", source_column="audio", target_column="text")
    with pytest.raises(InputError, match=r"\[train\]: the column audio has no recordings; cast it to datasets.Audio"):
        recordings(spec, read_parallel(spec))


def test_cuts_are_in_pauses():
    pause = np.zeros(RATE, np.float32)
    samples = np.concatenate([tones("low high low high"), pause, tones("high high"), pause, tones("low " * 12)])
    spans = list(cut_at_pauses(samples, 2.5))
    assert spans[0][0] == 0 and spans[-1][1] == len(samples)
    assert all(end == begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    assert all(RATE / 10 <= end - begin <= 2.5 * RATE for begin, end in spans)
    first, second = (end for _, end in spans[:2])
    assert RATE < first < 2 * RATE and 2.5 * RATE < second < 3.5 * RATE  # in the two pauses
    assert list(cut_at_pauses(samples, 60)) == [(0, len(samples))]


def test_workers_get_the_path_of_the_features(data):
    train = data.encoded["train"]
    packed = pickle.dumps(train)
    assert len(packed) < train.source_lengths.sum() * 80
    assert np.array_equal(pickle.loads(packed)[3]["input_features"], train[3]["input_features"])


def test_corpus_in_memory():
    frames = features(tones("low high"), extractor(80))
    texts = {"target_ids": np.array([5, 2], np.int32), "target_offsets": np.array([0, 2])}
    corpus = SpeechCorpus(frames, np.array([0]), np.array([len(frames)]), texts)
    assert len(corpus) == 1 and corpus.target_lengths.tolist() == [2]
