# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The metadata is in pyproject.toml. Here is the optional library of kernels that `residual_hf.native` loads."""

import platform
from glob import glob

from setuptools import Extension, setup

FOLDER = "residual_hf/native"
KERNELS = Extension(
    "residual_hf.native._kernels",
    sources=sorted(glob(f"{FOLDER}/*.c")),
    depends=sorted(glob(f"{FOLDER}/*.h")),
    extra_compile_args=["-O3", "-std=gnu11"],
    optional=True,  # without a compiler, PyTorch decodes
)

setup(ext_modules=[KERNELS] if platform.machine() in ("x86_64", "AMD64") else [])
