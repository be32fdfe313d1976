"""Cards of model folders without records of their training: averaged and converted models."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from residual_hf.base.files import write_atomically
from residual_hf.checkpoint import SHORTLIST, save_checkpoint
from residual_hf.data.task import task_of
from residual_hf.data.tokenizer import ends_text, reads_segmented_text
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.translation_inputs import TranslationInputs, language_tags
from residual_hf.records.markdown import text

from .card import describe_mode, language_codes, render_card

EXAMPLES = {("en", "de"): "__{}__", ("eng_Latn", "deu_Latn"): "{}", ("en_XX", "de_DE"): "{}"}
"""Codes of M2M100, NLLB and mBART, and their tokens."""


def save_with_card(
    model: Any, tokenizer: Any, folder: Path, origin: str, *, overwrite: bool = False, copies: Iterable[Path] = ()
) -> Path:
    """`save_checkpoint` with a card and copies of files; `origin` says where the weights are from, a sentence."""

    def complete(new: Path) -> None:
        for path in copies:
            shutil.copy(path, new)
        write_plain_card(new, model.config, getattr(tokenizer, "tokenizer", tokenizer), folder.resolve().name, origin)

    return save_checkpoint(model, tokenizer, folder, overwrite=overwrite, complete=complete)


def write_plain_card(folder: Path, config: ResidualConfig, tokenizer: Any, name: str, origin: str) -> None:
    """Write `README.md` of a model folder; `origin` says where the weights are from."""
    modes = list(dict.fromkeys(own.ln_mode for own in config.stack_configs))
    source, target = config.source_lang, config.target_lang
    tags = sorted(language_tags(tokenizer)) if config.language_tags else []
    task = task_of(config)
    tag = task.hub_name
    if config.is_encoder_only:
        is_masked = "ResidualForMaskedLM" in (config.architectures or ())
        tag = "fill-mask" if is_masked else "text-classification"
    codes = example_codes(TranslationInputs(config, tokenizer, tag))
    shown = codes or (source or "the source language", target or next(iter(tags), "en"))
    card = render_card(
        ModelCardData(
            language=language_codes(filter(None, (source, target, *tags))),
            library_name="transformers",
            pipeline_tag=tag,
            tags=["residual_hf", *modes],
            model_name=name,
        ),
        name=name,
        connections=[describe_mode(mode) for mode in modes],
        source=source,
        target=target,
        origin=text(origin),
        task=task,
        config=config,
        shown=shown,
        codes=codes,
        ends_text=ends_text(tokenizer),
        shortlist=(folder / SHORTLIST).exists(),
        segmented=reads_segmented_text(tokenizer),
    )
    write_atomically(folder / "README.md", f"{card}\n")


def example_codes(texts: TranslationInputs) -> tuple[str, str] | None:
    """Two language codes for an example, if the tokenizer adds codes to translations and knows these."""
    tokenizer = texts.tokenizer
    for codes, token in EXAMPLES.items() if texts.has_own_codes else ():
        ids = tokenizer.convert_tokens_to_ids([token.format(code) for code in codes])
        if not {None, tokenizer.unk_token_id} & set(ids):
            return codes
    return None
