"""Manifests of AN4 from `SPLIT_audio.tar`, `SPLIT.ids.gz` and `SPLIT.txt.gz`, for the splits `train` and `test`.

    python examples/speech/prepare.py path/to/an4 data/an4

Every twelfth speaker of `train` becomes `valid.tsv`; the others are `train.tsv`. The speaker is the second part of an
id, which hyphens separate.
"""

import argparse
import tarfile
from pathlib import Path

from residual_hf.data.text_files import iter_lines

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path)
parser.add_argument("output", type=Path)
options = parser.parse_args()
options.output.mkdir(parents=True)


def rows(split: str) -> list[tuple[str, str]]:
    """Ids and texts, after unpacking the recordings to `SPLIT/ID.flac`."""
    ids, texts = (list(iter_lines(options.folder / f"{split}.{kind}.gz")) for kind in ("ids", "txt"))
    (options.output / split).mkdir()
    with tarfile.open(options.folder / f"{split}_audio.tar") as archive:
        for number in ids:
            with archive.extractfile(f"{split}/{number}.flac") as recording:
                (options.output / split / f"{number}.flac").write_bytes(recording.read())
    return list(zip(ids, texts, strict=True))


def write(name: str, folder: str, chosen: list[tuple[str, str]]) -> None:
    lines = "".join(f"{folder}/{number}.flac\t{text}\n" for number, text in chosen)
    (options.output / f"{name}.tsv").write_text(lines, encoding="utf-8")
    print(f"{name}: {len(chosen)} recordings")


def speaker(row: tuple[str, str]) -> str:
    return row[0].split("-")[1]


train = rows("train")
held_out = set(sorted(set(map(speaker, train)))[::12])
write("train", "train", [row for row in train if speaker(row) not in held_out])
write("valid", "train", [row for row in train if speaker(row) in held_out])
write("test", "test", rows("test"))
