"""Low-rank adapters in a model and in a run."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.files import same_weights
from support.recipes import changed, make_recipe
from support.tiny_translator import save_tiny, tiny_model, tiny_tokenizer
from support.trainers import make_model, make_trainer
from transformers import AutoModelForSeq2SeqLM

from residual_hf.base.errors import InputError
from residual_hf.generation.translator import Translator
from residual_hf.model.branch_warmup import advance_branch_warmup, branch_warmups
from residual_hf.model.options import from_mapping
from residual_hf.runs.final_model import average_run
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train
from residual_hf.training.lora import add_lora, load_trained, merge, merged, save_trained
from residual_hf.training.training_settings import LoraSettings

TRAINING = {"eval_every": 2, "max_updates": 4, "warmup_updates": 1, "lr": 0.05, "keep_last": 2}


def adapted_model(**settings):
    model = tiny_model(tiny_tokenizer())
    add_lora(model, LoraSettings(r=2, **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model


def logits(model):
    ids = torch.tensor([[5, 6, 7, 2]])
    with torch.no_grad():
        return model(input_ids=ids, decoder_input_ids=ids).logits


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_layers_with_all_that_is_trained_may_be_dropped(tmp_path):
    model = make_model(encoder_layerdrop=0.999, decoder_layerdrop=0.999)
    add_lora(model, LoraSettings(r=2))
    trainer = make_trainer(tmp_path, model, max_updates=2, eval_every=2)
    assert trainer.train().global_step == 2 and trainer.state.log_history[0]["grad_norm"] == 0


def test_a_branch_warm_up_goes_on_with_adapters(tmp_path):
    model = make_model(ln_mode="branch_norm")
    add_lora(model, LoraSettings(r=2))
    with merged(model):
        model.save_pretrained(tmp_path)
    save_trained(model, tmp_path)
    for _ in range(3):
        advance_branch_warmup(model)
    load_trained(model, tmp_path)
    assert {int(warmup.updates) for warmup in branch_warmups(model)} == {0}


@pytest.fixture
def recipe(tmp_path):
    """A recipe with adapters that starts from a model in `base`."""
    save_tiny(tmp_path / "base", source_lang="en", target_lang="de")
    lora = LoraSettings(r=2, targets=("q_proj", "model.decoder.*.fc?"))
    made = make_recipe(tmp_path / "data", **TRAINING)
    made = replace(made, model={"from": str(tmp_path / "base")}, tokenizer=None)
    return changed(made, "training", lora=lora)


def test_a_merged_model_has_the_names_of_a_plain_one_and_the_same_function():
    model, plain = adapted_model(), tiny_model(tiny_tokenizer())
    expected, names = logits(model), list(model.state_dict())
    assert (expected - logits(plain)).abs().max() > 0.1
    with merged(model):
        assert model.state_dict().keys() == plain.state_dict().keys()
        torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-5)
    assert list(model.state_dict()) == names and torch.equal(logits(model), expected)
    merge(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-5)


def test_only_adapters_of_the_targets_and_what_is_named_besides_are_trained():
    model = adapted_model(targets=("fc1", "model.decoder.*.v_proj"), also=("norm.weight", "*embed_tokens*"))
    layers = {name.partition(".lora_")[0] for name in trained(model) if "lora_" in name}
    assert {name.split(".")[-1] for name in layers if "encoder.layers" in name} == {"fc1"}
    assert {name.split(".")[-1] for name in layers if "decoder.layers" in name} == {"fc1", "v_proj"}
    others = {name for name in trained(model) if "lora_" not in name}
    assert "model.encoder.embed_tokens.weight" in others and all("norm" in n or "embed" in n for n in others)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ("w_proj",)}, "training.lora.targets: 'w_proj' matches nothing; there are model.enc.*v_proj"),
        ({"targets": ("lm_head",)}, "training.lora.targets: 'lm_head' matches nothing"),
        ({"also": ("head",)}, "training.lora.also: 'head' matches nothing; there are model.encoder"),
    ],
)
def test_names_that_match_nothing_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        adapted_model(**fields)


def test_adapters_need_a_trained_model(tmp_path):
    values = make_recipe(tmp_path).as_dict()
    values["training"]["lora"] = {"r": 2}
    with pytest.raises(InputError, match="training.lora: .* must be null without model.from"):
        from_mapping(Recipe, values)


def test_a_run_saves_plain_checkpoints_and_ends_with_a_plain_model(tmp_path, recipe):
    train(recipe)
    run, before = tmp_path / "data" / "run", load_file(tmp_path / "base" / "model.safetensors")
    for folder in (run / "model", run / "checkpoints" / "checkpoint-4"):
        after = load_file(folder / "model.safetensors")
        changes = {name for name in after if not torch.equal(after[name], before[name])}
        assert after.keys() == before.keys()
        assert changes and all("q_proj.weight" in n or "decoder.layers.0.ffn.fc" in n for n in changes)
    assert "r: 2" in (run / "model" / "README.md").read_text()
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "model")
    assert type(model.model.encoder.layers[0].self_attn.q_proj).__name__ == "Projection"
    found = Translator.from_pretrained(run).translate((run / "test.sources.txt").read_text().splitlines())
    assert found == (run / "test.hypotheses.txt").read_text().splitlines()
    average_run(run, tmp_path / "average", 2)
    mean = load_file(tmp_path / "average" / "model.safetensors")
    name = "model.encoder.layers.0.self_attn.q_proj.weight"
    both = [load_file(run / "checkpoints" / f"checkpoint-{n}" / "model.safetensors")[name] for n in (2, 4)]
    torch.testing.assert_close(mean[name], (both[0] + both[1]) / 2)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="best"),
        pytest.param({"ema_decay": 0.5}, id="ema", marks=pytest.mark.slow),
        pytest.param({"average": 2}, id="average", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, recipe, fields):
    whole = replace(changed(recipe, "training", eval_bleu=False, **fields), data=replace(recipe.data, test=None))
    train(whole)
    part = replace(whole, output_dir=str(tmp_path / "part"))
    train(changed(part, "training", max_updates=2))
    train(part, resume=True)
    assert same_weights(*(tmp_path / name / "model" / "model.safetensors" for name in ("data/run", "part")))


def test_a_run_is_not_resumed_from_another_model(tmp_path, recipe):
    recipe = replace(changed(recipe, "training", eval_bleu=False), data=replace(recipe.data, test=None))
    train(changed(recipe, "training", max_updates=2))
    path = tmp_path / "base" / "model.safetensors"
    weights = load_file(path)
    weights["model.decoder.layers.0.ffn.fc1.bias"] += 1
    save_file(weights, path, metadata={"format": "pt"})
    path.with_name("checksums.json").unlink()
    with pytest.raises(InputError, match=r"model\.from: model\.decoder.*fc1\.bias is not what .*checkpoint-2 was tr"):
        train(recipe, resume=True)


def test_adapters_of_another_shape_are_not_loaded(tmp_path):
    save_trained(adapted_model(), tmp_path)
    with pytest.raises(InputError, match=r"lora\.safetensors: not the weights of this model"):
        load_trained(adapted_model(targets=("fc1",)), tmp_path)
    with pytest.raises(InputError, match=r"lora\.safetensors: .*No such file"):
        load_trained(adapted_model(), tmp_path / "missing")
