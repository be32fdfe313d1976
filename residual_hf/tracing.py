"""The computation of a residual connection as a graph of operations.

`trace` runs the code of a connection, or of the boundary of a stack, on placeholders and records what it does to them
in a `torch.fx.Graph`. The decoding programs (`native.programs`), the joint kernels of training (`training.fusion`) and
the diagrams (`examples/diagrams`) read these graphs. Nothing outside of the traced module is changed, so that other
threads can run it at the same time.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from residual_hf.model.connections import Sublayer


class Untraceable(Exception):
    """The code does something that a graph cannot express."""


def trace(
    module: nn.Module,
    size: int,
    run: Callable[..., Any] | None = None,
    *,
    inline: bool = False,
    is_warming: bool = False,
) -> fx.Graph:
    """The graph of a connection: inputs `h0`, `h1`, ... (the stream), `branch`, `dropout` and `factor`.

    The branch and its dropout are called as in `Sublayer`: `__call__` of an input. Parameters of the module are
    `get_attr` nodes; its children are `call_module` nodes, or parts of the graph.

    Args:
        size: members of the stream.
        run: called with the module, the stream and the sub-layer; by default its `forward`.
        inline: what children compute is part of the graph.
        is_warming: the branch has a factor, that of branch warm-up.

    Raises:
        Untraceable: the code decides by the values of hidden states, changes them in place, or takes what a trace
            cannot give it.
    """
    tracer = Tracer(module)
    stream = tuple(tracer.input(f"h{i}") for i in range(size))
    branch, dropout, factor = (tracer.input(name) for name in ("branch", "dropout", "factor"))
    sublayer = Sublayer(branch, dropout, factor if is_warming else None)  # type: ignore[arg-type]
    traced = tracer.shadow(module, "", inline)
    attributes = [*map(id, vars(traced).values())]
    try:
        result = type(module).forward(traced, stream, sublayer) if run is None else run(traced, stream, sublayer)
        tracer.create_node("output", "output", (tracer.create_arg(result),), {})
    except Exception as error:  # of any code that a mode may have
        raise Untraceable(str(error)) from error
    if [*map(id, vars(traced).values())] != attributes:
        raise Untraceable("attributes that it sets")
    for node in list(tracer.graph.nodes):
        if node.op == "get_attr" and not node.users:
            tracer.graph.erase_node(node)
    return tracer.graph


class Tracer(fx.proxy.GraphAppendingTracer):
    """Records operations on proxies; tensors that belong to no module are constants in the graph."""

    def __init__(self, module: nn.Module):
        super().__init__(fx.Graph())
        self.parameters = {id(p): name for name, p in [*module.named_parameters(), *module.named_buffers()]}

    def input(self, name: str) -> fx.Proxy:
        return self.create_proxy("placeholder", name, (), {})

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        name = operation_of(node)
        if node.op.startswith("call_") and name[0] != "_" == name[-1]:  # who reads the old value would get it
            raise Untraceable(f"{name}, in place")
        return node

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            return self.parameter(self.parameters[id(a)], a).node if id(a) in self.parameters else a
        return a if isinstance(a, torch.dtype) else super().create_arg(a)

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise Untraceable("a decision that depends on the hidden states")

    def parameter(self, name: str, value: Tensor) -> fx.Proxy:
        return Parameter(self.create_node("get_attr", name, (), {}), self, value)

    def shadow(self, module: nn.Module, path: str, inline: bool) -> Any:
        """A copy of a module whose parameters and children are recorded when they are used."""
        shadow, tensors = copy.copy(module), [*module._parameters.items(), *module._buffers.items()]
        vars(shadow).update(
            _parameters={n: None if value is None else self.parameter(f"{path}{n}", value) for n, value in tensors},
            _modules={n: child and self.child(child, f"{path}{n}", inline) for n, child in module._modules.items()},
            _buffers={},
        )
        if not inline:
            del shadow.training  # a graph is of one mode, so that code that asks for it cannot have one
        return shadow

    def child(self, module: nn.Module, path: str, inline: bool) -> Any:
        shadow = self.shadow(module, f"{path}.", inline)
        if isinstance(module, nn.ModuleList):
            return shadow
        return Child(shadow, shadow.forward if inline else partial(self.leaf, path))

    def leaf(self, path: str, *inputs: Any) -> fx.Proxy:
        return self.create_proxy("call_module", path, inputs, {})


class Parameter(fx.Proxy):
    """A parameter or buffer: its values are unknown to the graph, its shape and type are not."""

    def __init__(self, node: fx.Node, tracer: Tracer, value: Tensor):
        super().__init__(node, tracer)
        self.shape, self.dtype, self.numel = value.shape, value.dtype, value.numel

    def __len__(self) -> int:
        return self.shape[0]


class Child:
    """A child of a traced module."""

    def __init__(self, shadow: nn.Module, call: Callable[..., Any]):
        self._shadow, self._call = shadow, call

    def __call__(self, *inputs: Any) -> Any:
        return self._call(*inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shadow, name)


def operation_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls: `add` for `+`, `torch.add` and `Tensor.add`."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return "div" if name == "truediv" else name
