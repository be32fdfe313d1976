# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Wiring diagrams against what a real model does, and against themselves: nothing overlaps."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from residual_hf import ResidualConfig, ResidualModel
from residual_hf.analysis.diagrams.diagram import draw, draw_modes
from residual_hf.analysis.diagrams.tracing import STATE, Node, Part
from residual_hf.analysis.diagrams.wiring import trace_stack
from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.model.connections import LN_MODES, ResidualConnection, StreamBoundary, register_ln_mode
from residual_hf.model.layers import (
    ResidualAttention,
    ResidualDecoderLayer,
    ResidualEncoderLayer,
    ResidualFeedForward,
)
from residual_hf.model.norms import NORM_TYPES

ROOT = Path(__file__).parents[3]
OURS = sorted(name for name, mode in LN_MODES.items() if mode.__module__.startswith("residual_hf."))
SVG = "{http://www.w3.org/2000/svg}"
ADDITIONS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__}
ADDITIONS |= {torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.Tensor.__rsub__, torch.Tensor.__isub__}


CONTAINERS = (ResidualConnection, StreamBoundary, ResidualEncoderLayer, ResidualDecoderLayer, nn.ModuleList)
NORMS = tuple(NORM_TYPES.values())


class Watch(TorchFunctionMode):
    """Counts the norms, branches and additions of hidden states in one stack; what other modules do is not counted."""

    def __init__(self, stack: nn.Module):
        super().__init__()
        self.found: Counter[str] = Counter()
        self.depth = 0
        for module in stack.modules():
            if module is not stack and not isinstance(module, CONTAINERS):
                module.register_forward_pre_hook(self.enter)
                module.register_forward_hook(self.leave)

    def enter(self, module, inputs):
        self.depth += 1

    def leave(self, module, inputs, output):
        self.depth -= 1
        state = output[0] if isinstance(output, tuple) else output
        if self.depth == 0 and tuple(state.shape) == STATE:
            self.found["branches"] += isinstance(module, (ResidualAttention, ResidualFeedForward))
            self.found["norms"] += isinstance(module, NORMS)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        states = [a for a in args if isinstance(a, torch.Tensor) and tuple(a.shape) == STATE]
        if self.depth == 0 and function in ADDITIONS and len(states) == 2:
            self.found["additions"] += 1
        if self.depth == 0 and function is torch.Tensor.matmul:
            weights, members = args
            self.found["additions"] += weights.shape[-2] * (members.shape[-2] - 1)
        return result


def run_real_stack(name: str, stack: str, depth: int) -> Counter[str]:
    """A model of the size of the traced one, run from embeddings to the end of the stack."""
    options = {"streams": 2} if "streams" in LN_MODES[name].Options.__dataclass_fields__ else {}
    sizes = {"d_model": STATE[2], "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": depth, "decoder_layers": depth}
    config = ResidualConfig(ln_mode=name, ln_mode_options=options, vocab_size=10, **sizes, **heads, **layers)
    model = ResidualModel(config).eval()
    embeddings, memory = torch.randn(STATE), [torch.randn(STATE)] if stack == "decoder" else []
    with torch.no_grad(), Watch(getattr(model, stack)) as watch:
        getattr(model, stack).run_layers(embeddings, *memory)
    return watch.found


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", OURS)
def test_wiring_has_the_norms_branches_and_additions_of_a_model(name, stack):
    wiring = trace_stack(name, stack)
    depth = sum(block.layers for block in wiring.blocks)
    times = [(wiring.begin, 1), *((p, b.layers) for b in wiring.blocks for p in b.parts), (wiring.end, 1)]
    drawn = Counter(
        norms=sum(n * (node.kind == "norm") for part, n in times for node in part.nodes),
        branches=sum(n * (node.kind == "branch") for part, n in times for node in part.nodes),
        additions=sum(
            n * (len(node.inputs) - 1) for part, n in times for node in part.nodes if node.kind in ("add", "mix")
        ),
    )
    assert +drawn == +run_real_stack(name, stack, depth)
    check_drawing(draw(wiring), [part for part, _ in times])


def check_drawing(svg: str, parts: list[Part]) -> None:
    """Every node has one shape, no two shapes overlap, and no line runs through a shape."""
    root = ElementTree.fromstring(svg)
    styles = Counter(element.get("class") for element in root.iter())
    kinds = Counter(node.kind for part in parts for node in part.nodes)
    inner = Counter(m.kind for part in parts for node in part.nodes for m in heads_merged(node))
    for kind in ("branch", "add", "scale", "op"):
        assert styles[kind] == kinds[kind]
    for kind in ("norm", "module"):
        assert styles[kind] == kinds[kind] + inner[kind]
    shapes = boxes(root)
    for i, a in enumerate(shapes):
        assert not [b for b in shapes[:i] if overlap(a, b)]
    for path in root.iter(f"{SVG}path"):
        if path.get("class") in ("line", "dashed"):
            for segment in segments(path.get("d")):
                assert not [shape for shape in shapes if overlap(segment, shape)]


def heads_merged(branch: Node) -> list[Node]:
    """The modules inside a branch; those on queries, keys and values are one shape."""
    slots = {("head" if slot in ("query", "key", "value") else slot): nodes for slot, nodes in branch.inner.items()}
    return [node for nodes in slots.values() for node in nodes]


def boxes(root: ElementTree.Element) -> list[tuple[float, ...]]:
    """(left, top, right, bottom) of all shapes, those inside a branch left out."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        found.append((rect.get("class"), (x, y, x + width, y + height)))
    branches = [box for style, box in found if style == "branch"]
    shapes = [box for style, box in found if style not in ("page", "panel")]
    found = [box for box in shapes if not any(b != box and overlap(b, box) and b[0] <= box[0] for b in branches)]
    for circle in root.iter(f"{SVG}circle"):
        if circle.get("class") == "add":
            x, y, r = (float(circle.get(name)) for name in ("cx", "cy", "r"))
            found.append((x - r, y - r, x + r, y + r))
    return found


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] - 1.2 and b[0] < a[2] - 1.2 and a[1] < b[3] - 1.2 and b[1] < a[3] - 1.2


def segments(path: str) -> list[tuple[float, ...]]:
    """The straight pieces of a line, from corner to corner, as thin boxes."""
    numbers = [tuple(map(float, point.split())) for point in re.findall(r"[-\d.e]+ [-\d.e]+", path)]
    found = []
    for (x1, y1), (x2, y2) in zip(numbers, numbers[1:], strict=False):
        found.append((min(x1, x2) - 1, min(y1, y2) - 1, max(x1, x2) + 1, max(y1, y2) + 1))
    return found


class Highway(ResidualConnection):
    """A gate that depends on the token, a learned one, and an operation that no mode of ours has."""

    def __init__(self, config, place):
        super().__init__(config, place)
        self.gate = nn.Linear(config.d_model, 1)
        self.keep = nn.Parameter(torch.zeros(config.d_model))

    def forward(self, stream, sublayer):
        (x,) = stream
        a = torch.relu(sublayer(x)) * torch.sigmoid(self.gate(x))
        return (a + x * (1 - self.keep),)


class Tangled(ResidualConnection):
    """Values that are used again above the nodes between them, with its own argument names."""

    def __init__(self, config, place):
        super().__init__(config, place)
        self.gate = nn.Linear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, members, f):
        (x,) = members
        g, a = torch.sigmoid(self.gate(x)), f(x)
        y = g * x + (1 - g) * a
        return (self.norm(torch.stack([x, a, self.norm(a)]).mean(0) + y) + y / 2,)


class Moody(ResidualConnection):
    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + sublayer(x) if x.sum() > 0 else x,)


@pytest.fixture
def own_modes():
    known = dict(LN_MODES)
    register_ln_mode("highway")(Highway)
    register_ln_mode("tangled")(Tangled)
    register_ln_mode("moody")(Moody)
    yield
    LN_MODES.clear()
    LN_MODES.update(known)
    sys.modules.pop("highway", None)  # from --import; a later import would not register its mode again


def test_mode_of_a_user_is_drawn(own_modes):
    wiring = trace_stack("highway")
    (block,) = wiring.blocks
    assert [(node.kind, node.label) for node in block.parts[0].nodes] == [
        ("branch", "self-attention"),
        ("op", "relu"),
        ("scale", "× sigmoid(gate(h))"),
        ("scale", "× 1 - keep"),
        ("add", ""),
    ]
    check_drawing(draw(wiring), list(wiring.parts))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_detours_of_a_tangled_mode_keep_clear_of_its_nodes(own_modes, stack):
    wiring = trace_stack("tangled", stack)
    labels = [node.label for node in wiring.blocks[0].parts[0].nodes]
    assert {"1 -", "/ 2", "mean", "sigmoid", "×", "LN", "Linear"} <= set(labels)
    check_drawing(draw(wiring), list(wiring.parts))


def test_mode_that_looks_at_values_is_refused(own_modes):
    with pytest.raises(InputError, match="'moody': torch.fx cannot trace Moody.forward"):
        draw_modes(["moody"])


def test_command_draws_own_modes_next_to_others(tmp_path, capsys, own_modes):
    mode = ROOT / "examples" / "custom_mode" / "highway.py"
    file = tmp_path / "modes.svg"
    LN_MODES.pop("highway")
    assert main(["modes", "post_ln", "highway", "--import", str(mode), "--svg", str(file), "--stack", "decoder"]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.count("cross-attention") == 2 and ">highway</text>" in text
    assert main(["modes", "post_ln", "--svg", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["modes", "post_ln", "pre_ln"]) == 2
    assert main(["modes", "--svg", str(file)]) == 2
    assert main(["modes", "nothing", "--svg", str(tmp_path / "nothing.svg")]) == 2
    assert main(["modes", "--import", str(tmp_path / "missing.py")]) == 2
    assert "missing.py" in capsys.readouterr().err


def test_picture_of_the_readme_is_up_to_date():
    names = ("post_ln", "pre_ln", "resi_dual")
    committed = (ROOT / "docs" / "images" / "connections.svg").read_text(encoding="utf-8")
    command = f"residual-hf modes {' '.join(names)} --svg docs/images/connections.svg --overwrite"
    assert committed == draw_modes(names), f"run `{command}`"
