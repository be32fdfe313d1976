"""The script that makes manifests of AN4."""

import gzip
import io
import tarfile

from support.example_scripts import run


def test_speakers_of_validation_are_not_in_training(tmp_path):
    for split, speakers in (("train", 13), ("test", 2)):
        ids = [f"a{number}-{split}{number % speakers:02d}-b" for number in range(2 * speakers)]
        with tarfile.open(tmp_path / f"{split}_audio.tar", "w") as archive:
            for name in ids:
                archive.addfile(tarfile.TarInfo(f"{split}/{name}.flac"), io.BytesIO())
        for kind, lines in (("ids", ids), ("txt", [f"TEXT OF {name}" for name in ids])):
            (tmp_path / f"{split}.{kind}.gz").write_bytes(gzip.compress("".join(f"{x}\n" for x in lines).encode()))
    output = run("speech/prepare.py", tmp_path, tmp_path / "an4")
    assert output.splitlines() == ["train: 22 recordings", "valid: 4 recordings", "test: 4 recordings"]
    rows = {
        name: [line.split("\t") for line in (tmp_path / "an4" / f"{name}.tsv").read_text().splitlines()]
        for name in ("train", "valid", "test")
    }
    speakers = {name: {file.split("-")[1] for file, _ in found} for name, found in rows.items()}
    assert speakers["valid"] == {"train00", "train12"} and not speakers["train"] & speakers["valid"]
    assert all((tmp_path / "an4" / file).exists() for found in rows.values() for file, _ in found)
    assert all(
        text == f"TEXT OF {file.split('/')[1].removesuffix('.flac')}"
        for found in rows.values()
        for file, text in found
    )
