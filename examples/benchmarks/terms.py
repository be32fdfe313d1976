"""How often a model translates terms as a glossary says, and what that costs in BLEU.

A term of a sentence counts if its reference has one of the translations of the glossary, which then is the one wanted
(Dinu et al. 2019). It is right if the translation has it, with any ending.
"""

import argparse
import time
from itertools import islice
from pathlib import Path

from residual_hf.data.glossary import Glossary, Term, occurs
from residual_hf.data.text_files import iter_lines
from residual_hf.evaluation.metrics import paired_bootstrap
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
    parser.add_argument("models", nargs="+", help="the first without a glossary is what all are compared with")
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

    first: list[str] = []
    for model in options.models:
        print(model)
        for name, translator in ways_of(model, options.num_beams, glossary).items():
            started = time.process_time()
            found = translator.translate(list(chosen))
            seconds = time.process_time() - started
            right = [
                occurs(term.targets[0], text) for text, own in zip(found, chosen.values(), strict=True) for term in own
            ]
            first = first or found
            bleu = paired_bootstrap(first, found, wanted, metrics=("bleu",))["bleu"]
            print(
                f"{name:<20} terms {100 * sum(right) / terms:5.1f} %   BLEU {bleu.b:5.2f} "
                f"(difference p = {bleu.p_value:.3f})   {seconds:6.1f} s of CPU"
            )


def ways_of(model: str, beams: int, glossary: KnownTerms) -> dict[str, Translator]:
    """The ways in which a model can use a glossary."""
    plain = Translator.from_pretrained(model, device="cpu", num_beams=beams)
    searching = Translator(plain.model, plain.tokenizer, plain.settings, glossary=glossary)
    searching.constrained, searching.inputs.terms = True, glossary.kept
    ways = {"without a glossary": plain, "searched": searching}
    if getattr(plain.model.config, "term_tags", False):
        ways["annotated"] = Translator(plain.model, plain.tokenizer, plain.settings, glossary=glossary)
    return ways


if __name__ == "__main__":
    main()
