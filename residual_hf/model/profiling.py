# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Admin's data-dependent initialisation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .modes_skip_scaling import Admin, profiled_omega


def wants_profile(model: nn.Module) -> bool:
    """Is this a model with Admin's shortcuts that nobody has profiled yet?"""
    return not model.config.admin_profile and any(isinstance(module, Admin) for module in model.modules())


@torch.no_grad()
def set_profile(model: nn.Module, profile: list[float]) -> None:
    """Set every omega from the values of a profile, and keep them in the config."""
    model.config.admin_profile = profile
    for connection in (module for module in model.modules() if isinstance(module, Admin)):
        connection.omega.fill_(profiled_omega(model.config, connection.place))


@torch.no_grad()
def profile_admin(model: nn.Module, batch: Mapping[str, Tensor]) -> list[float]:
    """Set every omega of an `"admin"` model from one batch; returns the values, encoder first.

    The official recursion, one forward pass in train mode with dropout: with r = 1 at the start of each stack, every
    sub-layer sets omega <- r before it is used and then r <- sqrt(Var(omega * x) + Var(a)), population variances over
    the whole tensors, padding included. The values are kept in `config.admin_profile`, from which a model can be built
    again. Call it once, on a fresh model, with the same batch in every process.

    Raises `ValueError` if no stack of the model has `ln_mode` "admin".
    Source: Liu et al. 2020, as in Transformer-Clinic (`--init-type adaptive-profiling`).
    """
    connections = [module for module in model.modules() if isinstance(module, Admin)]
    if not connections:
        raise ValueError("profile_admin needs ln_mode 'admin' in at least one stack")
    running = {"encoder": 1.0, "decoder": 1.0}
    profile = {(c.place.stack, c.place.index): 1.0 for c in connections}

    def observe(connection: Admin, x: Tensor, a: Tensor) -> None:
        stack = connection.place.stack
        omega = running[stack]
        connection.omega.fill_(omega)
        profile[stack, connection.place.index] = omega
        variance = (omega * x).float().var(correction=0) + a.float().var(correction=0)
        running[stack] = variance.sqrt().item()

    batch = dict(batch)
    if "decoder_input_ids" not in batch:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch.pop("labels"))
    # as in fairseq, padding of the target has no position and is not attended to: it counts in the variances
    is_token = batch["decoder_input_ids"].ne(model.config.pad_token_id)
    is_token[:, 0] = True  # Marian starts with the padding token
    batch.setdefault("decoder_attention_mask", is_token)
    was_training = model.training
    model.train()
    for connection in connections:
        connection.observer = observe
    try:
        model(**batch)
    finally:
        for connection in connections:
            connection.observer = None
        model.train(was_training)
    sublayers = {"encoder": 2 * model.config.encoder_layers, "decoder": 3 * model.config.decoder_layers}
    values = [profile.get((stack, i), 1.0) for stack, count in sublayers.items() for i in range(count)]
    model.config.admin_profile = values
    return values
