import copy
from dataclasses import replace
from pathlib import Path

import pytest
from support.recipes import make_recipe
from support.tiny_translator import tiny_model, tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import read_parallel
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.generation.decode import search
from residual_hf.generation.generation_settings import DecodingSettings, StreamSettings
from residual_hf.generation.translator import Translator
from residual_hf.model.options import from_mapping
from residual_hf.runs.distillation import closest_to, distill
from residual_hf.runs.recipe import Recipe, load_recipe

DECODING = DecodingSettings(num_beams=2, max_length_b=6, max_length_a=0.0)


def teacher_with(tokenizer, **fields):
    return Translator(tiny_model(tokenizer, **fields), tokenizer, DECODING)


@pytest.fixture(scope="module")
def teacher():
    return teacher_with(tiny_tokenizer())


@pytest.fixture
def recipe(tmp_path):
    values = make_recipe(tmp_path).as_dict()
    synthetic = {**values["data"]["train"], "tag": "<BT>", "name": "synthetic"}
    values["data"] |= {"train": [values["data"]["train"], synthetic], "cleaning": {"duplicates": "source"}}
    return from_mapping(Recipe, values)


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_the_student_is_trained_on_the_translations_of_the_teacher(tmp_path, recipe, teacher):
    path = distill(recipe, lambda: teacher, tmp_path / "distilled", student="3+1")
    student = load_recipe(path)
    assert (student.model["encoder_layers"], student.model["decoder_layers"]) == (3, 1)
    synthetic, made = student.data.train
    assert synthetic == recipe.data.train[1]
    sources, targets = lines(tmp_path / "distilled/train1.source"), lines(tmp_path / "distilled/train1.target")
    assert made.files == (tmp_path / "distilled/train1.source", tmp_path / "distilled/train1.target")
    original = list(dict.fromkeys(lines(recipe.data.train[0].files[0])))
    expected = [(s, t) for s, t in zip(original, teacher.translate(original), strict=True) if t]
    assert list(zip(sources, targets, strict=True)) == expected
    assert student.data.valid == recipe.data.valid and student.data.cleaning.duplicates == "pair"


@pytest.mark.parametrize(("metric", "eval_bleu", "expected"), [("nll", False, "bleu"), ("chrf", True, "chrf")])
def test_scores_select_the_checkpoint_of_a_student(tmp_path, recipe, teacher, metric, eval_bleu, expected):
    training = replace(recipe.training, metric=metric, eval_bleu=eval_bleu, eval_sentences=7)
    path = distill(replace(recipe, training=training), lambda: teacher, tmp_path / "distilled", student="1+1")
    assert load_recipe(path).training == replace(training, metric=expected, eval_bleu=True)


def test_a_student_has_a_tokenizer_of_its_own_where_it_cannot_use_that_of_the_teacher(
    tmp_path, recipe, teacher, caplog, monkeypatch
):
    def refuse(path, kind, data):
        raise InputError("adds codes of languages")  # as that of mBART

    monkeypatch.setattr("residual_hf.runs.distillation.given_tokenizer", refuse)
    path = distill(recipe, lambda: teacher, tmp_path / "distilled", tokenizer=tmp_path / "teacher")
    assert load_recipe(path).tokenizer.path is None
    assert "the student gets a tokenizer of its own: adds codes of languages" in caplog.text


def test_a_recipe_made_in_python_has_paths(tmp_path, recipe, teacher):
    synthetic = recipe.data.train[1]
    files = {"source": Path(synthetic.source), "target": Path(synthetic.target)}
    data = replace(recipe.data, train=(recipe.data.train[0], replace(synthetic, **files)))
    student = load_recipe(distill(replace(recipe, data=data), lambda: teacher, tmp_path / "distilled"))
    assert student.data.train[0] == synthetic


def test_a_student_reads_as_its_recipe_does(tmp_path, recipe, teacher):
    recipe = replace(recipe, data=replace(recipe.data, stream=True))
    assert load_recipe(distill(recipe, lambda: teacher, tmp_path / "distilled")).data.stream


def test_the_recipe_of_a_student_can_be_used_from_any_folder(tmp_path, recipe, teacher, monkeypatch):
    monkeypatch.chdir(tmp_path)
    student = load_recipe(distill(recipe, lambda: teacher, Path("distilled")))
    assert Path(student.output_dir) == tmp_path / "distilled" / "student"
    assert {Path(path).parent for path in student.data.train[-1].files} == {tmp_path / "distilled"}


def test_segmented_text_has_segmented_translations(tmp_path, recipe):
    entries = ["tiger", "ti@@", "ger", *(f"w@@{i}" for i in range(20)), *"abcdefghij"]
    (tmp_path / "dict.txt").write_text("".join(f"{entry} 1\n" for entry in entries))
    tokenizer = pretokenized_tokenizer(tmp_path / "dict.txt")
    teacher = teacher_with(tokenizer)
    sources = ["tiger ti@@ ger", "a b c ti@@ ger", "a"]
    tokens = [c[0].ids for c in search(teacher.model, tokenizer(sources).input_ids, DECODING)]
    expected = [" ".join(tokenizer.convert_ids_to_tokens([i for i in row if i > 3])) for row in tokens]
    assert "@@" in "".join(expected)
    for path in recipe.data.train[0].files:
        path.write_text("".join(f"{line}\n" for line in sources))
    segmented = {"kind": "pretokenized", "path": str(tmp_path / "dict.txt")}
    recipe = from_mapping(Recipe, recipe.as_dict() | {"tokenizer": segmented})
    path = distill(recipe, lambda: teacher, tmp_path / "distilled", tokenizer=tmp_path / "run/tokenizer")
    assert lines(tmp_path / "distilled/train1.target") == expected
    assert load_recipe(path).tokenizer == recipe.tokenizer


@pytest.mark.parametrize(("weights", "temperature"), [((3.0, 1.0), 1.0), ((None, None), 5.0)])
def test_the_mixture_of_corpora_stays(tmp_path, recipe, teacher, weights, temperature):
    values = recipe.as_dict()
    for corpus, weight in zip(values["data"]["train"], weights, strict=True):
        corpus["weight"] = weight
    values["data"]["temperature"] = temperature
    student = load_recipe(distill(from_mapping(Recipe, values), lambda: teacher, tmp_path / "distilled"))
    assert {corpus.tag: corpus.weight for corpus in student.data.train} == dict(
        zip((None, "<BT>"), weights, strict=True)
    )
    assert student.data.temperature == temperature


def test_both_directions_of_a_teacher(tmp_path, recipe):
    both = teacher_with(tiny_tokenizer("<2de>", "<2en>"), language_tags="source")
    values, valid = recipe.as_dict(), tmp_path / "valid.jsonl"
    valid.write_text('{"source": "a dog", "target": "ein Hund"}\n{"source": "a cat", "target": "eine Katze"}\n')
    values["data"] |= {"bidirectional": True, "language_tags": "source", "test": None, "valid": {"jsonl": str(valid)}}
    recipe = from_mapping(Recipe, values)
    student = load_recipe(distill(recipe, lambda: both, tmp_path / "distilled"))
    assert [(c.source_lang, c.target_lang) for c in student.data.train[1:]] == [("en", "de"), ("de", "en")]
    pairs = [("a dog", "ein Hund"), ("a cat", "eine Katze")]
    assert [list(read_parallel(c)) for c in student.data.valid] == [pairs, [pair[::-1] for pair in pairs]]
    assert [(c.source_lang, c.target_lang) for c in student.data.valid] == [("en", "de"), ("de", "en")]
    assert student.data.test is None


def test_the_directions_of_a_corpus_share_its_weight_and_are_not_cleaned_by_script(tmp_path, recipe):
    both = teacher_with(tiny_tokenizer("<2de>", "<2en>"), language_tags="source")
    values = recipe.as_dict()
    for corpus in values["data"]["train"]:
        corpus["weight"] = 2.0
    scripts = {"source_script": "Latin", "script_share": 0.9}
    values["data"] |= {"bidirectional": True, "language_tags": "source", "cleaning": scripts}
    student = load_recipe(distill(from_mapping(Recipe, values), lambda: both, tmp_path / "distilled"))
    assert [(c.tag, c.weight) for c in student.data.train] == [("<BT>", 2.0), (None, 1.0), (None, 1.0)]
    assert student.data.cleaning.source_script is None


def test_several_translations_are_pairs_of_their_own_or_the_closest_is_chosen(tmp_path, recipe, teacher):
    several = StreamSettings(num_return_sequences=2, long="skip")
    distill(recipe, lambda: teacher, tmp_path / "all", settings=several)
    distill(recipe, lambda: teacher, tmp_path / "one", settings=several, closest=True)
    every, chosen = (lines(tmp_path / name / "train1.source") for name in ("all", "one"))
    assert len(every) > len(chosen) == len(set(chosen)) and set(every) == set(chosen)
    pairs = set(zip(every, lines(tmp_path / "all" / "train1.target"), strict=True))
    assert set(zip(chosen, lines(tmp_path / "one" / "train1.target"), strict=True)) <= pairs


def test_the_closest_chinese_translation_is_the_one_with_its_characters():
    other, close = "一只猫在睡觉。", "两只狗在公园里走路。"
    assert closest_to("两只狗在公园里散步。", [other, close], "zh") == close


def test_targets_may_be_sampled(tmp_path, recipe, teacher):
    texts = {}
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        settings = StreamSettings(num_return_sequences=2, sample=True, seed=seed, long="skip")
        distill(recipe, lambda: teacher, tmp_path / name, settings=settings)
        texts[name] = lines(tmp_path / name / "train1.target")
    assert texts["first"] == texts["again"] != texts["other"]


def test_an_interrupted_distillation_continues_and_does_not_mix_settings(tmp_path, recipe, teacher):
    def stop(*_, **__):
        raise KeyboardInterrupt

    interrupted = copy.copy(teacher)
    interrupted.answer = stop
    with pytest.raises(KeyboardInterrupt):
        distill(recipe, lambda: interrupted, tmp_path / "made")
    with pytest.raises(InputError, match="exists and is not empty"):
        distill(recipe, lambda: teacher, tmp_path / "made")
    sampled = StreamSettings(sample=True, top_k=3, long="skip")
    with pytest.raises(InputError, match="--resume: .* was made with other sample, top_k"):
        distill(recipe, stop, tmp_path / "made", settings=sampled, resume=True)
    distill(recipe, lambda: teacher, tmp_path / "made", resume=True)
    distill(recipe, stop, tmp_path / "made", resume=True)  # nothing is left to translate
    file = recipe.data.train[0].files[0]
    file.write_text(file.read_text().replace("a", "b", 1))
    with pytest.raises(InputError, match="--resume: .* was made with other text"):
        distill(recipe, stop, tmp_path / "made", resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"student": "6"}, "student: '6' given, must be the layers of encoder and decoder, such as 6"),
        ({"student": "6+0"}, r"student: '6\+0' given"),
        ({"student": "20000+2"}, "model: encoder_layers: 20000 given, must be an integer >= 1 and <= 10000"),
        ({"closest": True}, "num_return_sequences: 1 given, must be above 1 with closest"),
    ],
    ids=str,
)
def test_bad_options_are_named_before_anything_is_written(tmp_path, recipe, options, message):
    with pytest.raises(InputError, match=message):
        distill(recipe, lambda: None, tmp_path / "distilled", **options)
    assert not (tmp_path / "distilled").exists()


def test_a_student_cannot_start_from_a_model_of_other_sizes(tmp_path, recipe):
    tuned = from_mapping(Recipe, recipe.as_dict() | {"model": {"from": "runs/my_run/model"}})
    with pytest.raises(InputError, match="model.from: .* given, must be absent.*; give another with --recipe"):
        distill(tuned, lambda: None, tmp_path / "distilled")


def test_a_language_model_has_no_students(tmp_path, recipe):
    values, corpus = recipe.as_dict(), {"text": str(recipe.data.train[0].files[0])}
    values |= {"task": "language_modeling", "language": "en", "source_lang": None, "target_lang": None}
    values |= {"data": {"train": corpus, "valid": corpus}}
    values["training"]["label_smoothing"] = 0.0
    with pytest.raises(InputError, match="task: 'language_modeling' given, must be 'translation'"):
        distill(from_mapping(Recipe, values), lambda: None, tmp_path / "made")


def test_what_cannot_start_leaves_no_folder(tmp_path, recipe):
    def missing():
        raise InputError("model nowhere: no such folder")

    moved = recipe.data.train[0].files[0].rename(tmp_path / "moved")
    with pytest.raises(InputError, match="no such file: "):
        distill(recipe, missing, tmp_path / "made")
    moved.rename(recipe.data.train[0].files[0])
    with pytest.raises(InputError, match="model nowhere"):
        distill(recipe, missing, tmp_path / "made")
    with pytest.raises(InputError, match="no such file: .*distill.json"):
        distill(recipe, missing, tmp_path / "made", resume=True)
    assert not (tmp_path / "made").exists()
