"""The second stage of a run: the tokenizer and the encoded corpora, for the positions of its model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from residual_hf.base.files import expanded
from residual_hf.base.processes import this_process
from residual_hf.data.corpus import ParallelCorpus, read_parallel
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.glossary import Glossary
from residual_hf.data.pair_reader import PairReader
from residual_hf.data.pipeline import Corpora, Preparation, PreparedData, given_tokenizer, open_stream
from residual_hf.data.streaming import StreamedBatches
from residual_hf.training.training_settings import TrainingSettings

from .recipe import Recipe
from .warm_start import Start


def check_preparation(recipe: Recipe, *, resume: bool) -> None:
    """Raise `InputError` for a glossary or a tokenizer that is missing or does not fit."""
    if recipe.data.glossary is not None:
        Glossary.read(recipe.data.glossary)
    of_run = expanded(recipe.output_dir) / "tokenizer"
    if recipe.tokenizer.path is not None and not (resume and of_run.exists()):
        given_tokenizer(recipe.tokenizer.path, recipe.tokenizer.kind, recipe.data)


def prepare_data(recipe: Recipe, texts: Corpora, folder: Path, start: Start | None = None) -> PreparedData:
    """The tokenizer and the encoded corpora of a run, for the positions of its model."""
    config = recipe.build_config() if start is None else start.model.config
    recipe.check_block_size(config.max_position_embeddings)
    sections, window = (recipe.data, recipe.tokenizer), recipe.evaluation.context_window
    given = Preparation(texts, *sections, folder, config, recipe.max_tokens, recipe.training.seed, window)
    return recipe.chosen_task.prepare(given)


def prepare_first_pairs(recipe: Recipe, pairs: int, folder: Path) -> PreparedData:
    """Like `prepare_data`, of the validation text and the first training pairs, as many of each corpus."""
    share = max(1, pairs // len(recipe.data.train))
    train = [ParallelCorpus.empty(spec).with_pairs(PairReader(spec).take(share)) for spec in recipe.data.train]
    texts = {"train": train, "valid": [read_parallel(spec) for spec in recipe.data.valid]}
    return prepare_data(replace(recipe, data=replace(recipe.data, stream=False)), texts, folder)


def training_data(
    recipe: Recipe, settings: TrainingSettings, data: PreparedData, model: Any
) -> StreamedBatches | EncodedCorpus:
    """The training corpus in memory, or the batches of this process, read during training."""
    if not recipe.data.stream:
        return data.encoded["train"]
    return open_stream(
        recipe.data,
        data.tokenizer,
        settings.token_budget,
        positions=model.config.max_position_embeddings,
        seed=settings.seed,
        encoder=recipe.chosen_task.encoder,
        multiple=settings.batch_size_multiple,
        order=settings.batch_order,
        rank=this_process().process_index,
        world_size=this_process().num_processes,
    )
