# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""BLEU of WMT'14 en-de as Vaswani et al. 2017 and papers that compare with them compute it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from residual_hf.base.errors import requires

from .metrics import Lines, language_code, tokenized_bleu

HYPHEN = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True)
class CompoundBLEU:
    """Cased BLEU of Moses tokens whose compounds are split at hyphens, which counts more matches.

    The procedure of `get_ende_bleu.sh` of tensor2tensor (B2T, footnote 7), except that it has references that were
    tokenized before; here Moses tokenizes both sides.

    Args:
        language: of the rules of the tokenizer.

    Raises:
        InputError: `sacremoses` is not installed.
    """

    language: str = "de"
    is_fast: ClassVar[bool] = False

    def __post_init__(self) -> None:
        with requires("moses"):
            import sacremoses  # noqa: F401

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The score as `compound_bleu`; sources are not used."""
        return {"compound_bleu": tokenized_bleu(self.split(predictions), self.split(references)).value}

    def split(self, lines: Lines) -> list[str]:
        """The tokens of lines, joined by spaces: `Ost-West` becomes `Ost ##AT##-##AT## West`."""
        from sacremoses import MosesTokenizer

        moses = MosesTokenizer(lang=language_code(self.language))
        return [HYPHEN.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(line, return_str=True)) for line in lines]
