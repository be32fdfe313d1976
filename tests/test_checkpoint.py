"""Saving model folders, and errors for folders that are damaged, incomplete or from a newer version."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import small_sizes
from support.tiny_translator import SENTENCES, save_tiny, tiny_model, tiny_tokenizer
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import identity, load_checkpoint, save_checkpoint, validate_model_folder
from residual_hf.conversion.transformers_models import from_transformers
from residual_hf.generation.translator import Translator
from residual_hf.hub.push import push_run
from residual_hf.model.checksums import CHECKSUMS, write_checksums
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_single_stack import ResidualForMaskedLM, ResidualForSequenceClassification
from residual_hf.model.tokenization_residual import ResidualTokenizer

CARD = "---\nlibrary_name: transformers\npipeline_tag: translation\ntags: [translation]\n---\n# German to English\n"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("saved") / "model")
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def set_fields(file="config.json", **fields):
    def change(folder):
        values = json.loads((folder / file).read_text()) | fields
        (folder / file).write_text(json.dumps(values))
        write_checksums(folder, [file])  # as of a model that was saved like this

    return change


def change_weights(change):
    def changed(folder):
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        write_checksums(folder, [WEIGHTS])

    return changed


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut_off(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def larger_vocabulary(folder):
    tiny_tokenizer("<2de>", "<2fr>").save_pretrained(folder)


NORM = "model.encoder.layers.0.ffn_residual.norm.weight"
EVERYWHERE = {
    "cut off": (cut_off, r"model.safetensors: damaged or truncated \(.*: .*incomplete metadata"),
    "no safetensors": (write(WEIGHTS, b"<html>502 Bad Gateway</html>"), "model.safetensors: damaged or truncated"),
    "empty": (write(WEIGHTS, b""), "model.safetensors: damaged or truncated"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "model.safetensors: no such file"),
    "missing weight": (change_weights(lambda t: t.pop(NORM)), f"do not match config.json; missing: {NORM}$"),
    "unknown weight": (change_weights(lambda t: t.update(more=torch.ones(1))), "match config.json; unknown: more$"),
    "wrong shape": (
        change_weights(lambda t: t.update({NORM: torch.ones(8)})),
        rf"of another shape: {NORM} \(8,\) instead of \(16,\)$",
    ),
    "not a number": (change_weights(lambda t: t[NORM][3:4].fill_(torch.nan)), rf"not finite .*: {NORM}; use"),
    "more layers": (set_fields(encoder_layers=9999), "encoder_layers is 9999, but the weights have 1$"),
    "wider": (set_fields(d_model=2**40), f"d_model is {2**40}, but the weights have 16$"),
    "larger vocabulary": (
        set_fields(vocab_size=2**40, decoder_vocab_size=2**40),
        rf"embed_tokens.weight \(94, 16\) instead of \({2**40}, 16\)",
    ),
    "more positions": (set_fields(max_position_embeddings=2**40), f"max_position_embeddings: {2**40} given, must be "),
    "infinite epsilon": (set_fields(layer_norm_eps=float("inf")), "layer_norm_eps: inf given, must be a number > 0"),
    "another mode": (set_fields(ln_mode="post_ln"), "unknown: .*boundary.norm"),
    "future mode": (set_fields(ln_mode="quantum_ln"), r"unknown ln_mode 'quantum_ln'.*residual-hf modes"),
    "future option": (set_fields(ln_mode_options={"warp": 2}), "warp: unknown field; known: dual_scale"),
    "future field": (set_fields(hyper_drive=9), "config.json: residual_hf .* does not know the fields hyper_drive"),
    "wrong type": (set_fields(dropout="much"), "dropout"),
    "no json": (write("config.json", b'{"model_type": '), "config.json"),
    "vocabulary": (larger_vocabulary, r"the tokenizer has 96 tokens for the source, the model has 94"),
    "padding": (set_fields(pad_token_id=5), "pad_token_id is 1 in the tokenizer, 5 in config.json"),
    "tokenizer": (write("tokenizer.json", b"{}"), "tokenizer cannot be loaded"),
    "a list": (write("config.json", b"[]"), "config.json: must be a JSON object, not list"),
    "type of numbers": (set_fields(dtype="nonsense"), "no attribute 'nonsense'"),
    "a list of search settings": (write("generation_config.json", b"[]"), "must be a JSON object, not list"),
    "generation": (set_fields("generation_config.json", eos_token_id=94), "eos_token_id is 94, must be below 94"),
    "a token's text": (set_fields("generation_config.json", eos_token_id="x"), "eos_token_id: 'x' given, must be an"),
    "forced": (set_fields("generation_config.json", forced_bos_token_id=94), "forced_bos_token_id is 94, must be be"),
    "length": (set_fields("tokenizer_config.json", model_max_length="x"), "model_max_length is 'x'"),
}
PUSH_ONLY = {
    "another model": (set_fields(model_type="bart"), "model_type is 'bart', must be 'residual'"),
    "no generation config": (lambda folder: (folder / "generation_config.json").unlink(), "no such file"),
    "text for auto_map": (set_fields(auto_map="x"), "auto_map: 'x' given, must be {'AutoConfig'"),
    "text for a pipeline": (
        set_fields(custom_pipelines={"translation": "x"}),
        "pipelines: {'translation': 'x'} given",
    ),
    "code of the tokenizer": (
        set_fields("tokenizer_config.json", auto_map={"AutoTokenizer": "a.B"}),
        "auto_map: .*a.B",
    ),
    "no code": (lambda folder: (folder / "pipeline_translation.py").unlink(), "pipeline_translation.py: no such file"),
    "half the code": (lambda folder: (folder / "norms.py").unlink(), "norms.py"),
    "broken code": (write("modeling_residual.py", b"class Residual(:"), "the model code modeling_residual.py differs"),
    "other code": (write("modeling_residual.py", b"a = 1\n"), "the model code modeling_residual.py differs"),
    "no auto_map": (set_fields(auto_map={}), "config.json: auto_map: {} given"),
    "elsewhere": (set_fields(auto_map={"AutoConfig": "a/b--c.D"}), "auto_map: {'AutoConfig': 'a/b--c.D'} given"),
    "no pipeline": (set_fields(custom_pipelines={}), "config.json: custom_pipelines: {} given"),
    "no card": (lambda folder: (folder / "README.md").unlink(), r"no card \(README.md\) in it"),
    "no metadata": (write("README.md", b"# A model\n"), "README.md: no metadata"),
    "broken metadata": (write("README.md", b"---\nlicense: [\n---\n"), "README.md: the metadata cannot be read"),
    "broken results": (
        write("README.md", CARD.replace("tags:", "model-index: [1]\ntags:").encode()),
        "README.md: the metadata cannot be read",
    ),
    "no picture": (write("README.md", CARD.encode() + b"![curve](curve.png)\n"), "no such picture: curve.png"),
}


@pytest.mark.parametrize("case", [*EVERYWHERE, *PUSH_ONLY])
def test_a_push_names_what_is_wrong(folder, case):
    damage, message = (EVERYWHERE | PUSH_ONLY)[case]
    damage(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=message) as raised:
        push_run(folder, "somebody/model")  # offline: a network would be refused with another message
    assert str(folder) in str(raised.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("case", EVERYWHERE)
def test_translate_names_what_is_wrong(folder, case, refused):
    damage, message = EVERYWHERE[case]
    damage(folder)
    with pytest.raises(InputError, match=message) as raised:
        Translator.from_pretrained(folder)
    assert str(folder) in str(raised.value)
    (folder.parent / "in").write_text("zwei Katzen\n")
    arguments = ["--input", str(folder.parent / "in"), "--output", str(folder.parent / "out")]
    refused(str(folder), "translate", folder, *arguments)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in", "model"]


def test_a_model_of_another_family_without_its_weights_is_refused(folder):
    set_fields(model_type="bart")(folder)
    with pytest.raises(InputError, match="weights do not match config.json; missing: model"):
        Translator.from_pretrained(folder)


def test_weights_of_eight_bits_are_checked(folder):
    change_weights(lambda t: t.update({name: w.to(torch.float8_e4m3fn) for name, w in t.items()}))(folder)
    validate_model_folder(folder)
    change_weights(lambda t: t[NORM].view(torch.uint8)[:1].fill_(0x7F))(folder)  # NaN
    with pytest.raises(InputError, match=f"not finite .*: {NORM}"):
        validate_model_folder(folder)


ODD = [  # in config.json
    ({"_attn_implementation": "user/kernel"}, "_attn_implementation: .* would load code|know the"),
    ({"attn_implementation": {"": "user/kernel"}}, "attn_implementation: .* would load code|know the"),
    ({"_experts_implementation": 5}, "does not know the fields _experts_implementation"),
    ({"_x": 1}, "does not know the fields _x"),
    ({"prefix": 5}, "prefix: 5 given, must be text"),
    ({"quantization_config": [8]}, r"quantization_config: \[8\] given, must be a mapping"),
    ({"task_specific_params": {"a_to_b": {"prefix": 5}}}, "task_specific_params: {'a_to_b': .* must be mappings with"),
    ({"task_specific_params": {"a_to_b": 5}}, "task_specific_params: {'a_to_b': 5} given, must be mappings with text"),
    ({"dtype": []}, r"dtype: \[\] given, must be text"),
    ({"dtype": "Tensor"}, "dtype: 'Tensor' given, must be the name of a type"),
    ({"architectures": 5, "d_model": "x"}, "d_model"),
]
OF_GENERATION = [
    *({"num_beams": value} for value in (0, "5", 1.5, True, [4], 10**400)),
    *({"max_length": value} for value in (0, "x", [], {})),
    {"max_length_a": "2"},
    {"max_time": "5"},
    {"num_beam_groups": "x"},
    {"length_penalty": "x"},
    {"early_stopping": "sometimes"},
    {"bad_words_ids": 5},
    {"suppress_tokens": [10**6]},
    {"bad_words_ids": [[1, -5]]},
    {"use_cache": "no"},
    {"decoding_dtype": 8},
    {"decoder_start_token_id": [1]},
    {"eos_token_id": [[1]]},
    {"output_hidden_states": ["a"]},
    *({name: value} for name in ("suppress_tokens", "begin_suppress_tokens") for value in (5, [True], [None], [[1]])),
    *({"bad_words_ids": value} for value in ([5], [[True]], [[None]])),
    *({"sequence_bias": value} for value in (5, {}, [1], [[]], [[[1]]], [[[1], "x"]], [[[94], 1.0]], [[["x"], 1.0]])),
    *({"watermarking_config": value} for value in (5, [], {"bias": "x"}, {"a": 1}, {"context_width": 0})),
    {"encoder_repetition_penalty": 0},
    {"is_assistant": True},
    {"prefill_chunk_size": "x"},
]


def test_fields_of_a_wrong_type_or_range_are_named(folder):
    named = [(fields, rf"generation.config(\.json)?: .*{next(iter(fields))}") for fields in OF_GENERATION]
    for file, cases in (("config.json", ODD), ("generation_config.json", named)):
        before = (folder / file).read_text()
        for fields, message in cases:
            set_fields(file, **fields)(folder)
            for check in (load_checkpoint, *([validate_model_folder] if file == "config.json" else [])):
                with pytest.raises(InputError, match=message):
                    check(folder)
            (folder / file).write_text(before)
        write_checksums(folder, [file])
    structured = {"sequence_bias": [[[5, 6], -2.0]], "watermarking_config": {"bias": 1.5}, "eos_token_id": [2, 3]}
    set_fields("generation_config.json", **structured)(folder)
    load_checkpoint(folder)
    set_fields("generation_config.json", num_beams="5")(folder)
    with pytest.raises(InputError, match="generation_config.json: num_beams: '5' given, must be an integer >= 1"):
        load_checkpoint(folder)


def test_a_kernel_of_the_hub_in_the_config_of_another_family_is_refused(folder):
    config = BartConfig(d_model=16, encoder_layers=1, decoder_layers=1).to_dict()
    nested = {"text_config": {"attn_implementation": "user/kernel@v1"}}
    for fields in ({"_attn_implementation": "user/kernel"}, nested):
        (folder / "config.json").write_text(json.dumps(config | fields))
        for load in (load_checkpoint, from_transformers):
            with pytest.raises(InputError, match="attn_implementation: 'user/kernel.*' would load code from the Hub"):
                load(folder)


@pytest.mark.parametrize("place", ["vocab", "post_processor", "huge"])
def test_tokens_outside_of_the_vocabulary_of_the_model_are_named(folder, place):
    (folder / CHECKSUMS).unlink()
    values = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = values["model"]["vocab"]
    if place == "post_processor":
        values["post_processor"]["special_tokens"]["</s>"]["ids"] = [9999]
    else:
        vocabulary[list(vocabulary)[-1]] = 9999 if place == "vocab" else 2**32
    (folder / "tokenizer.json").write_text(json.dumps(values))
    message = "tokenizer cannot be loaded" if place == "huge" else "a token of id 9999, must be below"
    for check in (validate_model_folder, load_checkpoint):
        with pytest.raises(InputError, match=message):
            check(folder)


def test_a_sound_folder_passes(folder):
    names = validate_model_folder(folder)
    assert sorted([*names, "README.md", CHECKSUMS]) == sorted(path.name for path in folder.iterdir())
    assert any(Translator.from_pretrained(folder).translate(SENTENCES))


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", "layers.py", CHECKSUMS])
def test_a_flipped_bit_is_found(folder, name):
    """In a comment, a blank or a number, with which everything loads: nothing but the checksums tells."""
    content = bytearray((folder / name).read_bytes())
    place = len(content) - 1 if name == WEIGHTS else content.index(b"\n")
    content[place] ^= 1 if name == WEIGHTS else ord("\n") ^ ord(" ")
    (folder / name).write_bytes(content)
    if name == CHECKSUMS:
        sums = json.loads(content)
        (folder / name).write_text(json.dumps(sums | {WEIGHTS: "0" * 64}))
        name = WEIGHTS
    with pytest.raises(InputError, match=rf"{name} is damaged or was changed: .*; copy it again or"):
        Translator.from_pretrained(folder)
    if name != "layers.py":  # of which a push has more to say
        with pytest.raises(InputError, match=f"{name} is damaged"):
            validate_model_folder(folder)
    if name in (WEIGHTS, "config.json"):
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            AutoModelForSeq2SeqLM.from_pretrained(folder)
    (folder / CHECKSUMS).unlink()
    assert Translator.from_pretrained(folder)


def test_text_that_git_has_written_on_windows_is_not_damaged(folder):
    for path in folder.iterdir():
        if path.suffix in (".json", ".py"):
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert AutoModelForSeq2SeqLM.from_pretrained(folder) and Translator.from_pretrained(folder)
    validate_model_folder(folder)


def test_missing_settings_of_the_search_are_named(folder):
    (folder / "generation_config.json").unlink()
    with pytest.raises(InputError, match=r"generation_config\.json is missing; copy it again or"):
        Translator.from_pretrained(folder)


def test_saving_with_transformers_replaces_a_model_and_its_checksums(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.lm_head.weight.data.add_(1.0)
    model.save_pretrained(folder)
    assert not (folder / CHECKSUMS).exists() and Translator.from_pretrained(folder)


@pytest.mark.parametrize("record", ["", "[]", '{"config.json": 3, "/dev/zero": "a", "../x": "a"}', "[" * 99999])
def test_a_record_of_checksums_may_be_anything(folder, record):
    (folder / CHECKSUMS).write_text(record)
    with pytest.raises(InputError, match=r"(checksums|config)\.json is damaged"):
        Translator.from_pretrained(folder)


def test_weights_in_several_files(folder, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size=10_000)
    names = validate_model_folder(folder)
    parts = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(parts) > 1 and {*parts, f"{WEIGHTS}.index.json"} < {*names}
    (folder / parts[0]).unlink()
    for refuse in (validate_model_folder, Translator.from_pretrained):
        with pytest.raises(InputError, match=f"{parts[0]}: no such file"):
            refuse(folder)


def test_weights_index_stays_in_its_folder(folder):
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    with pytest.raises(InputError, match="index.json: no weight_map in it that names files of the same folder"):
        validate_model_folder(folder)


def test_tied_and_separate_tables(tmp_path):
    fields = [{"tie_word_embeddings": False}, {"share_encoder_decoder_embeddings": False}, {"fix_norm": True}]
    for number, chosen in enumerate(fields):
        folder = save_tiny(tmp_path / str(number), **chosen)
        assert WEIGHTS in validate_model_folder(folder)


@pytest.mark.parametrize("cls", [ResidualForSequenceClassification, ResidualForMaskedLM])
def test_models_that_do_not_generate(tmp_path, cls):
    tokenizer, fields = tiny_tokenizer(), {"d_model": 16, "encoder_layers": 1, "is_encoder_only": True}
    model = cls(ResidualConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **fields))
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    assert sorted([*validate_model_folder(folder), CHECKSUMS]) == sorted(path.name for path in folder.iterdir())
    assert type(load_checkpoint(folder, classes=(cls,))[0]) is cls
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    with pytest.raises(InputError, match=f"{len(tokenizer)} tokens for the source"):
        save_checkpoint(model, tokenizer, tmp_path / "masked")


def test_two_vocabularies(tmp_path):
    source, target = tiny_tokenizer(), tiny_tokenizer("<2en>")
    source.padding_side = source.truncation_side = "left"
    tokenizer = ResidualTokenizer.from_pair(source, target)
    again = tokenizer.train_new_from_iterator(["a small dog"], 300)
    assert {each.padding_side for each in (tokenizer, again)} == {"left"}
    assert {each.truncation_side for each in (tokenizer, again)} == {"left"}
    vocabularies = {"decoder_vocab_size": tokenizer.target_vocab_size, "share_encoder_decoder_embeddings": False}
    folder = save_checkpoint(tiny_model(tokenizer, **vocabularies), tokenizer, tmp_path / "model")
    names = validate_model_folder(folder)
    assert sorted([*names, CHECKSUMS]) == sorted(path.name for path in folder.iterdir())
    assert {"target_tokenizer.json", "tokenization_residual.py"} < {*names}
    config = json.loads((folder / "config.json").read_text())
    small = save_checkpoint(tiny_model(source, share_encoder_decoder_embeddings=False), source, tmp_path / "small")
    tokenizer.save_pretrained(small)
    with pytest.raises(InputError, match=f"{config['decoder_vocab_size']} tokens for the target"):
        validate_model_folder(small)


def test_a_folder_that_is_not_a_model_is_kept(model, tokenizer, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for folder, overwrite, message in (
        (tmp_path, False, r"folder: .* is not empty; use overwrite=True"),
        (tmp_path, True, r"has no model\.safetensors or .*: it is not an earlier output"),
        (tmp_path / "notes.txt", True, "is not a folder"),
    ):
        with pytest.raises(InputError, match=message):
            save_checkpoint(model, tokenizer, folder, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_overwriting_replaces_all_of_a_folder_or_nothing(model, tokenizer, tmp_path, monkeypatch):
    def fail(tokenizer, folder):
        raise OSError("disk full")

    target = tmp_path / "model"
    target.mkdir()
    for name in ("pytorch_model.bin", "model.safetensors"):
        (target / name).write_text("old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(type(tokenizer), "save_pretrained", fail)
        save_checkpoint(model, tokenizer, target, overwrite=True)
    assert {path.name: path.read_text() for path in target.iterdir()} == dict.fromkeys(
        ("pytorch_model.bin", "model.safetensors"), "old"
    )
    save_checkpoint(model, tokenizer, target, overwrite=True)
    assert not (target / "pytorch_model.bin").exists() and (target / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_wrong_model_or_tokenizer(model, tokenizer, tmp_path):
    bart = BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **small_sizes()))
    with pytest.raises(InputError, match="BartForConditionalGeneration"):
        save_checkpoint(bart, tokenizer, tmp_path / "bart")
    larger = tiny_tokenizer("<2de>")
    with pytest.raises(InputError, match=f"{len(larger)} tokens for the source.*{len(tokenizer)}"):
        save_checkpoint(model, larger, tmp_path / "larger")
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_the_same_under_all_spellings(model, tokenizer, tmp_path, monkeypatch):
    save_checkpoint(model, tokenizer, tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    first, *others = (identity(name) for name in ("run/model", "run/model/", "./run/model", "run"))
    assert all(other == first for other in others)
    assert identity("user/name") != identity("user/other")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
def test_a_model_with_a_changed_file_is_another(name, model, tokenizer, tmp_path):
    save_checkpoint(model, tokenizer, tmp_path / "model")
    before, path = identity(tmp_path / "model"), tmp_path / "model" / name
    stat, content = path.stat(), path.read_bytes()
    changed = content.replace(b"\n", b" ", 1) if name.endswith(".json") else content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes(changed)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # of the same size and time
    assert identity(tmp_path / "model") != before
