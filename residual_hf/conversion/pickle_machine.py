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
from types import NoneType
from typing import Any, BinaryIO

MAX_OPCODES = 1_000_000
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
    """Executes pickles. A subclass says what stands for globals, calls, states of objects and storages."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.credit = 0

    @abstractmethod
    def find(self, name: str) -> Any:
        """What stands for a global, from its full name."""

    @abstractmethod
    def call(self, function: Any, arguments: tuple) -> Any:
        """The result of a function or class that was found."""

    @abstractmethod
    def make(self, cls: Any, arguments: tuple) -> Any:
        """An object of a class that was found, without a call of its `__init__`."""

    @abstractmethod
    def build(self, value: Any, state: Any) -> None:
        """Set the state of an object."""

    @abstractmethod
    def load(self, identity: Any) -> Any:
        """The storage of a persistent id."""

    def spend(self, values: int) -> None:
        """Account for the copy of some values or characters: a pickle needs one for each that it holds."""
        self.credit -= values
        if self.credit < 0:
            raise ValueError("copies of a value that is used before")

    def execute(self, file: BinaryIO) -> Any:
        """The object of the pickle that begins at the position of the file, which moves behind it.

        Raises:
            ValueError: it is damaged or refused; and what the methods of the subclass raise.
        """
        self.stack, self.memo, self.credit = [], {}, 0
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
            function, arguments = self._taken(2)
            if not isinstance(arguments, tuple):
                raise ValueError("arguments that are no tuple")
            stack.append((self.make if name == "NEWOBJ" else self.call)(function, arguments))
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


def checked_key(key: Any) -> Any:
    """A key of a dictionary or a value of a set. Raises `ValueError` for one whose hash may take any time, or may be
    chosen to be that of others."""
    if isinstance(key, int) and abs(key) >= MAX_KEY:
        raise ValueError("a key of more than 60 bits")
    if isinstance(key, (str, bytes, int, float, NoneType)) or type(key).__hash__ is object.__hash__:
        return key
    raise ValueError(f"a key that is a {type(key).__name__}")
