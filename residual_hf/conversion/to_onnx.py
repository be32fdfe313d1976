"""Export to ONNX: every mode, with the files and names of Optimum's exports of encoder-decoders and decoders."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from residual_hf.base.files import atomic_file

from .exported_model import ExportedModel, GraphCall, GraphTarget, Model
from .graphs import Graph

LARGEST_FILE = 2**31 - 2**20  # of a protobuf message; the weights of larger models get a second file


class OnnxTarget(GraphTarget):
    """Graphs for ONNX Runtime. Matrices are stored in float32 or int8."""

    requires = ("onnx", "onnxruntime", "onnxscript")
    dtypes = ("float32", "int8")
    suffix = ".onnx"

    def write_graph(self, graph: Graph, path: Path) -> None:
        size = sum(weight.numel() * weight.element_size() for weight in graph.program.state_dict.values())
        torch.onnx.export(
            graph.program,
            f=path,
            input_names=graph.inputs,
            output_names=graph.outputs,
            external_data=size > LARGEST_FILE,
            dynamo=True,
            verbose=False,
        )

    def quantize(self, model: Model, tokenizer: Any, folder: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        for path in sorted(folder.glob(f"*{self.suffix}")):
            with atomic_file(path) as smaller:
                quantize_dynamic(path, smaller, per_channel=True, weight_type=QuantType.QInt8)
            Path(f"{path}.data").unlink(missing_ok=True)  # of the float32 weights

    def load_graph(self, path: Path) -> GraphCall:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [given.name for given in session.get_inputs()]

        def call(*tensors: Tensor) -> list[Tensor]:
            arrays = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
            return [torch.from_numpy(found) for found in session.run(None, arrays)]

        return call


def load_onnx(folder: str | Path) -> ExportedModel:
    """Load a folder that `residual-hf export --to onnx` has written."""
    return OnnxTarget().load(Path(folder))
