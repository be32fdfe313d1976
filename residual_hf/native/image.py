# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Structures of the kernels, and the tensors that they point to, as they lie in the memory of WebAssembly."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from ctypes import Array, Structure, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .structures import STRUCTURES

KERNELS = Path(__file__).with_name("kernels.wasm")
"""The library that `setup.py` builds where it finds `ziglang`."""
PANEL_WIDTH = 16
"""Of that library: outputs whose weights are together, see `gemm.h`."""
HALVES = ("tokens", "positions")
"""Fields of `Stack` whose tables are stored in float16, half of their size; JavaScript widens them."""
BYTES = {"int64_t": 8, "uint64_t": 8}
DECLARATION = re.compile(r"(?:const )?(\w+) ([^;]+);")


class Image:
    """The memory of WebAssembly from an address that is only known when it is loaded.

    All fields of a model's structures have 32 bits: integers, floats and addresses.

    Args:
        tensors: those that structures may point to.

    Attributes:
        data: the bytes.
        pointers: places of addresses, which are relative to the first byte.
        halves: for each table in float16 the places of its addresses; the tables are in `tables`.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = {tensor.data_ptr(): tensor for tensor in tensors}
        self.data = bytearray()
        self.pointers: list[int] = []
        self.tables: dict[bytes, Tensor] = {}
        self.halves: dict[bytes, list[int]] = {}
        self._known: dict[bytes, int] = {}

    def add(self, structures: Sequence[Structure]) -> int:
        """Where structures are, one after the other, behind all that they point to."""
        words: list[int] = []
        pointers: list[int] = []
        halves: list[tuple[int, bytes]] = []
        for each in structures:
            self._add_words(each, words, pointers, halves)
        start = self._place(np.array(words, "<u4").tobytes())
        self.pointers += [start + 4 * place for place in pointers]
        for place, key in halves:
            self.halves.setdefault(key, []).append(start + 4 * place)
        return start

    def _add_words(self, value: Any, words: list[int], pointers: list[int], halves: list[tuple[int, bytes]]) -> None:
        for name, kind in value._fields_:
            field = getattr(value, name)
            if isinstance(field, (Structure, Array)):
                for each in [field] if isinstance(field, Structure) else field:
                    self._add_words(each, words, pointers, halves)
                continue
            if isinstance(field, float):
                words += struct.unpack("<I", struct.pack("<f", field))
            elif isinstance(field, int) and kind is not c_void_p:
                words.append(field & 0xFFFFFFFF)
            elif not field:
                words.append(0)
            elif name in HALVES:
                halves.append((len(words), self._half(self.tensors[field])))
                words.append(0)
            else:
                pointers.append(len(words))
                is_tensor = kind is c_void_p
                count = 0 if is_tensor else getattr(value, "layers" if name == "layer" else f"{name}s")
                words.append(self._tensor(self.tensors[field]) if is_tensor else self.add(field[:count]))

    def _half(self, table: Tensor) -> bytes:
        key = hashlib.sha256(table.numpy()).digest()
        self.tables[key] = table
        return key

    def _tensor(self, tensor: Tensor) -> int:
        content = tensor.numpy().tobytes()
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = self._place(content)
        return self._known[key]

    def _place(self, content: bytes) -> int:
        """Append bytes at a multiple of 16."""
        self.data += bytes(-len(self.data) % 16)
        start = len(self.data)
        self.data += content
        return start

    def write(self, path: Path) -> dict[str, Any]:
        """Write the bytes and, behind them, the tables in float16; returns what a loader has to know."""
        self.data += bytes(-len(self.data) % 16)
        tables = [(self.halves[key], table.half().numpy()) for key, table in self.tables.items()]
        path.write_bytes(self.data + b"".join(table.tobytes() for _, table in tables))
        halves = [{"pointers": places, "count": table.size} for places, table in tables]
        return {"bytes": len(self.data), "pointers": self.pointers, "halves": halves}


def layout(name: str) -> dict[str, Any]:
    """Size and fields of a structure in WebAssembly, whose addresses have 32 bits: place and type of each field."""
    place, widest = 0, 4
    fields: dict[str, tuple[int, str]] = {}
    for kind, variables in DECLARATION.findall(STRUCTURES[name]):
        for variable in variables.replace("const", "").split(","):
            (field, *_), is_address = re.findall(r"\w+", variable), "*" in variable
            inner = layout(kind) if kind in STRUCTURES and not is_address else None
            size = inner["size"] if inner else 4 if is_address else BYTES.get(kind, 4)
            align = inner["align"] if inner else size
            place += -place % align
            if inner:
                fields |= {f"{field}.{key}": (place + at, of) for key, (at, of) in inner["fields"].items()}
            else:
                fields[field] = place, "address" if is_address else kind
            place, widest = place + size, max(widest, align)
    return {"size": place + -place % widest, "align": widest, "fields": fields}
