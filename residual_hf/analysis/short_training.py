"""Trainings of a few hundred updates on a small corpus, for probes that need a model in motion."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler, evaluation_batches
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.model.branch_warmup import advance_branch_warmup
from residual_hf.model.profiling import wants_profile


class ShortCorpus:
    """A training and a validation set as batches of at most `max_tokens` padded tokens.

    Args:
        corpora: "train" and "valid".
        fields: of the config of models for this corpus, such as `vocab_size`.

    Attributes:
        unigram_entropy: of the training targets, in nats per token: the NLL of a model that knows only word
            frequencies.
    """

    def __init__(
        self,
        corpora: Mapping[str, EncodedCorpus],
        tokenizer: Any,
        fields: dict[str, Any],
        max_tokens: int = 1024,
        device: str = "cpu",
    ):
        self.corpora, self.fields, self.max_tokens, self.device = corpora, fields, max_tokens, device
        self.collate = Seq2SeqCollator(
            pad_token_id=tokenizer.pad_token_id, decoder_start_token_id=tokenizer.eos_token_id
        )
        counts = np.bincount(corpora["train"].arrays["target_ids"])
        share = torch.from_numpy(counts / counts.sum())
        self.unigram_entropy = torch.special.entr(share).sum().item()

    def train(self, seed: int) -> Iterator[dict[str, Tensor]]:
        """Shuffled batches without end."""
        corpus = self.corpora["train"]
        lengths = corpus.source_lengths, corpus.target_lengths
        sampler = TokenBudgetSampler(*lengths, self.max_tokens, seed=seed, corpus=corpus)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from (self._batch(corpus, rows) for rows in sampler)

    def valid(self) -> Iterator[dict[str, Tensor]]:
        corpus = self.corpora["valid"]
        return (self._batch(corpus, rows) for rows in evaluation_batches(corpus, self.max_tokens))

    def _batch(self, corpus: Any, rows: Any) -> dict[str, Tensor]:
        return {key: tensor.to(self.device) for key, tensor in self.collate([corpus[i] for i in rows]).items()}


def profiled(model: Any, batch: Mapping[str, Tensor]) -> Any:
    """The model, with the profile of a batch if its mode is Admin and it is neither profiled nor trained."""
    if wants_profile(model):
        model.profile_admin(batch)
    return model


def train(
    model: Any,
    batches: Iterator[dict[str, Tensor]],
    lr: Callable[[int], float],
    updates: int,
    after_backward: Callable[[int], None] = lambda update: None,
    after_update: Callable[[int], None] = lambda update: None,
    betas: tuple[float, float] = (0.9, 0.98),
) -> list[float]:
    """Adam without weight decay or clipping; `lr(update)` from update 1.

    `after_backward` and `after_update` receive the update, with its gradients or its new weights in place.
    Returns the loss of each update, up to the last finite one: a training ends before a loss that is not finite.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr(1), betas=betas, eps=1e-8)
    losses: list[float] = []
    model.train()
    for update, batch in enumerate(itertools.islice(batches, updates), start=1):
        if update == 1:
            profiled(model, batch)
        loss = model(**batch).loss
        if not math.isfinite(value := loss.item()):
            break
        losses.append(value)
        loss.backward()
        after_backward(update)
        optimizer.param_groups[0]["lr"] = lr(update)
        optimizer.step()
        optimizer.zero_grad()
        advance_branch_warmup(model)
        after_update(update)
    return losses
