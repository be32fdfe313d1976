"""What the translation of a sentence must have: terms of a glossary, and placeholders.

A search without demands comes first. What it lacks becomes phrases of a second one, see
`residual_hf.model.constraints`, and the best of both are chosen.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import accumulate, compress
from typing import Any, NamedTuple

from residual_hf.base.errors import InputError
from residual_hf.data.glossary import Glossary, form_of, letters_after, occurs
from residual_hf.data.scripts import UNSPACED
from residual_hf.model.alignment import align
from residual_hf.model.constraints import LettersAdded, length_of
from residual_hf.model.decoding import FastGenerationMixin
from residual_hf.model.placeholders import PLACEHOLDER_TOKENS
from residual_hf.model.translation_inputs import TAG_PATTERN, TranslationInputs

from .aligned_pair import SentencePair
from .decode import Candidate, rescored, to_text
from .inline import Inline
from .projection import Node, project

Candidates = Sequence[Candidate]
SENTENCE_ENDS = ".!?…。！？ "
MOST_TERM_TOKENS = 60
"""Of the terms of a sentence that are searched for; the time grows with their square."""


class Demands(NamedTuple):
    """What the translation of a sentence, with the tokens `ids`, must have.

    `terms`: the translations of each term, of which one is enough; `tokens`: those of placeholders.
    """

    sentence: str
    ids: Sequence[int]
    terms: list[tuple[str, ...]]
    tokens: list[str]

    def lacking(self, text: str) -> int:
        """The number of terms and tokens that a translation lacks."""
        missing = (not any(occurs(target, text) for target in targets) for targets in self.terms)
        return sum(missing) + sum(token not in text for token in self.tokens)


def finds_phrases(model: Any) -> bool:
    """Whether the search of this package, which finds translations with given phrases, runs for a model."""
    is_off = getattr(getattr(model, "generation_config", None), "fast_decoding", None) is False
    return isinstance(model, FastGenerationMixin) and not is_off and model._computes_as_defined()


def check_glossary_use(model: Any) -> None:
    """Raise `InputError` unless a model can translate with a glossary."""
    if not getattr(model.config, "term_tags", False) and not finds_phrases(model):
        raise InputError(
            "glossary: only a model that was trained with data.glossary reads one everywhere; for others the search "
            "of this package uses it, on a CPU (--device cpu), not the loop in which Transformers runs "
            f"{type(model).__name__} on {model.device.type}"
        )


class DemandedPhrases:
    """Makes phrases of the demands of sentences, and chooses among the candidates of both searches.

    `glossary`: None if the model reads its terms in the source.
    """

    def __init__(self, model: Any, tokenizer: Any, inputs: TranslationInputs, glossary: Glossary | None):
        self.model, self.tokenizer, self.inputs, self.glossary = model, tokenizer, inputs, glossary

    def demands(self, sentence: str, ids: Sequence[int], *, placeholders: bool) -> Demands:
        """The demands on a translation of a sentence, with or without the tokens of placeholders."""
        terms = self.glossary.find(sentence) if self.glossary is not None else ()
        edits = self.inputs.edited(sentence).edits if placeholders else ()
        tokens = [token for token in PLACEHOLDER_TOKENS if any(edit.new == token for edit in edits)]
        return Demands(sentence, ids, list(dict.fromkeys(term.targets for term in terms)), tokens)

    def phrases(self, demands: Demands, candidates: Candidates) -> list[list[list[int]]]:
        """What a sentence demands, as token ids; none if nothing is missing in the candidates.

        A translation may begin with a capital, as at the beginning of a sentence, or have the ending that it has in a
        candidate.
        """
        texts = self._texts(candidates) if demands.terms or demands.tokens else []
        if not any(map(demands.lacking, texts)):
            return []
        numbers = [number for row in self.inputs.target_ids(demands.tokens) for number in row]
        phrases = [[[n]] for n in numbers if self.tokenizer.convert_ids_to_tokens(n) in demands.tokens]
        for targets in demands.terms:
            found = (form_of(target, text) for target in targets for text in texts)
            capital = (target[0].upper() + target[1:] for target in targets)
            forms = list(dict.fromkeys([*targets, *capital, *filter(None, found)]))
            known = [row for row in self.spellings(forms) if row and self.tokenizer.unk_token_id not in row]
            if known:
                phrases.append(known)
        sizes = accumulate(map(length_of, phrases))
        return [phrase for phrase, size in zip(phrases, sizes, strict=True) if size <= MOST_TERM_TOKENS]

    def spellings(self, forms: Sequence[str]) -> list[list[int]]:
        """The tokens of words at the beginning of a text and within one, in some scripts without a space before."""
        found = self.inputs.target_ids(forms)
        unspaced = [form for form in forms if UNSPACED.match(form)]
        for before, own in (("a ", forms), ("。", unspaced)):
            (start,) = self.inputs.target_ids([before.strip()])
            rows = self.inputs.target_ids([before + form for form in own])
            found += [row[len(start) :] for row in rows if row[: len(start)] == start]
        return [list(row) for row in dict.fromkeys(map(tuple, found))]

    @cached_property
    def letters_added(self) -> LettersAdded:
        """Tells in which tokens words go on."""

        @cache
        def letters_added(last: int, token: int) -> int:
            before, both = to_text(self.tokenizer, [[last], [last, token]])
            return 0 if before in PLACEHOLDER_TOKENS else letters_after(before, both[len(before) :])

        return letters_added

    def chosen(
        self, demands: Demands, free: Candidates, forced: Candidates, *, scores: bool, length_penalty: float
    ) -> list[Candidate]:
        """The candidates of the search for phrases, or the `free` ones if it has found none of these.

        Those that only have terms behind a free one, which they begin with, are replaced by the free one with the
        terms in the place of words: a model that never saw a term writes its sentence to the end before it.
        """
        before, after = self._texts(free), self._texts(forced)
        lacked, lacks = list(map(demands.lacking, before)), demands.lacking(after[0])
        if lacks and lacks >= lacked[0]:
            return list(free)
        beginnings = tuple(text.rstrip(SENTENCE_ENDS) for text in compress(before, lacked))
        found: list[Candidate] = []
        for row, text in enumerate(after):
            best = forced[row]
            if text.startswith(beginnings if row else beginnings[:1]):
                best = (self._with_terms(demands, free[row], before[row]) or best) if lacked[row] else free[row]
            known = [other.ids for other in found]
            found.append(next((one for one in (best, forced[row], *forced) if one.ids not in known), best))
        return self._ranked(demands, found, length_penalty) if scores or len(found) > 1 else found

    def _with_terms(self, demands: Demands, free: Candidate, before: str) -> Candidate | None:
        """A candidate, whose text is `before`, with missing terms in the place of words; None if there are none."""
        read = self.inputs.edited(demands.sentence).text
        root = Node(None, 0, len(read))
        for term in self.glossary.find(read) if self.glossary is not None else ():
            if not any(occurs(target, before) for target in term.targets):
                root.children.append(Node(Inline(term.targets[0]), term.start, term.end))
        if not root.children:
            return None
        (alignment,) = align(self.model, self.tokenizer, [read], [before], [demands.ids], [free.ids])
        pieces = project(root, read, before, [SentencePair(read, 0, before, 0, alignment)])
        if any(isinstance(piece, Inline) and not piece.pieces for piece in pieces):  # no words to be in the place of
            return None
        written = "".join(piece.content if isinstance(piece, Inline) else piece for piece in pieces)
        if before[:1].isupper() and written.partition(" ")[0].islower():
            written = written[0].upper() + written[1:]
        (new,) = self.inputs.target_ids([written])
        return Candidate([*free.ids[: self._codes(free.ids)], *new])

    def _ranked(self, demands: Demands, candidates: Candidates, length_penalty: float) -> list[Candidate]:
        """Candidates with scores, first those that lack the fewest terms, of these the best first."""
        ranked: list[tuple[int, float, int, Candidate]] = []
        for text, each in zip(self._texts(candidates), candidates, strict=True):
            if each.score is None:
                each = rescored(self.model, demands.ids, each.ids, self._codes(each.ids), length_penalty)
            ranked.append((demands.lacking(text), -(each.score or 0.0), len(ranked), each))
        return [each for *_, each in sorted(ranked)]

    def _codes(self, ids: Sequence[int]) -> int:
        """The number of tokens at the beginning of a translation that are the tag or the code of a language."""
        named = self.tokenizer.convert_ids_to_tokens(ids[:1])
        return sum(each in self.tokenizer.all_special_tokens or bool(TAG_PATTERN.fullmatch(each)) for each in named)

    def _texts(self, candidates: Candidates) -> list[str]:
        return to_text(self.tokenizer, [candidate.ids for candidate in candidates])
