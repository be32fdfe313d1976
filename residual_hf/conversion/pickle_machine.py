# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Execute a pickle on a stack machine of our own, which calls and imports nothing, in time and memory of its size.

What `pickle` and PyTorch would do for a few bytes at any cost is refused: keys whose hash takes hours (tuples of
references to tuples) or is that of other keys (large numbers), and copies of a value that is copied elsewhere.
"""

from __future__ import annotations

import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from .placeholders import Placeholder, stand_in

MAX_OPCODES, MAX_NAMES = 1_000_000, 1_000
ENCODING = "latin1"  # by which protocol 2 writes bytes
MAX_NUMBER = 1 << 2_048
MAX_KEY = 1 << 60  # numbers below are their own hash
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set, "EMPTY_TUPLE": tuple}
LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
MARK = object()


class Machine(ABC):
    """Executes the pickles of a file. A subclass reads storages and adds the functions that make tensors of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, type] = {}
        self.functions: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": self._dict,
            "collections.defaultdict": lambda *arguments: {},
            "collections.Counter": self._dict,
            "builtins.set": self._set_of,
            "builtins.complex": complex,
            "_codecs.encode": self._encode,
        }

    @abstractmethod
    def load(self, identity: Any) -> Any:
        """The storage of a persistent id."""

    def find(self, name: str) -> Any:
        """What stands for a global, from its full name."""
        if name in self.functions:
            return self.functions[name]
        if name not in self.found:
            self.found[name] = stand_in(name, self.path)
            if len(self.found) > MAX_NAMES:
                raise ValueError(f"the pickle names more than {MAX_NAMES:,} classes, a checkpoint has fewer")
        return self.found[name]

    def spend(self, values: int) -> None:
        """Account for the copy of some values or characters: a pickle needs one for each that it holds."""
        self.credit -= values
        if self.credit < 0:
            raise ValueError("copies of a value that is used before")

    def call(self, function: Any, arguments: Any, *, new: bool = False) -> Any:
        """The result of a function or class that was found; `new`: an object without a call of its `__init__`."""
        if not isinstance(arguments, tuple):
            raise ValueError("arguments that are no tuple")
        if not callable(function):
            raise ValueError(f"a call of a {type(function).__name__}")
        self.spend(len(arguments))
        if new and isinstance(function, type):
            return function.__new__(function, *arguments)
        if refusal := getattr(function, "refusal", None):
            raise refusal
        return function(*arguments)

    def build(self, value: Any, state: Any) -> None:
        """Set the state of an object."""
        if isinstance(value, Placeholder):
            value.state = state
        elif not isinstance(value, dict):  # whose attributes, such as `_metadata`, are left out
            raise ValueError(f"a state of a {type(value).__name__}")

    def execute(self, file: BinaryIO) -> Any:
        """The object of the pickle that begins at the position of the file, which moves behind it.

        Raises:
            ValueError: it is damaged or refused; `InputError` for a name that could run code.
        """
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.credit = 0
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
                if count == MAX_OPCODES:
                    raise ValueError(f"more than {MAX_OPCODES:,} instructions, a checkpoint has fewer")
                self.credit += 1 + (len(argument) if isinstance(argument, (str, bytes)) else 0)
                self._step(opcode.name, argument)
            return self.stack[-1]
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in LITERALS:
            if isinstance(argument, int) and abs(argument) >= MAX_NUMBER:
                raise ValueError("a number of more than 2,048 bits")
            stack.append(argument)
        elif name in VALUES:
            stack.append(VALUES[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._marked()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, attribute = argument.split(" ", 1) if name == "GLOBAL" else self._taken(2)
            stack.append(self._global(module, attribute))
        elif name in ("REDUCE", "NEWOBJ"):
            stack.append(self.call(*self._taken(2), new=name == "NEWOBJ"))
        elif name == "BUILD":
            state = stack.pop()
            self.build(stack[-1], state)
        elif name == "BINPERSID":
            stack.append(self.load(stack.pop()))
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._marked() if name == "TUPLE" else self._taken(int(name[-1]))))
        elif name in ("DICT", "LIST"):
            values = self._marked()
            stack.append(values if name == "LIST" else {})
            if name == "DICT":
                self._set(values)
        elif name in ("APPEND", "APPENDS"):
            values = self._marked() if name == "APPENDS" else self._taken(1)
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self._marked() if name == "SETITEMS" else self._taken(2))
        elif name == "ADDITEMS":
            values = self._marked()
            stack[-1].update(map(checked_key, values))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"the instruction {name} is not supported")

    def _taken(self, count: int) -> list[Any]:
        """Remove values from the top of the stack."""
        taken = [self.stack.pop() for _ in range(count)]
        if any(value is MARK for value in taken):
            raise ValueError("a value is missing")
        return taken[::-1]

    def _marked(self) -> list[Any]:
        """Remove the values down to a mark."""
        taken = []
        while (value := self.stack.pop()) is not MARK:
            taken.append(value)
        return taken[::-1]

    def _set(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError(f"an item of a {type(target).__name__}")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[checked_key(key)] = value

    def _global(self, module: Any, attribute: Any) -> Any:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError("a global whose name is no text")
        module, attribute = NAME_MAPPING.get((module, attribute), (module, attribute))  # of Python 2
        return self.find(f"{IMPORT_MAPPING.get(module, module)}.{attribute}")

    def _dict(self, values: Any = ()) -> dict[Any, Any]:
        self.spend(len(values))
        pairs = values.items() if isinstance(values, dict) else values
        return {checked_key(key): value for key, value in pairs}

    def _set_of(self, values: Any = ()) -> set[Any]:
        self.spend(len(values))
        return set(map(checked_key, values))

    def _encode(self, text: str, encoding: str = "") -> bytes:
        if encoding != ENCODING:
            raise ValueError(f"_codecs.encode with another encoding than {ENCODING}")
        self.spend(len(text))
        return text.encode(ENCODING)


def checked_key(key: Any) -> Any:
    """A key of a dictionary or a value of a set. Raises `ValueError` for one whose hash may take any time, or may be
    chosen to be that of others."""
    if isinstance(key, int) and abs(key) >= MAX_KEY:
        raise ValueError("a key of more than 60 bits")
    if isinstance(key, (str, bytes, int, float, NoneType)) or type(key).__hash__ is object.__hash__:
        return key
    raise ValueError(f"a key that is a {type(key).__name__}")
