"""R-Drop and SimCut: two passes of every training batch, and a loss on the difference of their predictions.

With `p1`, `p2` the predictions of the two passes, `nll` the label-smoothed loss and KL the Kullback-Leibler
divergence, the loss of a token is

    R-Drop:  nll(p1) + nll(p2) + alpha * (KL(p1 | p2) + KL(p2 | p1)) / 2     Liang et al. 2021, eq. 4
    SimCut:  nll(p1) + alpha * KL(p1 | p2)                                   Gao et al. 2022, eq. 3

In R-Drop the passes differ by dropout alone; in SimCut the second one also lacks the embeddings of some tokens of
source and target, but never that of `</s>` or of the start of the target. Gradients flow through both passes. An
update takes at least twice as long, and twice the memory.
"""

from typing import Any

import torch
from torch import Tensor

from residual_hf.base.errors import InputError
from residual_hf.model.length_limits import end_tokens

BATCHED = ("input_ids", "input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels")
RANDOM = ("dropout", "attention_dropout", "activation_dropout", "encoder_word_dropout", "decoder_word_dropout")


class TwoPasses:
    """Makes a model run each training batch with labels as a batch of twice the rows, while its criterion has this.

    `active`: whether the last batch was doubled; rows n and n + B are then the same sentence pair.

    Args:
        model: a `ResidualForConditionalGeneration`.
        cutoff: share of the embeddings that the second pass of SimCut lacks; None: R-Drop.

    Raises `InputError` without a cutoff (R-Drop) for a model without any dropout, whose passes would be equal.
    """

    def __init__(self, model: Any, alpha: float, cutoff: float | None):
        if cutoff is None and not any(getattr(model.config, name) for name in RANDOM):
            raise InputError("training.r_drop: the model has no dropout, must have some: its passes do not differ")
        self.alpha = alpha
        self.cutoff = cutoff
        self.active = False
        self.kept = [*end_tokens(model.config), model.config.decoder_start_token_id]
        model.register_forward_pre_hook(self._double, with_kwargs=True)
        if cutoff is not None:
            for table in {model.model.encoder.embed_tokens, model.model.decoder.embed_tokens}:  # one after a resize
                table.register_forward_hook(self._cut)

    def _double(self, model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        is_used = getattr(model.criterion, "passes", None) is self  # not of an earlier trainer
        self.active = is_used and model.training and torch.is_grad_enabled() and named.get("labels") is not None
        if not self.active:
            return None
        twice = {name: torch.cat([named[name]] * 2) for name in BATCHED if named.get(name) is not None}
        return arguments, {**named, **twice}

    def _cut(self, table: Any, arguments: tuple[Any, ...], embeddings: Tensor) -> Tensor | None:
        if not self.active:
            return None
        first, second = embeddings.chunk(2)
        ids = arguments[0].chunk(2)[1]
        kept = torch.rand(ids.shape, device=ids.device) >= (self.cutoff or 0.0)
        for token in self.kept:
            kept |= ids == token
        return torch.cat([first, second * kept.unsqueeze(-1)])

    _double.has_same_results = _cut.has_same_results = True  # type: ignore[attr-defined]  # in generation, which has no labels


def pairwise(rows: Tensor) -> Tensor:
    """(2B, T, ...) to (B, T, 2, ...): the two passes of each token next to each other."""
    return torch.stack(rows.chunk(2), dim=2)
