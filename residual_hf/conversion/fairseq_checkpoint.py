"""Convert a fairseq checkpoint (`.pt` file, dictionaries, BPE codes) to a folder that Transformers loads."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import expanded
from residual_hf.checkpoint import check_model_output
from residual_hf.checkpoint_checks import check_finite
from residual_hf.data.task import task_of
from residual_hf.data.tokenizer import prepend_eos, read_dictionary
from residual_hf.hub.plain_card import save_with_card
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM

from .fairseq import convert_fairseq_state_dict
from .fairseq_config import build_config
from .fairseq_settings import model_settings
from .fairseq_tokenizer import fairseq_tokenizer
from .moses import MosesRules
from .pickles import load_pickle, to_plain

ESCAPED = re.compile(r"&(amp|apos|quot|lt|gt|#91|#93|#124);\w*(@@)?")  # the default of Moses' tokenizer
MAX_SHARED = 4  # names of a weight, as of tied embeddings: a file with more is not of fairseq


@dataclass(frozen=True)
class MosesOptions:
    """How the training text was prepared with Moses; None is inferred from the dictionaries.

    Args:
        normalize: punctuation was normalized first.
        hyphens: hyphens inside words were split off as `@-@` (option `-a`).
        escape: special characters were escaped (`&apos;`).
        lowercase: text was lower-cased, as in the IWSLT'14 recipes.
    """

    normalize: bool = True
    hyphens: bool | None = None
    escape: bool | None = None
    lowercase: bool = False


def read_fairseq_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read settings (under the names of the command line) and weights of a checkpoint without running its pickle.

    Raises `InputError` for a file that is not the checkpoint of a fairseq model.
    """
    loaded = load_pickle(path)
    weights = loaded.get("model") if isinstance(loaded, Mapping) else None
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise InputError(f"{path}: not a fairseq checkpoint: no weights under 'model'")
    size, stored = sum(tensor.nbytes for tensor in weights.values()), expanded(path).stat().st_size
    if size > MAX_SHARED * stored:
        raise InputError(f"{path}: the weights under 'model' would take {size:,} bytes, the file has {stored:,}")
    check_finite(path, weights.items())
    plain = {name: to_plain(loaded.get(name)) for name in ("args", "cfg")}
    return model_settings(plain), simplify_history(dict(weights))


def simplify_history(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give weights of `simple_dlcl_transformer`, which have no third axis and number norms from 0, DLCL's layout."""
    simple = {n.split(".")[0] for n, tensor in weights.items() if n.endswith(".history.weight") and tensor.ndim == 2}
    renamed = {}
    for name, tensor in weights.items():
        part = re.fullmatch(r"(\w+)\.history\.(?:weight|layer_norms\.(\d{1,4})\.(\w+))", name)
        if part and part[1] in simple:
            if part[2] is None:
                tensor = tensor.unsqueeze(-1)
            else:
                name = f"{part[1]}.history.layer_norms.{int(part[2]) + 1}.{part[3]}"
        renamed[name] = tensor
    return renamed


def load_fairseq_model(path: str | Path) -> ResidualForConditionalGeneration | ResidualForCausalLM:
    """Load the model of a checkpoint in fp32. `generate` uses fairseq's default search (beam 5) for translation.

    Raises `InputError` for a checkpoint that cannot be converted.
    """
    settings, weights = read_fairseq_checkpoint(path)
    return build_model(build_config(settings, weights), weights, path)


def build_model(
    config: ResidualConfig, weights: Mapping[str, Tensor], path: str | Path
) -> ResidualForConditionalGeneration | ResidualForCausalLM:
    kinds = ValueError, TypeError, IndexError, RuntimeError  # of tensors without some axes
    with input_errors(f"{path}: "), input_errors("", *kinds):
        converted = convert_fairseq_state_dict(weights, config)
    model = task_of(config).model(config)
    model.load_state_dict(converted)
    if config.is_encoder_decoder:
        generation = model.generation_config
        generation.update(num_beams=5, length_penalty=1.0, early_stopping=True)
        generation.update(suppress_tokens=[config.pad_token_id], min_length=2)  # with the start: never an empty text
        generation.max_length_a, generation.max_length_b = 0.0, 200
    return model.eval()


def convert_fairseq_checkpoint(
    checkpoint: str | Path,
    output_dir: str | Path,
    *,
    source_dict: str | Path,
    target_dict: str | Path,
    bpe_codes: str | Path | None = None,
    sentencepiece: str | Path | None = None,
    moses: MosesOptions | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert a fairseq checkpoint with its dictionaries to a folder for `AutoModelForSeq2SeqLM`, or, a
    `transformer_lm`, for `AutoModelForCausalLM`. Texts for a language model begin with `</s>`, as in fairseq.

    Args:
        source_dict, target_dict: fairseq's `dict.xx.txt` files, with the same content for a joined dictionary; for a
            language model twice the same file.
        bpe_codes, sentencepiece: files of the subword segmentation. Without them, input must already be segmented.
        moses: how text was tokenized before `bpe_codes` were applied.
        source_lang, target_lang: replace those in the checkpoint.

    Raises `InputError`, before anything is written, for what cannot be converted.
    """
    output_dir = Path(output_dir)
    inputs = [checkpoint, source_dict, target_dict, bpe_codes, sentencepiece]
    check_model_output(output_dir, overwrite=overwrite, inputs=inputs)
    dictionaries = {"source_dict": read_dictionary(source_dict), "target_dict": read_dictionary(target_dict)}
    settings, weights = read_fairseq_checkpoint(checkpoint)
    config = build_config(settings, weights)
    config.source_lang, config.target_lang = source_lang or config.source_lang, target_lang or config.target_lang
    tables = (source_dict, config.vocab_size), (target_dict, config.decoder_vocab_size)
    for (name, tokens), (path, rows) in zip(dictionaries.items(), tables, strict=True):
        if len(tokens) != rows:
            raise InputError(
                f"{name}: {len(tokens)} tokens in {path}, including special tokens, but the checkpoint has {rows}; "
                "use the dict.txt of the binarised training data"
            )
    if config.share_encoder_decoder_embeddings and dictionaries["source_dict"] != dictionaries["target_dict"]:
        raise InputError("source_dict, target_dict: differ, but the model has one table for both: give one file twice")
    rules = moses_rules(moses, config, dictionaries)
    tokenizer = fairseq_tokenizer(source_dict, target_dict, bpe_codes=bpe_codes, sentencepiece=sentencepiece, **rules)
    tokenizer.model_max_length = config.max_position_embeddings
    if config.is_decoder_only:
        tokenizer.backend_tokenizer.post_processor = prepend_eos()
        tokenizer.bos_token = tokenizer.eos_token
        config.bos_token_id = tokenizer.bos_token_id
    model = build_model(config, weights, checkpoint)
    origin = f"The weights are converted from the fairseq checkpoint {Path(checkpoint).name}."
    return save_with_card(model, tokenizer, output_dir, origin, overwrite=overwrite)


def moses_rules(
    moses: MosesOptions | None, config: ResidualConfig, dictionaries: Mapping[str, list[str]]
) -> dict[str, MosesRules]:
    if moses is None:
        return {}
    rules = {}
    for side in ("source", "target"):
        language = getattr(config, f"{side}_lang")
        if language is None:
            raise InputError(f"{side}_lang: not in the checkpoint, but required by Moses' rules; use --{side}-lang")
        dictionary = dictionaries[f"{side}_dict"]
        inferred = {"hyphens": "@-@" in dictionary, "escape": any(map(ESCAPED.fullmatch, dictionary))}
        given = {name: value for name, value in asdict(moses).items() if value is not None}
        rules[f"{side}_rules"] = MosesRules(language, **(inferred | given))
    return rules
