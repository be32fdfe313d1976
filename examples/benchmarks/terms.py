# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""How often a model translates terms as a glossary says, and what that costs in BLEU.

A term of a sentence counts if its reference has one of the translations of the glossary, which then is the one wanted
(Dinu et al. 2019). It is right if the translation has it, with any ending.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path

from sacrebleu import corpus_bleu

from residual_hf.data.glossary import Glossary, Term, occurs
from residual_hf.data.text_files import iter_lines
from residual_hf.generation.translator import Translator


class KnownTerms(Glossary):
    """A glossary that knows which translation the reference of each sentence has."""

    references: dict[str, str]

    def find(self, text: str) -> list[Term]:
        reference = self.references.get(text, "")
        known = ((t, next((each for each in t.targets if occurs(each, reference)), None)) for t in super().find(text))
        return [term._replace(targets=(target,)) for term, target in known if target is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--glossary", type=Path, required=True)
    parser.add_argument("--num-beams", type=int, default=5)
    parser.add_argument("--limit", type=int, help="sentences with terms to translate")
    options = parser.parse_args()

    sources, references = (list(iter_lines(path)) for path in (options.source, options.reference))
    glossary = KnownTerms([(s, t) for s, found in Glossary.read(options.glossary).targets.items() for t in found])
    glossary.references = dict(zip(sources, references, strict=True))
    chosen = dict(islice(((s, glossary.find(s)) for s in glossary.references if glossary.find(s)), options.limit))
    wanted = [glossary.references[source] for source in chosen]
    terms = sum(map(len, chosen.values()))
    print(f"{len(chosen)} sentences with {terms} terms")

    plain = Translator.from_pretrained(options.model, device="cpu", num_beams=options.num_beams)
    searching = Translator(plain.model, plain.tokenizer, plain.settings, glossary=glossary)
    searching.constrained, searching.inputs.terms = True, glossary.kept
    ways = {"without a glossary": plain, "searched": searching}
    if getattr(plain.model.config, "term_tags", False):
        ways["annotated"] = Translator(plain.model, plain.tokenizer, plain.settings, glossary=glossary)
    for name, translator in ways.items():
        started = time.process_time()
        found = translator.translate(list(chosen))
        seconds = time.process_time() - started
        right = [
            occurs(term.targets[0], text) for text, own in zip(found, chosen.values(), strict=True) for term in own
        ]
        bleu = corpus_bleu(found, [wanted]).score
        print(f"{name:<20} terms {100 * sum(right) / terms:5.1f} %   BLEU {bleu:5.2f}   {seconds:6.1f} s of CPU")


if __name__ == "__main__":
    main()
