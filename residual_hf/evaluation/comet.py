# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""COMET through its command line: its library requires versions of Transformers and numpy that this package does not
run with, so it is installed in an environment of its own (`pipx install unbabel-comet`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from residual_hf.base.errors import InputError
from residual_hf.data.text_files import one_line

from .metrics import Lines

PROGRAM = "comet-score"


@dataclass(frozen=True)
class Comet:
    """A COMET model (Rei et al. 2020): a name on the Hub, or a file `*.ckpt`.

    Raises:
        InputError: the program `comet-score` is not installed, or fails.
    """

    model: str = "Unbabel/wmt22-comet-da"
    is_fast: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if shutil.which(PROGRAM) is None:
            raise InputError(
                f"evaluation.metrics: comet needs the program {PROGRAM}, which is not on the PATH: "
                "pipx install unbabel-comet (in its own environment, because it requires Transformers 4)"
            )

    def compute(self, predictions: Lines, references: Lines, sources: Lines) -> dict[str, float]:
        """The mean score of the sentences, by the name of the model."""
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "scores.json"
            options = ["--model", self.model, "--gpus", str(int(torch.cuda.is_available()))]
            texts = {"sources": sources, "translations": predictions, "references": references}
            for name, lines in texts.items():
                file = Path(folder) / name
                file.write_text("".join(f"{one_line(line)}\n" for line in lines), encoding="utf-8")
                options += [f"--{name}", str(file)]
            options += ["--quiet", "--only_system", "--to_json", str(result)]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run([PROGRAM, *options], capture_output=True, text=True, env=environment)
            if done.returncode or not result.is_file():
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise InputError(f"evaluation.metrics: {PROGRAM} --model {self.model} failed: {last}")
            (segments,) = json.loads(result.read_text(encoding="utf-8")).values()
        return {self.model: sum(segment["COMET"] for segment in segments) / len(segments)}
