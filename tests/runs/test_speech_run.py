"""Speech recognition from a recipe to transcripts."""

import json
import shutil
import stat
import sys

import datasets
import numpy as np
import pytest
import soundfile
import yaml
from support import small_sizes
from support.files import read_json_lines, same_weights
from support.tones import tones, write_tones
from transformers import (
    AutoFeatureExtractor,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    AutoTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import extractor, validate_model_folder
from residual_hf.cli import main
from residual_hf.data.audio import features
from residual_hf.data.batching import Seq2SeqCollator
from residual_hf.data.pipeline import read_corpora
from residual_hf.evaluation.translation_metric import compute_metrics_for, load_metric
from residual_hf.generation.transcription import transcribe
from residual_hf.model.options import from_mapping
from residual_hf.records.run_record import RunRecord
from residual_hf.runs.preparation import prepare_data
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train

SIZES = {**small_sizes(32, ffn_dim=32), "conv_channels": 32}
SIZES |= {"max_source_positions": 200, "max_position_embeddings": 32}


def values(manifest, **sections):
    corpora = {name: {"tsv": str(manifest)} for name in ("train", "valid", "test")}
    training = {"max_updates": 120, "eval_every": 40, "lr": 3e-3, "warmup_updates": 20, "max_tokens": 300}
    return {
        "task": "speech_recognition",
        "language": "en",
        "output_dir": str(manifest.parent / "run"),
        "data": {**corpora, **sections.pop("data", {})},
        "tokenizer": {"vocab_size": 300},
        "model": {**SIZES, "ln_mode": "pre_ln", "dropout": 0.0},
        "training": {**training, "metric": "wer", "keep_last": 3, "average": 2, **sections.pop("training", {})},
        **sections,
    }


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("speech"), 24)


@pytest.fixture(scope="module")
def run(manifest):
    metrics = train(from_mapping(Recipe, values(manifest)))
    return manifest.parent / "run", metrics


def test_it_learns_and_records(run, manifest):
    folder, metrics = run
    assert metrics["test"]["wer"]["value"] < 40 and metrics["test"]["cer"]["value"] < 40
    references = [line.split("\t")[1] for line in manifest.read_text().splitlines()]
    assert (folder / "test.references.txt").read_text().splitlines() == references
    card = (folder / "model" / "README.md").read_text()
    assert "pipeline_tag: automatic-speech-recognition" in card and "Transcribes speech in English" in card
    assert (
        f"a WER of {metrics['test']['wer']['value']:.1f} %" in card and "type: wer" in card and "BLEU on" not in card
    )
    assert 'pipeline("automatic-speech-recognition"' in card and "24 recordings" in card
    assert "processor_config.json" in validate_model_folder(folder / "model")
    entries = read_json_lines(folder / "metrics.jsonl")
    assert all("eval_wer" in entry for entry in entries if "eval_nll" in entry)


def test_resumed_run_is_the_same(run, manifest, tmp_path):
    folder, metrics = run
    again = tmp_path / "run"
    shutil.copytree(folder, again)
    shutil.rmtree(again / "checkpoints" / "checkpoint-120")
    shutil.rmtree(again / "model")
    RunRecord.update(again, finished=None)
    resumed = train(from_mapping(Recipe, values(manifest, output_dir=str(again))), resume=True)
    assert resumed["test"]["wer"] == metrics["test"]["wer"]
    assert same_weights(folder / "model" / "model.safetensors", again / "model" / "model.safetensors")


def test_transcribe(run, tmp_path, capsys, refused):
    model = str(run[0] / "model")
    long = np.concatenate([tones("low high"), np.zeros(8000, np.float32), tones("high")])
    soundfile.write(tmp_path / "long.wav", long, 16_000)
    soundfile.write(tmp_path / "short.wav", tones("high"), 16_000)
    files = [str(tmp_path / name) for name in ("long.wav", "short.wav")]
    assert main(["transcribe", model, *files, "--longest", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert main(["transcribe", str(run[0]), *files, "--longest", "1", "--times", "--num-beams", "2"]) == 0
    parts = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, *_ in parts] == [files[0], files[0], files[1]]
    assert 0.5 < float(parts[0][2]) < 1.0 and parts[0][2] == parts[1][1] and parts[1][2] == "1.25"
    assert " ".join(text for *_, text in parts[:2]) == lines[0]
    refused("none.wav: no such file", "transcribe", model, files[0], tmp_path / "none.wav")
    with pytest.raises(InputError, match="longest: 0.5 given"):
        next(transcribe(model, [files[0]], longest=0.5))
    with pytest.raises(InputError, match="num_beams: 0 given"):
        next(transcribe("nowhere", ["none.wav"], num_beams=0))


def test_verbs_for_text_say_so(run, manifest, tmp_path, refused):
    recipe, model = tmp_path / "recipe.yaml", str(run[0])
    recipe.write_text(yaml.safe_dump(values(manifest, output_dir=str(tmp_path / "run"))))
    lines = tmp_path / "lines.txt"
    lines.write_text("a b\n")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tb a\n")
    other_class = "a ResidualForSpeechSeq2Seq, must be"
    for verb, reason in {
        ("check", str(recipe)): "task: 'speech_recognition' given",
        ("translate", model, str(lines)): other_class,
        ("score", model, str(pairs)): other_class,
        ("evaluate", model, "--source", str(lines), "--reference", str(lines)): other_class,
        ("export", model, "--to", "onnx", "--output-dir", str(tmp_path / "x")): other_class,
        ("transcribe", model, str(recipe)): "recipe.yaml: cannot be read as audio",
    }.items():
        refused(reason, *verb)
    assert main(["average", model, "--last", "2", "--output-dir", str(tmp_path / "average")]) == 0
    assert main(["transcribe", str(tmp_path / "average"), str(manifest.with_name("0.wav"))]) == 0


def test_silence_has_no_text(run, tmp_path):
    quiet = np.zeros(16_000 * 2, np.float32)
    soundfile.write(tmp_path / "quiet.wav", np.concatenate([quiet, tones("low")]), 16_000)
    (parts,) = transcribe(run[0], [tmp_path / "quiet.wav"], longest=1)
    assert parts[0].begin > 1 and parts[-1].end == 2.25


def test_recordings_without_sound_have_empty_lines(run, tmp_path, capsys):
    files = {"silent": np.zeros(16_000), "short": tones("low")[:300], "empty": np.zeros(0), "whole": tones("low")}
    for name, samples in files.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 16_000)
    paths = [str(tmp_path / f"{name}.wav") for name in files]
    assert main(["transcribe", str(run[0]), *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["", "", ""] and lines[3] and len(lines) == 4
    content = (tmp_path / "whole.wav").read_bytes()
    (tmp_path / "whole.wav").write_bytes(content[:2000])
    assert main(["transcribe", str(run[0]), *paths]) == 2
    found = capsys.readouterr()
    assert not found.out and "whole.wav: is cut off or damaged" in found.err


FFMPEG = """#!{python}
import sys, io, soundfile
samples, rate = soundfile.read(io.BytesIO(sys.stdin.buffer.read()), dtype="float32")
assert rate == int(sys.argv[sys.argv.index("-ar") + 1])
sys.stdout.buffer.write(samples.tobytes())
"""


def test_pipeline_and_processor(run, tmp_path, monkeypatch):
    folder = str(run[0] / "model")
    processor = AutoProcessor.from_pretrained(folder)
    assert type(processor).__name__ == "Speech2TextProcessor"
    assert AutoFeatureExtractor.from_pretrained(folder).num_mel_bins == 80
    (tmp_path / "ffmpeg").write_text(FFMPEG.format(python=sys.executable))  # Transformers reads files by it
    (tmp_path / "ffmpeg").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    samples = tones("high low high")
    soundfile.write(tmp_path / "x.wav", samples, 16_000, subtype="FLOAT")
    ours = pipeline("automatic-speech-recognition", model=folder)
    of_array = ours({"array": samples.astype(float), "sampling_rate": 16_000})
    assert of_array["text"] and of_array == ours(str(tmp_path / "x.wav")) == ours(samples)
    (parts,) = transcribe(folder, [tmp_path / "x.wav"])
    assert parts[0].text == of_array["text"]
    inputs = processor(audio=samples, sampling_rate=16_000, return_tensors="pt", text="low high")
    assert inputs["input_features"].shape[2] == 80 and inputs["labels"][0, -1] == 2


def test_seq2seq_trainer(run, tmp_path):
    folder = run[0] / "model"
    model, tokenizer = AutoModelForSpeechSeq2Seq.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = [
        {"input_features": features(tones(text), extractor(80)), "labels": tokenizer(text)["input_ids"]}
        for text in ("low", "high low", "high high")
    ]
    options = {"max_steps": 2, "per_device_train_batch_size": 3, "learning_rate": 1e-4, "report_to": "none"}
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, remove_unused_columns=False, use_cpu=True, **options
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id),
        compute_metrics=compute_metrics_for(tokenizer, ("wer", "cer")),
    )
    assert trainer.train().training_loss > 0
    assert {"eval_wer", "eval_cer", "eval_loss"} <= trainer.evaluate().keys()


@pytest.mark.parametrize("form", ["jsonl", "csv", "dataset"])
def test_columns_have_names(form, manifest, tmp_path):
    rows = [line.split("\t") for line in manifest.read_text().splitlines()[:3]]
    rows = [{"audio": str(manifest.with_name(name)), "text": text} for name, text in rows]
    if form == "jsonl":
        spec = {"jsonl": str(tmp_path / "x.jsonl")}
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "csv":
        spec = {"file": str(tmp_path / "x.csv")}
        lines = ["audio,text", *(f"{row['audio']},{row['text']}" for row in rows)]
        (tmp_path / "x.csv").write_text("".join(f"{line}\n" for line in lines))
    else:
        spec = {"dataset": str(tmp_path / "x")}
        data = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
        data.save_to_disk(tmp_path / "x")
    changed = values(manifest, output_dir=str(tmp_path / "run"), data={"train": spec, "valid": spec})
    del changed["data"]["test"]
    recipe = from_mapping(Recipe, changed)
    prepared = prepare_data(recipe, read_corpora(recipe.data), tmp_path)
    assert prepared.references["valid"][0].targets == [row["text"] for row in rows]
    assert len(prepared.encoded["train"]) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"valid": {"tsv": "bad.tsv"}}, r"bad\.tsv: .*none\.wav: no such file"),
        ({"valid": {"tsv": "folder.tsv"}}, r"folder\.tsv: .*x: not a file"),
        ({"features": "bad.tsv"}, r"data\.features: bad\.tsv cannot be a folder"),
    ],
)
def test_before_features_are_computed(data, message, manifest, tmp_path, monkeypatch):
    (tmp_path / "bad.tsv").write_text(f"{manifest.with_name('0.wav')}\tlow\nnone.wav\thigh\n")
    (tmp_path / "folder.tsv").write_text("x\tlow\n")
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("residual_hf.data.speech.features", None)
    with pytest.raises(InputError, match=message):
        train(from_mapping(Recipe, values(manifest, output_dir="run", data=data)))


def test_without_jiwer(manifest, tmp_path, monkeypatch):
    load_metric.cache_clear()
    monkeypatch.setitem(sys.modules, "jiwer", None)
    monkeypatch.setattr("residual_hf.data.speech.features", None)
    with pytest.raises(InputError, match="jiwer is not installed"):
        train(from_mapping(Recipe, values(manifest, output_dir=str(tmp_path / "run"))))


def test_the_width_of_convolutions_has_a_default(manifest):
    recipe = from_mapping(Recipe, values(manifest, model={"ln_mode": "b2t", "conv_channels": None}))
    assert recipe.build_config().conv_channels == 1024


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"stream": True}}, r"data\.stream: true given, must be false with task 'speech_recognition'"),
        ({"data": {"bidirectional": True}}, r"data\.bidirectional: true given"),
        ({"data": {"cleaning": {"max_ratio": 2.0}}}, r"data\.cleaning: .* must be null"),
        ({"training": {"metric": "bleu"}}, r"training\.metric: 'bleu' given, must be one of nll, loss, wer, cer"),
        ({"training": {"eval_bleu": False}}, r"eval_bleu: false given, must be true with metric 'wer'"),
        ({"task": "summarization", "data": {"spec_augment": "lb"}}, r"data\.spec_augment: 'lb' given, must be null"),
        ({"task": "summarization"}, r"model\.conv_channels: 32 given, must be null with task 'summarization'"),
        (
            {"task": "summarization", "model": {}, "data": {"test": {"audio_folder": "x"}}},
            r"corpus\.audio_folder: 'x' given, must be null with task 'summarization'",
        ),
        ({"model": {"conv_channels": 7}}, r"conv_channels: 7 given, must be an even number"),
    ],
)
def test_recipes_that_do_not_fit(changes, message, manifest):
    with pytest.raises(InputError, match=message):
        from_mapping(Recipe, values(manifest, **changes)).build_config()
