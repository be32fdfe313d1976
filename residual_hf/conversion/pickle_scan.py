# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Find the names in a pickle, and what would take the memory or the time of the machine, without executing it.

A pickle is a program for a stack machine. The scan follows the stack with a `_Value` for each object, so that it finds
names wherever they were put together. It refuses what PyTorch's unpickler would execute at any cost: compressed
records, tuples of references to tuples (their hash takes hours, or the C stack), codecs, copies of copies.
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

ZIP = b"PK\x03\x04"  # PyTorch only looks at the beginning of a file
LEGACY_PICKLES = 5  # magic number, protocol, system, the object itself, and the keys of its storages
MAX_OPCODES = 1_000_000
MAX_TUPLE = 2_000  # values in a tuple and the tuples in it
MAX_TUPLES = 5_000_000  # values in all tuples, counted each time that one is used
MAX_DEPTH = 50  # of tuples in tuples
ENCODE = "_codecs.encode"  # how protocol 2 writes bytes, always with this encoding:
ENCODING = "latin1"
COPYING = {ENCODE, "builtins.set", "collections.OrderedDict", "collections.Counter", "torch.Size"}


class _Value(NamedTuple):
    """An object on the stack: a text, the name of a global, a tuple with its values, or anything else."""

    content: str | list[_Value] | None = None
    size: int = 1
    depth: int = 0
    referred: bool = False


def pickled_names(file: BinaryIO, path: Path) -> Iterator[str]:
    """`module.name` of every global that a file of `torch.save` names.

    Raises:
        InputError: the file is damaged, has another format, or would take much more memory or time than its size.
    """
    start = file.read(len(ZIP))
    file.seek(0)
    if start == ZIP:
        yield from _names(io.BytesIO(_zipped_pickle(file, path)), path)
    elif start[:1] == pickle.PROTO:
        for _ in range(LEGACY_PICKLES):
            yield from _names(file, path)
    else:
        raise InputError(f"{path}: not a file written by torch.save: neither zip nor pickle")


def _zipped_pickle(file: BinaryIO, path: Path) -> bytes:
    try:
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
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: damaged: {error}") from error


def _names(file: BinaryIO, path: Path) -> Iterator[str]:
    stack: list[_Value | None] = []  # None is a mark
    memo: dict[Any, _Value] = {}
    keys: dict[str, str] = {}
    used = 0
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count == MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES:,} instructions, a checkpoint has fewer")
            if opcode.name == "MARK":
                stack.append(None)
            elif "PUT" in opcode.name or opcode.name == "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1] or _Value()
            else:
                if opcode.name in ("GET", "BINGET", "LONG_BINGET"):
                    made = memo[argument]._replace(referred=True)
                else:
                    taken = _take(stack, opcode)
                    if opcode.name == "BINPERSID":
                        _check_storage(keys, taken[0])
                    made = _made(opcode.name, argument, taken)
                stack += [made] * len(opcode.stack_after)
                used += made.size
                if used > MAX_TUPLES:
                    raise ValueError(f"tuples of more than {MAX_TUPLES:,} values")
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
    if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
        module, _, attribute = str(argument).partition(" ")
        if name == "STACK_GLOBAL":
            module, attribute = (value.content if isinstance(value.content, str) else "?" for value in taken)
        module, attribute = NAME_MAPPING.get((module, attribute), (module, attribute))  # of Python 2
        return _Value(f"{IMPORT_MAPPING.get(module, module)}.{attribute}")
    if name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
        made = _Value(taken, 1 + sum(v.size for v in taken), 1 + max((v.depth for v in taken), default=0))
        if made.size > MAX_TUPLE or made.depth > MAX_DEPTH:
            raise ValueError(f"a tuple of more than {MAX_TUPLE:,} values or {MAX_DEPTH} levels")
        return made
    if name in ("REDUCE", "NEWOBJ", "BUILD") and taken[0].content in COPYING:
        _check_copy(*taken)
        return _Value(taken[0].content)
    return _Value(argument if isinstance(argument, str) else None)


def _check_copy(function: _Value, arguments: _Value) -> None:
    """Refuse what `torch.save` never writes: the copy of a value that is used elsewhere, and would be copied again."""
    values = arguments.content if isinstance(arguments.content, list) else []
    if function.content == ENCODE and [value.content for value in values[1:]] != [ENCODING]:
        raise ValueError(f"{ENCODE} with another encoding than {ENCODING}")
    if arguments.referred or any(value.referred for value in values[:1]):
        raise ValueError(f"{function.content} of a value that is used before")


def _check_storage(keys: dict[str, str], storage: _Value) -> None:
    """Refuse two names of one record: torch ignores case, and would load it twice."""
    key = storage.content[2].content if isinstance(storage.content, list) and len(storage.content) > 2 else None
    if isinstance(key, str) and keys.setdefault(key.lower(), key) != key:
        raise ValueError(f"the storage {key} has two names")
