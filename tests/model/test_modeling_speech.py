"""The speech model: against Transformers' Speech2Text, in every mode, and as a folder of its own."""

import json

import numpy as np
import pytest
import soundfile
import torch
from support import small_sizes
from support.models import every_shape
from support.processes import run_without_the_package
from support.tiny_translator import coded_tokenizer
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Speech2TextProcessor,
    Speech2TextTokenizer,
)

from residual_hf import ResidualConfig, ResidualForConditionalGeneration, ResidualForSpeechSeq2Seq
from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.conversion import fold
from residual_hf.conversion.transformers_models import from_transformers
from residual_hf.generation.transcription import transcribe
from residual_hf.model import decoding
from residual_hf.model.branch_warmup import finished_branch_warmup
from residual_hf.model.profiling import profile_admin

BINS, VOCABULARY = 6, 23
SIZES = {**small_sizes(8, 2, 12), "conv_channels": 10, "vocab_size": VOCABULARY}


def speech_model(mode="pre_ln", **fields):
    """A model with random parameters of a size at which the order of tokens is clear."""
    torch.manual_seed(0)
    config = ResidualConfig(ln_mode=mode, num_mel_bins=BINS, max_position_embeddings=32, **SIZES | fields)
    return randomized(ResidualForSpeechSeq2Seq(config)).eval()


@torch.no_grad()
def randomized(model):
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    model.get_input_embeddings().weight[1] = 0
    return model


@pytest.fixture(scope="module")
def inputs():
    """Recordings of 41, 30 and 9 frames."""
    torch.manual_seed(1)
    mask = (torch.arange(41) < torch.tensor([[41], [30], [9]])).long()
    return {"input_features": torch.randn(3, 41, BINS) * mask[..., None], "attention_mask": mask}


@pytest.fixture(scope="module")
def targets():
    return torch.tensor([[2, 5, 6, 7], [2, 8, 9, 10], [2, 11, 12, 13]])


@pytest.fixture(scope="module")
def speech2text():
    torch.manual_seed(0)
    config = Speech2TextConfig(input_feat_per_channel=BINS, max_source_positions=100, max_target_positions=32, **SIZES)
    return randomized(Speech2TextForConditionalGeneration(config)).eval()


@pytest.mark.parametrize("padded", [True, False])
def test_is_speech2text_of_transformers(speech2text, inputs, targets, padded):
    ours = from_transformers(speech2text)
    assert type(ours) is ResidualForSpeechSeq2Seq and ours.config.ln_mode == "pre_ln"
    given = inputs if padded else {"input_features": inputs["input_features"][:, :30]}
    with torch.no_grad():
        expected, actual = (model(**given, decoder_input_ids=targets) for model in (speech2text, ours))
    states = ours.model.encoder.states_mask(given.get("attention_mask", torch.ones(3, 30))).bool()
    assert expected.logits.std() > 0.5
    assert_close(actual.encoder_last_hidden_state[states], expected.encoder_last_hidden_state[states])
    assert_close(actual.logits, expected.logits)
    beams = {"num_beams": 3, "max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True}
    expected, actual = (model.generate(**given, **beams) for model in (speech2text, ours))
    assert actual.sequences.tolist() == expected.sequences.tolist()
    assert_close(actual.sequences_scores, expected.sequences_scores)


def test_speech2text_without_positions_is_refused(speech2text, monkeypatch):
    monkeypatch.setattr(speech2text.config, "pad_token_id", 0)
    with pytest.raises(InputError, match="pad_token_id: 0 given.*frames have no positions"):
        from_transformers(speech2text)


def test_folders_of_speech2text_are_converted(tmp_path, capsys):
    coded = coded_tokenizer(tmp_path)
    names = {
        name: row for row, name in enumerate(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *coded.get_vocab()]))
    }
    (tmp_path / "vocab.json").write_text(json.dumps(names))
    tokenizer = Speech2TextTokenizer(str(tmp_path / "vocab.json"), coded.spm_file)
    torch.manual_seed(0)
    fields = {"input_feat_per_channel": 80, "max_source_positions": 100, "max_target_positions": 32}
    config = Speech2TextConfig(**SIZES | fields | {"vocab_size": len(names)})
    foreign = randomized(Speech2TextForConditionalGeneration(config)).eval()
    foreign.save_pretrained(tmp_path / "foreign")
    Speech2TextProcessor(Speech2TextFeatureExtractor(), tokenizer).save_pretrained(tmp_path / "foreign")
    assert main(["convert", str(tmp_path / "foreign"), "--output-dir", str(converted := tmp_path / "ours")]) == 0
    assert f"try residual-hf transcribe {converted} FILE" in capsys.readouterr().out
    card = (converted / "README.md").read_text()
    assert "Transcribes speech." in card and "pipeline_tag: automatic-speech-recognition" in card
    soundfile.write(tmp_path / "x.wav", np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000)
    (parts,) = transcribe(converted, [tmp_path / "x.wav"], max_length_a=0.0, max_length_b=6)
    samples, rate = soundfile.read(tmp_path / "x.wav", dtype="float32")
    inputs = AutoProcessor.from_pretrained(converted)(samples, sampling_rate=rate, return_tensors="pt")
    tokens = foreign.generate(**inputs, max_new_tokens=6, num_beams=1)
    assert [part.text for part in parts] == tokenizer.batch_decode(tokens, skip_special_tokens=True)


@every_shape
def test_modes_of_every_shape(mode, inputs, targets, monkeypatch):
    model = speech_model(mode)
    with finished_branch_warmup(model):
        loss = model(**inputs, labels=targets).loss
        loss.backward()
    silent = [name for name, p in model.model.encoder.embed_tokens.named_parameters() if not p.grad.abs().sum()]
    assert loss.isfinite() and not silent
    searched, beam_search = [], decoding.beam_search
    monkeypatch.setattr(decoding, "beam_search", lambda *given: searched.append(1) or beam_search(*given))
    search = {"num_beams": 2, "max_new_tokens": 6}
    found = model.generate(**inputs, **search)
    model.generation_config.fast_decoding = False
    assert (
        found.tolist()
        == model.generate(inputs["input_features"], attention_mask=inputs["attention_mask"], **search).tolist()
    )
    assert searched == [1]


def test_length_of_the_search_counts_states(inputs):
    model = speech_model()
    model.generation_config.max_length_a, model.generation_config.max_length_b = 0.5, 2
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    states = model.model.encoder.states_mask(inputs["attention_mask"]).sum(1)
    assert states.tolist() == [11, 8, 3]
    rows = model.generate(**inputs)
    assert [int(row.ne(1).sum()) - 1 for row in rows] == [7, 6, 3]
    assert model.generate(**inputs, max_length_a=0.0).shape == (3, 3), "arguments win"
    assert model.generate(inputs["input_features"]).shape == (3, 8)


def test_scales_of_the_first_shortcut_go_into_the_front_end(inputs, targets):
    model = speech_model("deep_norm")
    folded = fold(model)
    assert folded.config.ln_mode == "post_ln"
    with torch.no_grad():
        found, expected = (each(**inputs, decoder_input_ids=targets).logits for each in (folded, model))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_padding_is_not_read(inputs, targets):
    model = speech_model("b2t")
    noisy = torch.where(inputs["attention_mask"][..., None].bool(), inputs["input_features"], 1e3)
    logits, polluted = (
        model(features, attention_mask=inputs["attention_mask"], decoder_input_ids=targets).logits
        for features in (inputs["input_features"], torch.cat([inputs["input_features"], noisy[:, :8] * 0], 1)[:, :41])
    )
    assert_close(polluted, logits)
    unmasked = model(inputs["input_features"], decoder_input_ids=targets).logits
    assert_close(unmasked[0], logits[0])
    assert (unmasked[2] - logits[2]).abs().max() > 1e-2


def test_admin_profile_and_resizing(inputs, targets):
    model = speech_model("admin")
    assert len(profile_admin(model, {**inputs, "labels": targets})) == 2 * 2 + 3 * 2
    model.resize_token_embeddings(VOCABULARY + 2)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert model.config.vocab_size == model.config.decoder_vocab_size == len(model.lm_head.weight) == VOCABULARY + 2


def test_limits(inputs):
    model = speech_model(max_source_positions=40)
    assert model.model.encoder.embed_positions.table.shape[0] == 10 + 2
    with pytest.raises(ValueError, match=r"received 41 frames, but max_source_positions is 40"):
        model.generate(**inputs)
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="input_ids given, but a speech model reads input_features"):
        model(input_ids=ids, labels=ids)
    with pytest.raises(ValueError, match=r"requires exactly one of input features and inputs_embeds"):
        model.model.encoder()
    for fields, message in {
        ("conv_channels", 9): "conv_channels: 9 given, must be an even number above 0",
        ("conv_kernel_sizes", (4, 5)): "conv_kernel_sizes: .* odd",
        ("conv_kernel_sizes", ()): "conv_kernel_sizes: .* one or more odd",
        ("is_decoder_only", True): "conv_channels: 8 given, must be .*, in a model with encoder and decoder",
    }.items():
        with pytest.raises(Exception, match=message):
            ResidualConfig(**{"conv_channels": 8, fields[0]: fields[1]})
    with pytest.raises(ValueError, match=r"the config is none of a speech model"):
        ResidualForSpeechSeq2Seq(ResidualConfig())
    with pytest.raises(ValueError, match=r"the config is one of a speech model"):
        ResidualForConditionalGeneration(model.config)
    with pytest.raises(ValueError, match="needs a config with is_encoder_decoder=True"):
        ResidualForSpeechSeq2Seq(ResidualConfig(is_decoder_only=True))


SCRIPT = """
import json
import torch
from transformers import AutoModelForSpeechSeq2Seq
model = AutoModelForSpeechSeq2Seq.from_pretrained(sys.argv[1], trust_remote_code=True)
features = torch.load(sys.argv[2])
print(json.dumps(model.generate(**features, num_beams=2, max_new_tokens=6).tolist()))
"""


def test_folder_with_its_code(inputs, tmp_path):
    model = speech_model("resi_dual")
    model.save_pretrained(tmp_path / "model")
    expected = model.generate(**inputs, num_beams=2, max_new_tokens=6).tolist()
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert set(values["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSpeechSeq2Seq"}
    assert "custom_pipelines" not in values
    loaded = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "model")
    assert type(loaded) is ResidualForSpeechSeq2Seq
    assert loaded.generate(**inputs, num_beams=2, max_new_tokens=6).tolist() == expected
    assert AutoModel.from_pretrained(tmp_path / "model").config.reads_speech
    assert AutoConfig.from_pretrained(tmp_path / "model").conv_channels == 10
    torch.save(inputs, tmp_path / "inputs.pt")
    done = run_without_the_package(SCRIPT, tmp_path / "model", tmp_path / "inputs.pt", cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1]) == expected


def test_the_front_end_can_be_frozen():
    """`run_speech_recognition_seq2seq.py` of Transformers does so unless told otherwise."""
    model = speech_model()
    model.freeze_feature_encoder()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen and all(name.startswith("model.encoder.embed_tokens.convs.") for name in frozen)
