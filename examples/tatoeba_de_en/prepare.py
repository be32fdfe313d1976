"""Train, validation and test text from a list of Tatoeba's sentence pairs (English, tab, German, tab, attribution).

curl -LO https://www.manythings.org/anki/deu-eng.zip && unzip deu-eng.zip deu.txt
python examples/tatoeba_de_en/prepare.py deu.txt data/tatoeba_de_en

Pairs that share a sentence, on either side, are held together: no sentence of validation or test is trained on.
"""

import argparse
import gzip
import random
from collections import defaultdict
from pathlib import Path

from networkx.utils import UnionFind

from residual_hf.data.text_files import iter_lines

Pair = tuple[str, str]


def read_pairs(path: Path) -> list[Pair]:
    """Different pairs of a German and an English sentence."""
    fields = (line.split("\t") for line in iter_lines(path))
    return list(dict.fromkeys((german.strip(), english.strip()) for english, german, *_ in fields))


def linked_groups(pairs: list[Pair]) -> list[list[Pair]]:
    """The pairs in groups of which no two share a sentence, case and spaces aside."""
    linked: UnionFind = UnionFind()

    def nodes(pair: Pair) -> list[tuple[str, str]]:
        return [(side, "".join(text.lower().split())) for side, text in zip(("de", "en"), pair, strict=True)]

    for pair in pairs:
        linked.union(*nodes(pair))
    groups = defaultdict(list)
    for pair in pairs:
        groups[linked[nodes(pair)[0]]].append(pair)
    return list(groups.values())


def split(groups: list[list[Pair]], held_out: int, seed: int) -> dict[str, list[Pair]]:
    """Assign small groups at random to validation and test until each has enough pairs; never split a group."""
    dice = random.Random(seed)
    dice.shuffle(groups)
    parts: dict[str, list[Pair]] = {"valid": [], "test": [], "train": []}
    for group in groups:
        name = next((n for n in ("valid", "test") if len(parts[n]) + len(group) <= held_out), "train")
        parts[name if len(group) <= 10 else "train"] += group
    for pairs in parts.values():
        dice.shuffle(pairs)
    return parts


def write(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--held-out", type=int, default=2000, help="pairs of validation and of test")
    parser.add_argument("--seed", type=int, default=2018)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in split(linked_groups(read_pairs(options.pairs)), options.held_out, options.seed).items():
        write(options.folder / f"{name}.de.gz", [german for german, _ in pairs])
        write(options.folder / f"{name}.en.gz", [english for _, english in pairs])
        print(f"{name}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
