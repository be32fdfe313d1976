"""Structures of the kernels, and the tensors that they point to, as they lie in the memory of WebAssembly."""

import hashlib
import struct
from collections.abc import Sequence
from ctypes import Array, Structure, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .structures import STRUCTURES, declared

KERNELS = Path(__file__).with_name("kernels.wasm")
"""The library that `setup.py` builds where it finds `ziglang`."""
PANEL_WIDTH = 16
"""Outputs whose weights that library has together, see `gemm.h`."""
TABLES = ("tokens", "positions")
"""Fields of `Stack` whose values are stored in float16, half of their size; JavaScript widens them."""
BYTES = {"int64_t": 8, "uint64_t": 8, "double": 8}


class Image:
    """The memory of WebAssembly from an address that is only known when it is loaded.

    All fields of a model's structures have 32 bits: integers, floats and addresses.

    `tensors`: those that structures may point to.

    Attributes:
        data: the bytes.
        pointers: places of addresses, which are relative to the first byte.
        tables: those in float16, and the places of their addresses.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = {tensor.data_ptr(): tensor.numpy() for tensor in tensors}
        self.data = bytearray()
        self.pointers: list[int] = []
        self.tables: dict[bytes, tuple[np.ndarray, list[int]]] = {}
        self._known: dict[bytes, int] = {}

    def add(self, structures: Sequence[Structure]) -> int:
        """Write structures one after the other; returns where they are."""
        size = layout(type(structures[0]).__name__)["size"]
        start = place = self._append(bytes(size * len(structures)))
        for each in structures:
            place = self._write(each, place)
        return start

    def _write(self, value: Any, place: int) -> int:
        """Write the fields of a structure, or of several, and what they point to; returns where it ends."""
        if isinstance(value, Array):
            for each in value:
                place = self._write(each, place)
            return place
        for name, kind in value._fields_:
            field: Any = getattr(value, name)
            if isinstance(field, (Structure, Array)):
                place = self._write(field, place)
                continue
            word = struct.pack("<f", field) if isinstance(field, float) else bytes(4)
            if kind is c_void_p and field and name in TABLES:
                table = self.tensors[field]
                self.tables.setdefault(hashlib.sha256(table.tobytes()).digest(), (table, []))[1].append(place)
            elif kind is c_void_p and field:
                word = self._link(place, self._tensor(self.tensors[field]))
            elif field and hasattr(kind, "contents"):
                count = getattr(value, "layers" if name == "layer" else f"{name}s")
                word = self._link(place, self.add(field[:count]))
            elif isinstance(field, int) and kind is not c_void_p:
                word = struct.pack("<i", field)
            self.data[place : place + 4] = word
            place += 4
        return place

    def _link(self, place: int, target: int) -> bytes:
        self.pointers.append(place)
        return struct.pack("<I", target)

    def _tensor(self, values: np.ndarray) -> int:
        content = values.tobytes()
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = self._append(content)
        return self._known[key]

    def _append(self, content: bytes) -> int:
        """Append bytes at a multiple of 16; returns where they are."""
        start = len(self.data)
        self.data += content + bytes(-len(content) % 16)
        return start

    def write(self, path: Path) -> dict[str, Any]:
        """Write the bytes and, behind them, the tables; returns what a loader has to know."""
        tables = [(places, values.astype("<f2")) for values, places in self.tables.values()]
        path.write_bytes(b"".join([self.data, *(values.tobytes() for _, values in tables)]))
        halves = [{"pointers": places, "count": values.size} for places, values in tables]
        return {"bytes": len(self.data), "size": path.stat().st_size, "pointers": self.pointers, "halves": halves}


def layout(name: str) -> dict[str, Any]:
    """Size and fields of a structure in WebAssembly, whose addresses have 32 bits: place and type of each field."""
    place, widest = 0, 4
    fields: dict[str, tuple[int, str]] = {}
    for field, kind, stars, length in declared(name):
        inner = layout(kind) if kind in STRUCTURES and not stars else None
        size = inner["size"] if inner else 4 if stars else BYTES.get(kind, 4)
        align = inner["align"] if inner else size
        place += -place % align
        if inner:
            fields |= {f"{field}.{key}": (place + at, of) for key, (at, of) in inner["fields"].items()}
        else:
            fields[field] = place, "address" if stars else kind
        place, widest = place + size * (length or 1), max(widest, align)
    return {"size": place + -place % widest, "align": widest, "fields": fields}
