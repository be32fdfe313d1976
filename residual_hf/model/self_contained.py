# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Write the model code into a checkpoint, so that it loads with `trust_remote_code=True` where residual_hf is missing.

Transformers finds the classes through `auto_map` and the pipeline through `custom_pipelines` in `config.json`. If
residual_hf is imported, its own classes are used and no flag is needed. `config` is a `ResidualConfig`.
"""

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import module_from_spec, spec_from_file_location
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports
from transformers.utils import cached_file, logging

from .catalogue import MODULES
from .checksums import CHECKSUMS
from .connections import ResidualConnection, get_ln_mode, is_registered

logger = logging.get_logger(__name__)

PACKAGE = __name__.rpartition(".")[0]
ENTRY = "configuration_residual.py"  # the file that the configurations import
CONFIG_CLASS = "configuration_residual.ResidualConfig"
MODEL_CLASSES = {  # by the class of their config
    CONFIG_CLASS: {
        "AutoModel": "modeling_residual.ResidualModel",
        "AutoModelForSeq2SeqLM": "modeling_residual.ResidualForConditionalGeneration",
        "AutoModelForSpeechSeq2Seq": "modeling_speech.ResidualForSpeechSeq2Seq",
        "AutoModelForCausalLM": "modeling_single_stack.ResidualForCausalLM",
        "AutoModelForMaskedLM": "modeling_single_stack.ResidualForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_single_stack.ResidualForSequenceClassification",
    },
    "configuration_image.ResidualImageConfig": {
        "AutoModel": "modeling_image.ResidualImageModel",
        "AutoModelForImageClassification": "modeling_image.ResidualForImageClassification",
    },
}
ENTRIES = {f"{name.partition('.')[0]}.py" for name in MODEL_CLASSES}
TASKS = {  # of models with these stacks
    ("encoder", "decoder"): ("AutoModelForSeq2SeqLM",),
    ("speech", "decoder"): ("AutoModelForSpeechSeq2Seq",),
    ("decoder",): ("AutoModelForCausalLM",),
    ("encoder",): ("AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForImageClassification"),
}
PIPELINES: dict[str, dict[str, Any]] = {
    task: {"impl": f"pipeline_translation.{name}", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
    for task, name in {"translation": "TranslationPipeline", "summarization": "SummarizationPipeline"}.items()
}
CODE = "__code_of_file__"  # the attribute of a module from `import_file`
REGISTERS = "registers an ln_mode"  # the mark of the imports of a user's modes in `ENTRY`
OTHER_FILES = "From a local folder, Transformers 5.4 only copies files that are named in this one:"


def write_model_code(folder: str | os.PathLike, config: Any) -> None:
    """Write the code of a model into a folder, and its classes into the `config.json` of the folder.

    A user's mode is saved too if its file imports, apart from installed packages, only model code of residual_hf;
    otherwise a warning is logged, as it is if the files of residual_hf cannot be read, so that weights are saved.
    """
    folder = Path(folder)
    (folder / CHECKSUMS).unlink(missing_ok=True)  # of an earlier checkpoint in this folder
    try:
        files = model_code(config)
    except OSError as error:
        logger.warning(f"The model code is not saved in {folder}, which only loads where residual_hf is: {error}")
        return
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")

    values = json.loads((folder / "config.json").read_text("utf-8")) | code_fields(config)
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")


def code_fields(config: Any) -> dict[str, Any]:
    """The fields of a `config.json` that name the classes of the model code."""
    own = type(config).__name__
    config_class = next((name for name in MODEL_CLASSES if name.endswith(f".{own}")), CONFIG_CLASS)
    tasks = ("AutoModel", *TASKS[("speech", "decoder") if config.reads_speech else config.stacks])
    models = {name: model for name, model in MODEL_CLASSES[config_class].items() if name in tasks}
    if config.reads_speech:  # from the file that has the encoder too
        models["AutoModel"] = models["AutoModel"].replace("modeling_residual", "modeling_speech")
    fields: dict[str, Any] = {"auto_map": {"AutoConfig": config_class, **models}}
    if "AutoModelForSeq2SeqLM" in models:
        fields["custom_pipelines"] = dict(PIPELINES)
        if config.source_lang and config.target_lang:
            task = f"translation_{config.source_lang}_to_{config.target_lang}"
            fields["custom_pipelines"][task] = PIPELINES["translation"]
    return fields


def model_code(config: Any) -> dict[str, str]:
    """Name and text of every file that `write_model_code` writes, as they were when a process first asked."""
    fields = code_fields(config)
    classes = {*fields["auto_map"].values(), *(task["impl"] for task in fields.get("custom_pipelines", {}).values())}
    modules = frozenset(name.partition(".")[0] for name in classes)
    return dict(_code_with(modules, tuple(own.mode for own in config.stack_configs)))


@cache
def _code_with(modules: frozenset[str], modes: tuple[type[ResidualConnection], ...]) -> dict[str, str]:
    files = dict(_model_files(Path(__file__).parent, modules))
    for mode in {mode.__module__: mode for mode in modes}.values():  # importing a file registers all of its modes
        package, _, stem = mode.__module__.rpartition(".")
        if package != PACKAGE or f"{stem}.py" not in files:
            _add_mode(files, mode)
    return files


def import_saved_modes(name: str | os.PathLike, **hub_options: Any) -> None:
    """Run the files of a checkpoint that register its modes, unless a user has imported these modes.

    Args:
        name: folder or name on the Hub.
        hub_options: of `transformers.utils.cached_file`.

    Raises `ValueError` for a file that fails, or if a file or a mode of another model has the same name.
    """
    values, _ = PreTrainedConfig.get_config_dict(name, **hub_options)
    if not any(_may_be_saved(mode) for field, mode in values.items() if field.endswith("ln_mode")):
        return
    entry = cached_file(name, ENTRY, _raise_exceptions_for_missing_entries=False, **hub_options)
    imports = rf"^from \.(\w+) import \w+  # .*{REGISTERS}"
    for stem in re.findall(imports, Path(entry).read_text("utf-8") if entry else "", re.MULTILINE):
        if Path(__file__).with_name(f"{stem}.py").exists():
            continue
        try:
            import_file(Path(cached_file(name, f"{stem}.py", **hub_options)), f"{PACKAGE}.{stem}")
        except Exception as error:  # of any code
            raise ValueError(f"its {stem}.py cannot be run: {type(error).__name__}: {error}") from error


def _may_be_saved(mode: Any) -> bool:
    """Whether the value of an `ln_mode` is not registered, or was by a checkpoint."""
    if not is_registered(mode):
        return mode is not None
    package, _, stem = get_ln_mode(mode).__module__.rpartition(".")
    return package == PACKAGE and not Path(__file__).with_name(f"{stem}.py").exists()


def import_file(path: Path, name: str) -> None:
    """Run a Python file as the module `name`, unless it has been.

    Raises `ValueError` if other code has the name, `ImportError` if it is no Python file, and what its code raises.
    """
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    code, known = path.read_bytes(), sys.modules.get(name)
    if known is not None:
        if _code(known) != code:
            raise ValueError(f"a module {name!r} with other code is in use: rename the file")
        return
    module = sys.modules[name] = module_from_spec(spec)
    vars(module)[CODE] = code
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _code(module: ModuleType) -> bytes:
    """The code that a module was made of; the file may have changed since."""
    return vars(module).get(CODE) or Path(getattr(module, "__file__", None) or os.devnull).read_bytes()


@cache
def _model_files(home: Path, modules: frozenset[str]) -> dict[str, str]:
    """Name and text of every file that the classes in a `config.json` need, which are in `modules`."""
    entries = {home / f"{module}.py" for module in (*modules, *MODULES)}
    paths = {*entries, *(Path(found) for entry in entries for found in get_relative_import_files(entry))}
    files = {path.name: path.read_text("utf-8") for path in sorted(paths)}
    imports = "".join(f"from .{module} import *\n" for module in ("ln_modes", *MODULES))
    files["catalogue.py"] = f"{imports}\nMODULES = {MODULES}\n"  # a cache of modules may hold files of other models
    for entry in files.keys() & ENTRIES:
        unnamed = {path.stem for path in paths} - {Path(entry).stem, *get_relative_imports(home / entry)}
        imports = "".join(f"from .{stem} import\n" for stem in sorted(unnamed))
        if imports:
            files[entry] += f'\n"""{OTHER_FILES}\n{imports}"""\n'
    return files


def _add_mode(files: dict[str, str], mode: type[ResidualConnection]) -> None:
    """Add the file of a user's mode and import it in the configuration's file."""
    try:
        if mode.__module__ == "__main__":
            raise ValueError("it is defined in the running script, not in a separate file")
        path, module = Path(inspect.getfile(mode)), sys.modules[mode.__module__]
        if path.name in files:
            raise ValueError(f"the model code already has a file {path.name}")
        if not path.stem.isidentifier() or iskeyword(path.stem):
            raise ValueError(f"{path.name} is no name of a module, which has letters, digits and underscores")
        if getattr(getattr(module, mode.__name__, None), "name", None) != mode.name:
            raise ValueError(f"{path.name} has no class {mode.__name__} of this name at its top level")
        text = _with_relative_imports(_code(module).decode(), files, path.resolve())
    except (OSError, TypeError, ValueError, SyntaxError) as error:
        logger.warning(
            f"The code of ln_mode {mode.name!r} ({mode.__module__}.{mode.__qualname__}) is not saved with the model: "
            f"{error}. Import it before you load the folder."
        )
        return
    files[path.name] = text
    for entry in files.keys() & ENTRIES:
        files[entry] += f"\nfrom .{path.stem} import {mode.__name__}  # noqa: E402, F401, I001 ({REGISTERS})\n"


def _is_of_project(name: str, file: Path) -> bool:
    """Whether a module that is not installed is imported from a folder that `file` is in."""
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    roots = {Path(entry).resolve() for entry in sys.path} & {*file.parents}
    path = Path(origin).resolve()
    is_beside = bool(origin) and not roots.isdisjoint(path.parents)
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)  # of Python 3.10, not all are listed
    return is_beside and not is_installed and name not in packages_distributions()


def _with_relative_imports(text: str, files: Collection[str], file: Path) -> str:
    """The source of a module with its imports from this package replaced by imports from files of the same folder.

    Raises `ValueError` for imports that cannot be replaced: modules, names from outside the model code, and other
    files of the project of `file`. `files` are those of the model code.
    """
    package = PACKAGE.partition(".")[0]
    lines = re.split(r"\r\n?|\n", text)  # as `ast` counts them, unlike `splitlines`
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 1 and f"{node.module}.py" in files:
            continue  # the file is from a checkpoint
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"line {node.lineno} imports another file of its folder")
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        names = {module.partition(".")[0] for module in modules}
        if isinstance(node, ast.Import) and package in names:
            raise ValueError(
                f"line {node.lineno} imports a module of {package}: write `from {package} import <names>`"
            )
        for name in names - {package}:
            if _is_of_project(name, file):
                raise ValueError(f"line {node.lineno} imports {name}, another file of its project")
        if isinstance(node, ast.ImportFrom) and package in names:
            end = node.end_lineno or node.lineno
            indent = lines[node.lineno - 1].encode()[: node.col_offset].decode()
            behind = lines[end - 1].encode()[node.end_col_offset :].decode()
            if indent.strip() or behind.lstrip().startswith(";"):
                raise ValueError(f"line {node.lineno} has another statement beside the import")
            imports = [_import_of(modules[0], alias) for alias in node.names]
            lines[node.lineno - 1 : end] = ["\n".join(indent + line for line in imports), *[""] * (end - node.lineno)]
    return "\n".join(lines)


def _import_of(module: str, alias: ast.alias) -> str:
    if module.rpartition(".")[0] != PACKAGE:  # a name that the package re-exports
        module = getattr(getattr(sys.modules.get(module), alias.name, None), "__module__", module)
    if module.rpartition(".")[0] != PACKAGE:
        raise ValueError(f"it imports {alias.name}, which is not part of the model code")
    renamed = f" as {alias.asname}" if alias.asname else ""
    return f"from .{module.rpartition('.')[2]} import {alias.name}{renamed}"
