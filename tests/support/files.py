"""What is in folders, and files with a damage."""

import json

import torch
from safetensors.torch import load_file


def content(folder):
    """Bytes of the files in a folder by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_weights(path, other):
    """Whether two safetensors files have the same tensors, bit for bit."""
    weights, others = load_file(path), load_file(other)
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def read_json_lines(path):
    """The values of a file with one in each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def flip(path, place=0.5):
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


METRIC = """
import datasets
import evaluate


class Own(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({{{features}}})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, **inputs):
        return {{{result}}}
"""


def write_metric(path, features, result):
    """Write a metric of `evaluate` that reads these features and returns this result, both as in a `dict`."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(METRIC.format(features=features, result=result))
    return str(path)
