# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of lines of several sentences, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .markup import document_for
from .translator import Hypothesis, Translator


def paragraph_hypotheses(
    translator: Translator,
    lines: Sequence[str],
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    alignments: bool = False,
    **arguments: Any,
) -> list[list[Hypothesis]]:
    """What `Translator.hypotheses` returns, for lines that are split into sentences.

    The k-th translation of a line has the k-th of each sentence, and the mean of their scores. What is between the
    sentences, such as numbers and the signs of lists, stays.
    """
    document = document_for(translator, [[line] for line in lines], source_lang, target_lang)
    arguments |= {"source_lang": source_lang, "target_lang": target_lang}
    found = translator.hypotheses(document.sentences, alignments=alignments, **arguments)
    ranks = zip(*found, strict=True) if found else [()] * arguments.get("count", 1)
    results: list[list[Hypothesis]] = [[] for _ in lines]
    for rank in ranks:
        texts = document.join([best.text for best in rank])
        aligned = document.aligned_texts([best.text for best in rank], [best.alignment for best in rank])
        for result, text, alignment, parts in zip(results, texts, aligned, document.by_block(rank), strict=True):
            known = [best.score for best in parts if best.score is not None]
            score = sum(known) / len(known) if known else None if parts else 0.0
            result.append(Hypothesis("".join(map(str, text)), score, alignment if alignments else None))
    return results
