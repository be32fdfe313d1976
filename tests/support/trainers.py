"""Trainers of small models on made-up words."""

import torch

from residual_hf.data.encoding import EncodedCorpus
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.training.trainer import ResidualTrainer
from residual_hf.training.training_settings import TrainingSettings
from support import small_sizes


def make_model(**fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, **small_sizes(ffn_dim=32), "decoder_layers": 2, "max_position_embeddings": 32}
    return ResidualForConditionalGeneration(ResidualConfig(**{**sizes, "dropout": 0.0, **fields}))


def make_corpus(size=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = [
        [*torch.randint(4, 40, (int(n),), generator=generator).tolist(), 2]
        for n in torch.randint(2, 9, (2 * size,), generator=generator)
    ]
    return EncodedCorpus.from_ids(rows[:size], rows[size:])


def make_trainer(folder, model, train=None, valid=None, **settings):
    base = {"max_tokens": 60, "max_updates": 4, "warmup_updates": 2, "eval_every": 4, "log_every": 1}
    trainer_options = {k: settings.pop(k) for k in ("score", "callbacks") if k in settings}
    return ResidualTrainer(
        model,
        TrainingSettings(**{**base, "eval_bleu": False, **settings}),
        str(folder),
        train or make_corpus(),
        valid or make_corpus(20, seed=1),
        **trainer_options,
    )


class Words:
    """A tokenizer whose tokens are their ids."""

    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(map(str, row)) for row in rows]
