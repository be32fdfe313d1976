# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Read pickled checkpoints without running code from them.

One reader takes the zip file, or the pickles of PyTorch before 1.6, apart and executes the pickle on a `Machine`, so
that what is checked is what is loaded. It makes tensors and plain containers; objects of other classes become
`Placeholder`s. No module is imported for a pickle.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from abc import abstractmethod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded
from residual_hf.model.options import shortened

from .pickle_machine import Machine, checked_key

STORAGE = re.compile(r"torch\.(?:cuda\.)?(\w+)Storage|torch\.storage\.(\w+)Storage")
DTYPE = re.compile(r"torch\.(bool|u?int\d+|b?float\d+)")
STORED = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "Untyped": torch.uint8,
}
ZIP = b"PK\x03\x04"
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001  # of the files of PyTorch before 1.6
MAX_DIMENSIONS = 64


def load_pickle(path: str | Path) -> Any:
    """Load an object written by `torch.save` to the CPU, in the zip format or in that of PyTorch before 1.6.

    Raises:
        InputError: the file is missing, damaged or has another format, or the pickle names a function or class that
            could run code, or would take much more memory or time than its size.
    """
    path = expanded(path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(ZIP))
            file.seek(0)
            if start == ZIP:
                return _ZipReader(path, file).read()
            if start[:1] == pickle.PROTO:
                return _LegacyReader(path, file).read()
            raise InputError(f"{path}: not a file written by torch.save: neither zip nor pickle")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except InputError:
        raise
    except (
        ValueError,
        TypeError,
        RuntimeError,
        EOFError,
        MemoryError,
        zipfile.BadZipFile,
    ) as error:  # also of PyTorch and zipfile
        where = "damaged" if isinstance(error, zipfile.BadZipFile) else "damaged pickle"
        raise InputError(f"{path}: {where}: {shortened(str(error), 300)}") from error


class _Reader(Machine):
    """Executes the pickle of a checkpoint; a subclass knows where its storages are."""

    def __init__(self, path: Path, file: BinaryIO):
        super().__init__(path)
        self.file, self.size = file, path.stat().st_size
        self.storages: dict[str, Tensor] = {}
        self.functions |= {
            "torch.Size": self._size,
            "torch.device": lambda name, *more: name,
            "torch.nn.parameter.Parameter": lambda data, *more: data,
            "torch._utils._rebuild_parameter": lambda data, *more: data,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._typed_tensor,
        }

    @abstractmethod
    def storage(self, key: str, dtype: torch.dtype, size: int) -> bytearray:
        """The bytes of a storage, read now or later."""

    def find(self, name: str) -> Any:
        if (storage := STORAGE.fullmatch(name)) and (storage[1] or storage[2]) in STORED:
            return STORED[storage[1] or storage[2]]
        dtype = getattr(torch, name.removeprefix("torch."), None) if DTYPE.fullmatch(name) else None
        return dtype if isinstance(dtype, torch.dtype) else super().find(name)

    def load(self, identity: Any) -> Any:
        kind, dtype, key, _, size, *view = identity
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str) or any(view):
            raise ValueError("a storage that is described in another way than by torch.save")
        if key not in self.storages:
            buffer = self.storage(key, dtype, size)
            self.storages[key] = torch.frombuffer(buffer, dtype=dtype) if buffer else torch.empty(0, dtype=dtype)
        storage = self.storages[key]
        if (storage.dtype, len(storage)) != (dtype, size):
            raise ValueError(f"the storage {key} has two types or sizes")
        return storage

    def _tensor(self, storage: Tensor, offset: int, size: tuple, stride: tuple, *more: Any) -> Tensor:
        """A view of a storage in which no two places are the same."""
        if len(size) > MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {len(size):,} dimensions")
        last, reached = offset, 0
        for step, length in sorted(zip(stride, size, strict=True)):
            last += step * (length - 1)
            if length > 1 and step <= reached:
                raise ValueError(f"a tensor of {math.prod(size):,} values in a storage of {len(storage):,}")
            reached += step * max(length - 1, 0)
        if min(offset, *size, *stride, 0) < 0 or (0 not in size and last >= len(storage)):
            raise ValueError(f"a tensor beyond its storage of {len(storage):,} values")
        return storage.as_strided(size, stride, offset)

    def _typed_tensor(self, storage: Tensor, offset: int, size: tuple, stride: tuple, *more: Any) -> Tensor:
        dtype = more[2]  # after requires_grad and hooks
        if not isinstance(dtype, torch.dtype):
            raise ValueError("a tensor without a type")
        return self._tensor(storage.view(dtype), offset, size, stride)

    def _size(self, values: Any = ()) -> tuple[Any, ...]:
        self.spend(len(values))
        return tuple(values)


class _ZipReader(_Reader):
    """A zip file with the pickle and a record for each storage."""

    def read(self) -> Any:
        with zipfile.ZipFile(self.file) as self.archive:
            records = self.archive.infolist()
            pickles = [record for record in records if record.filename.rpartition("/")[2].lower() == "data.pkl"]
            if len(pickles) != 1:
                raise InputError(f"{self.path}: not a zip file written by torch.save: it has no data.pkl")
            compressed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
            if compressed or sum(record.file_size for record in records) > self.size:
                raise InputError(f"{self.path}: not a zip file written by torch.save, which does not compress records")
            self.folder = pickles[0].filename.removesuffix("data.pkl")
            self.records = {record.filename: record for record in records}
            order = self.records.get(f"{self.folder}byteorder")
            if order and self.archive.read(order) != b"little":
                raise InputError(f"{self.path}: written by a machine with another order of bytes")
            with self.archive.open(pickles[0]) as file:
                return self.execute(io.BytesIO(file.read()))

    def storage(self, key: str, dtype: torch.dtype, size: int) -> bytearray:
        record = self.records.get(f"{self.folder}data/{key}")
        if record is None or record.file_size != size * dtype.itemsize:
            raise ValueError(f"the storage {key} is missing or has another size")
        with self.archive.open(record) as file:
            return bytearray(file.read())


class _LegacyReader(_Reader):
    """Pickles of a magic number, a version, the system, the object, and the keys of its storages, which follow."""

    def read(self) -> Any:
        if [self.execute(self.file), self.execute(self.file)] != [MAGIC, VERSION]:
            raise ValueError("not one of torch.save")
        self.execute(self.file)
        self.buffers: dict[str, bytearray] = {}
        self.promised = 0  # bytes
        loaded, keys = self.execute(self.file), self.execute(self.file)
        if len(keys) != len(self.buffers) or set(map(checked_key, keys)) != self.buffers.keys():
            raise ValueError("other storages than those of its tensors")
        for key in keys:
            buffer = self.buffers[key]
            size = int.from_bytes(self.file.read(8), "little")
            content = self.file.read(len(buffer))
            if size != len(self.storages[key]) or len(content) != len(buffer):
                raise ValueError(f"the storage {key} is cut or has another size")
            buffer[:] = content
        if self.file.read(1):
            raise ValueError("more than its storages")
        return loaded

    def storage(self, key: str, dtype: torch.dtype, size: int) -> bytearray:
        self.promised += size * dtype.itemsize
        if self.promised > self.size:
            raise ValueError(f"the storage {key} is larger than the file")
        return self.buffers.setdefault(key, bytearray(size * dtype.itemsize))
