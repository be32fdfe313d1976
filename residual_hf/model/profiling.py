# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The data-dependent initialization of Admin."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .branch_warmup import finished_branch_warmup
from .connections import Stream, Sublayer
from .modes_skip_scaling import Admin, profiled_omega


def admin_connections(model: PreTrainedModel) -> list[Admin]:
    return [module for module in model.modules() if isinstance(module, Admin)]


def wants_profile(model: PreTrainedModel) -> bool:
    """Whether the model has `"admin"` connections that are neither profiled nor trained.

    Trained, converted and loaded models are recognized by their weights: any update changes the gains and biases of
    the norms, which all have fixed initial values.
    """
    connections = admin_connections(model)
    return bool(connections) and all(map(is_untrained, connections))


def is_untrained(connection: Admin) -> bool:
    """Whether omega and the parameters of the norm have their initial values."""
    norm_type, size = type(connection.norm), len(connection.omega)
    initial = {"omega": torch.ones(size), **{f"norm.{n}": p for n, p in norm_type(size).named_parameters()}}
    return all(torch.equal(p.cpu(), initial[name].to(p.dtype)) for name, p in connection.named_parameters())


@torch.no_grad()
def set_profile(model: PreTrainedModel, profile: list[float] | None) -> None:
    """Set every omega from the values of a profile, and store them in the config."""
    model.config.admin_profile = profile
    for connection in admin_connections(model):
        connection.omega.fill_(profiled_omega(model.config.of(connection.place.stack), connection.place))


@torch.no_grad()
def profile_admin(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[float]:
    """Set every omega of an `"admin"` model from one batch and return the values, encoder first.

    This is the recursion of the official code, one forward pass in train mode with dropout, without LayerDrop. With
    r = 1 at the start of each stack, every sub-layer sets omega <- r, runs, and sets r <- sqrt(Var(omega * x) +
    Var(a)), with population variances over all elements, including padding. The values are stored in
    `config.admin_profile`. Call this once on an untrained model, with the same batch in every process.

    Raises `ValueError` if no stack has `ln_mode` "admin".
    Source: Liu et al. 2020, Transformer-Clinic (`--init-type adaptive-profiling`).
    """
    if not admin_connections(model):
        raise ValueError("profile_admin requires ln_mode 'admin' in at least one stack")
    running = {"encoder": 1.0, "decoder": 1.0}
    profile: dict[tuple[str, int], float] = {}

    def observe(connection: Admin, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,), stack = stream, connection.place.stack
        a = sublayer(x)
        omega = running[stack]
        connection.omega.fill_(omega)
        profile[stack, connection.place.index] = omega
        variance = (omega * x).float().var(correction=0) + a.float().var(correction=0)
        running[stack] = variance.sqrt().item()
        return connection(stream, lambda x: a)

    batch = dict(batch)
    if model.config.is_encoder_decoder:
        if "decoder_input_ids" not in batch:
            batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch.pop("labels"))
        # as in fairseq, target padding has no position and is masked, but counts in the variances
        is_token = batch["decoder_input_ids"].ne(model.config.pad_token_id)
        is_token[:, 0] = True  # in Marian the decoder starts with the padding token
        batch.setdefault("decoder_attention_mask", is_token)
    observed = copy.deepcopy(model).train()
    for module in observed.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0  # a layer that is dropped has no variances
    for connection in admin_connections(observed):
        connection.kernel = observe
    with finished_branch_warmup(observed):
        observed(**batch)
    sublayers = [(own.stack, i) for own in model.config.stack_configs for i in range(own.num_sublayers)]
    values = [profile.get(place, 1.0) for place in sublayers]
    set_profile(model, values)
    return values
