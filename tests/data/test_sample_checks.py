"""Text that cannot be right is found; generated text and what a recipe expects are not."""

import html
import random
import re
from dataclasses import replace

import pytest

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.sample_checks import BLOCK, BLOCKS, faults_of, sample_faults, sample_rows, take_sample
from residual_hf.data.synthetic import generate_corpus


@pytest.fixture(scope="module")
def corpus():
    sources, targets = map(list, zip(*generate_corpus({"train": 900})["train"], strict=True))
    return ParallelCorpus(sources, targets, "generated", "en", "de")


def sides(corpus, sources=None, targets=None):
    return replace(corpus, sources=sources or corpus.sources, targets=targets or corpus.targets)


def shuffled(lines):
    return random.Random(1).sample(lines, len(lines))


FRENCH = "le chien noir court dans la grande rue et les enfants mangent une pomme rouge devant leur maison " * 3
FAULTS = {
    "moved": (
        lambda c: sides(c, c.sources[:-2], c.targets[2:]),
        r"not aligned in 4 of 4 blocks of 200 pairs, from about pair 1 on: translations are 2 lines earlier "
        r"\(correlation of the lengths -?0\.[01]\d, and 0\.[89]\d if moved\)",
    ),
    "a line too many": (
        lambda c: sides(c, targets=[*c.targets[:470], "Ein Zusatz.", *c.targets[470:-1]]),
        r"2 of 4 blocks of 200 pairs, from about pair 467 on: translations are 1 line later",
    ),
    "another text": (
        lambda c: sides(c, targets=shuffled(c.targets)),
        r"do not belong together: their lengths correlate by -?0\.[01]\d in 800 pairs",
    ),
    "copied": (lambda c: sides(c, targets=c.sources), "^100% of the pairs have the same text on both sides"),
    "partly copied": (
        lambda c: sides(c, targets=[*c.sources[:60], *c.targets[60:]]),
        "^8% of the pairs have the same",
    ),
    "swapped": (
        lambda c: replace(c, source_lang="de_DE", target_lang="en"),
        "sides are swapped: 100% of the source look more like en than de",
    ),
    "one language": (
        lambda c: sides(c, targets=[f"{line} Again." for line in c.sources]),
        "100% of the target look like en, not de",
    ),
    "half in a third language": (
        lambda c: sides(c, targets=[FRENCH[: len(t)] if i % 5 < 3 else t for i, t in enumerate(c.targets)]),
        r"^[3-8]\d% of the target look like fr, not de$",
    ),
    "another language": (lambda c: replace(c, source_lang="fr"), "100% of the source look like en, not fr"),
    "another language, by a long code": (
        lambda c: replace(c, source_lang="fra_Latn", target_lang="deu_Latn"),
        "100% of the source look like en, not fr",
    ),
    "escaped": (
        lambda c: sides(c, [html.escape(f"'{line}'") for line in c.sources]),
        "^100% of the source lines have escapes such as &apos; and &quot;: this is not raw text; if Moses",
    ),
    "split hyphens": (
        lambda c: sides(c, targets=[f"{line} zwei @-@ drei" for line in c.targets]),
        "^100% of the target lines have hyphens as @-@",
    ),
    "tokenized without escapes": (
        lambda c: sides(c, [line.replace(".", " .") for line in c.sources], [f"{line[:-1]} ," for line in c.targets]),
        r"^\d\d% of the source lines and 100% of the target lines have a space before the full stop or comma at their "
        "end: this is not raw text; if Moses",
    ),
    "segmented": (
        lambda c: sides(c, [f"{line} wa@@ s" for line in c.sources]),
        "source lines have subwords joined by @@",
    ),
    "split into characters": (
        lambda c: sides(c, [" ".join(line.replace(" ", "_")) for line in c.sources]),
        "^100% of the source lines have words split into characters",
    ),
    "repeated": (
        lambda c: sides(c, (c.sources[:100] * 9)[: len(c)], (c.targets[:100] * 9)[: len(c)]),
        "^8[0-9]% of the pairs repeat others of a sample .data.cleaning.duplicates drops them",
    ),
    "decoded twice": (
        lambda c: sides(c, targets=[line.encode().decode("cp1252", "replace") for line in c.targets]),
        r"^\d\d% of the target lines have UTF-8 read as Latin-1",
    ),
    "lost characters": (
        lambda c: sides(c, targets=[line.encode("latin-1").decode(errors="replace") for line in c.targets]),
        r"^\d\d% of the target lines have characters that were lost",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_text_that_cannot_be_right_is_found(corpus, name):
    change, message = FAULTS[name]
    (fault,) = faults_of(change(corpus))
    assert re.search(message, fault), fault


@pytest.mark.parametrize(("same", "found"), [(149, ["the sides do not belong together"]), (151, [])])
def test_lengths_that_correlate_by_less_than_a_half_are_a_fault(same, found):
    """Of two lengths, those of so many of 200 pairs agree: the correlation is 0.49 or 0.51."""
    long = shuffled([row % 2 == 0 for row in range(200)])
    changed = {True: (200 - same) // 2, False: (201 - same) // 2}  # as many of each length
    targets = []
    for is_long in long:
        changed[is_long] -= 1
        targets.append(is_long == (changed[is_long] < 0))
    sides = [
        [f"{row:03} " + word * (1 + 4 * size) for row, size in enumerate(side)]
        for word, side in (("ab", long), ("yz", targets))
    ]
    faults = faults_of(ParallelCorpus(*sides, "made", "tlh", "xx"))
    assert [fault.partition(":")[0] for fault in faults] == found


def test_text_that_can_be_right_is_not(corpus):
    assert faults_of(corpus) == []
    assert faults_of(replace(corpus, source_lang="tlh")) == []  # unknown to the detector
    assert faults_of(sides(corpus, targets=shuffled(corpus.targets))[:99]) == []  # too few to say
    headlines = replace(corpus, targets=[line[:20] for line in shuffled(corpus.sources)], target_lang="en")
    assert faults_of(headlines) == []
    escaped = sides(corpus, [f"{line} &apos;s @-@" for line in corpus.sources])
    assert len(faults_of(escaped)) == 2 and faults_of(escaped, {"moses"}) == []
    assert faults_of(FAULTS["tokenized without escapes"][0](corpus), {"moses"}) == []
    marks = ("{} . . .", "« {} » : pourquoi ?")
    french = sides(corpus, targets=[marks[i % 2].format(line) for i, line in enumerate(corpus.targets)])
    assert faults_of(french) == []
    assert faults_of(FAULTS["partly copied"][0](corpus), {"copies"}) == []
    assert faults_of(FAULTS["copied"][0](corpus), {"copies"}) != []


def test_sample_is_spread_over_a_corpus_in_blocks(corpus):
    assert sample_rows(0) == [] and sample_rows(150) == list(range(150)) and sample_rows(399) == list(range(200))
    rows = sample_rows(1_000_000)
    assert len(rows) == len(set(rows)) == BLOCK * BLOCKS and rows[0] == 0 and rows[-1] == 999_999
    assert rows[BLOCK : BLOCK + 3] == [20404, 20405, 20406]
    moved = FAULTS["moved"][0](corpus)
    sample = moved.with_pairs(take_sample(iter(moved), len(moved)))
    assert sample_faults(sample, len(moved)) == faults_of(moved)
