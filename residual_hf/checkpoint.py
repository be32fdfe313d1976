"""Model folders: weights, configs, tokenizer and model code, saved together, loaded and checked for completeness."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedConfig, ProcessorMixin, Speech2TextFeatureExtractor, Speech2TextProcessor
from transformers.utils import CHAT_TEMPLATE_FILE, cached_file

from residual_hf import checkpoint_checks as checks
from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import RECORD, atomic_folder, check_output_folder, read_json
from residual_hf.base.names import model_folder
from residual_hf.checkpoint_checks import UNREADABLE, WEIGHT_FILES
from residual_hf.model.checksums import file_hash, files_of, write_checksums
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.self_contained import CONFIG_CLASS, MODEL_CLASSES, import_saved_modes
from residual_hf.registration import model_class

SHORTLIST = "shortlist.safetensors"
"""The file of a model folder with the target tokens that are likely for each source token."""

PROCESSOR = ("processor_config.json", "preprocessor_config.json")
"""The files in which Transformers saves the features of a speech model."""

SAVED: dict[str, tuple[type, Any]] = {  # the classes of saved models, and the Auto classes that load them
    reference.partition(".")[2]: (model_class(reference), getattr(transformers, auto_class))
    for auto_class, reference in MODEL_CLASSES[CONFIG_CLASS].items()
    if auto_class != "AutoModel"
}


@cache
def extractor(bins: int) -> Speech2TextFeatureExtractor:
    """Transformers' filter bank: log-mel energies of `bins`, with mean 0 and variance 1 over a recording."""
    return Speech2TextFeatureExtractor(feature_size=bins, num_mel_bins=bins)


def check_model_output(folder: Path, *, overwrite: bool, inputs: Iterable[Path | str | None]) -> None:
    """Raise `InputError`, as `check_output_folder` does, for a folder in which a model cannot be written, and for that
    of the model of a run, whose scores and card would be those of another one."""
    check_output_folder(folder, overwrite=overwrite, holds=WEIGHT_FILES, inputs=inputs)
    run = folder.absolute().parent
    if folder.name == "model" and (run / RECORD).is_file():
        raise InputError(f"output_dir: {folder} is for the model of the run {run}; use another folder")


def save_checkpoint(
    model: Any,
    tokenizer: Any,
    folder: str | os.PathLike,
    *,
    overwrite: bool = False,
    complete: Callable[[Path], None] | None = None,
) -> Path:
    """Save weights (safetensors), config, generation config, tokenizer, model code and pipeline to one folder.

    Of a speech model, `tokenizer` may be its processor; by default the features are those of its config.

    With `residual_hf` imported the folder loads as it is, elsewhere with `trust_remote_code=True`. It is written
    completely or not at all; `overwrite` replaces all files of an existing one. `complete` adds files to it.

    Raises:
        InputError: another model, a tokenizer with more tokens than the model, a folder that is not empty, or with
            `overwrite` one that is not a saved model, see `check_output_folder`.
    """
    folder = Path(folder)
    if type(model).__name__ not in SAVED:  # of the package, or loaded with remote code
        raise InputError(
            f"model: {type(model).__name__} given, must be one of {', '.join(SAVED)}; merge an adapter first "
            "(merge_and_unload)"
        )
    checks.check_vocabulary_size(getattr(tokenizer, "tokenizer", tokenizer), model.config, "tokenizer")
    check_output_folder(folder, overwrite=overwrite, holds=WEIGHT_FILES, field="folder", options="overwrite=True")
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        if model.config.reads_speech and not isinstance(tokenizer, ProcessorMixin):
            tokenizer = Speech2TextProcessor(extractor(model.config.num_mel_bins), tokenizer)
        tokenizer.save_pretrained(new)
        if complete is not None:
            complete(new)
        write_checksums(new)
    return folder


def load_checkpoint(
    name: str | Path,
    *,
    trust_remote_code: bool = False,
    classes: Sequence[type] = (ResidualForConditionalGeneration,),
    other_families: bool = True,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder of a model or a run, or the Hub.

    Models of other families are loaded as by Transformers, as encoder-decoders. `classes` are those of this package
    that the caller can use.

    Raises `InputError` naming the file or the weights that are missing, damaged or inconsistent, where Transformers
    would use random weights, for weights that are not finite, and for a config of a newer version.
    """
    where = f"model {name}"
    checks.check_presence(name := model_folder(name), where)
    missing = "" if Path(name).exists() else "no such folder, and as a name on the Hub "
    with input_errors(f"{where}: {missing}cannot be loaded: ", *UNREADABLE, RuntimeError, SafetensorError):
        values, _ = PreTrainedConfig.get_config_dict(name)
        ours = values.get("model_type") == ResidualConfig.model_type
        foreign_code = trust_remote_code and not ours  # of ours, only the modes come from a checkpoint
        checks.check_implementations(values, f"{where}: config.json")
        cls, auto_class = saved_class(values)
        if ours:
            checks.check_fields(values, f"{where}: config.json")
            if trust_remote_code:
                import_saved_modes(name)
            if Path(name).is_dir():
                checks.check_shapes_before_loading(Path(name), cls, values)
        if not (cls in classes if ours else other_families):
            given = cls.__name__ if ours else f"{values.get('model_type')} model"
            raise InputError(f"{where}: a {given}, must be a {' or '.join(each.__name__ for each in classes)}")
        model, report = auto_class.from_pretrained(
            name, trust_remote_code=foreign_code, ignore_mismatched_sizes=ours, output_loading_info=True
        )
    tokenizer = checks.load_tokenizer(name, where, trust_remote_code=foreign_code)
    unknown = report["unexpected_keys"] if ours else ()
    problem = f"{where}: {checks.NO_MATCH}"
    checks.check_differences(problem, report["missing_keys"], unknown, report["mismatched_keys"])
    checks.check_finite(where, model.named_parameters())
    if model.can_generate():
        checks.check_generation_fields(vars(model.generation_config), f"{where}: generation config")
        if ours:
            checks.check_token_ids(model.generation_config, model.config, f"{where}: generation config")
    if ours:
        checks.check_vocabulary(tokenizer, model.config, where)
        checks.check_undamaged(Path(name), model=False)  # `from_pretrained` has checked that
    return model, tokenizer


def validate_model_folder(folder: str | os.PathLike) -> list[str]:
    """Check a model folder; returns the names of its files, without the model card and the checksums.

    Raises `InputError` naming the file and field that would keep the model from loading elsewhere: what
    `load_checkpoint` refuses, another family, or model code that is missing or differs from the installed one.
    """
    folder = Path(folder)
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != ResidualConfig.model_type:
        raise InputError(f"{path}: model_type is {values.get('model_type')!r}, must be {ResidualConfig.model_type!r}")
    generation = [] if values.get("is_encoder_only") else ["generation_config.json"]
    for name in generation:
        read_json(folder / name)
    checks.check_fields(values, path)
    with input_errors(f"{path}: ", *UNREADABLE):
        config = ResidualConfig.from_dict(values)
        config.validate_residual()
    code = checks.check_code(folder, values, config)
    _, tokenizer = load_checkpoint(folder, classes=[cls for cls, _ in SAVED.values()])
    weights, _ = checks.weight_shapes(folder)
    names = dict.fromkeys([*checks.TOKENIZER_FILES, CHAT_TEMPLATE_FILE, *tokenizer.vocab_files_names.values()])
    optional = [name for name in (*names, SHORTLIST, *PROCESSOR) if (folder / name).is_file()]
    return ["config.json", *generation, *weights, *code, *optional]


def saved_class(values: dict[str, Any]) -> tuple[type, Any]:
    """The class of a saved model, and the Auto class that loads it, from the `architectures` of its config."""
    names = values.get("architectures")
    named = [name for name in names if isinstance(name, str) and name in SAVED] if isinstance(names, list) else []
    return SAVED[(named or list(SAVED))[0]]


def identity(name: str | Path) -> dict[str, Any]:
    """Identity of a model: the folder and a hash of its files, or the name on the Hub and the commit.

    Raises `InputError` for a folder without a model.
    """
    checks.check_presence(folder := model_folder(name), f"model {name}")
    if Path(folder).is_dir():
        hashes = json.dumps({path: file_hash(file) for path, file in files_of(Path(folder)).items()})
        return {"model": str(Path(folder)), "content": hashlib.sha256(hashes.encode()).hexdigest()}
    try:
        commit = Path(cached_file(str(name), "config.json")).parent.name  # the newest, if the Hub can be reached
    except OSError:  # the error of loading says more
        commit = None
    return {"model": str(name), "content": commit}


def move_to(model: Any, device: str | None = None, dtype: torch.dtype | None = None) -> None:
    """Move a model to a device, and to a type there.

    The default is a GPU if there is one; under `torchrun`, `cuda` is that of this process. Raises `InputError` for a
    device that does not exist, or does not support the type.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and "LOCAL_RANK" in os.environ:
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % (torch.cuda.device_count() or 1)}"
    with input_errors(f"device {device!r}: ", RuntimeError, AssertionError):
        if torch.device(device).type == "meta":
            raise RuntimeError("it computes nothing")
        model.to(device) if dtype is None else model.to(device, dtype)
