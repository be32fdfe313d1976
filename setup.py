# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The metadata is in pyproject.toml. Here is the optional library of kernels that `residual_hf.native` loads."""

import platform
import zlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("residual_hf/native")
KERNELS = Extension(
    "residual_hf.native._kernels",
    sources=sorted(map(str, FOLDER.glob("*.c"))),
    depends=sorted(map(str, FOLDER.glob("*.h"))),
    define_macros=[("INTERFACE", f"{zlib.crc32((FOLDER / 'native.h').read_bytes())}u")],
    extra_compile_args=["-O3", "-std=gnu11", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,  # without a compiler, PyTorch decodes
)

setup(ext_modules=[KERNELS] if platform.machine() in ("x86_64", "AMD64") else [])
