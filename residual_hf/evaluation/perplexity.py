"""Perplexity of a language model on text: `residual-hf evaluate --text`."""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_folder
from residual_hf.checkpoint import move_to
from residual_hf.data.batching import Seq2SeqCollator, evaluation_batches
from residual_hf.data.corpus import numbered, read_parallel
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.language_modeling import count_words, encode_texts, pack, predicted_tokens
from residual_hf.data.pipeline import joined_subwords
from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.options import refusal
from residual_hf.probes.undisturbed import undisturbed

from .model_scores import write_scores


def word_perplexity(nll: float, tokens: int, words: int) -> dict[str, float]:
    """`word_ppl`, which does not depend on the tokenizer, and what it is computed from.

    Args:
        nll: mean over the tokens, in nats.
        tokens: how many were predicted.
        words: those of the same text, see `count_words`.
    """
    return {"word_ppl": math.exp(min(nll * tokens / words, 700)), "tokens": tokens, "words": words}


def evaluate_text(
    model: Any,
    tokenizer: Any,
    files: Sequence[Path],
    *,
    device: str | None = None,
    block_size: int | None = None,
    break_mode: str = "none",
    context_window: int = 0,
    max_tokens: int = 4096,
    output_dir: Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """NLL and perplexity per token, and perplexity per word, of text files with one line after the other.

    For several files, the figures of each by its name.

    Args:
        model: a `ResidualForCausalLM`.
        device: of the model; by default a GPU if there is one.
        block_size: tokens that the model reads at a time; None is all of its positions, trained or not.
        break_mode, context_window: as in a recipe, see `pack`.
        output_dir: folder for `scores.json`, as of `evaluate_model`.
    """
    if not getattr(model.config, "is_decoder_only", False):
        raise InputError(f"--text: {type(model).__name__} is no language model; give --source and --reference")
    positions = model.config.max_position_embeddings
    if block_size is not None and not 2 <= block_size <= positions:
        raise InputError(refusal("--block-size", block_size, f"from 2 to {positions}, the positions of the model"))
    packing = partial(pack, block_size=block_size or positions, break_mode=break_mode, context=context_window)
    move_to(model, device)
    corpora = [read_parallel(CorpusSpec(text=file)) for file in files]
    reports = {}
    for name, corpus in zip(numbered([corpus.name for corpus in corpora]), corpora, strict=True):
        started = time.perf_counter()
        (blocks,) = encode_texts([corpus], tokenizer, packing, name=name)
        (corpus,) = joined_subwords({name: [corpus]}, tokenizer)[name]
        nll = mean_nll(model, blocks, max_tokens, progress=progress)
        reports[name] = {
            "nll": nll,
            "ppl": math.exp(min(nll, 700)),
            **word_perplexity(nll, predicted_tokens(blocks), count_words([corpus], break_mode)),
            "context_window": context_window,
            "seconds": round(time.perf_counter() - started, 3),
        }
    report = reports if len(reports) > 1 else next(iter(reports.values()))
    if output_dir is not None:
        with atomic_folder(output_dir) as new:
            write_scores(new, report, corpora, block_size=block_size or positions, sample_break_mode=break_mode)
    return report


@torch.no_grad()
def mean_nll(model: Any, blocks: EncodedCorpus, max_tokens: int, *, progress: bool = False) -> float:
    """Mean negative log-likelihood of the predicted tokens of blocks, in nats."""
    collator = Seq2SeqCollator(model.config.pad_token_id, None)
    with undisturbed(model, training=False):
        model.criterion = meter = LossMeter(0.0, "fairseq")
        for rows in tqdm(evaluation_batches(blocks, max_tokens), unit=" batches", disable=not progress):
            batch = collator([blocks[row] for row in rows])
            model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    return meter.read()["nll"]
