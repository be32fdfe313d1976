"""A generated English-German corpus about bears who lend umbrellas and kings who lose crowns.

The German of a sentence is a function of its English, so a small model can learn the corpus in minutes; it has to
learn case, gender and number, separable verbs, the place of the verb, and numbers that are read backwards.
"""

from .generator import MAX_PAIRS, generate_corpus

__all__ = ["MAX_PAIRS", "generate_corpus"]
