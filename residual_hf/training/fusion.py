"""Residual connections with joint kernels: dropout, addition and norm in one, and weighted sums of several streams.

What a connection computes is read from its graph, see `residual_hf.tracing`, so that any mode is served, also those of
users: `norm(u + dropout(f(z)))`, `u + dropout(f(z))` and `weighted_sums` are replaced, the rest remains as it is.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from residual_hf.model.connections import ResidualConnection, Stream, Sublayer
from residual_hf.model.fingerprint import is_changed
from residual_hf.model.kernels import Dropout
from residual_hf.model.norms import RMSNorm
from residual_hf.native import autograd
from residual_hf.tracing import Untraceable, operation_of, trace


class JoinedConnection:
    """The kernel of a residual connection. It is made at the first call, and used as long as it fits."""

    def __init__(self) -> None:
        self.is_traced = False
        self.run: Callable[..., Stream] | None = None  # None: the kernels have no part in the connection

    def __call__(self, connection: ResidualConnection, stream: Stream, sublayer: Sublayer) -> Stream:
        if not self.is_traced:
            self.trace(connection, len(stream), sublayer.factor is not None)
        if self.run is None or not self.fits(connection, stream, sublayer):
            return connection(stream, sublayer)
        return self.run(connection, *stream, sublayer)

    def trace(self, connection: ResidualConnection, size: int, is_warming: bool) -> None:
        self.is_traced, self.size, self.is_warming = True, size, is_warming
        self.attributes, self.children = attributes(connection), list(connection.children())
        if any(callable(value) for value in self.attributes.values()):  # which may do more than compute
            return
        try:
            with torch.random.fork_rng(devices=[]):  # which its code may use
                graph = trace(connection, size, is_warming=is_warming)
        except Untraceable:
            return
        if join_kernels(graph, connection, is_warming):
            self.run = type(fx.GraphModule(connection, graph)).forward

    def fits(self, connection: ResidualConnection, stream: Stream, sublayer: Sublayer) -> bool:
        """Whether the kernels can be used: not after changes of the modules."""
        now = attributes(connection)
        return not (
            is_plain(stream)
            or (len(stream), sublayer.factor is not None) != (self.size, self.is_warming)
            or type(sublayer.dropout) is not Dropout
            or any(is_changed(module) for module in (connection, sublayer.dropout, *self.children))
            or list(connection.children()) != self.children
            or any(now.get(name) is not value for name, value in self.attributes.items())
        )


def is_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether PyTorch must compute what kernels would: of other types, on other devices, or in other modes."""
    others = any(tensor.dtype != torch.float32 or not tensor.is_cpu for tensor in tensors)
    return others or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()


def attributes(connection: ResidualConnection) -> dict[str, Any]:
    """Attributes that the code of a connection may read besides modules and parameters."""
    ignored = ("kernel", "training", "forward")
    return {n: value for n, value in vars(connection).items() if n[0] != "_" and n not in ignored}


def join_kernels(graph: fx.Graph, connection: nn.Module, is_warming: bool) -> bool:
    """Replace what the kernels compute; returns whether there is any. `branch` then stands for the sub-layer."""
    inputs = {node.target: node for node in graph.nodes if node.op == "placeholder"}
    found = branch_nodes(inputs, is_warming)
    if found is None or has_constants(graph):
        return False
    *_, a = found
    sublayer, read = inputs["branch"], found[0].args[1]
    joined = [join_sums(graph, node) for node in list(graph.nodes) if operation_of(node) == "weighted_sums"]
    joined.append(join_addition(graph, connection, a, sublayer, read))
    if a.users:
        replace(graph, a, call, sublayer, read)
    for node in (*reversed(found), inputs["dropout"], inputs["factor"]):
        if not node.users and node in graph.nodes:
            graph.erase_node(node)
    return any(joined)


def has_constants(graph: fx.Graph) -> bool:
    """Whether there are tensors in a graph, such as random ones, that would have other values at another time."""
    tensors: list[Tensor] = []
    for node in graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), lambda a: tensors.append(a) if isinstance(a, Tensor) else a)
    return bool(tensors)


def branch_nodes(inputs: dict[Any, fx.Node], is_warming: bool) -> list[fx.Node] | None:
    """The call of the branch, its first output, its factor, and dropout; None if other code is between them."""
    nodes = [inputs["branch"]]
    for operation in ("__call__", "getitem", *(["mul"] if is_warming else []), "__call__"):
        users = list(nodes[-1].users)
        if len(users) != 1 or operation_of(users[0]) != operation:
            return None
        nodes += users
    is_plain = len(nodes[1].args) == 2 and not nodes[1].kwargs and nodes[-1].args[0] is inputs["dropout"]
    return nodes[1:] if is_plain else None


def join_addition(graph: fx.Graph, connection: nn.Module, a: fx.Node, sublayer: fx.Node, read: Any) -> bool:
    """`u + a` or `norm(u + a)`, the latter also with `r + scale * a`, if nothing else uses `a`, the sub-layer."""
    if not a.users:
        return False
    first, *others = a.users
    norm = norm_after(first, connection)
    if first.kwargs or not is_sum(first, a) or len(others) > (norm is not None):
        return False
    dual: Any = None
    scale: Any = 1.0
    for second in others:
        dual, scale, order = other_of(second, a), second.kwargs.get("alpha", 1.0), list(graph.nodes)
        is_plain = is_sum(second, a) and second.args[1] is a and isinstance(scale, (int, float))
        if not is_plain or order.index(dual) > order.index(first):
            return False
    with graph.inserting_before(first):
        module = None if norm is None else graph.get_attr(str(norm.target))
        sums = graph.call_function(add, (sublayer, module, read, other_of(first, a), dual, scale))
    replace(graph, norm or first, operator.getitem, sums, 0)
    for second in others:
        replace(graph, second, operator.getitem, sums, 1)
    if norm is not None:
        graph.erase_node(first)
    return True


def join_sums(graph: fx.Graph, sums: fx.Node) -> bool:
    """`weighted_sums` of a stack, whose members the kernel reads where they are."""
    inputs: tuple[Any, ...] = sums.args
    weights, members = inputs
    takes_apart = all((user.target, *user.args[1:]) in (("squeeze", -2), ("unbind", -2)) for user in sums.users)
    if operation_of(members) != "stack" or members.kwargs != {"dim": -2} or not takes_apart:
        return False
    with graph.inserting_before(sums):
        outputs = graph.call_function(autograd.weighted_sums, (weights, members.args[0]))
    for user in list(sums.users):
        if user.target == "squeeze":
            replace(graph, user, operator.getitem, outputs, 0)
        else:
            user.replace_all_uses_with(outputs)
            graph.erase_node(user)
    graph.erase_node(sums)
    if not members.users:
        graph.erase_node(members)
    return True


def replace(graph: fx.Graph, node: fx.Node, function: Callable[..., Any], *inputs: Any) -> None:
    with graph.inserting_before(node):
        node.replace_all_uses_with(graph.call_function(function, inputs))
    graph.erase_node(node)


def is_sum(node: fx.Node, a: fx.Node) -> bool:
    """Whether a node adds `a` to another value."""
    return operation_of(node) == "add" and isinstance(other_of(node, a), fx.Node)


def other_of(node: fx.Node, a: fx.Node) -> Any:
    return next((value for value in node.args if value is not a), None) if len(node.args) == 2 else None


def norm_after(node: fx.Node, connection: nn.Module) -> fx.Node | None:
    """The norm that alone reads a node, if kernels compute it."""
    users = list(node.users)
    is_module = len(users) == 1 and users[0].op == "call_module"
    return users[0] if is_module and is_served(connection.get_submodule(str(users[0].target))) else None


def is_served(norm: Any) -> bool:
    return type(norm) in (nn.LayerNorm, RMSNorm) and norm.weight is not None and norm.eps is not None


def call(sublayer: Sublayer, read: Tensor) -> Tensor:
    return sublayer(read)


def add(
    sublayer: Sublayer, norm: Any, read: Tensor, shortcut: Tensor, dual: Tensor | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """`norm(shortcut + a)` and `dual + scale * a`, with the output `a` of the sub-layer that reads `read`."""
    if any(x is not None and x.shape != read.shape for x in (shortcut, dual)):
        a = sublayer(read)
        total, outer = shortcut + a, None if dual is None else torch.add(dual, a, alpha=scale)
        return total if norm is None else norm(total), outer
    branch, rate = sublayer.scaled(read), rate_of(sublayer.dropout)
    if norm is None:
        return autograd.dropout_add(branch, shortcut, rate), None
    bias, centered = getattr(norm, "bias", None), isinstance(norm, nn.LayerNorm)
    weights = norm.weight, bias, norm.eps
    return autograd.dropout_add_norm(branch, shortcut, rate, *weights, centered=centered, dual=dual, dual_scale=scale)


def rate_of(module: nn.Dropout) -> float:
    return module.p if module.training else 0.0
