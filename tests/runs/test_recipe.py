from dataclasses import replace
from datetime import date

import pytest
import yaml

from residual_hf.base.errors import InputError
from residual_hf.commands.arguments import parse_overrides
from residual_hf.data.pair_reader import check_files
from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe, load_recipe
from residual_hf.training.training_settings import TrainingSettings

MINIMAL = {
    "source_lang": "en",
    "target_lang": "de",
    "output_dir": "out",
    "data": {"train": {"source": "a.en", "target": "a.de"}, "valid": {"tsv": "b.tsv"}},
    "training": {"max_updates": 10},
}


def write(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(**sections):
    return {**MINIMAL, **sections}


def training(**fields):
    return changed(training={"max_updates": 10, **fields})


def test_values_and_defaults(tmp_path):
    recipe = load_recipe(write(tmp_path, changed(training={"max_updates": 10, "lr": 5e-3, "betas": [0.9, 0.999]})))
    assert recipe.training.lr == 5e-3
    assert recipe.training.betas == (0.9, 0.999)
    assert recipe.training.warmup_updates == 4000
    assert recipe.data.train[0].source == "a.en"
    assert recipe.data.test is None
    assert recipe.build_config().ln_mode == "resi_dual"
    assert load_recipe(write(tmp_path, recipe.as_dict())) == recipe


def test_numbers_with_an_exponent_need_no_point(tmp_path):
    text = yaml.safe_dump(changed(training={"max_updates": 10, "lr": "LR"}, model={"layer_norm_eps": "EPS"}))
    recipe = load_recipe(write(tmp_path, text.replace("LR", "5e-3").replace("EPS", "1E-6")))
    assert (recipe.training.lr, recipe.build_config().layer_norm_eps) == (5e-3, 1e-6)
    assert parse_overrides(["training.eps=1e-9"]) == {"training.eps": 1e-9}


def test_languages_of_the_recipe_are_those_of_its_records(tmp_path):
    data = {"train": {"jsonl": "a.jsonl"}, "valid": {"jsonl": "b.jsonl", "source_lang": "fr"}}
    recipe = load_recipe(write(tmp_path, changed(data=data)))
    corpora = recipe.data.train + recipe.data.valid
    assert [(corpus.source_lang, corpus.target_lang) for corpus in corpora] == [("en", "de"), ("fr", "de")]


def test_summarization_is_within_a_language(tmp_path):
    values = {name: value for name, value in MINIMAL.items() if name not in ("source_lang", "target_lang")}
    recipe = load_recipe(write(tmp_path, values | {"task": "summarization", "language": "en"}))
    assert [(spec.source_lang, spec.target_lang) for spec in recipe.data.corpora] == [("en", "en")] * 2
    assert load_recipe(write(tmp_path, recipe.as_dict())) == recipe


def test_overrides_by_dotted_name(tmp_path):
    overrides = {"training.seed": 7, "model.ln_mode": "pre_ln", "output_dir": "elsewhere"}
    recipe = load_recipe(write(tmp_path, MINIMAL), overrides)
    assert (recipe.training.seed, recipe.build_config().ln_mode, recipe.output_dir) == (7, "pre_ln", "elsewhere")


def test_an_override_changes_one_of_the_places_that_a_yaml_alias_names(tmp_path):
    train = MINIMAL["data"]["train"]
    path = write(tmp_path, changed(data={"train": train, "valid": train, "test": train}))
    assert "valid: *id" in path.read_text()
    data = load_recipe(path, {"data.test.limit": 5}).data
    assert [spec.limit for spec in data.corpora] == [None, None, 5]


def test_paths_from_the_folder_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpora = [
        {"source": "a.en", "target": "/abs/a.de"},
        {"dataset": "local", "raw_target": "r"},
        {"dataset": "a/hub"},
    ]
    values = changed(
        paths_from="recipe",
        data={"train": corpora, "valid": {"file": "../v.tmx"}},
        tokenizer={"path": "tok"},
        model={"from": "somebody/model"},
        evaluation={"metrics": ["own.py", "comet:c.ckpt", "wer", "./own"]},
    )
    folder = tmp_path / "moved"
    (folder / "local").mkdir(parents=True)
    for name in ("own.py", "c.ckpt", "wer"):  # `wer` is a metric of the package
        (folder / name).touch()
    (folder / "own").mkdir()
    path = write(folder, values)
    for given in (path, path.relative_to(tmp_path)):
        recipe, start = load_recipe(given, {"output_dir": "here"}), given.parent
        (first, second, third), (valid,) = recipe.data.train, recipe.data.valid
        assert (first.source, first.target) == (str(start / "a.en"), "/abs/a.de")
        assert (second.dataset, second.raw_target, third.dataset) == (str(start / "local"), str(start / "r"), "a/hub")
        assert (valid.file, recipe.output_dir) == (str(start / "../v.tmx"), "here")
        assert (recipe.tokenizer.path, recipe.starts_from) == ("tok", "somebody/model")
        assert recipe.evaluation.metrics == (
            str(start / "own.py"),
            f"comet:{start / 'c.ckpt'}",
            "wer",
            str(start / "own"),
        )
        assert recipe.paths_from == "working_directory"
    with pytest.raises(InputError, match="paths_from: 'recipe' given, must be working_directory unless in a file"):
        load_recipe(path, {"paths_from": "recipe"})
    with pytest.raises(InputError, match=f"moved/a.en, .*v.tmx; seen from {tmp_path} .in a recipe, `paths_from`"):
        check_files([first, valid])


def test_a_recipe_made_in_python_is_plain_values(tmp_path):
    made = from_mapping(Recipe, changed(model={"from": tmp_path / "model", "dropout": 0.2}, output_dir=tmp_path))
    read = load_recipe(write(tmp_path, made.as_dict()))
    assert (read.model, read.output_dir) == ({"from": str(tmp_path / "model"), "dropout": 0.2}, str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(sourc_lang="en"), "sourc_lang: unknown field; did you mean 'source_lang'"),
        ({k: v for k, v in MINIMAL.items() if k != "data"}, "data: missing"),
        (changed(training={"max_updates": "many"}), "training.max_updates: 'many' given, must be an integer"),
        (training(schedule="cos"), "training.schedule: 'cos' .*inverse_sqrt"),
        (changed(training={}), "training.max_updates: missing, must be given unless max_epochs is"),
        (training(metric="bleu", eval_bleu=False), "training.eval_bleu: false given, must be true with metric 'bleu'"),
        (changed(model={"dtype": "x"}), r"model\.dtype: unknown field"),
        (changed(model={"max_source_positions": 9}), r"model\.max_source_positions: 9 given, must be null"),
        (changed(decoding={"length_penalty": 1e9}), r"decoding\.length_penalty: .* given, must be a number >= -2"),
        (changed(model={"ln_mod": "pre_ln"}), r"model\.ln_mod: unknown field; did you mean 'ln_mode'"),
        (changed(model={"ln_mode": "mystery"}), "unknown ln_mode 'mystery'.*residual-hf modes"),
        (changed(model={"d_model": 100, "encoder_attention_heads": 7}), "encoder_attention_heads must divide d_model"),
        (changed(model={"preset": "nothing"}), "unknown preset 'nothing'. Known: .*resi_dual_iwslt_de_en"),
        (changed(tokenizer={"kind": "wordpiece"}), "tokenizer.kind: 'wordpiece'.*unigram"),
        (changed(decoding={"num_beams": 0}), "num_beams: 0 given"),
        ("- a list", "recipe.yaml: \\['a list'\\] given, must be a mapping of fields"),
        ("a: [", "not a YAML file"),
        ("", "recipe.yaml: nothing given, must be a mapping of fields"),
        (changed(task="summary"), "task: 'summary' given, must be .*'summarization'"),
        (changed(language="en"), "language: 'en' given, must be null with task 'translation', see source_lang"),
        (changed(task="summarization"), "language: missing, must be given with task 'summarization'"),
        (changed(task="summarization", language="en"), "target_lang: 'de' given, must be null with task 'summ"),
        (training(metric="rougeL"), r"evaluation.metrics: \[\] given, must be with rouge for training.metric"),
        (training(metric="tokenized_bleu"), "data.pretokenized: missing, must be given for training.metric 'tok"),
        (changed(seed=1), "seed: unknown field; did you mean 'training.seed'"),
        (changed(learning_rat=1), r"learning_rat: unknown field; did you mean 'training\.lr'"),
        (changed(training={"save_steps": 1}), "training.save_steps: unknown field; did you mean 'eval_every'"),
        (changed(training={"data": {}}), "training.data: unknown field; did you mean 'data' beside 'training'"),
        (changed(tokenizer={"seed": 1}), r"tokenizer\.seed: unknown field; did you mean 'training\.seed'"),
        (changed(training={"lora": {"rank": 1}}), "training.lora.rank: unknown field; did you mean 'r'"),
        (changed(training={"optimizer": "adam"}), r"'adam' given, must be one of [^;]*$"),
        (changed(training={"learning_rate": 1}), "training.learning_rate: unknown field; did you mean 'lr'"),
        (changed(ln_mode="pre_ln"), r"ln_mode: unknown field; did you mean 'model\.ln_mode'"),
        (changed(vocab_size=9), r"vocab_size: unknown field; did you mean 'tokenizer\.vocab_size'"),
        (changed(beam_size=9), r"beam_size: unknown field; did you mean 'decoding\.num_beams'"),
        (changed(model={"num_layers": 2}), r"model\.num_layers: unknown field; did you mean 'encoder_layers'"),
        (changed(model={"ln_mode": "resi_daul"}), "unknown ln_mode 'resi_daul'; did you mean 'resi_dual'"),
        (changed(model={"ln_mode": ["pre_ln"]}), r"model: Field 'ln_mode' with value \['pre_ln'\] doesn't"),
        (
            changed(tokenizer={"kind": "pretokenized", "path": "d"}, data=MINIMAL["data"] | {"upper_case": 0.1}),
            "tokenizer.kind: 'pretokenized' given, must be another .*upper_case",
        ),
        (
            changed(tokenizer={"joint": False}, data=MINIMAL["data"] | {"glossary": "terms"}),
            "tokenizer.joint: false given, must be true or with a path with data.glossary",
        ),
        (changed(tokenizer={"kind": "unigramm"}), "'pretokenized'; did you mean 'unigram'"),
        (changed(data={"train": {"xlsx": "a"}, "valid": {}}), r"data.train.xlsx: unknown field; did you mean .file"),
        (changed(data={"source_lang": "en"}), "data.source_lang: unknown .*did you mean 'source_lang' beside 'data'"),
        (changed(target_lang=False), 'target_lang: false given, must be text or null; quote it .*, as in "no"'),
        (changed(output_dir=date(2026, 1, 2)), 'output_dir: 2026-01-02 given, .*as in "2026-01-02"'),
        (changed(training={"max_updates": 10**400}), r"max_updates: 10{99}\.\.\. \(401 characters\) given, must be"),
        (changed(decoding={"num_beams": "x" * 9999}), r"num_beams: 'x{99}\.\.\. \(10,001 characters\) given, must be"),
        (changed(model={"from": "x", "preset": "multi30k_tiny"}), "model.preset: .* must be absent with model.from"),
        (training(average=5), r"training.average: 5 given, must be <= keep_last \(2\)"),
        (
            changed(data=MINIMAL["data"] | {"subword_regularization": {"unigram_alpha": 0.2}}),
            "tokenizer.kind: 'bpe' given, must be unigram with this data.subword_regularization",
        ),
        (training(num_workers=1) | {"data": MINIMAL["data"] | {"stream": True}}, "num_workers: 1 given, must be 0"),
        (changed(model={"d_model": 10**9}), r"model: d_model 1000000000, 6\+6 layers .* need [\d,]+ GB, but this"),
        (changed(model={"d_model": "x" * 9999}), r"model: .{9,1000}\.\.\. \([\d,]+ characters\)$"),
    ],
    ids=lambda value: None if isinstance(value, (dict, str)) and len(str(value)) > 60 else str(value)[:40],
)
def test_bad_recipes_are_refused_by_field(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as error:
        load_recipe(write(tmp_path, content))
    assert "recipe.yaml" in str(error.value)


def test_recipes_are_checked_in_python_too(tmp_path):
    recipe = load_recipe(write(tmp_path, MINIMAL))
    with pytest.raises(InputError, match="^source_lang: missing, must be given in the recipe or for every corpus"):
        Recipe(output_dir="out", data=replace(recipe.data, test={"tsv": "c.tsv"}))
    with pytest.raises(InputError, match="^training.max_updates: missing, must be given with data.stream"):
        replace(recipe, data=replace(recipe.data, stream=True), training=TrainingSettings(max_epochs=1))
    with pytest.raises(InputError, match="^training.max_epochs: 1 given, must be null with data.stream"):
        limits = TrainingSettings(max_epochs=1, max_updates=9, warmup_updates=1)
        replace(recipe, data=replace(recipe.data, stream=True), training=limits)
    with pytest.raises(InputError, match="^data.bidirectional: true given, must be false with task 'summarization'"):
        both = {"data": replace(recipe.data, bidirectional=True), "task": "summarization", "language": "en"}
        Recipe(output_dir="out", **both)


def test_languages_of_tags_are_those_of_the_training_corpora(tmp_path):
    recipe = load_recipe(write(tmp_path, MINIMAL))
    other = replace(recipe.data.valid[0], source_lang="de", target_lang="fr")
    data = replace(recipe.data, language_tags="source", test=(other,))
    with pytest.raises(InputError, match="target_lang: fr of data.valid or data.test, must be in data.train: de$"):
        replace(recipe, data=data)
    replace(recipe, data=data, model={"from": "runs/a_model_of_french"})
    back = replace(other, target_lang="en")
    assert replace(recipe, data=replace(data, test=(back,), bidirectional=True)).data.target_languages == ["de", "en"]


def test_files_without_a_recipe_are_named(tmp_path):
    with pytest.raises(InputError, match=r"no such file: .*nowhere\.yaml"):
        load_recipe("nowhere.yaml")
    with pytest.raises(InputError, match=r"recipe\.yaml: must be a mapping of fields"):
        load_recipe(write(tmp_path, "- a\n"), {"output_dir": "run"})
