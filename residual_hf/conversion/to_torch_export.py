"""Export with `torch.export`: every mode, as three `.pt2` files that run without the code of the model."""

from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from .exported_model import ExportedModel, GraphCall, GraphTarget
from .graphs import Graph


class TorchExportTarget(GraphTarget):
    """Graphs as `torch.export.load` reads them."""

    suffix = ".pt2"

    def write_graph(self, graph: Graph, path: Path) -> None:
        torch.export.save(graph.program, content := BytesIO())  # which aborts if it cannot write to a file
        path.write_bytes(content.getbuffer())

    def load_graph(self, path: Path) -> GraphCall:
        module = torch.export.load(path).module()

        def call(*tensors: Tensor) -> list[Tensor]:  # more than three are two and the list of keys and values
            found = module(*tensors) if len(tensors) <= 3 else module(*tensors[:2], list(tensors[2:]))
            return [found] if isinstance(found, Tensor) else list(found)

        return call


def load_torch_export(folder: str | Path) -> ExportedModel:
    """Load a folder that `residual-hf export --to torch` has written."""
    return TorchExportTarget().load(Path(folder))
