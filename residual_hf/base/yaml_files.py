"""Reads and writes YAML files of plain values. Refuses duplicate keys, unbounded aliases and deep nesting."""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from .errors import InputError, input_errors
from .files import read_text

MAX_DEPTH = 50  # levels of lists and mappings
EXPONENT = re.compile(r"(?<!\d)[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
OCTAL = re.compile("[-+]?0[0-9_]")
LARGEST_YAML = 2**20  # characters
LONGEST_NUMBER = 1_000  # characters; to read more takes their square
UNNAMED = (ArithmeticError, AttributeError, LookupError, TypeError)  # of PyYAML, for values unlike their tag
TEXT = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:binary")
MAX_VALUES = 20_000  # in a file, where an alias counts as often as it is used


def read_yaml(path: Path, name: str = "") -> Any:
    """Plain values from a YAML file, `name` in its folder. Raises `InputError` naming the file and the line."""
    if (path / name).is_file() and path.is_dir():
        raise InputError(f"{path}: is a folder, must be a file such as {path / name}")
    text = read_text(path)
    with input_errors(f"{path}: "):
        return load_yaml(text)


def load_yaml(text: str) -> Any:
    """Plain values from YAML. Raises `InputError` naming the line."""
    if len(text) > LARGEST_YAML:
        raise InputError(f"has {len(text):,} characters, must have at most {LARGEST_YAML:,}")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        marked = [getattr(error, name, None) for name in ("context", "problem")]
        problem = ", ".join(filter(None, marked)) or " ".join(str(error).split())
        raise InputError(f"not a YAML file: {_place(getattr(error, 'problem_mark', None))}{problem}") from error


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 and 1.0e2 as numbers, as YAML 1.2 does; for PyYAML they are text."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.depth = 0
        self.values = 0
        self.sizes: dict[yaml.Node, int] = {}  # node -> values in it, with its aliases replaced

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, values_before = self.peek_event(), self.values
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _refuse(f"nested more than {MAX_DEPTH} levels deep", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is None:
            return None
        if not isinstance(event, yaml.AliasEvent):
            self.values += 1
            self.sizes[node] = self.values - values_before
        elif node not in self.sizes:
            _refuse(f"*{event.anchor} is used inside the value that it names", event)
        else:
            self.values += self.sizes[node]
        if self.values > MAX_VALUES:
            _refuse(f"more than {MAX_VALUES:,} values, counting an alias each time it is used", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    _refuse(f"{key.value!r} is given twice, first in line {lines[key.value]}", key)
                lines[key.value] = key.start_mark.line + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag not in TEXT:
            if len(node.value) > LONGEST_NUMBER:
                _refuse(f"a number of more than {LONGEST_NUMBER:,} characters", node)
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            if kind in ("int", "float") and ":" in node.value or kind == "int" and OCTAL.match(node.value):
                _refuse(f"{node.value} is a number to base 60 or 8 in YAML 1.1; write a decimal, or quote text", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, *UNNAMED) as error:  # a date such as 2026-13-01, `!!bool x`
            _refuse(f"{type(error).__name__}: {error}" if isinstance(error, UNNAMED) else str(error), node)
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            _refuse(r"text with \0 or half of a surrogate pair", node)
        return value


class _Dumper(yaml.SafeDumper):
    """Puts text that `_Loader` would read as a number in quotes."""


for kind in (_Loader, _Dumper):
    kind.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


def dump_yaml(values: Any) -> str:
    """YAML that `load_yaml` reads as the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _refuse(problem: str, place: yaml.Node | yaml.Event) -> NoReturn:
    raise InputError(f"{_place(place.start_mark)}{problem}")


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
