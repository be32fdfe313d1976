"""A first recipe for two text files or a file of pairs: splits, vocabulary, model, batch size and training time."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_folder, write_atomically
from residual_hf.base.memory import available_memory
from residual_hf.base.names import as_typed
from residual_hf.base.tables import duration
from residual_hf.data.cleaning import CleaningReport, pair_filter
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.pair_reader import PairReader
from residual_hf.data.sample_checks import sample_faults, take_sample
from residual_hf.data.scripts import WITHOUT_SPACES, share_of_script
from residual_hf.data.splitting import SplitReport, all_pairs, split_corpus
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.native import multiplies_bf16

from .building import build_model
from .fine_tuning import FineTuning, propose
from .recipe import load_recipe
from .trial import Trial, measure

TEMPLATE = Path(__file__).with_name("first_recipe.yaml.jinja")
SAMPLE = 20_000
"""Pairs to train a tokenizer on, which measures the length of sentences in tokens."""
LONG = 24 * 3600
"""Seconds on a CPU that are worth a warning."""
KEPT = 4
"""Checkpoints on disk: the last three and the best."""


@dataclass(frozen=True)
class Size:
    """A model and its training for a corpus of at least `pairs` sentence pairs."""

    pairs: int
    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    ffn_dim: int
    heads: int
    dropout: float
    tokens_per_update: int
    max_updates: int


GPU_SIZES = (
    Size(0, 4000, 256, 3, 3, 1024, 4, 0.3, 4096, 10_000),
    Size(50_000, 8000, 512, 6, 6, 1024, 4, 0.3, 8192, 30_000),
    Size(500_000, 16000, 512, 6, 6, 2048, 8, 0.1, 16384, 50_000),
    Size(5_000_000, 32000, 512, 6, 6, 2048, 8, 0.1, 32768, 100_000),
)
CPU_SIZES = (  # most of the time of training and of translating is spent in the decoder and the vocabulary
    Size(0, 4000, 256, 3, 3, 1024, 4, 0.3, 4096, 6000),
    Size(50_000, 8000, 256, 6, 2, 1024, 4, 0.2, 4096, 20_000),
    Size(500_000, 16000, 512, 6, 2, 2048, 8, 0.1, 8192, 30_000),
)


@dataclass(frozen=True)
class Plan:
    """The result of `write_first_recipe`; its string is the report for the user."""

    recipe: Path
    split: SplitReport
    cleaning: CleaningReport | None
    size: Size
    device: str
    tokens_per_sentence: float
    parameters: int
    trial: Trial | None
    disk: int
    free: int
    faults: list[str]
    start: FineTuning | None = None

    @property
    def seconds(self) -> float | None:
        """Estimated time of training; a tenth of it for evaluations."""
        tokens = self.size.max_updates * self.size.tokens_per_update
        return None if self.trial is None else 1.1 * tokens / self.trial.tokens_per_second

    @property
    def warnings(self) -> list[str]:
        found = [f"the text: {fault}" for fault in self.faults]
        if self.split.train < 10_000 and self.start is None:
            found.append(
                f"{self.split.train:,} training pairs are too few for a model that translates new text; "
                "add text, or start from a trained model (--from, docs/low_resource.md)"
            )
        if self.device == "cpu" and self.seconds is not None and self.seconds > LONG:
            updates = int(self.size.max_updates * LONG / self.seconds)
            found.append(
                f"training takes about {duration(self.seconds)} on this CPU. Use a GPU, a smaller model, or the "
                f"{updates:,} updates that fit into a day (--set training.max_updates={updates})"
            )
        if self.disk > self.free:
            found.append(f"the run needs about {gigabytes(self.disk)} of disk, but {gigabytes(self.free)} are free")
        return found

    def __str__(self) -> str:
        size = self.size
        epochs = size.max_updates * size.tokens_per_update / (self.split.train * self.tokens_per_sentence)
        lines = [
            f"data: {self.split}",
            *([] if self.cleaning is None else [f"data.cleaning of the training pairs: {self.cleaning}"]),
            f"vocabulary: {size.vocab_size:,} tokens; {self.tokens_per_sentence:.0f} tokens per sentence",
            f"model: {size.encoder_layers}+{size.decoder_layers} layers of width {size.d_model}, "
            f"{self.parameters / 1e6:.1f} million parameters",
            *([] if self.start is None else [str(self.start)]),
            f"training: {size.max_updates:,} updates of {size.tokens_per_update:,} tokens, {epochs:.0f} epochs",
            f"disk: {gigabytes(self.disk)} ({gigabytes(self.free)} free)",
        ]
        if self.trial is not None and self.seconds is not None:
            lines.append(
                f"time: about {duration(self.seconds)} on this machine ({self.device}), at "
                f"{self.trial.tokens_per_second:,.0f} tokens per second in a trial of {self.trial.seconds:.0f} s"
            )
            if self.trial.memory is not None:
                lines.append(f"memory: {gigabytes(self.trial.memory)}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"next: residual-hf train {as_typed(str(self.recipe))}"])


def write_first_recipe(
    corpora: Sequence[CorpusSpec], folder: Path, *, start: str | None = None, trial_seconds: float = 10
) -> Plan:
    """Split the corpora of `first_corpora`, and write a commented recipe for the device of this machine.

    Args:
        folder: receives `recipe.yaml` and the splits, such as `train.en`; what it has is replaced.
        start: a model to train on from, see `propose`.
        trial_seconds: time to measure the speed of training; 0: no trial and no estimate.

    Raises `InputError` for text from which no model can be trained.
    """
    languages = str(corpora[0].source_lang), str(corpora[0].target_lang)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with atomic_folder(folder) as new:
        split = split_corpus(corpora[0], new, more=corpora[1:])
        pairs = take_sample(all_pairs(map(PairReader, corpora)), split.pairs)
        faults = sample_faults(ParallelCorpus.empty(corpora[0]).with_pairs(pairs), split.pairs)
        train = CorpusSpec(source=new / f"train.{languages[0]}", target=new / f"train.{languages[1]}")
        sample = ParallelCorpus.empty(train).with_pairs(PairReader(train).take(SAMPLE))
        unspaced = any(
            share_of_script("".join(side[:100]), WITHOUT_SPACES) > 0.5 for side in (sample.sources, sample.targets)
        )
        kind = "unigram" if unspaced else "bpe"
        size, tokens, tokenizer = fit_to(choose_size(split.train, device), sample, split.train, kind)
        tuning = None
        if start is not None:
            pair = replace(train, source_lang=languages[0], target_lang=languages[1])
            tuning = propose(start, languages, DataSettings(train=(pair,), valid=(pair,)), sample, tokenizer)
            tokenizer = tokenizer if tuning.tokenizer is None else tuning.tokenizer
            size, tokens = tuning.size(size), mean_tokens(tokenizer, sample)
        text_bytes = sum(path.stat().st_size for path in new.iterdir())
        values = {
            "languages": languages,
            "size": size,
            "gpu": device == "cuda",
            "bf16": torch.cuda.is_bf16_supported(False) if device == "cuda" else multiplies_bf16(),  # not by emulation
            "kind": kind,
            "stream": 8 * text_bytes > available_memory(),
            "eval_every": max(100, size.max_updates // 30 // 100 * 100),
            "warmup": min(4000, size.max_updates // 8),
            "max_tokens": min(size.tokens_per_update, 4096),
            "kept": KEPT - 1,
            "pairs": split.train,
            "start": tuning,
        }
        text = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        write_atomically(new / "recipe.yaml", text.from_string(TEMPLATE.read_text(encoding="utf-8")).render(values))
        recipe = load_recipe(new / "recipe.yaml")
        cleaning = None
        if recipe.data.cleaning is not None and not recipe.data.stream:  # whose pairs are cleaned block by block
            cleaning, reason_to_drop = CleaningReport(), pair_filter(recipe.data.cleaning)
            for texts in PairReader(train).one_pass():
                cleaning.count(reason_to_drop(*texts))
        config = recipe.build_config(vocab_size=size.vocab_size) if tuning is None else tuning.start.model.config
        longest = config.max_position_embeddings
        if tokens > longest:
            found = f"its lines have {tokens:.0f} tokens on average"
            raise InputError(f"{corpora[0].files[0]}: {found}, must be sentences of <= {longest}")
        with torch.device("meta"):
            model = ResidualForConditionalGeneration(config)
        parameters = sum(p.numel() for p in model.parameters())
        trial, is_measured = None, device == "cuda" or not torch.accelerator.is_available()  # not that of a Mac
        if trial_seconds and is_measured:
            made = build_model(recipe, tokenizer, None if tuning is None else tuning.start)
            trial = measure(recipe, made, round(tokens), trial_seconds)
    return Plan(
        recipe=folder / "recipe.yaml",
        split=split,
        cleaning=cleaning,
        size=size,
        device=device,
        tokens_per_sentence=tokens,
        parameters=parameters,
        trial=trial,
        disk=round(12 * parameters * (KEPT + 1) + 4 * parameters + 2 * 4 * tokens * split.train),
        free=shutil.disk_usage(folder).free,
        faults=faults,
        start=tuning,
    )


def choose_size(pairs: int, device: str) -> Size:
    sizes = CPU_SIZES if device == "cpu" else GPU_SIZES
    return [size for size in sizes if size.pairs <= pairs][-1]


def fit_to(size: Size, sample: ParallelCorpus, pairs: int, kind: str) -> tuple[Size, float, Any]:
    """A size for the alphabet and the length of a corpus, the mean tokens of the longer side of its pairs, and a
    tokenizer of this size."""
    alphabet = len(set().union(*sample.sources, *sample.targets))
    while size.vocab_size < 260 + 2 * alphabet and size.vocab_size < 32000:
        size = replace(size, vocab_size=2 * size.vocab_size)
    settings = TokenizerSettings(kind=kind, vocab_size=size.vocab_size, character_coverage=0.9995)
    tokenizer = train_tokenizer([*sample.sources, *sample.targets], settings)
    if pairs <= SAMPLE:  # the text may be too small for more entries
        size = replace(size, vocab_size=min(size.vocab_size, len(tokenizer)))
    tokens = mean_tokens(tokenizer, sample)
    most = max(1000, round(60 * pairs * tokens / size.tokens_per_update, -3))  # 60 epochs
    return replace(size, max_updates=int(min(size.max_updates, most))), tokens, tokenizer


def mean_tokens(tokenizer: Any, sample: ParallelCorpus) -> float:
    """Tokens of the longer side of a pair, on average."""
    sides = tokenizer(sample.sources)["input_ids"], tokenizer(text_target=sample.targets)["input_ids"]
    return sum(max(map(len, pair)) for pair in zip(*sides, strict=True)) / len(sample)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
