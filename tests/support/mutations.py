"""The changes that `support/mutants.py` makes to a syntax tree."""

import ast
from collections.abc import Iterator

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
COMPARISONS = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
ATTRIBUTES = {
    "layer": "index",
    "index": "layer",
    "is_first_in_layer": "is_last_in_layer",
    "is_last_in_layer": "is_first_in_layer",
}
COUNTERS = ("layer", "index", "position", "num_layers", "sublayers_per_layer")
FUNCTIONS = (  # that may be left out
    *("sigmoid", "tanh", "softmax", "log_softmax", "silu", "exp", "sqrt", "log", "floor", "round", "detach"),
    *("dropout", "scaled", "warmed", "transpose", "flatten", "sum", "float", "join", "reversed"),
)
DESCRIPTIONS = ("equation", "source", "bibtex", "warmup", "name")  # of a class
CHECKS = ("strict", "help", "keepdim", "memory_format", "schema", "mutates_args")  # keywords


def mutations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Change the tree in one place after the other, with the line and the text of the change."""
    for container, key, node, scope in places(tree, ()):
        for after in replacements(node, scope):
            if short(after) == short(node):
                continue
            write(container, key, ast.fix_missing_locations(ast.copy_location(after, node)))
            try:
                where = ".".join(parent.name for parent in scope) or "module"
                yield node.lineno, f"{where}: {short(node)}  ->  {short(after)}"
            finally:
                write(container, key, node)


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:90]}..."


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def is_norm(name: str) -> bool:
    return name.endswith(("norm", "norms"))


def write(container, key, value) -> None:
    if isinstance(container, list):
        container[key] = value
    else:
        setattr(container, key, value)


def places(parent: ast.AST, scope: tuple) -> Iterator[tuple]:
    """The nodes below `parent` that compute something: where it is held, the node, and the definitions around it."""
    if isinstance(parent, (ast.ClassDef, ast.FunctionDef)):
        scope = (*scope, parent)
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        held = enumerate(value) if isinstance(value, list) else [(field, value)]
        for key, node in held:
            if isinstance(node, ast.AST) and not is_description(parent, node):
                yield value if isinstance(value, list) else parent, key, node, scope
                yield from places(node, scope)


def is_description(parent: ast.AST, node: ast.AST) -> bool:
    """Imports, docstrings, messages and what a class says about itself."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise, ast.Assert, ast.expr_context)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in CHECKS
    if isinstance(parent, ast.ClassDef) and isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return isinstance(target, ast.Name) and target.id in DESCRIPTIONS
    return False


def replacements(node: ast.AST, scope: tuple) -> Iterator[ast.AST]:
    """What a node is replaced with, one after the other."""
    if scope and isinstance(scope[-1], ast.ClassDef) and is_override(node):
        yield ast.Pass()
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if not any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node)):
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
            yield node.left
            yield node.right
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Compare):
        for operator in COMPARISONS[type(node.ops[0])]:
            yield ast.Compare(node.left, [operator(), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, ast.Compare):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1 and not isinstance(node.elts[0], ast.Constant):
        if not any(isinstance(element, ast.Starred) for element in node.elts[:2]):
            yield ast.Tuple([node.elts[1], node.elts[0], *node.elts[2:]], node.ctx)
    elif isinstance(node, ast.Call):
        yield from calls(node)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from attributes(node, [part for part in scope if isinstance(part, ast.ClassDef)])
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "__init__" not in ast.unparse(node):
        yield ast.Pass()


def calls(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    arguments = node.args
    names = [ast.unparse(argument) for argument in arguments]
    if len(arguments) > 1 and "config" not in names and not names[0].startswith(("*", "'")):
        yield ast.Call(function, [arguments[1], arguments[0], *arguments[2:]], node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in CHECKS:
            yield ast.Call(function, arguments, node.keywords[:i] + node.keywords[i + 1 :])
    if name in FUNCTIONS or is_norm(name):
        is_method = isinstance(function, ast.Attribute) and ast.unparse(function.value) not in (
            *("self", "torch", "math", "init", "nn.functional"),
        )
        if is_method and not is_norm(name):
            yield function.value
        elif arguments:
            yield arguments[0]


def attributes(node: ast.Attribute, classes: list[ast.ClassDef]) -> Iterator[ast.AST]:
    if node.attr in ATTRIBUTES:
        yield ast.Attribute(node.value, ATTRIBUTES[node.attr], node.ctx)
    if node.attr in COUNTERS:
        yield ast.BinOp(node, ast.Add(), ast.Constant(1))
    if is_self(node.value) and is_norm(node.attr):
        for other in sorted({n.attr for part in classes for n in ast.walk(part) if is_own_norm(n)} - {node.attr}):
            yield ast.Attribute(node.value, other, node.ctx)


def is_own_norm(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and is_self(node.value) and is_norm(node.attr)


def is_override(member: ast.AST) -> bool:
    """An attribute or method of a class; without it the inherited one is used."""
    if isinstance(member, ast.FunctionDef):
        return member.name not in ("__init__", "forward")
    return isinstance(member, ast.Assign)
