"""Regular expressions take time in proportion to the text, whatever it is."""

import ast
import importlib
import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import regex

import residual_hf
from residual_hf.model.placeholders import PLACEHOLDER

PACKAGE = Path(residual_hf.__file__).parent
COMPILED = (re.Pattern, regex.Pattern)
SEARCHES = {"search", "finditer", "findall", "sub", "subn", "split"}
OWN_TEXT = ("residual_hf.native", "residual_hf.hub.citations")
"""Modules whose patterns read files of the package only."""
LEVELS = ((2_000, 0.0006), (8_000, 0.006), (32_000, 0.1))
"""Characters of a text and the seconds below which a pattern is linear; longer texts decide about slower ones."""
GROWTH = 8
"""Times that the longest text may take of the time of the second: a quarter of it, 4 if linear, 16 if quadratic."""
SAMPLES = 200
TEXTS, OF_COMPOSED = 150, 30
"""Texts of a pattern that are tried unless slow tests run, and of one that has `PLACEHOLDER` in it."""


def sources():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        yield name, path.read_text(encoding="utf-8")


def searched_names(text):
    """Names of patterns that a module searches for; it only matches others with the beginning of a text."""
    return {name for name, method in re.findall(r"\b([A-Z][A-Z_\d]*)\.(\w+)\b", text) if method in SEARCHES}


def patterns_in(value):
    if isinstance(value, COMPILED):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from patterns_in(each)


def literal_patterns(text):
    """Patterns in calls of functions of `re` and `regex`, and whether they are searched for."""
    for node in ast.walk(ast.parse(text)):
        function = getattr(node, "func", None)
        if not (isinstance(function, ast.Attribute) and getattr(function.value, "id", "") in ("re", "regex")):
            continue
        has_flags = function.attr == "compile" and len(node.args) > 1  # in a variable, with its flags
        if node.args and isinstance(node.args[0], ast.Constant) and function.attr != "escape" and not has_flags:
            yield node.args[0].value, function.attr in SEARCHES


def all_patterns():
    """Every pattern of the package that is in a module, a container in it or a call, with its place."""
    found = {}
    for name, text in sources():
        if not re.search(r"^\s*import (re|regex)$", text, re.MULTILINE) or name.startswith(OWN_TEXT):
            continue
        with suppress(ImportError):  # of an optional library
            for variable, value in vars(importlib.import_module(name)).items():
                searched = not isinstance(value, COMPILED) or variable in searched_names(text)
                for pattern in patterns_in(value):
                    before = found.get(pattern, (f"{name}.{variable}", False))
                    found[pattern] = before[0], before[1] or searched
        for pattern, searched in literal_patterns(text):
            compiled = (regex if r"\p{" in str(pattern) else re).compile(pattern)
            found.setdefault(compiled, (f"{name}:{pattern!r}"[:60], searched))
    return [pytest.param(pattern, *rest, id=rest[0]) for pattern, rest in found.items()]


def seconds(pattern, parts, length, searched):
    first, part, last = parts
    text = first + part * (length // len(part)) + last
    text = text.encode() if isinstance(pattern.pattern, bytes) else text
    started = time.process_time()
    if searched:
        for _ in pattern.finditer(text):
            pass
    else:
        pattern.match(text)
        pattern.fullmatch(text)
    return time.process_time() - started


def hostile(pattern):
    """Beginnings, parts to repeat, and ends, of what a pattern has in it."""
    written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    words = re.findall(r"(?<!\\)[A-Za-z]{2,}", written)
    signs = {*re.sub(r"\\[A-Za-z]|\w", "", written)} & {*map(chr, range(128))}
    parts = [*sorted(signs), "a", "A", "0", " ", "\n", "é", "漢", *sorted(set(words), key=len)[-8:]]
    for first, second in product(["", *parts], parts):
        yield first, second, "\0"
        yield "", first + second, "\0"
    draw = random.Random(ascii(written))
    for _ in range(SAMPLES):
        yield tuple("".join(draw.choices(parts, k=draw.randint(*most))) for most in ((0, 3), (1, 3), (0, 2)))


ALL_PATTERNS = all_patterns()


@pytest.mark.parametrize(("pattern", "place", "searched"), ALL_PATTERNS)
def test_a_pattern_is_linear(pattern, place, searched):
    texts = list(hostile(pattern))
    is_composed = len(str(pattern.pattern)) > len(PLACEHOLDER.pattern) and PLACEHOLDER.pattern in str(pattern.pattern)
    check_linear(
        pattern,
        place,
        searched,
        random.Random(1).sample(texts, min(len(texts), OF_COMPOSED if is_composed else TEXTS)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "place", "searched"), ALL_PATTERNS)
def test_a_pattern_is_linear_for_all_texts(pattern, place, searched):
    check_linear(pattern, place, searched, hostile(pattern))


def check_linear(pattern, place, searched, texts):
    for parts in texts:
        if all(seconds(pattern, parts, length, searched) >= allowed for length, allowed in LEVELS):
            lengths = [length for length, _ in LEVELS[1:]]
            shorter, longer = (min(seconds(pattern, parts, length, searched) for _ in range(3)) for length in lengths)
            assert longer < GROWTH * shorter, f"{place}: {shorter:.2f} and {longer:.2f} s for {parts}"


def test_a_pattern_of_quadratic_time_is_found():
    with pytest.raises(AssertionError, match="here"):
        check_linear(re.compile("a*b"), "here", True, [("", "a", "\0")])
