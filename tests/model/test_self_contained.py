import ast
import json
import shutil
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.processes import run_forked, run_without_the_package
from support.tiny_translator import SENTENCES, tiny_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM, ViTImageProcessor, pipeline
from transformers.dynamic_module_utils import get_relative_imports

from residual_hf import ResidualConfig, ResidualForImageClassification, ResidualImageConfig
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import load_checkpoint, save_checkpoint, validate_model_folder
from residual_hf.model import connections, modeling_residual, self_contained
from residual_hf.model.checksums import write_checksums

COMMIT = "0123456789" * 4


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(tokenizer, source_lang="de", target_lang="en")


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    return save_checkpoint(model, tokenizer, tmp_path_factory.mktemp("saved") / "de-en.small")


@pytest.fixture
def expected(model, tokenizer):
    return pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")(SENTENCES, max_new_tokens=8)


def without_the_package(script, place, **environment):
    """What the script prints as JSON."""
    done = run_without_the_package(script, cwd=place, **environment)
    return json.loads(done.stdout.splitlines()[-1])


TRANSLATE = f"""
import json
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
trusted = {{"trust_remote_code": True}}
sentences = {SENTENCES!r}

def translate(task, name):
    return pipeline(task, model=name, device="cpu", **trusted)(sentences, batch_size=2, max_new_tokens=8)
"""


def test_folder_holds_everything(folder):
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} < files
    assert {"configuration_residual.py", "modeling_residual.py", "pipeline_translation.py"} < files
    assert [path for path in folder.parent.iterdir() if path != folder] == []
    names = json.loads((folder / "config.json").read_text())["custom_pipelines"]
    assert list(names) == ["summarization", "translation", "translation_de_to_en"]
    # Transformers 5.4 copies, from a local folder, only what the file it loads first names by itself
    entry = folder / "configuration_residual.py"
    assert {path.stem for path in folder.glob("*.py")} == {entry.stem, *get_relative_imports(entry)}


def test_with_the_package_no_flag_is_needed(folder, expected):
    translate = pipeline("translation_de_to_en", model=str(folder), device="cpu")
    assert type(translate.model) is modeling_residual.ResidualForConditionalGeneration
    assert translate(SENTENCES, max_new_tokens=8) == expected


def test_without_the_package(folder, expected, tmp_path):
    """From a folder, the models saved from it, and the Hub."""
    repository = tmp_path / "hub" / "models--somebody--de-en.small"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    script = (
        TRANSLATE
        + """
def copied(name, copy):
    pipeline("translation", model=name, device="cpu", **trusted).save_pretrained(copy)
    return [translate("translation", name), translate("translation_de_to_en", name), translate("translation", copy)]

folder, hub = FOLDER, "somebody/de-en.small"
answers = copied(folder, "again") + copied(hub, "from_hub")
model = AutoModel.from_pretrained(folder, **trusted)
AutoModelForSeq2SeqLM.from_pretrained("again", **trusted).save_pretrained("third")
AutoTokenizer.from_pretrained("again", **trusted).save_pretrained("third")
answers.append(translate("translation", "third"))
try:
    pipeline(model=folder, **trusted)
except RuntimeError as error:
    print(json.dumps([answers, type(model).__name__, str(error)]))
"""
    )
    script = script.replace("FOLDER", repr(str(folder)))
    answers, base, error = without_the_package(script, tmp_path, HF_HUB_CACHE=str(tmp_path / "hub"))
    assert answers == [expected] * 7
    assert base == "ResidualModel"
    assert "translation, translation_de_to_en" in error  # more than one task: it must be named
    saved = {path.name for path in folder.iterdir()} - {"checksums.json"}  # of `save_checkpoint`
    for copy in ("again", "third", "from_hub"):
        assert {path.name for path in (tmp_path / copy).iterdir()} == saved
        translate = pipeline("translation", model=str(tmp_path / copy), device="cpu")
        assert translate(SENTENCES, max_new_tokens=8) == expected
    config = json.loads((tmp_path / "from_hub" / "config.json").read_text())
    assert "somebody" not in json.dumps([config["auto_map"], config["custom_pipelines"]])


MODE = '''
"""A mode of a user."""
from torch import nn

from residual_hf import (
    ResidualConnection,
    register_ln_mode as register,
)
from residual_hf.model.connections import Stream
from residual_hf.model.norms import build_norm


@register("{name}")
class {cls}(ResidualConnection):
    def __init__(self, config, place):
        super().__init__(config, place)
        from residual_hf.model.norms import build_norm as again

        self.norm = again(config, place.stack) if build_norm is again else nn.Identity()

    def forward(self, stream: Stream, sublayer) -> Stream:
        return (self.norm(stream[0] - sublayer(stream[0])),)
'''


def test_config_class_of_a_user_is_saved_as_that_of_the_package():
    class Mine(ResidualConfig):
        pass

    fields = self_contained.code_fields(Mine())["auto_map"]
    assert fields == self_contained.code_fields(ResidualConfig())["auto_map"]


def test_mode_of_a_user_travels(user_mode, tokenizer, tmp_path, monkeypatch):
    (tmp_path / "residual_hf").mkdir()  # beside a clone of the package that is not installed
    (tmp_path / "residual_hf" / "__init__.py").touch()
    installed = {name: found for name, found in packages_distributions().items() if name != "residual_hf"}
    monkeypatch.setattr(self_contained, "packages_distributions", lambda: installed)  # as in a clone
    user_mode("my_minus", "\f\n" + MODE.format(name="my_minus", cls="Minus"))
    model = tiny_model(tokenizer, ln_mode="my_minus", source_lang="de", target_lang="en")
    translations = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")(SENTENCES, max_new_tokens=8)
    saved = save_checkpoint(model, tokenizer, tmp_path / "minus")
    assert "residual_hf" not in "".join(
        line for line in (saved / "my_minus.py").read_text().splitlines() if "import" in line
    )
    classifier = ResidualForImageClassification(ResidualImageConfig(depth=8, ln_mode="my_minus")).eval()
    classifier.save_pretrained(tmp_path / "images")
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "images")
    classified = pipeline("image-classification", model=str(tmp_path / "images"), device="cpu")(
        Image.new("RGB", (9, 9))
    )
    place = tmp_path / "elsewhere"
    place.mkdir()
    script = (
        TRANSLATE
        + f"""
from PIL import Image
answers = [translate("translation", {str(saved)!r})]
pipeline("translation", model={str(saved)!r}, device="cpu", **trusted).save_pretrained("again")
classify = pipeline("image-classification", model={str(tmp_path / "images")!r}, device="cpu", **trusted)
print(json.dumps([classify(Image.new("RGB", (9, 9))), *answers, translate("translation", "again")]))
"""
    )
    assert without_the_package(script, place) == [classified, translations, translations]


def test_mode_of_a_user_is_registered_by_its_checkpoint(user_mode, tokenizer, tmp_path, monkeypatch):
    """Where residual_hf is imported and the file of the mode is not: only if the user trusts the checkpoint."""
    user_mode("my_plus", MODE.format(name="my_plus", cls="Plus"))
    model = tiny_model(tokenizer, ln_mode="my_plus", source_lang="de", target_lang="en").eval()
    tokens = {"input_ids": torch.arange(4, 12)[None], "labels": torch.arange(4, 8)[None]}
    expected = model(**tokens).loss
    saved = save_checkpoint(model, tokenizer, tmp_path / "plus")
    other = save_checkpoint(model, tokenizer, tmp_path / "other")
    file = other / "my_plus.py"
    file.write_text(file.read_text().replace("stream[0] - sublayer", "stream[0] + sublayer"))
    failing = save_checkpoint(model, tokenizer, tmp_path / "failing")
    (failing / "my_plus.py").write_text("raise RuntimeError('not run')\n")
    for folder in (other, failing):  # as if they had been saved like this
        write_checksums(folder, ["my_plus.py"])
    assert torch.equal(load_checkpoint(failing, trust_remote_code=True)[0](**tokens).loss, expected)  # the user's runs

    connections.LN_MODES.pop("my_plus")
    del sys.modules["my_plus"]
    for load in (AutoModelForSeq2SeqLM.from_pretrained, load_checkpoint):
        with pytest.raises(ValueError, match="unknown ln_mode 'my_plus'.*--import FILE.*trust_remote_code"):
            load(saved)
    assert AutoConfig.from_pretrained(saved).ln_mode == "my_plus"
    with pytest.raises(InputError, match="its my_plus.py cannot be run: RuntimeError: not run"):
        load_checkpoint(failing, trust_remote_code=True)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "residual_hf.model.my_plus", raising=False)
        for load in (
            AutoModelForSeq2SeqLM.from_pretrained,
            modeling_residual.ResidualForConditionalGeneration.from_pretrained,
        ):
            assert torch.equal(load(saved, trust_remote_code=True)(**tokens).loss, expected)
        loaded, _ = load_checkpoint(saved, trust_remote_code=True)
        translate = pipeline("translation", model=str(saved), trust_remote_code=True, device="cpu")
        assert type(loaded) is modeling_residual.ResidualForConditionalGeneration
        assert translate("Ein Hund")  # of this class too, where Transformers prefers what is imported (not in 5.4)
        again = save_checkpoint(loaded, tokenizer, tmp_path / "again")
        for path in saved.glob("*.py"):
            assert (again / path.name).read_text() == path.read_text()
        validate_model_folder(again)
        with pytest.raises(InputError, match="'residual_hf.model.my_plus' with other code is in use"):
            load_checkpoint(other, trust_remote_code=True)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("import residual_hf.model.norms\n", "line 1 imports a module"),
        ("from residual_hf.base.errors import InputError\n", "InputError, which is not part of the model code"),
        ("from residual_hf import *\n", "it imports *, which is not part of the model code"),
        ("import neighbour\n", "line 1 imports neighbour, another file of its project"),
        ("from folder.neighbour import half\n", "line 1 imports folder, another file of its project"),
        ("from neighbour import half\n", "line 1 imports neighbour, another file of its project"),
        ("from residual_hf import ResidualConfig; half = 0.5\n", "line 1 has another statement beside the import"),
    ],
)
def test_mode_that_cannot_travel_is_named(user_mode, tokenizer, tmp_path, caplog, start, reason):
    name = f"stays_{len(start)}"
    user_mode("neighbour", "half = 0.5")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "neighbour.py").write_text("half = 0.5")
    user_mode(name, start + MODE.format(name=name, cls="Stays"))
    model = tiny_model(tokenizer, ln_mode=name)
    saved = save_checkpoint(model, tokenizer, tmp_path / "stays")
    assert name in caplog.text and reason in caplog.text
    assert not (saved / f"{name}.py").exists()
    assert AutoModelForSeq2SeqLM.from_pretrained(saved).config.ln_mode == name  # here it is imported


@pytest.mark.parametrize(
    ("file", "made_in_a_loop", "reason"),
    [
        ("my-mode", False, "my-mode.py is no name of a module, which has letters, digits and underscores"),
        ("factory", True, "factory.py has no class Made of this name at its top level"),
    ],
)
def test_class_that_a_file_cannot_give_is_named(user_mode, tokenizer, tmp_path, caplog, file, made_in_a_loop, reason):
    text = MODE.format(name=f"of_{file}", cls="Made") + "Other = Made\ndel Made\n" * made_in_a_loop
    user_mode(file, text)
    save_checkpoint(tiny_model(tokenizer, ln_mode=f"of_{file}"), tokenizer, tmp_path / "saved")
    assert reason in caplog.text and not (tmp_path / "saved" / f"{file}.py").exists()


def test_imports_of_what_may_be_missing_travel(user_mode, tokenizer, tmp_path, caplog):
    start = "try:\n    import not_installed\nexcept ImportError:\n    pass\n"
    user_mode("optional", start + MODE.format(name="optional", cls="Optional"))
    saved = save_checkpoint(tiny_model(tokenizer, ln_mode="optional"), tokenizer, tmp_path / "saved")
    assert (saved / "optional.py").exists() and "not saved" not in caplog.text


def test_modes_of_one_file_travel_together(user_mode, tokenizer, tmp_path, caplog):
    user_mode("my_modes", MODE.format(name="my_first", cls="First") + MODE.format(name="my_second", cls="Second"))
    model = tiny_model(tokenizer, encoder_ln_mode="my_first", decoder_ln_mode="my_second")
    saved = save_checkpoint(model, tokenizer, tmp_path / "saved")
    assert "not saved" not in caplog.text
    place = tmp_path / "elsewhere"
    place.mkdir()
    assert without_the_package(TRANSLATE + f"print(json.dumps(translate('translation', {str(saved)!r})))", place)


def test_mode_of_the_running_script_is_named(user_mode, tokenizer, tmp_path, caplog):
    mode = user_mode("my_script", MODE.format(name="scripted", cls="Scripted")).Scripted
    mode.__module__ = "__main__"
    saved = save_checkpoint(tiny_model(tokenizer, ln_mode="scripted"), tokenizer, tmp_path / "scripted")
    assert "scripted" in caplog.text and "running script" in caplog.text
    assert not (saved / "my_script.py").exists()


def test_plain_save_pretrained_writes_the_same_code(model, folder, tmp_path):
    model.save_pretrained(tmp_path)
    for path in folder.glob("*.py"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "config.json").read_text() == (folder / "config.json").read_text()
    assert not hasattr(model.config, "custom_pipelines") and not model.is_remote_code()


OF_A_KIND = {
    "modeling_speech.py",
    "configuration_image.py",
    "modeling_image.py",
    "resnet.py",
    "modeling_single_stack.py",
}


@pytest.mark.parametrize(
    ("config", "own"),
    [
        (ResidualConfig(), set()),
        (ResidualConfig(conv_channels=8), {"modeling_speech.py"}),
        (ResidualConfig(is_decoder_only=True), {"modeling_single_stack.py"}),
        (ResidualImageConfig(depth=8), OF_A_KIND - {"modeling_speech.py"}),
    ],
    ids=["text", "speech", "language model", "images"],
)
def test_only_the_files_of_its_kind_travel_with_a_model(config, own):
    files = self_contained.model_code(config)
    assert files.keys() & OF_A_KIND == own
    assert ("pipeline_translation.py" in files) == (config.is_encoder_decoder and not config.reads_speech)
    assert "modeling_residual.py" in files


def test_every_file_of_modes_registers_itself_and_travels(folder, tmp_path):
    home = Path(self_contained.__file__).parent
    package = shutil.copytree(home, tmp_path / "grown" / "grown_model")
    own = "from .connections import register_ln_mode\nfrom .ln_modes import PostLN\n"
    own += "@register_ln_mode('grown')\nclass Grown(PostLN):\n    pass\n"
    (package / "modes_grown.py").write_text(own)
    script = "from grown_model.configuration_residual import ResidualConfig\nResidualConfig(ln_mode='grown')\n"
    script += "from grown_model.self_contained import model_code\nprint(sorted(model_code(ResidualConfig())))"
    printed = run_forked("-c", script, cwd=package.parent).stdout
    assert "'modes_grown.py'" in printed
    assert {path.name for path in home.glob("modes_*.py")} <= {path.name for path in folder.iterdir()}


def test_model_code_needs_nothing_else_of_the_package(folder):
    for path in folder.glob("*.py"):
        modules = [
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        assert not [module for module in modules if module.startswith("residual_hf")], path.name


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A copy of the model code, in the place of the package, that a test may remove."""
    package = shutil.copytree(Path(self_contained.__file__).parent, tmp_path / "installed")
    monkeypatch.setattr(self_contained, "__file__", str(package / "self_contained.py"))
    self_contained._code_with.cache_clear()
    yield package
    self_contained._code_with.cache_clear()


def test_a_package_that_is_replaced_during_training(tokenizer, installed, tmp_path):
    model = tiny_model(tokenizer).train()
    for file in installed.glob("*.py"):
        file.write_text("newer = True\n")
    save_checkpoint(model, tokenizer, tmp_path / "replaced")
    shutil.rmtree(installed)
    save_checkpoint(model, tokenizer, tmp_path / "removed")
    for folder in (tmp_path / "replaced", tmp_path / "removed"):
        assert "class ResidualConfig" in (folder / "configuration_residual.py").read_text()
        assert "auto_map" in json.loads((folder / "config.json").read_text())


def test_weights_are_saved_where_the_code_cannot_be_read(tokenizer, installed, tmp_path, caplog):
    model = tiny_model(tokenizer)
    shutil.rmtree(installed)
    save_checkpoint(model, tokenizer, tmp_path / "saved")
    assert "The model code is not saved" in caplog.text
    loaded, _ = load_checkpoint(tmp_path / "saved")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
