"""Training that starts from a trained model."""

import json
from dataclasses import replace

import pytest
import torch
from support.recipes import changed, make_recipe
from support.tiny_translator import SENTENCES, coded_tokenizer, tiny_model, tiny_tokenizer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_single_stack import ResidualForCausalLM
from residual_hf.model.options import from_mapping
from residual_hf.model.translation_inputs import TranslationInputs
from residual_hf.runs.building import build_model, check_training, load_start_of
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train
from residual_hf.runs.warm_start import Start, _pieces, load_start
from residual_hf.training.training_settings import LoraSettings

ADAPTIVE = {"is_decoder_only": True, "adaptive_cutoffs": [40], "d_model": 16, "decoder_layers": 1}


def bpe(lines, size=320):
    return train_tokenizer(lines, TokenizerSettings(kind="bpe", vocab_size=size), model_max_length=64)


@pytest.fixture
def base(tmp_path):
    """A model folder, and the logits of a batch."""
    tokenizer = bpe(SENTENCES)
    model = tiny_model(tokenizer, ln_mode="post_ln", source_lang="en", target_lang="de", dropout=0.2)
    return save_checkpoint(model, tokenizer, tmp_path / "base")


def recipe_from(tmp_path, base, model=None, tokenizer=None, **training):
    recipe = make_recipe(tmp_path / "data", **training)
    return replace(recipe, model={"from": str(base)} | (model or {}), tokenizer=tokenizer)


def start_of(recipe):
    return load_start(recipe.starts_from, recipe.model_fields)


def logits(model, tokenizer):
    batch = tokenizer(SENTENCES[:2], text_target=SENTENCES[2:], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**batch).logits


def test_the_model_is_the_one_it_starts_from(tmp_path, base):
    recipe = recipe_from(tmp_path, base, {"dropout": 0.05})
    assert recipe.tokenizer.path == str(base)
    start = start_of(recipe)
    model = build_model(recipe, start.tokenizer, start)
    assert model.config.dropout == model.model.encoder.layers[0].dropout.p == 0.05
    assert model.config.ln_mode == "post_ln"
    own = AutoModelForSeq2SeqLM.from_pretrained(base)
    assert torch.equal(logits(model, start.tokenizer), logits(own, start.tokenizer))


def test_a_model_for_other_languages_is_reported(tmp_path, base, caplog):
    recipe = recipe_from(tmp_path, base)
    load_start_of(recipe)
    assert "translates from" not in caplog.text
    load_start_of(replace(recipe, source_lang="de", target_lang="en"))
    assert f"model.from: {base} translates from en to de, the recipe is from de to en" in caplog.text


SCALED, MIXED = {"ln_mode_options": {"dual_scale": 0.5}}, {"ln_mode": "post_ln", "decoder_ln_mode": "pre_ln"}


@pytest.mark.parametrize(
    ("own", "fields", "modes"),
    [
        ({"ln_mode": "post_ln"}, {"ln_mode": "resi_dual"}, ["resi_dual", "resi_dual"]),
        ({"ln_mode": "resi_dual", **SCALED}, {"ln_mode": "resi_dual"}, ["resi_dual", "resi_dual"]),
        (MIXED, {"encoder_ln_mode": "resi_dual"}, ["resi_dual", "pre_ln"]),
        (MIXED, {"encoder_ln_mode": "post_ln"}, ["post_ln", "pre_ln"]),
    ],
)
def test_modes_that_change_and_those_that_do_not_keep_the_logits(tmp_path, own, fields, modes):
    tokenizer = bpe(SENTENCES)
    trained = tiny_model(tokenizer, source_lang="en", target_lang="de", **own)
    save_checkpoint(trained, tokenizer, tmp_path / "own")
    model = load_start(str(tmp_path / "own"), fields).model
    assert [model.config.of(stack).ln_mode for stack in ("encoder", "decoder")] == modes
    torch.testing.assert_close(logits(model, tokenizer), logits(trained, tokenizer))


def test_a_language_model_may_restate_its_mode(tmp_path):
    tokenizer = bpe(SENTENCES)
    config = ResidualConfig(vocab_size=len(tokenizer), is_decoder_only=True, ln_mode="pre_ln", d_model=16)
    save_checkpoint(ResidualForCausalLM(config), tokenizer, tmp_path / "lm")
    model = load_start(str(tmp_path / "lm"), {"ln_mode": "pre_ln", "d_model": 16}, ResidualForCausalLM).model
    assert model.config.ln_mode == "pre_ln"


def test_tags_of_the_starting_model_that_the_recipe_lacks_are_reported(tmp_path, base, caplog):
    recipe = recipe_from(tmp_path, base)
    start = start_of(recipe)
    build_model(recipe, start.tokenizer, start)
    assert "language_tags" not in caplog.text
    start.model.config.language_tags = "source"
    build_model(recipe, start.tokenizer, start)
    assert "data.language_tags: None, but the model of model.from was trained with 'source'" in caplog.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ln_mode": "b2t"}, r"model\.ln_mode: the encoder is 'post_ln'.*Modes that contain 'post_ln': "),
        ({"d_model": 32}, r"model\.d_model: 32 given, must be 16 as in .*base \(model\.from\)"),
        ({"hidden_size": 32}, r"model\.hidden_size: 32 given, must be 16 as in"),
        ({"dropout": 1.5}, "model: dropout: 1.5 given, must be a number >= 0 and < 1"),
        ({"from": "/no/such/model"}, "model /no/such/model: no such folder"),
    ],
)
def test_what_the_model_cannot_become_is_refused_before_the_folder_is_made(tmp_path, base, fields, message):
    recipe = recipe_from(tmp_path, base, fields)
    with pytest.raises(InputError, match=message):
        train(recipe)
    assert not (tmp_path / "data" / "run").exists()


@pytest.mark.parametrize("start", [3, ["base"], " "])
def test_a_start_that_is_no_name_is_refused(tmp_path, start):
    with pytest.raises(InputError, match=r"model\.from: .* given, must be a folder or a name on the Hub"):
        recipe_from(tmp_path, "base", {"from": start})


def test_known_tokens_keep_their_embeddings_and_new_ones_get_the_mean_of_their_parts(tmp_path, base):
    recipe = recipe_from(tmp_path, base)
    start = start_of(recipe)
    text = [*SENTENCES, *["the parkland runs kleiner kleiner"] * 9, "ß"]
    tokenizer = bpe(text, 330)
    model = build_model(recipe, tokenizer, start)
    assert len(model.lm_head.weight) == len(model.get_input_embeddings().weight) == len(tokenizer)
    old, new = start.tokenizer.get_vocab(), tokenizer.get_vocab()
    before, after = start.model.lm_head.weight, model.lm_head.weight
    shared = sorted(old.keys() & new.keys())
    assert len(shared) > 270 and "<pad>" in shared
    assert torch.equal(after[[new[token] for token in shared]], before[[old[token] for token in shared]])
    merged = next(token for token in sorted(new.keys() - old.keys(), key=len) if set(token) <= set("▁parklandkleiner"))
    parts = [piece.id for piece in start.tokenizer.backend_tokenizer.model.tokenize(merged)]
    assert len(parts) > 1
    torch.testing.assert_close(after[new[merged]], before[parts].mean(0))


@pytest.mark.parametrize(("old", "new"), [("byte_bpe", "bpe"), ("bpe", "byte_bpe"), ("words", "bpe")])
def test_words_keep_their_embeddings_if_tokens_are_spelled_otherwise(tmp_path, old, new):
    lines = ["the bear sees a big bear", "Ünder working works the see"] * 50

    def made(kind):
        if kind == "words":
            (tmp_path / "dict.txt").write_text("the 9\nbear 8\nbig 7\nsees 6\nÜnder 5\n")
            return pretokenized_tokenizer(tmp_path / "dict.txt")
        return train_tokenizer(lines, TokenizerSettings(kind=kind, vocab_size=330), model_max_length=64)

    before, after = made(old), made(new)
    found = _pieces(before, after, "target")
    spelled = {"byte_bpe": "Ġ{}", "bpe": "▁{}", "words": "{}"}
    known, tokens = before.get_vocab(), after.get_vocab()
    for word in ("bear", "the"):
        assert found[tokens[spelled[new].format(word)]] == [known[spelled[old].format(word)]]
    assert found[after.pad_token_id] == [before.pad_token_id]


def test_separate_tables_are_filled_from_a_joint_one(tmp_path, base):
    from residual_hf.model.tokenization_residual import ResidualTokenizer

    recipe = recipe_from(tmp_path, base)
    start = start_of(recipe)
    pair = ResidualTokenizer.from_pair(bpe(SENTENCES[:1], 300), bpe(SENTENCES[1:2], 290))
    model = build_model(recipe, pair, start)
    row = pair.target_tokenizer.token_to_id("a")
    old = start.tokenizer.convert_tokens_to_ids("a")
    assert len(model.lm_head.weight) == pair.target_vocab_size != len(pair)
    assert torch.equal(model.lm_head.weight[row], start.model.lm_head.weight[old])
    assert torch.equal(
        model.model.encoder.embed_tokens.weight[pair.get_vocab()["a"]],
        start.model.model.encoder.embed_tokens.weight[old],
    )


def test_first_token_of_the_decoder_keeps_its_role(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, decoder_start_token_id=1)
    built = build_model(recipe_from(tmp_path, tmp_path), tokenizer, Start(model, tokenizer))
    assert built.config.decoder_start_token_id == tokenizer.pad_token_id == 1
    model = tiny_model(tokenizer, decoder_start_token_id=1, position_counting="all_tokens")
    other = tiny_tokenizer()
    other.pad_token, other.bos_token = other.bos_token, other.pad_token
    built = build_model(recipe_from(tmp_path, tmp_path), other, Start(model, tokenizer))
    assert built.config.decoder_start_token_id == other.pad_token_id == 0


def test_frozen_parameters_do_not_change_and_the_card_names_the_start(tmp_path, base):
    """A run with frozen parameters, resumed once, from a model whose vocabulary has no tag of the language."""
    training = {"max_updates": 4, "eval_every": 2, "freeze": ["model.encoder.*"], "eval_bleu": False, "lr": 1e-2}
    recipe = recipe_from(tmp_path, base, {"ln_mode": "resi_dual"}, **training)
    recipe = changed(recipe, "data", language_tags="source")
    train(changed(recipe, "training", max_updates=2))
    train(recipe, resume=True)
    run = tmp_path / "data" / "run"
    model, tokenizer = (kind.from_pretrained(run / "model") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert "<2de>" in tokenizer.get_vocab() and len(tokenizer) == len(model.lm_head.weight)
    first = AutoModelForSeq2SeqLM.from_pretrained(base)
    encoder, before = model.model.encoder.state_dict(), first.model.encoder.state_dict()
    assert all(torch.equal(encoder[n], before[n]) for n in before if "layers" in n and n in encoder)
    decoder, before = model.model.decoder.state_dict(), first.model.decoder.state_dict()
    assert not any(torch.equal(decoder[n], before[n]) for n in before if n.endswith("fc1.weight"))
    assert "trained with residual_hf on 300 sentence pairs from `base`" in (run / "model" / "README.md").read_text()
    assert json.loads((run / "metrics.json").read_text())["updates"] == 4


@pytest.mark.parametrize("pattern", ["model.decoder.embed_tokens.weight", "*decoder.embed*"])
@pytest.mark.parametrize("joint", [True, False])
def test_the_table_of_the_decoder_can_be_frozen_also_where_stacks_share_it(tmp_path, pattern, joint):
    recipe = make_recipe(tmp_path, freeze=[pattern], max_updates=1, eval_every=1, eval_bleu=False)
    train(changed(recipe, "tokenizer", joint=joint))


def test_freezing_and_adapters_are_checked_as_they_will_be(tmp_path):
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    start = Start(tiny_model(tiny_tokenizer()), tiny_tokenizer())
    values = make_recipe(tmp_path, freeze=["*lora_A*"]).as_dict() | {"model": {"from": "x"}}
    values["training"]["lora"] = {"r": 2}
    recipe = from_mapping(Recipe, values)
    check_training(recipe, start)
    with pytest.raises(InputError, match="'.*q_proj.weight' matches nothing"):
        check_training(changed(recipe, "training", freeze=["*.q_proj.weight"]), start)
    with pytest.raises(InputError, match="matches all parameters"):
        check_training(changed(recipe, "training", freeze=["*"]), start)


@pytest.mark.parametrize("before, mode", [("post_ln", "resi_dual"), ("pre_ln", "hyper_connections")])
def test_adapters_leave_parameters_that_a_new_mode_adds_to_be_trained(tmp_path, base, before, mode):
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    old = tiny_model(tiny_tokenizer(), ln_mode=before)
    values = recipe_from(tmp_path, save_checkpoint(old, tiny_tokenizer(), tmp_path / "old"), {"ln_mode": mode})
    recipe = changed(values, "training", lora=LoraSettings(r=2), freeze=["model.decoder.*"])
    start = start_of(recipe)
    parameters = dict(build_model(recipe, start.tokenizer, start).named_parameters())
    added = parameters.keys() - dict(old.named_parameters()).keys()
    trained = {name for name, parameter in parameters.items() if parameter.requires_grad}
    own = {name for name in added if ".encoder." in name and "_proj." not in name and ".fc" not in name}
    assert own and own < trained and not any(".decoder." in name for name in trained)


def test_limits_of_the_search_of_another_task_are_not_kept(tmp_path, base, caplog):
    start = start_of(recipe_from(tmp_path, base))
    start.model.generation_config.update(min_length=30, no_repeat_ngram_size=3, num_beams=2)
    model = build_model(recipe_from(tmp_path, base), start.tokenizer, start)
    assert (model.generation_config.min_length, model.generation_config.no_repeat_ngram_size) == (None, None)
    assert "model.from: its min_length of 30 is not kept" in caplog.text


def test_prompts_of_pipelines_are_not_kept_as_training_reads_none(tmp_path, base, caplog):
    start = start_of(recipe_from(tmp_path, base))
    start.model.config.update({"prefix": "two ", "task_specific_params": {"summarization": {"prefix": "a "}}})
    model = build_model(recipe_from(tmp_path, base), start.tokenizer, start)
    text, expected = SENTENCES[0], start.tokenizer(SENTENCES[0])["input_ids"]
    for task in (None, "summarization"):
        assert TranslationInputs(model.config, start.tokenizer, task).encode(text, None, None)["input_ids"] == expected
    assert "model.from: its prefix of 'two ' is not kept" in caplog.text
    assert "model.from: its task_specific_params of {'summarization'" in caplog.text


def test_tokenizer_of_a_recipe_without_a_section(tmp_path):
    values = make_recipe(tmp_path).as_dict()
    del values["tokenizer"]
    assert from_mapping(Recipe, values).tokenizer == TokenizerSettings()
    values["model"] = {"from": "some/model"}
    recipe = from_mapping(Recipe, values)
    assert recipe.tokenizer == TokenizerSettings(path="some/model")
    assert from_mapping(Recipe, recipe.as_dict()) == recipe


def test_it_starts_from_the_folder_of_a_run_and_from_a_folder_below_home(tmp_path, base, monkeypatch):
    base.rename(tmp_path / "model")
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    small = {"max_updates": 2, "eval_every": 2, "eval_bleu": False, "warmup_updates": 1}
    recipe = replace(recipe_from(tmp_path, f"~/{tmp_path.name}", **small), output_dir=f"~/{tmp_path.name}/tuned")
    assert train(recipe)["updates"] == 2
    assert (tmp_path / "tuned" / "model" / "config.json").exists()


def test_a_greedy_run_starts_from_a_model_with_a_beam(tmp_path, base):
    model = AutoModelForSeq2SeqLM.from_pretrained(base)
    model.generation_config.update(num_beams=5, early_stopping=True, length_penalty=0.6)
    save_checkpoint(model, AutoTokenizer.from_pretrained(base), tmp_path / "beam")
    recipe = recipe_from(tmp_path, tmp_path / "beam")
    recipe = replace(recipe, decoding=replace(recipe.decoding, num_beams=1))
    start = start_of(recipe)
    generation = build_model(recipe, start.tokenizer, start).generation_config
    generation.validate(strict=True)  # as at each checkpoint
    assert generation.num_beams == 1 and not generation.early_stopping


def test_tokens_that_are_added_keep_what_the_model_may_not_write(tmp_path):
    old, new = tiny_tokenizer(), tiny_tokenizer("<BT>")
    model = tiny_model(old)
    model.generation_config.suppress_tokens = [7]
    built = build_model(recipe_from(tmp_path, tmp_path), new, Start(model, old))
    assert built.generation_config.suppress_tokens == [7] and len(built.lm_head.weight) == len(new)


def test_an_adaptive_vocabulary_cannot_be_replaced(tmp_path):
    old, new = tiny_tokenizer(), bpe(SENTENCES)
    model = ResidualForCausalLM(ResidualConfig(**ADAPTIVE, vocab_size=len(old)))
    recipe = recipe_from(tmp_path, tmp_path)
    with pytest.raises(InputError, match="tokenizer: another vocabulary, must be that of model.from, whose adaptive"):
        build_model(recipe, new, Start(model, old))


def test_a_converted_marian_model_keeps_its_tokenizer_in_python(tmp_path):
    coded = coded_tokenizer(tmp_path)
    names = dict.fromkeys(["</s>", "<unk>", *coded.get_vocab(), "<pad>"])
    (tmp_path / "vocab.json").write_text(json.dumps({name: row for row, name in enumerate(names)}))
    pieces = str(tmp_path / "m.model")
    tokenizer = MarianTokenizer(pieces, pieces, str(tmp_path / "vocab.json"), source_lang="en", target_lang="de")
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": 0, "bos_token_id": None}
    model = tiny_model(tokenizer, position_counting="all_tokens", decoder_start_token_id=ids["pad_token_id"], **ids)
    save_checkpoint(model, tokenizer, tmp_path / "marian")
    recipe = recipe_from(tmp_path, tmp_path / "marian", max_updates=1, eval_every=1, eval_bleu=False)
    assert train(recipe)["updates"] == 1
    assert isinstance(AutoTokenizer.from_pretrained(tmp_path / "data" / "run" / "model"), MarianTokenizer)
    with pytest.raises(InputError, match="tokenizer: must be that of model.from, as a MarianTokenizer cannot divide"):
        build_model(recipe, bpe(SENTENCES), start_of(recipe))
