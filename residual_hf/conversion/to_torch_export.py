# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Export with `torch.export`: every mode, as three `.pt2` files that run without the code of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from residual_hf.conversion.exported_model import ExportedModel, GraphCall, translate_greedily
from residual_hf.conversion.graphs import GRAPHS, trace
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration


class TorchExportTarget:
    """Graphs as `torch.export.load` reads them."""

    requires: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)

    def plain_mode(self, mode: str) -> str | None:
        return mode

    def check(self, config: ResidualConfig) -> None:
        """Every model can be exported."""

    def write(self, model: ResidualForConditionalGeneration, tokenizer: Any, folder: Path) -> None:
        for name, graph in trace(model).items():
            torch.export.save(graph.program, folder / f"{name}.pt2")
        model.config.to_json_file(folder / "config.json")
        model.generation_config.save_pretrained(folder)

    def translate(
        self,
        model: ResidualForConditionalGeneration,
        tokenizer: Any,
        folder: Path,
        sources: list[list[int]],
        limit: int,
    ) -> list[list[int]]:
        return translate_greedily(model.config, sources, limit, load_torch_export(folder).decoder)


def load_torch_export(folder: str | Path) -> ExportedModel:
    """Load a folder that `residual-hf export --to torch` has written."""
    config = ResidualConfig.from_pretrained(folder)
    return ExportedModel(config, *(graph_call(Path(folder, f"{name}.pt2")) for name in GRAPHS))


def graph_call(path: Path) -> GraphCall:
    """A graph as a function of its tensors; those after the third fixed one are the list of keys and values."""
    module = torch.export.load(path).module()

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        found = module(*tensors) if len(tensors) <= 3 else module(*tensors[:2], list(tensors[2:]))
        return [found] if isinstance(found, torch.Tensor) else list(found)

    return call
