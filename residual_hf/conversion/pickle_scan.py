# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Find the names in a pickle, and what would take the memory or the time of the machine, without executing it.

A pickle is a program for a stack machine. The scan follows the stack with a `_Value` for each object, so that it finds
names wherever they were put together. It refuses what PyTorch's unpickler would execute at any cost: compressed
records, tuples of references to tuples (their hash takes hours, or the C stack), chained codecs.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from residual_hf.base.errors import InputError

LEGACY_PICKLES = 5  # magic number, protocol, system, the object itself, and the keys of its storages
MAX_OPCODES = 1_000_000
MAX_TUPLE = 2_000  # values in a tuple and the tuples in it
MAX_DEPTH = 50  # of tuples in tuples
ENCODE = "_codecs.encode"  # how protocol 2 writes bytes, always with this encoding:
ENCODING = "latin1"


class _Value(NamedTuple):
    """An object on the stack: a text, the name of a global, a tuple with its values, or anything else."""

    content: str | list[_Value] | None = None
    size: int = 1
    depth: int = 0


def pickled_names(file: BinaryIO, path: Path) -> Iterator[str]:
    """`module.name` of every global that a file of `torch.save` names.

    Raises:
        InputError: the file is damaged, has another format, or would take much more memory or time than its size.
    """
    if zipfile.is_zipfile(file):
        yield from _names(io.BytesIO(_zipped_pickle(file, path)), path)
        return
    file.seek(0)
    if file.read(1) != pickle.PROTO:
        raise InputError(f"{path}: not a file written by torch.save: neither zip nor pickle")
    file.seek(0)
    for _ in range(LEGACY_PICKLES):
        yield from _names(file, path)


def _zipped_pickle(file: BinaryIO, path: Path) -> bytes:
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        # torch ignores case
        pickles = [record for record in records if record.filename.rpartition("/")[2].lower() == "data.pkl"]
        if len(pickles) != 1:
            raise InputError(f"{path}: not a zip file written by torch.save: it has no data.pkl")
        compressed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
        if compressed or sum(record.file_size for record in records) > path.stat().st_size:
            raise InputError(f"{path}: not a zip file written by torch.save, which does not compress records")
        return archive.read(pickles[0])


def _names(file: BinaryIO, path: Path) -> Iterator[str]:
    stack: list[_Value | None] = []  # None is a mark
    memo: dict[Any, _Value] = {}
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count == MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES:,} instructions, a checkpoint has fewer")
            if opcode.name == "MARK":
                stack.append(None)
            elif "PUT" in opcode.name or opcode.name == "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1] or _Value()
            elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            else:
                taken = _take(stack, opcode)
                made = _made(opcode.name, argument, taken)
                stack += [made] * len(opcode.stack_after)
                if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL"):
                    yield str(made.content)
                elif opcode.name.startswith("EXT"):
                    yield f"copyreg.extension {argument}"
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"{path}: damaged pickle: {error}") from error


def _take(stack: list[_Value | None], opcode: pickletools.OpcodeInfo) -> list[_Value]:
    """Remove what an instruction takes from the stack, without the mark; the last value is the top of the stack."""
    taken = []
    for kind in reversed(opcode.stack_before):
        if kind is pickletools.stackslice:
            while stack[-1] is not None:
                taken.append(stack.pop())
        else:
            taken.append(stack.pop())
    return [value for value in reversed(taken) if value is not None]


def _made(name: str, argument: Any, taken: list[_Value]) -> _Value:
    """The object that an instruction puts on the stack."""
    if name in ("GLOBAL", "INST"):
        module, _, attribute = str(argument).partition(" ")
        return _Value(_modern_name(module, attribute))
    if name == "STACK_GLOBAL":
        module, attribute = (value.content if isinstance(value.content, str) else "?" for value in taken)
        return _Value(_modern_name(module, attribute))
    if name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
        made = _Value(taken, 1 + sum(v.size for v in taken), 1 + max((v.depth for v in taken), default=0))
        if made.size > MAX_TUPLE or made.depth > MAX_DEPTH:
            raise ValueError(f"a tuple of more than {MAX_TUPLE:,} values or {MAX_DEPTH} levels")
        return made
    if name == "REDUCE" and taken[0].content == ENCODE:
        arguments = taken[1].content
        if not isinstance(arguments, list) or [a.content for a in arguments[1:]] != [ENCODING]:
            raise ValueError(f"{ENCODE} with another encoding than {ENCODING}")
    return _Value(argument if isinstance(argument, str) else None)


def _modern_name(module: str, name: str) -> str:
    """Translate names of Python 2 to those of Python 3."""
    module, name = NAME_MAPPING.get((module, name), (module, name))
    return f"{IMPORT_MAPPING.get(module, module)}.{name}"
