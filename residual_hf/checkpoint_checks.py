"""Checks of model folders: files, config, weights, tokenizer and model code. All raise `InputError`."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, GenerationConfig

from residual_hf._version import __version__
from residual_hf.base.errors import InputError, InputSettings, fields_of, input_errors, is_panic, refuse_if
from residual_hf.base.files import read_json, read_text
from residual_hf.base.names import check_model_files
from residual_hf.model import self_contained, tokenization_residual
from residual_hf.model.checksums import of_model, of_training, refuse_damage
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.options import from_mapping, option, shortened
from residual_hf.model.translation_inputs import is_of_fsmt, separate_target_vocabulary

WEIGHT_FILES = WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
TOKENIZER_MAP = {"AutoTokenizer": ["tokenization_residual.ResidualTokenizer", None]}  # of two vocabularies
NOT_FIELDS = {
    *("auto_map", "custom_pipelines", "model_type"),
    *("_name_or_path", "_commit_hash", "_attn_implementation_autoset"),  # of older versions of Transformers, unused
}
IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
UNREADABLE = (  # of Transformers
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, ImportError, StrictDataclassError),
)
SHOWN = 5  # weights in an error message
NO_MATCH = "the weights do not match config.json"


@dataclass(frozen=True)
class OtherFields(InputSettings):
    """The fields of `config.json` that `ResidualConfig` does not check."""

    prefix: str | None = None
    quantization_config: dict | None = None
    task_specific_params: dict | None = None
    dtype: str | None = None

    def check(self) -> None:
        found = getattr(torch, self.dtype or "float32", torch.float32)  # other names are refused by Transformers
        self.require(isinstance(found, torch.dtype), "dtype", "the name of a type of PyTorch")
        tasks = (self.task_specific_params or {}).values()
        is_right = all(isinstance(task, dict) and isinstance(task.get("prefix") or "", str) for task in tasks)
        self.require(is_right, "task_specific_params", "mappings with text as prefix")


@dataclass(frozen=True)
class Watermark(InputSettings):
    """The fields of `watermarking_config`."""

    greenlist_ratio: float = option(0.25, minimum=0, maximum=1)
    bias: float = 2.0
    hashing_key: int = 15485863
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: int = option(1, minimum=1)


GenerationFields: Any = make_dataclass(  # those fields of a generation config that a search reads
    "GenerationFields",
    [
        *fields_of(int, "max_length max_new_tokens num_beams num_beam_groups num_return_sequences", minimum=1),
        *fields_of(int, "prompt_lookup_num_tokens assistant_early_exit prefill_chunk_size", minimum=1),
        *fields_of(int, "min_length min_new_tokens top_k", minimum=0),
        *fields_of(int, "no_repeat_ngram_size encoder_no_repeat_ngram_size", minimum=0),
        *fields_of(float, "max_time repetition_penalty encoder_repetition_penalty", above=0),
        *fields_of(float, "max_length_a max_length_b temperature", minimum=0),
        *fields_of(float, "top_p min_p typical_p", minimum=0, maximum=1),
        *fields_of(float, "assistant_ensemble_weight", above=0, below=1),
        *fields_of(float, "length_penalty"),
        *fields_of(bool | Literal["never"], "early_stopping"),
        *fields_of(bool, "do_sample remove_invalid_values renormalize_logits use_cache fast_decoding"),
        *fields_of(bool, "return_dict_in_generate output_scores output_logits output_attentions"),
        *fields_of(bool, "output_hidden_states"),
        *fields_of(Literal[False], "is_assistant"),
        *fields_of(int, "pad_token_id bos_token_id decoder_start_token_id forced_bos_token_id"),
        *fields_of(int | list[int], "eos_token_id forced_eos_token_id"),
        *fields_of(list[int], "suppress_tokens begin_suppress_tokens"),
        *fields_of(list[list[int]], "bad_words_ids"),
        *fields_of(list[tuple[list[int], float]], "sequence_bias"),
        *fields_of(tuple[int, float], "exponential_decay_length_penalty"),
        *fields_of(Watermark, "watermarking_config"),
        *fields_of(str, "decoding_dtype"),
    ],
    bases=(InputSettings,),
    frozen=True,
)


class DifferentCodeError(InputError):
    """The model code of a folder is not the installed one, which is in `code` (name to text)."""

    def __init__(self, message: str, code: dict[str, str]):
        super().__init__(message)
        self.code = code


def check_presence(name: str | Path, where: str) -> None:
    """Check that a local folder has the files of a model and that its settings are JSON; not of a name on the Hub."""
    check_model_files(name, where)
    folder = Path(name)
    if not folder.is_dir():
        return
    files = [folder / name for name in ("config.json", "generation_config.json", "tokenizer_config.json")]
    values = {path.name: read_json(path) for path in files if path.exists()}
    check_generation_fields(values.get("generation_config.json", {}), folder / "generation_config.json")


def check_undamaged(folder: Path, *, model: bool = True) -> None:
    """Check that the files of a folder, of its `model` too, are those that were saved, if they were recorded."""
    with input_errors("", ValueError):
        refuse_damage(folder, lambda name: not of_training(name) and (model or not of_model(name)))


def check_fields(values: dict[str, Any], where: object) -> None:
    """Refuse fields that would be ignored: those of a newer version change what the model computes."""
    known, others = ({field.name for field in dataclasses.fields(cls)} for cls in (ResidualConfig, OtherFields))
    if unknown := sorted(values.keys() - known - others - ResidualConfig.attribute_map.keys() - NOT_FIELDS):
        raise InputError(
            f"{where}: residual_hf {__version__} does not know the fields {', '.join(unknown)}: upgrade "
            "residual_hf if a newer version saved the model, otherwise remove them"
        )
    from_mapping(OtherFields, {name: values[name] for name in others & values.keys()}, f"{where}: ")


def check_implementations(values: Any, where: object) -> None:
    """Refuse a config, also of another family, that chooses code on the Hub for the attention (`user/kernel`)."""
    entries = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in entries:
        chosen = list(value.values()) if isinstance(value, dict) else [value]
        if IMPLEMENTATION.fullmatch(str(name)) and not all(c is None or re.fullmatch(r"\w+", str(c)) for c in chosen):
            raise InputError(f"{where}: {name}: {value!r} would load code from the Hub; remove the field")
        check_implementations(value, where)


def check_generation_fields(values: Mapping[str, Any], where: object) -> None:
    known = {n: getattr(v, "__dict__", v) for n, v in values.items() if n in GenerationFields.__dataclass_fields__}
    from_mapping(GenerationFields, known, f"{where}: ")


def check_token_ids(generation: GenerationConfig, config: ResidualConfig, where: object) -> None:
    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "decoder_start", "forced_bos", "forced_eos")]
    for name in (*names, "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"):
        for token in _flat(getattr(generation, name)):
            if isinstance(token, int) and not 0 <= token < (limit := config.decoder_vocab_size):
                raise InputError(f"{where}: {name} is {token!r}, must be below {limit} target tokens")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for entry in value:
            yield from _flat(entry)
    else:
        yield value


def check_shapes_before_loading(folder: Path, cls: type, values: dict[str, Any]) -> None:
    """Compare the names and shapes in the weight files with those of the model that a config describes, after its
    depth and width: a model that is deeper or wider than the weights may not fit in memory."""
    _, found = weight_shapes(folder)
    if "quantization_config" in values or not any(name.startswith("model.") for name in found):
        return  # other weights than those of the plain model
    try:
        config = ResidualConfig.from_dict(values)
    except UNREADABLE:
        return  # invalid, or with a mode in the code of the checkpoint: for Transformers to decide
    sizes = {"d_model": found.get(f"model.{config.token_stacks[0]}.embed_tokens.weight", (0, config.d_model))[-1]}
    for stack in config.stacks:
        layers = (re.match(rf"model\.{stack}\.layers\.(\d+)\.", name) for name in found)
        sizes[f"{stack}_layers"] = 1 + max((int(layer[1]) for layer in layers if layer), default=-1)
    for name, size in sizes.items():
        if (given := getattr(config, name)) != size:
            raise InputError(f"{folder}: config.json: {name} is {given}, but the weights have {size}")
    with torch.device("meta"):
        model = cls(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = model.all_tied_weights_keys.keys()
    check_differences(
        f"{folder}: {NO_MATCH}",
        missing=expected.keys() - found.keys() - tied,
        unknown=found.keys() - expected.keys() - tied,
        mismatched=[(k, found[k], expected[k]) for k in sorted(found.keys() & expected) if found[k] != expected[k]],
    )


def weight_shapes(folder: Path) -> tuple[list[str], dict[str, tuple[int, ...]]]:
    """The weight files of a folder and the shape of every tensor in them, from the headers of the files."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or any(Path(str(name)).name != name for name in shards.values()):
            raise InputError(f"{folder / INDEX}: no weight_map in it that names files of the same folder")
        names = sorted(set(shards.values()))
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: no such file; save the weights as safetensors with save_checkpoint")
        damaged = f"{path}: damaged or truncated ({path.stat().st_size} bytes); copy or download the file again: "
        with input_errors(damaged, SafetensorError, OSError), safe_open(path, "pt") as file:
            shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return [*names, *([INDEX] if names != [WEIGHTS] else [])], shapes


def check_finite(where: object, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    plain = ((name, w) for name, w in weights if type(w.data) is torch.Tensor)  # else quantized
    broken = [name for name, w in plain if not (w.float() if w.itemsize == 1 else w).isfinite().all()]  # float8
    if broken:
        raise InputError(f"{where}: not finite (NaN or infinite): {_shortened(broken)}; use an earlier checkpoint")


def check_differences(
    problem: str,
    missing: Iterable[str],
    unknown: Iterable[str],
    mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]],
) -> None:
    """Raise `InputError` for weights that are not those of a model; `mismatched` holds (name, shape, right shape)."""
    shapes = [f"{name} {tuple(found)} instead of {tuple(expected)}" for name, found, expected in mismatched]
    differences = {"missing": sorted(missing), "unknown": sorted(unknown), "of another shape": shapes}
    parts = [f"{kind}: {_shortened(names)}" for kind, names in differences.items() if names]
    if parts:
        raise InputError(f"{problem}; {'; '.join(parts)}")


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(shortened, names[:SHOWN])) + more


def load_tokenizer(name: str | Path, where: object, **options: Any) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except BaseException as error:  # the tokenizers library raises nothing narrower, and panics
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        is_missing = Path(name).is_dir() and not Path(name, "tokenizer.json").exists()
        reason = "tokenizer.json is missing: " * is_missing + " ".join(str(error).split())
        raise InputError(f"{where}: the tokenizer cannot be loaded: {reason}") from error
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise InputError(f"{where}: tokenizer_config.json: model_max_length is {tokenizer.model_max_length!r}")
    if is_of_fsmt(tokenizer) and tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token  # which ends a text
    return tokenizer


def check_vocabulary(tokenizer: Any, config: ResidualConfig, where: object) -> None:
    check_vocabulary_size(tokenizer, config, where)
    ids = {*tokenizer("")["input_ids"]}
    if getattr(tokenizer, "known_tokens", None) is None:  # beyond these, tokens are unknown
        ids |= {*tokenizer.get_vocab().values()} - {unread_mask(tokenizer, config)}
    largest, limit = max(ids, default=0), config.vocab_size
    problems = {f"{where}: the tokenizer has a token of id {largest}, must be below {limit}": largest >= limit}
    for name in ("pad_token_id", "eos_token_id"):
        expected, found = getattr(config, name), getattr(tokenizer, name)
        others = found not in (None, *(expected if isinstance(expected, list) else [expected]))
        problems[f"{where}: {name} is {found} in the tokenizer, {expected} in config.json"] = others
    refuse_if(problems)


def check_vocabulary_size(tokenizer: Any, config: ResidualConfig, where: object) -> None:
    """Raise `InputError` for a tokenizer with more tokens than the embedding tables have rows."""
    source = len(tokenizer) - (unread_mask(tokenizer, config) is not None)
    target = target_size(tokenizer) if has_own_target(tokenizer) else source
    sides = ("source", source, config.vocab_size), ("target", target, config.decoder_vocab_size)
    for language, tokens, rows in sides:
        if tokens > rows:
            raise InputError(f"{where}: the tokenizer has {tokens} tokens for the {language}, the model has {rows}")


def has_own_target(tokenizer: Any) -> bool:
    """Whether a tokenizer has a vocabulary of its own for targets."""
    return hasattr(tokenizer, "target_vocab_size") or separate_target_vocabulary(tokenizer) is not None


def target_size(tokenizer: Any) -> int:
    """The number of tokens that a tokenizer has for targets."""
    separate = separate_target_vocabulary(tokenizer)
    return getattr(tokenizer, "target_vocab_size", len(tokenizer)) if separate is None else len(separate)


def unread_mask(tokenizer: Any, config: ResidualConfig) -> int | None:
    """The id of a mask at the end of a vocabulary, for which BART's models of summaries have no row."""
    mask = tokenizer.mask_token_id
    return mask if mask == len(tokenizer) - 1 and not config.is_encoder_only else None


def check_code(folder: Path, values: dict[str, Any], config: ResidualConfig) -> list[str]:
    """The files of the code of model and tokenizer, and the fields that name its classes.

    Refuses code that this installation would not write: whoever loads the model executes it.
    """
    fields = self_contained.code_fields(config)
    for field in ("auto_map", "custom_pipelines"):
        _check_classes(folder / "config.json", field, values.get(field), fields.get(field))
    code = self_contained.model_code(config)
    for mode in (own.mode for own in config.stack_configs):
        if f"{mode.__module__.rpartition('.')[2]}.py" not in code:
            problem = f"the code of ln_mode {mode.name!r} ({mode.__module__}) is missing, so that the model would not"
            advice = "define the mode in a separate file, import it and save the model again"
            raise InputError(f"{folder}: {problem} load elsewhere: {advice}")
    path = folder / "tokenizer_config.json"
    if tokenizer_map := read_json(path).get("auto_map"):
        _check_classes(path, "auto_map", tokenizer_map, TOKENIZER_MAP)
        module = Path(tokenization_residual.__file__)
        code[module.name] = module.read_text("utf-8")
    paths = {name: folder / name for name in sorted(code)}
    missing = [path for path in paths.values() if not path.is_file()]
    different = {name: code[name] for name, path in paths.items() if path in missing or read_text(path) != code[name]}
    if different:
        problem = f"{folder}: the model code {', '.join(different)} differs from that of the installed residual_hf "
        problem += f"{__version__}; load_checkpoint and save_checkpoint write the installed code"
        raise DifferentCodeError(f"{missing[0]}: no such file" if missing else problem, different)
    return list(code)


def _check_classes(path: Path, field: str, given: Any, written: Any) -> None:
    if given != written:
        raise InputError(
            f"{path}: {field}: {given!r} given, must be {written!r}; load_checkpoint and save_checkpoint write it"
        )
