import json
import random
import resource

import numpy as np
import pytest
import torch
from sacrebleu import corpus_bleu
from support.models import OURS
from support.native_library import needs_kernels
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from transformers import AutoTokenizer

from residual_hf.analysis.mode_list import describe_mode
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import load_checkpoint, save_checkpoint
from residual_hf.cli import main
from residual_hf.conversion import export as exporting
from residual_hf.conversion import exported_model
from residual_hf.conversion.export import TARGETS, ExportDiffersError, export, targets_of
from residual_hf.conversion.graphs import Graph
from residual_hf.conversion.to_onnx import load_onnx
from residual_hf.conversion.to_torch_export import load_torch_export
from residual_hf.data.shortlist import Shortlist
from residual_hf.generation.decode import to_text
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.translator import Translator
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.connections import LN_MODES
from residual_hf.model.length_limits import length_limit
from residual_hf.model.tokenization_residual import ResidualTokenizer

TOKENIZER = tiny_tokenizer()
PAIR = ResidualTokenizer.from_pair(TOKENIZER, tiny_tokenizer("<2de>", "<2en>"))
IN_CTRANSLATE2 = [name for name in OURS if "ctranslate2" in targets_of(name)]
FIELDS = {
    "hybrid": {"encoder_ln_mode": "admin", "decoder_ln_mode": "pre_ln"},
    "peri_ln encoder": {"ln_mode": "post_ln", "encoder_ln_mode": "peri_ln"},
    "branch warm-up": {"ln_mode": "pre_ln", "branch_warmup": {"updates": 8}},
    "embedding norm": {"ln_mode": "pre_ln", "embedding_norm": True, "activation_function": "gelu"},
    "fix_norm": {"ln_mode": "post_ln", "fix_norm": True, "output_bias": True, "scale_embedding": False},
    "no positions": {"ln_mode": "pre_ln", "position_embedding_type": "none", "layer_norm_eps": 1e-2},
    "all tokens": {"ln_mode": "post_ln", "position_counting": "all_tokens", "position_embedding_type": "learned"},
    "rms_norm": {"ln_mode": "pre_ln", "norm_type": "rms_norm", "vocab_size": 128},
    "two vocabularies": {
        "ln_mode": "post_ln",
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": len(TOKENIZER) + 2,
        "tie_word_embeddings": False,
    },
}


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    monkeypatch.setattr(exporting, "SENTENCES", 20)


def noisy_model(tokenizer=TOKENIZER, noise=0.3, **fields):
    """A model with random norms, scales and biases, so that no 1 or 0 hides a mistake."""
    model = tiny_model(tokenizer, **{"encoder_layers": 2, "decoder_layers": 2, **fields})
    generator = torch.Generator().manual_seed(2)
    for warmup in branch_warmups(model):
        warmup.updates.fill_(warmup.duration // 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "residual" in name and "norm" not in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return model


def saved(folder, tokenizer=TOKENIZER, noise=0.3, **fields):
    return save_checkpoint(noisy_model(tokenizer, noise, **fields), tokenizer, folder)


def needs(target):
    for package in TARGETS[target].requires:
        pytest.importorskip(package)


@pytest.mark.parametrize(
    "fields",
    [*(pytest.param({"ln_mode": name}, marks=pytest.mark.slow) for name in IN_CTRANSLATE2), *FIELDS.values()],
    ids=str,
)
def test_ctranslate2_translates_like_the_model(fields, tmp_path):
    needs("ctranslate2")
    tokenizer = PAIR if "decoder_vocab_size" in fields else TOKENIZER
    found = export(saved(tmp_path / "model", tokenizer, **fields), "ctranslate2", tmp_path / "exported")
    assert (found.sentences, found.identical) == (20, 20)
    assert json.loads((tmp_path / "exported" / "export.json").read_text())["identical"] == 20


def test_ctranslate2_reads_text_with_the_tokenizer_of_the_folder(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = saved(tmp_path / "model", ln_mode="deep_norm")
    export(model, "ctranslate2", tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(SENTENCES)["input_ids"]]
    results = ctranslate2.Translator(str(tmp_path / "exported")).translate_batch(
        tokens, beam_size=1, max_decoding_length=12, min_decoding_length=0
    )
    rows = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    expected = Translator.from_pretrained(model, num_beams=1).translate(SENTENCES, max_new_tokens=12)
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == expected


ENDS = 2.5  # added to the logits, lets translations end before their limit


def without_usual_token(folder, **settings):
    """Forbid what a saved model generates most, as Marian forbids padding; returns its sources and this token."""
    model, tokenizer = load_checkpoint(folder)
    sources = tokenizer(SENTENCES, return_tensors="pt", padding=True)["input_ids"]
    generated = model.generate(sources, max_new_tokens=12, do_sample=False)[:, 1:]
    usual = int(generated[generated > 3].mode().values)
    model.generation_config.update(bad_words_ids=[[usual]], **settings)
    if model.lm_head.bias is not None:
        model.lm_head.bias.data[model.config.eos_token_id] += ENDS
    save_checkpoint(model, tokenizer, folder, overwrite=True)
    return [row[row.ne(model.config.pad_token_id)].tolist() for row in sources], usual


def test_ctranslate2_excludes_forbidden_tokens(tmp_path):
    needs("ctranslate2")
    folder = saved(tmp_path / "model", ln_mode="post_ln")
    sources, forbidden = without_usual_token(folder)
    export(folder, "ctranslate2", tmp_path / "exported")
    found = TARGETS["ctranslate2"].translate(*load_checkpoint(folder), tmp_path / "exported", sources, 12)
    assert not any(forbidden in row for row in found)


LOADERS = {"onnx": load_onnx, "torch": load_torch_export}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "mode"), [("onnx", "resi_dual"), ("torch", "dlcl_post")])
def test_graphs_search_like_generate(target, mode, tmp_path):
    """test_export_of_decoders.py has the other target with the search of the same class."""
    needs(target)
    folder = saved(tmp_path / "model", ln_mode=mode, encoder_layers=1, decoder_layers=1, output_bias=True)
    without_usual_token(folder, forced_bos_token_id=9, min_length=6)
    assert export(folder, target, tmp_path / "exported").identical == 20
    model, tokenizer = load_checkpoint(folder)
    config = tmp_path / "exported" / "config.json"
    config.write_text(config.read_text().replace(f'"{mode}"', '"mode_of_another_process"'))
    exported = LOADERS[target](tmp_path / "exported")
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for settings in ({"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True}):
        for rows in (slice(None), slice(2, 3)):  # one sentence is a batch of another size
            inputs = {name: tensor[rows] for name, tensor in batch.items()}
            expected = model.generate(**inputs, max_new_tokens=12, do_sample=False, **settings)
            assert torch.equal(exported.generate(**inputs, max_new_tokens=12, **settings), expected)
    if "int8" in TARGETS[target].dtypes:
        files = tmp_path / "exported"
        sizes = [path.stat().st_size for path in sorted(files.glob("*model*"))]
        TARGETS[target].quantize(model, tokenizer, files)
        assert TARGETS[target].translate(model, tokenizer, files, [[5, 6, 2]], 4)
        assert sizes != [path.stat().st_size for path in sorted(files.glob("*model*"))]


def test_text_for_a_model_with_tags_has_them(tmp_path):
    tagged = saved(tmp_path / "model", tiny_tokenizer("<2de>", "<2en>"), ln_mode="post_ln", language_tags="source")
    (tmp_path / "text").write_text("<2de> a dog\n\ntwo cats\n")
    with pytest.raises(InputError, match="--verify-with: .*text has a line without a language tag.*<2"):
        export(tagged, "torch", tmp_path / "exported", verify_with=tmp_path / "text")


@pytest.mark.slow
@pytest.mark.parametrize("target", LOADERS)
@pytest.mark.parametrize("mode", sorted(LN_MODES))
def test_graphs_of_every_mode_translate_like_the_model(target, mode, tmp_path):
    needs(target)
    noise = 0.05 if mode == "t_fixup" else 0.3  # without norms, large weights amplify rounding to wrong tokens
    model = saved(tmp_path / "model", noise=noise, ln_mode=mode)
    assert export(model, target, tmp_path / "exported").identical >= 19


def test_int8_states_its_loss(tmp_path, capsys):
    needs("ctranslate2")
    model = saved(tmp_path / "model", ln_mode="post_ln")
    dice, words = random.Random(0), " ".join(SENTENCES).split()
    lines = [" ".join(dice.choices(words, k=8)) for _ in range(20)]  # enough for one that int8 translates otherwise
    (tmp_path / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [str(model), "--to", "ctranslate2", "--dtype", "int8", "--verify-with", str(tmp_path / "text")]
    arguments += ["--output-dir", str(tmp_path / "exported")]
    assert main(["export", *arguments]) == 0
    assert "20 of 20 translations identical in float32; int8 loses" in capsys.readouterr().out
    model, tokenizer = load_checkpoint(tmp_path / "model")
    sources = tokenizer(lines)["input_ids"]
    limit = length_limit(max(map(len, sources)), 64, DecodingSettings.max_length_a, DecodingSettings.max_length_b)
    ours = exported_model.translate(model, sources, limit)
    references = to_text(tokenizer, ours)
    (tmp_path / "references").write_text("\n".join(references) + "\n", encoding="utf-8")
    assert main(["export", *arguments, "--reference", str(tmp_path / "references"), "--overwrite"]) == 0
    assert " BLEU on this CPU against the references" in capsys.readouterr().out
    found = json.loads((tmp_path / "exported" / "export.json").read_text())
    theirs = TARGETS["ctranslate2"].translate(model, tokenizer, tmp_path / "exported", sources, limit)
    scores = [corpus_bleu(to_text(tokenizer, each), [references]).score for each in (ours, theirs)]
    assert found["dtype"] == "int8" and found["bleu"] == pytest.approx(scores[1])
    assert found["bleu_loss"] == pytest.approx(scores[0] - scores[1])


def test_a_wrong_export_is_not_written(tmp_path, monkeypatch, capsys):
    needs("ctranslate2")
    model, target = saved(tmp_path / "model", ln_mode="post_ln"), TARGETS["ctranslate2"]

    def write_another(model, tokenizer, folder):
        model.model.encoder.layers[0].ffn.fc1.weight.neg_()
        type(target).write(target, model, tokenizer, folder)
        model.model.encoder.layers[0].ffn.fc1.weight.neg_()

    monkeypatch.setattr(target, "write", write_another)
    with pytest.raises(ExportDiffersError, match="ctranslate2 translates .*, the model to"):
        export(model, "ctranslate2", tmp_path / "exported")
    assert main(["export", str(model), "--to", "ctranslate2", "--output-dir", str(tmp_path / "exported")]) == 1
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ln_mode": "resi_dual"}, "ln_mode: the encoder is 'resi_dual', must be post_ln, "),
        ({"ln_mode": "pre_ln", "decoder_ln_mode": "b2t"}, "ln_mode: the decoder is 'b2t'"),
        ({"ln_mode": "pre_ln", "norm_type": "scale_norm"}, "norm_type: the encoder has 'scale_norm'"),
        ({"ln_mode": "pre_ln", "activation_function": "mish"}, "activation_function: 'mish'"),
        ({"ln_mode": "pre_ln", "eos_token_id": [2, 3]}, r"eos_token_id: \[2, 3\] given, must be one token"),
        ({"ln_mode": "pre_ln", "position_embedding_type": "relative"}, "position_embedding_type: 'relative' given"),
    ],
    ids=["mode", "decoder", "norm", "activation", "ends", "positions"],
)
def test_ctranslate2_names_what_it_cannot_represent(fields, message, tmp_path):
    needs("ctranslate2")
    with pytest.raises(InputError, match=message):
        export(saved(tmp_path / "model", **fields), "ctranslate2", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_graph_that_does_not_fit_on_the_disk_is_an_error(tmp_path):
    layer = torch.nn.Linear(100, 100)
    graph = Graph(torch.export.export(layer, (torch.ones(1, 100),)), [], [])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # writing more to a file is an error
    try:
        with pytest.raises(OSError, match="too large"):
            TARGETS["torch"].write_graph(graph, tmp_path / "graph.pt2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_arguments_are_checked_before_the_model_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "file").touch()
    for arguments, message in (
        ({"dtype": "int4"}, "--dtype: 'int4' given, must be one of float32, int8"),
        ({"references": tmp_path}, "--reference: only with --dtype int8 and --verify-with"),
        ({}, "not empty"),
    ):
        with pytest.raises(InputError, match=message):
            export("missing", **{"to": "ctranslate2", "output_dir": tmp_path / "exported", **arguments})
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"ctranslate2 not installed; pip install 'residual_hf\[ctranslate2\]'"):
        export("missing", "ctranslate2", tmp_path / "new")


def test_a_mode_says_where_it_exports_to():
    assert "exports to: ctranslate2" in describe_mode("pre_ln", targets_of("pre_ln"))
    assert "ctranslate2 (as post_ln)" in describe_mode("admin", targets_of("admin"))
    assert "exports to: onnx, torch, web (" in describe_mode("resi_dual", targets_of("resi_dual"))


@needs_kernels
def test_ctranslate2_gets_the_shortlist_as_vocabulary_mapping(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model", ln_mode="post_ln")
    numbers, size = np.random.default_rng(1), len(TOKENIZER)
    shortlist = Shortlist(numbers.integers(-1, size, (size, 3)).astype(np.int32), np.arange(4, dtype=np.int32))
    shortlist.save(folder)
    export(folder, "ctranslate2", tmp_path / "exported")
    translator = ctranslate2.Translator(str(tmp_path / "exported"))
    own, changed = Translator.from_pretrained(folder, num_beams=1, shortlist=True), 0
    for sentence in SENTENCES:
        source = TOKENIZER(sentence)["input_ids"]
        tokens, options = [TOKENIZER.convert_ids_to_tokens(source)], {"beam_size": 1, "max_decoding_length": 12}
        (found,), (other,) = (translator.translate_batch(tokens, use_vmap=use, **options) for use in (True, False))
        ids = TOKENIZER.convert_tokens_to_ids(found.hypotheses[0])
        assert {*ids} <= {*shortlist.tokens_for(source)}
        assert TOKENIZER.decode(ids, skip_special_tokens=True) == own.translate(sentence, max_new_tokens=12)
        changed += found.hypotheses != other.hypotheses
    assert changed
