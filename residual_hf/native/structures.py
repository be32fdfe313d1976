"""The structures, functions and constants that `native.h` declares, for ctypes."""

import ctypes
import re
import zlib
from collections.abc import Iterator
from ctypes import CDLL, POINTER, Structure, c_void_p
from pathlib import Path
from typing import Any

HEADER = Path(__file__).with_name("native.h")
CODE = re.sub(r"//.*", "", HEADER.read_text("utf-8"))
STRUCTURES = {name: body for body, name in re.findall(r"typedef struct \{([^}]*)\} (\w+);", CODE)}
ENUMS = {name: re.findall(r"\w+", body.lower()) for body, name in re.findall(r"typedef enum \{(.*)\} (\w+);", CODE)}
CONSTANTS = {name: int(value) for name, value in re.findall(r"(\w+) = (-?\d+)", CODE)}
TYPES: dict[str, Any] = {
    "void": None,
    **{name: getattr(ctypes, f"c_{name}") for name in ("int", "float", "double", "size_t")},
    **{f"{name}_t": getattr(ctypes, f"c_{name}") for name in ("int32", "uint32", "int64", "uint64")},
    **dict.fromkeys(ENUMS, ctypes.c_int),
}


def ctype(kind: str, stars: int) -> Any:
    """The type of a value, of a pointer to structures or to pointers, which takes an array, or of another address."""
    if not stars:
        return TYPES[kind]
    if stars > 1:
        return POINTER(c_void_p)
    return POINTER(TYPES[kind]) if kind in STRUCTURES else c_void_p


def declared(structure: str) -> Iterator[tuple[str, str, int, int | None]]:
    """Name, type, number of stars and length, if it is an array, of each field of a structure."""
    for kind, variables in re.findall(r"(?:const )?(\w+) ([^;]+);", STRUCTURES[structure]):
        for variable in variables.replace("const", "").split(","):
            name, *length = re.findall(r"\w+", variable)
            yield name, kind, variable.count("*"), int(length[0]) if length else None


def fields_of(structure: str) -> list[tuple[str, Any]]:
    found = ((name, ctype(kind, stars), length) for name, kind, stars, length in declared(structure))
    return [(name, own if length is None else own * length) for name, own, length in found]


for _name in STRUCTURES:
    TYPES[_name] = type(_name, (Structure,), {"_fields_": fields_of(_name)})


def __getattr__(name: str) -> Any:
    """Each structure of the header is a class of this module."""
    if name in STRUCTURES:
        return TYPES[name]
    raise AttributeError(name)


def interface_version() -> int:
    """The `interface_version` of a library built with this header: the checksum of the header."""
    return zlib.crc32(HEADER.read_bytes())


def is_current(library: Path) -> bool:
    """Whether a library was built from the sources beside this module; True without them, as in a wheel."""
    sources = sorted(HEADER.parent.glob("[!.]*.[ch]"))
    checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
    return sources == [HEADER] or b"sources %d." % checksum in library.read_bytes()


def declare_functions(library: CDLL) -> None:
    for result, name, parameters in re.findall(r"^(\w+) (\w+)\(([^;]*)\);", CODE, re.MULTILINE):
        kinds = [parameter.split()[0] if "*" not in parameter else "*" for parameter in parameters.split(",")]
        function = getattr(library, name)
        function.argtypes = [c_void_p if kind == "*" else TYPES[kind] for kind in kinds if kind != "void"]
        function.restype = TYPES[result]
