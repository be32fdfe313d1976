# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""An English-German corpus that the package makes itself, from a small grammar: everyday sentences, correct in both.

The German of a sentence is a function of its English and nearly all words are frequent, so that a small model learns
the corpus in minutes; but it has to learn cases, genders, word order, separable verbs, and numbers turned round.
"""

from residual_hf.data.generated.corpus import MAX_PAIRS, generate_corpus

__all__ = ["MAX_PAIRS", "generate_corpus"]
