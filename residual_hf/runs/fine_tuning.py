"""How a first recipe trains on from a model: its vocabulary or another, all weights or adapters, and the rate."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded
from residual_hf.base.memory import total_memory
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import DataSettings
from residual_hf.data.encoding import encode
from residual_hf.data.language_names import adds_codes, set_languages, variants
from residual_hf.model.translation_inputs import language_tags
from residual_hf.records.run_folder import read_recipe

from .warm_start import Start, load_start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FineTuning:
    """A model to train on from, and how."""

    name: str
    start: Start
    tokenizer: Any | None
    """That of the model; None for a new one."""
    lora: bool
    freeze: tuple[str, ...]
    lr: float

    @property
    def source(self) -> str:
        """`model.from` of a recipe in any folder."""
        path = expanded(self.name)
        return str(path.resolve()) if path.exists() else self.name

    @property
    def glossary(self) -> str | None:
        """The glossary of the run that trained the model, if it is still there."""
        path = expanded(self.name).resolve()
        folders = path, *path.parents[:2]  # a run, its model, one of its checkpoints
        run = next((folder for folder in folders if (folder / "recipe.yaml").is_file()), None)
        if not self.start.model.config.term_tags or run is None:
            return None
        named = (read_recipe(run).get("data") or {}).get("glossary")
        return str(expanded(named).resolve()) if named is not None and expanded(named).is_file() else None

    def size(self, size: Any) -> Any:
        """A `first_recipe.Size` with the sizes of the model."""
        config = self.start.model.config
        layers = {f"{own.stack}_layers": own.layers for own in config.stack_configs}
        own = size.vocab_size if self.tokenizer is None else config.vocab_size
        return replace(size, d_model=config.d_model, vocab_size=own, dropout=config.dropout, **layers)

    def __str__(self) -> str:
        trained = "adapters (LoRA)" if self.lora else "all weights"
        trained += f" except {', '.join(self.freeze)}" if self.freeze else ""
        vocabulary = "its" if self.tokenizer is not None else "a new"
        return f"start: {self.name} with {vocabulary} vocabulary; {trained} at a learning rate of {self.lr:g}"


def propose(name: str, languages: tuple[str, str], data: DataSettings, sample: ParallelCorpus, new: Any) -> FineTuning:
    """How to train a model on a corpus.

    Args:
        name: folder of a model or a run, or name on the Hub, see `load_start`.
        languages: source and target of the corpus.
        data: its files and languages.
        sample: some of its pairs.
        new: a tokenizer trained on these.

    Raises `InputError` for a model that cannot be used.
    """
    start = load_start(name, {})
    model, tokenizer, config = start.model, start.tokenizer, start.model.config
    if adds_codes(tokenizer):
        try:
            set_languages(tokenizer, data, name)
        except InputError:
            tokenizer = None
    divisible = hasattr(start.tokenizer, "backend_tokenizer")  # else its vocabulary cannot be exchanged
    if tokenizer is not None and not serves(tokenizer, sample, new):
        if divisible:
            tokenizer = None
        else:
            logger.warning(
                "--from: the vocabulary of %s does not know this text well (unknown or many tokens), and that of a %s "
                "cannot be replaced: another model may serve better",
                name,
                type(tokenizer).__name__,
            )
    if tokenizer is None and not divisible:
        raise InputError(f"--from: {name}: its {type(start.tokenizer).__name__} has no code for one of the languages")
    total = sum(p.numel() for p in model.parameters())
    tables = {id(p): p.numel() for p in (*model.model.encoder.embed_tokens.parameters(), *model.lm_head.parameters())}
    lora = 16 * total > memory() / 2  # bytes of weights, gradients and the two moments of Adam, in fp32
    most_is_tables = tokenizer is not None and 2 * sum(tables.values()) > total
    lr = 1e-3 if config.d_model < 512 else 5e-4 if config.d_model < 1024 else 1e-4
    known = [config.target_lang] if config.target_lang else [*language_tags(start.tokenizer)] or [languages[1]]
    if tokenizer is not None and variants(languages[1], known):
        lr /= 5
    freeze = ("*embed_tokens*",) if most_is_tables and not lora and adds_codes(tokenizer) else ()
    return FineTuning(name, start, tokenizer, lora, freeze, 5 * lr if lora else lr)


def serves(tokenizer: Any, sample: ParallelCorpus, new: Any) -> bool:
    """Whether the vocabulary of a model serves for text as well as a new one would.

    Of each side, at most 0.1 % of its tokens are unknown, and they are at most a quarter more than those of the new.
    """
    encoded = [encode([sample], each).arrays for each in (tokenizer, new)]
    for side in ("source_ids", "target_ids"):
        own, other = (arrays[side] for arrays in encoded)
        if np.sum(own == tokenizer.unk_token_id) > 0.001 * len(own) or len(own) > 1.25 * len(other):
            return False
    return True


def memory() -> int:
    """Bytes for training: of the GPU if there is one, else for this process."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else total_memory()
