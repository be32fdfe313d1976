# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to ONNX: every mode, with the files and names of Optimum's exports of encoder-decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from residual_hf.conversion.exported_model import ExportedModel, GraphCall, translate_greedily
from residual_hf.conversion.graphs import GRAPHS, trace
from residual_hf.files import atomic_file
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

LARGEST_FILE = 2**31 - 2**20  # of a protobuf message; the weights of larger models get a second file


class OnnxTarget:
    """Graphs for ONNX Runtime. Matrices are stored in float32 or int8."""

    requires: tuple[str, ...] = ("onnx", "onnxruntime", "onnxscript")
    dtypes: tuple[str, ...] = ("float32", "int8")

    def plain_mode(self, mode: str) -> str | None:
        return mode

    def check(self, config: ResidualConfig) -> None:
        """Every model can be exported."""

    def write(self, model: ResidualForConditionalGeneration, tokenizer: Any, folder: Path) -> None:
        size = sum(parameter.numel() * 4 for parameter in model.parameters())
        for name, graph in trace(model).items():
            torch.onnx.export(
                graph.program,
                f=folder / f"{name}.onnx",
                input_names=graph.inputs,
                output_names=graph.outputs,
                external_data=size > LARGEST_FILE,
                dynamo=True,
                verbose=False,
            )
        model.config.to_json_file(folder / "config.json")
        model.generation_config.save_pretrained(folder)

    def quantize(self, model: ResidualForConditionalGeneration, tokenizer: Any, folder: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        for name in GRAPHS:
            path = folder / f"{name}.onnx"
            with atomic_file(path) as smaller:
                quantize_dynamic(path, smaller, per_channel=True, weight_type=QuantType.QInt8)

    def translate(
        self,
        model: ResidualForConditionalGeneration,
        tokenizer: Any,
        folder: Path,
        sources: list[list[int]],
        limit: int,
    ) -> list[list[int]]:
        return translate_greedily(model.config, sources, limit, load_onnx(folder).decoder)


def load_onnx(folder: str | Path) -> ExportedModel:
    """Load a folder that `residual-hf export --to onnx` has written."""
    config = ResidualConfig.from_pretrained(folder)
    return ExportedModel(config, *(graph_call(Path(folder, f"{name}.onnx")) for name in GRAPHS))


def graph_call(path: Path) -> GraphCall:
    """A graph as a function of its tensors."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def call(*tensors: Tensor) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, arrays)]

    return call
