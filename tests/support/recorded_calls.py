"""Plugin of pytest that writes the calls of kernels to a file, for `tests/native/replay.c` on another CPU.

    PYTHONMALLOC=malloc RECORDED_CALLS=path pytest -p support.recorded_calls ...

A call is the name of a function, its arguments and the memory that they refer to, before and after. Pointers are
written as a block of memory and a place in it. See `write_call` for the format.
"""

import ctypes
import gc
import os
import struct
from ctypes import POINTER, Array, Structure, addressof, c_float, c_size_t, c_void_p, sizeof, string_at
from functools import cache

import torch

from residual_hf import native
from residual_hf.native.structures import Linear
from residual_hf.native.weights import LargePages

KINDS = {torch.float32: 1, torch.bfloat16: 2, torch.uint8: 0}
OTHER = 3  # words that are numbers of 32 bits or halves of integers
malloc_usable_size = ctypes.CDLL(None).malloc_usable_size
malloc_usable_size.restype, malloc_usable_size.argtypes = c_size_t, [c_void_p]


class Memory:
    """The blocks of memory to which the arguments of a call refer, and the pointers inside them."""

    def __init__(self):
        self.blocks: list[tuple[int, int, int]] = []  # address, bytes, kind
        self.pointers: list[tuple[int, int, int, int]] = []  # block and place of a pointer, and of what it refers to
        self.is_exact = True
        storages = ((t.untyped_storage(), t.dtype) for t in gc.get_objects() if isinstance(t, torch.Tensor))
        self.storages = {s.data_ptr(): (s.nbytes(), KINDS.get(dtype, OTHER)) for s, dtype in storages if s.nbytes()}

    def block(self, address: int, size: int, kind: int) -> int:
        if (address, size, kind) not in self.blocks:
            self.blocks.append((address, size, kind))
        return self.blocks.index((address, size, kind))

    def place(self, address: int) -> tuple[int, int]:
        """The block that holds an address, and where. What is not of PyTorch is a whole block of `malloc`."""
        for start, (size, kind) in self.storages.items():
            if start <= address < start + size:
                return self.block(start, size, kind), address - start
        return self.block(address, malloc_usable_size(address), OTHER), 0

    def add(self, value: Structure | Array) -> int:
        block = self.block(addressof(value), sizeof(value), OTHER)
        self.follow(value, block, 0)
        return block

    def follow(self, value: object, block: int, at: int) -> None:
        """Find the pointers in a value at a place of a block."""
        if isinstance(value, Linear) and value.type:
            self.is_exact = False
        if isinstance(value, Structure):
            for name, kind in value._fields_:
                field, offset = getattr(value, name), at + getattr(type(value), name).offset
                if kind is c_void_p and field:
                    self.pointers.append((block, offset, *self.place(field)))
                elif isinstance(field, (Structure, Array)):
                    self.follow(field, block, offset)
                elif issubclass(kind, ctypes._Pointer) and field:
                    self.follow_array(value, name, kind, block, offset)
        elif isinstance(value, Array) and issubclass(value._type_, (Structure, c_void_p)):
            for i, item in enumerate(value):
                if isinstance(item, Structure):
                    self.follow(item, block, at + i * sizeof(value._type_))
                elif item:
                    self.pointers.append((block, at + 8 * i, *self.place(item)))

    def follow_array(self, owner: Structure, name: str, kind: type, block: int, offset: int) -> None:
        counts = {
            "self_cache": 0,
            "cache": 0,
            "data": "tensors",
            "operation": "operations",
            "term": "terms",
            "layer": "layers",
            "tallies": "rows",
            "rule": "rules",
        }
        counts |= {"member": "members", "grad_member": "members", "output": "outputs", "grad_output": "outputs"}
        pointer = getattr(owner, name)
        address = ctypes.cast(pointer, c_void_p).value
        size = self.storages[address][0] if address in self.storages else malloc_usable_size(address)
        count = 1 if name == "listed" else getattr(owner, counts[name]) if counts[name] else size // 8
        array = ctypes.cast(pointer, POINTER(kind._type_ * count)).contents
        self.pointers.append((block, offset, self.add(array), 0))

    def contents(self) -> list[bytes]:
        return [string_at(address, size) for address, size, _ in self.blocks]


class RecordedLibrary:
    """A library of kernels whose calls are written to a file."""

    def __init__(self, library: ctypes.CDLL, path: str):
        self.library, self.path = library, path

    def __getattr__(self, name):
        function = getattr(self.library, name)
        if name in ("instruction_set", "panel_width"):
            return function

        def call(*arguments):
            memory, values, floats = Memory(), [], []
            for kind, value in zip(function.argtypes, arguments, strict=True):
                value = getattr(value, "_obj", value)
                if kind is c_float:
                    floats.append(float(value))
                elif kind is not c_void_p or not value:
                    values.append((int(value or 0), -1))
                elif isinstance(value, int):
                    values.append(memory.place(value)[::-1])
                else:
                    values.append((0, memory.add(value)))
            before = memory.contents()
            result = function(*arguments)
            with open(self.path, "ab") as file:
                file.write(write_call(name, memory, values, floats, before, function.restype, result))
            return result

        return call


def write_call(name, memory, values, floats, before, restype, result) -> bytes:
    """Integers of 64 bits, besides the name, floats (two) and the contents of the blocks, before and after."""
    parts = [struct.pack("<32s2f", name.encode(), *(floats + [0.0, 0.0])[:2])]
    numbers = [restype is not None, result or 0, not memory.is_exact, len(values), len(before), len(memory.pointers)]
    parts.append(struct.pack("<6q", *numbers))
    parts += [struct.pack("<2q", *value) for value in values]
    for (_, size, kind), old, new in zip(memory.blocks, before, memory.contents(), strict=True):
        parts += [struct.pack("<2q", size, kind), old, new]
    parts += [struct.pack("<4q", *pointer) for pointer in memory.pointers]
    return b"".join(parts)


LargePages.BLOCK = 0  # weights of a linear map are memory of their own: a call is written with all that it refers to
load = native._load.__wrapped__


@cache
def recorded():
    library, report = load()
    return RecordedLibrary(library, os.environ["RECORDED_CALLS"]), report


native._load = recorded
gc.collect()
gc.freeze()  # what exists already is not searched
