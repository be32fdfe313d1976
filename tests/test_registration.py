import importlib.util
import sys

import pytest
import transformers
import transformers.pipelines as pipelines
from support import small_sizes
from support.processes import run_forked, run_python
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import residual_hf
from residual_hf.cli import GROUPS
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration, ResidualModel
from residual_hf.model.pipeline_translation import (
    SummarizationPipeline,
    Text2TextGenerationPipeline,
    TranslationPipeline,
)
from residual_hf.model.tokenization_residual import ResidualTokenizer
from residual_hf.registration import register

REMOVED = ("question-answering", "visual-question-answering")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, source_lang="de", target_lang="en").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def restored(monkeypatch):
    """The registry of pipelines; what a test does to it is undone."""
    registry = pipelines.PIPELINE_REGISTRY
    aliases, tasks = registry.task_aliases, dict(registry.supported_tasks)
    yield registry
    monkeypatch.undo()
    registry.task_aliases = aliases
    registry.supported_tasks.clear()
    registry.supported_tasks.update(tasks)
    register()


SCRIPT = """
import sys
from residual_hf_cli import main
for arguments in (["--help"], ["--version"], *([verb, "--help"] for verb in sys.argv[1:])):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
print(*({"torch", "transformers", "numpy"} & set(sys.modules)), file=sys.stderr)
"""


def test_help_of_the_console_script_needs_neither_torch_nor_transformers():
    done = run_python("-c", SCRIPT, *(verb for members in GROUPS.values() for verb in members))
    assert done.stderr.split() == []
    assert f"residual-hf {residual_hf.__version__}\n" in done.stdout
    assert all(f"usage: residual-hf {verb} " in done.stdout for members in GROUPS.values() for verb in members)


def test_launchers_start_the_console_script_as_a_module():
    assert run_python("-m", "residual_hf_cli", "--version").stdout == f"residual-hf {residual_hf.__version__}\n"


PIPELINES_ONLY = """
import residual_hf
import transformers.pipelines
print(transformers.pipelines.check_task("translation_de_to_en")[0] == "translation")
"""
VERB = """
import residual_hf_cli
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
print("residual" not in CONFIG_MAPPING)
print(residual_hf_cli.main(["card", "no_such_folder"]) == 2)
print("residual" in CONFIG_MAPPING)
"""
BEFORE = """
import sys
import residual_hf
import transformers.models.bart.modeling_bart  # loads the Auto classes on its way, half way through itself
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from residual_hf.model.configuration_residual import ResidualConfig
print(type(AutoConfig.for_model("residual")) is ResidualConfig)
print(ResidualConfig in AutoModelForSeq2SeqLM._model_mapping)
from transformers import pipelines
print("translation" in pipelines.get_supported_tasks())
print(not [finder for finder in sys.meta_path if type(finder).__module__.startswith("residual_hf")])
"""
MODEL_ONLY = """
from residual_hf.model.modeling_residual import ResidualConfig
from transformers import AutoModel
print(ResidualConfig in AutoModel._model_mapping)
"""


def test_order_of_imports_does_not_matter():
    scripts = (BEFORE, MODEL_ONLY, PIPELINES_ONLY, VERB)
    answers = [answer for script in scripts for answer in run_forked("-c", script).stdout.split()]
    assert answers == ["True"] * 9


def test_auto_classes(folder):
    assert type(AutoConfig.from_pretrained(folder)) is ResidualConfig
    assert type(AutoModel.from_pretrained(folder)) is ResidualModel
    assert type(AutoModelForSeq2SeqLM.from_pretrained(folder)) is ResidualForConditionalGeneration
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(SENTENCES[0])["input_ids"] == tiny_tokenizer()(SENTENCES[0])["input_ids"]


def test_tokenizer_of_two_vocabularies_needs_no_flag(tmp_path):
    pair = ResidualTokenizer.from_pair(tiny_tokenizer(), tiny_tokenizer("Zwiebel"))
    pair.save_pretrained(tmp_path)
    ResidualConfig().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is ResidualTokenizer
    assert loaded("Hund", text_target="Zwiebel") == pair("Hund", text_target="Zwiebel")


@pytest.mark.parametrize("task", ["translation", "translation_de_to_en"])
def test_pipeline_of_a_folder(folder, task):
    translate = pipeline(task, model=str(folder), device="cpu")
    assert type(translate) is TranslationPipeline
    (result,) = translate(SENTENCES[0], max_new_tokens=5)
    assert isinstance(result["translation_text"], str)


def test_pipeline_of_a_model():
    tokenizer = tiny_tokenizer()
    translate = pipeline("translation", model=tiny_model(tokenizer), tokenizer=tokenizer, device="cpu")
    assert len(translate(SENTENCES, max_new_tokens=5, batch_size=2)) == len(SENTENCES)


def test_languages_of_the_task_name_are_checked(folder):
    with pytest.raises(ValueError, match="en to de.*de to en"):
        pipeline("translation_en_to_de", model=str(folder))


@pytest.mark.parametrize(
    ("task", "cls", "name"),
    [
        ("summarization", SummarizationPipeline, "summary"),
        ("text2text-generation", Text2TextGenerationPipeline, "generated"),
    ],
)
def test_other_pipelines_of_a_folder(folder, task, cls, name):
    generate = pipeline(task, model=str(folder), device="cpu")
    assert type(generate) is cls
    (result,) = generate(SENTENCES[0], max_new_tokens=5)
    (translation,) = pipeline("translation", model=str(folder), device="cpu")(SENTENCES[0], max_new_tokens=5)
    assert result == {f"{name}_text": translation["translation_text"]}
    (tokens,) = generate(SENTENCES[0], max_new_tokens=5, return_tensors=True)
    assert tokens[f"{name}_token_ids"].ndim == 1


def test_t5_summarizes_with_its_own_prompt(folder):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.config.task_specific_params = {
        "summarization": {"prefix": "zwei ", "max_length": 4},
        "translation_en_to_de": {"prefix": "two cats "},
    }
    summarize = pipeline("summarization", model=model, tokenizer=tokenizer, device="cpu")
    seen = summarize.preprocess("Katzen")["input_ids"][0].tolist()
    assert seen == tokenizer("zwei Katzen")["input_ids"]


@pytest.mark.parametrize("task", ["translation", "translation_de_to_en", "summarization", "text2text-generation"])
def test_no_model(task):
    with pytest.raises(ValueError, match="no default model: pass model="):
        pipeline(task)


@pytest.mark.parametrize("task", [*REMOVED, "translation_", "translation_de", "translations", "my-task"])
def test_other_tasks_are_still_refused(task):
    with pytest.raises(KeyError, match=task):
        pipeline(task, model="unused", config=ResidualConfig())


def test_aliases_of_transformers_still_work():
    assert pipelines.check_task("ner")[0] == "token-classification"


def test_registering_again_changes_nothing(recwarn):
    before = dict(pipelines.PIPELINE_REGISTRY.supported_tasks), pipelines.PIPELINE_REGISTRY.task_aliases
    register()
    register()
    assert before == (pipelines.PIPELINE_REGISTRY.supported_tasks, pipelines.PIPELINE_REGISTRY.task_aliases)
    assert not recwarn.list
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("residual_hf")]


def test_saving_a_pipeline_of_another_family_leaves_it_loadable(tmp_path):
    tokenizer = tiny_tokenizer()
    config = transformers.BartConfig(vocab_size=len(tokenizer), **small_sizes())
    model = transformers.BartForConditionalGeneration(config)
    pipeline("translation", model=model, tokenizer=tokenizer, device="cpu").save_pretrained(tmp_path)
    assert pipeline("translation", model=str(tmp_path), device="cpu")("Hund", max_new_tokens=3)


@pytest.mark.parametrize("name", ["PIPELINE_REGISTRY", "check_task", "register_pipeline", "task_aliases"])
def test_missing_private_name_is_a_warning_that_names_it(monkeypatch, restored, name):
    restored.supported_tasks.pop("translation")
    owners = {"register_pipeline": type(restored), "task_aliases": restored}
    monkeypatch.delattr(owners.get(name, pipelines), name)
    with pytest.warns(RuntimeWarning, match=rf"Transformers {transformers.__version__} .*{name}.*TranslationPipeline"):
        register()
    tokenizer = tiny_tokenizer()
    assert TranslationPipeline(tiny_model(tokenizer), tokenizer=tokenizer, device="cpu")("Hund", max_new_tokens=3)


def test_unknown_guard_is_a_warning_that_says_what_it_said(monkeypatch, restored):
    def check_task(task):
        raise KeyError(f"{task} was removed for good")

    monkeypatch.setattr(pipelines, "check_task", check_task)
    with pytest.warns(RuntimeWarning, match="translation was removed for good"):
        register()


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_pipeline_of_an_adapter():
    from peft import LoraConfig, TaskType, get_peft_model

    tokenizer = tiny_tokenizer()
    lora = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=2, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(tiny_model(tokenizer), lora)
    translate = pipeline("translation", model=adapted, tokenizer=tokenizer, device="cpu")
    assert translate(SENTENCES, max_new_tokens=5, batch_size=2)
