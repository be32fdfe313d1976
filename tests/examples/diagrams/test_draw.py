"""Wiring diagrams against what a real model does, and against themselves: nothing overlaps."""

import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html import unescape

import pytest
import torch
from draw import dot_source, draw_modes, label_of
from nodes import STATE
from support import small_sizes
from support.example_scripts import ROOT, refusal, run
from support.models import OURS, SHAPES, shapes_of
from torch import nn
from torch.overrides import TorchFunctionMode
from wiring import Wiring, trace_stack

from residual_hf import ResidualConfig, ResidualModel
from residual_hf.base.errors import InputError
from residual_hf.model.connections import LN_MODES, ResidualConnection, StreamBoundary, register_ln_mode
from residual_hf.model.layers import ResidualAttention, ResidualDecoderLayer, ResidualEncoderLayer, ResidualFeedForward
from residual_hf.model.modes_multi_stream import weighted_sums
from residual_hf.model.norms import NORM_TYPES

SCRIPT = "diagrams/draw.py"
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program `dot` (Graphviz)")
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
        if self.depth == 0 and function is weighted_sums:
            weights, members = args
            self.found["additions"] += weights.shape[-2] * (members.shape[-2] - 1)
        return result


def run_real_stack(name: str, stack: str, depth: int) -> Counter[str]:
    """A model of the size of the traced one, run from embeddings to the end of the stack."""
    options = {"streams": 2} if "streams" in LN_MODES[name].Options.__dataclass_fields__ else {}
    sizes = small_sizes(STATE[2], depth, ffn_dim=32)
    config = ResidualConfig(ln_mode=name, ln_mode_options=options, vocab_size=10, **sizes)
    model = ResidualModel(config).eval()
    embeddings, memory = torch.randn(STATE), [torch.randn(STATE)] if stack == "decoder" else []
    with torch.no_grad(), Watch(getattr(model, stack)) as watch:
        getattr(model, stack).run_layers(embeddings, *memory)
    return watch.found


@needs_dot
@pytest.mark.parametrize(("name", "stack"), shapes_of(OURS, "decoder") + [(name, "encoder") for name in SHAPES])
def test_wiring_has_the_norms_branches_and_additions_of_a_model(name, stack):
    wiring = trace_stack(name, stack)
    drawn: Counter[str] = Counter()
    for part in wiring.parts:
        for node in part.nodes:
            drawn["norms"] += part.layers * (node.kind == "norm")
            drawn["branches"] += part.layers * (node.kind == "branch")
            drawn["additions"] += part.layers * (len(node.inputs) - 1) * (node.kind in ("add", "mix"))
    assert +drawn == +run_real_stack(name, stack, depth=sum(part.layers for part in wiring.parts[1:-1]))
    check_drawing(wiring, stack)


def check_drawing(wiring: Wiring, stack: str = "encoder") -> None:
    """Every node has one shape, no two shapes overlap, no line runs through a shape, and all lines run upwards."""
    root = ElementTree.fromstring(draw_modes([wiring.name], stack))
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class", "").startswith("node ")]
    styles = Counter(group.get("class").removeprefix("node ") for group in groups)
    nodes = [node for part in wiring.parts for node in part.nodes]
    kinds = Counter(node.kind for node in nodes if node.kind not in ("scores", "mix"))
    kinds["mix"] = len({(node.label, *map(id, node.inputs)) for node in nodes if node.kind == "mix"})
    assert {kind: count for kind, count in styles.items() if kind != "input"} == dict(+kinds)
    drawn = Counter("".join(text.itertext()) for group in groups for text in group.iter(f"{SVG}text"))
    for label in {label_of(node) for node in nodes if node.kind not in ("add", "scores", "mix") and not node.inner}:
        assert drawn[label]
    for _, label in (module for node in nodes for modules in node.inner.values() for module in modules):
        assert any(text.startswith(label) for text in drawn)
    shapes = [box for group in groups if (box := outline(group))]
    for i, a in enumerate(shapes):
        assert not [b for b in shapes[:i] if overlap(a, b)]
    for edge in root.iter(f"{SVG}g"):
        if edge.get("class") == "edge":
            points = curve(next(edge.iter(f"{SVG}path")).get("d"))
            assert points[0][1] > points[-1][1]
            ends = [shape for shape in shapes if any(near(point, shape) for point in (points[0], points[-1]))]
            crossed = [shape for shape in shapes if any(near(point, shape, -1.5) for point in points)]
            assert not [shape for shape in crossed if shape not in ends]


def outline(group: ElementTree.Element) -> tuple[float, ...] | None:
    """(left, top, right, bottom) of a shape; None for text."""
    for shape in group:
        if shape.tag == f"{SVG}ellipse":
            x, y, rx, ry = (float(shape.get(name)) for name in ("cx", "cy", "rx", "ry"))
            return x - rx, y - ry, x + rx, y + ry
        if shape.tag == f"{SVG}path":
            xs, ys = zip(*coordinates(shape.get("d")), strict=True)
            return min(xs), min(ys), max(xs), max(ys)
    return None


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def near(point: tuple[float, float], box: tuple[float, ...], distance: float = 9.0) -> bool:
    x, y = point
    return box[0] - distance < x < box[2] + distance and box[1] - distance < y < box[3] + distance


def coordinates(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+)[ ,](-?[\d.]+)", path)]


def curve(path: str) -> list[tuple[float, float]]:
    """Points on a line, which is made of cubic Bezier curves."""
    points = coordinates(path)
    found = []
    for i in range(0, len(points) - 1, 3):
        for t in (n / 20 for n in range(21)):
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
            found.append(tuple(sum(w * p[k] for w, p in zip(weights, points[i : i + 4], strict=True)) for k in (0, 1)))
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


class Momentum(ResidualConnection):
    """A second stream that the first one reads, and the next layer too."""

    class Boundary(StreamBoundary):
        def begin(self, hidden_states):
            return hidden_states, torch.zeros_like(hidden_states)

    def forward(self, stream, sublayer):
        x, m = stream
        m = 0.9 * m + sublayer(x)
        return x + m, m


class Moody(ResidualConnection):
    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + sublayer(x) if x.sum() > 0 else x,)


@pytest.fixture
def own_modes():
    known = dict(LN_MODES)
    register_ln_mode("highway")(Highway)
    register_ln_mode("tangled")(Tangled)
    register_ln_mode("momentum")(Momentum)
    register_ln_mode("moody")(Moody)
    yield
    LN_MODES.clear()
    LN_MODES.update(known)
    sys.modules.pop("highway", None)  # from --import; a later import would not register its mode again


@needs_dot
def test_mode_of_a_user_is_drawn(own_modes):
    wiring = trace_stack("highway")
    nodes = [node for node in wiring.parts[1].nodes if node.kind != "scores"]
    assert [(node.kind, node.label) for node in nodes[: len(nodes) // 2]] == [
        ("branch", "self-attention"),
        ("op", "relu"),
        ("scale", "× sigmoid(gate(h))"),
        ("scale", "× 1 - keep"),
        ("add", ""),
    ]
    check_drawing(wiring)


@needs_dot
def test_stream_that_another_one_reads_goes_on_to_the_next_layer(own_modes):
    svg = draw_modes(["momentum"])
    labels = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert labels.count("next layer") == 1
    lines = re.findall(r"(\w+) -&gt; (\w+) ", svg)
    (end,) = re.findall(r"(\w+) \[label=&quot;next layer", svg)
    (total,) = (source for source, target in lines if target == end)
    assert len([target for source, target in lines if source == total]) == 2  # the sum of x is the other


@needs_dot
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_detours_of_a_tangled_mode_keep_clear_of_its_nodes(own_modes, stack):
    wiring = trace_stack("tangled", stack)
    labels = [node.label for node in wiring.parts[1].nodes]
    assert {"1 -", "/ 2", "mean", "sigmoid", "×", "LN", "Linear"} <= set(labels)
    check_drawing(wiring, stack)


def test_mode_that_looks_at_values_is_refused(own_modes):
    with pytest.raises(InputError, match="'moody': torch.fx cannot trace Moody.forward"):
        draw_modes(["moody"])


@needs_dot
def test_command_draws_own_modes_next_to_others(tmp_path, own_modes):
    LN_MODES.pop("highway")
    imported = ("--import", ROOT / "examples/custom_mode/highway.py")
    decoder = ("post_ln", "highway", "--stack", "decoder", "--output-dir", tmp_path / "new" / "folder")
    file = tmp_path / "new" / "folder" / "post_ln-highway-decoder.svg"
    assert run(SCRIPT, *decoder, *imported).strip() == str(file)
    text = file.read_text(encoding="utf-8")
    assert text.count("cross-attention") == 2 and ">highway</text>" in text
    assert "exists; use --overwrite" in refusal(SCRIPT, *decoder)
    file.write_text("")
    run(SCRIPT, *decoder, "--overwrite")
    assert file.read_text(encoding="utf-8") == text
    assert "'nothing'" in refusal(SCRIPT, "nothing", "--output-dir", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_picture_of_the_readme_is_up_to_date():
    names = ("post_ln", "pre_ln", "resi_dual")
    committed = (ROOT / "docs/images" / f"{'-'.join(names)}-encoder.svg").read_text(encoding="utf-8")
    command = f"python examples/diagrams/draw.py {' '.join(names)} --output-dir docs/images --overwrite"
    (source,) = re.findall("<metadata>(.*)</metadata>", committed, re.DOTALL)
    assert unescape(source) == dot_source([*map(trace_stack, names)]), f"run `{command}`"


def test_without_graphviz_the_message_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install graphviz" in refusal(SCRIPT, "post_ln", "--output-dir", tmp_path)
    monkeypatch.setitem(sys.modules, "graphviz", None)
    assert "pip install 'residual_hf[figures]'" in refusal(SCRIPT, "post_ln", "--output-dir", tmp_path)
