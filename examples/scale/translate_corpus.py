"""Translate a text file on a Ray cluster, in shards: killed workers and interrupted runs lose and repeat no line.

python examples/scale/translate_corpus.py runs/my_run/model --input text.en --output text.de --workers 16
"""

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_file, check_output_file, read_json, write_atomically, write_json
from residual_hf.checkpoint import identity
from residual_hf.data.text_files import LineReader, count_lines, one_line, sample_hash


class Worker:
    """A process of the cluster with a model. Writes each shard completely or not at all."""

    def __init__(self, model: str, source: Path, folder: Path, options: dict[str, Any]):
        from residual_hf.generation.translator import Translator

        self.translator = Translator.from_pretrained(model)
        self.source, self.folder, self.options = source, folder, options

    def __call__(self, shard: dict[str, Any]) -> dict[str, Any]:
        lines = list(islice(LineReader(self.source, shard["first"], shard["offset"]), shard["lines"]))
        translations = self.translator.translate(lines, **self.options)
        write_atomically(self.folder / shard["name"], "".join(one_line(text) + "\n" for text in translations))
        return shard


def shards_of(source: Path, size: int) -> list[dict[str, Any]]:
    """Name, position in the file and number of lines of each shard."""
    reader, shards = LineReader(source), []
    lines = iter(reader)
    while True:
        first, offset = reader.number, reader.offset
        count = sum(1 for _ in islice(lines, size))
        if not count:
            return shards
        shards.append({"name": f"{len(shards):08}.txt", "first": first, "offset": offset, "lines": count})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder that all machines see, or name on the Hub")
    parser.add_argument("--input", type=Path, required=True, help="text file that all machines see")
    parser.add_argument("--output", type=Path, required=True, help="shards are collected in OUTPUT.shards")
    parser.add_argument("--workers", type=int, default=2, help="most processes in the cluster")
    parser.add_argument("--cpus", type=float, default=1, help="of each worker")
    parser.add_argument("--gpus", type=float, default=0, help="of each worker")
    parser.add_argument("--shard-lines", type=int, default=5000)
    parser.add_argument("--long", default="split", help="treatment of lines that are too long for the model")
    options = parser.parse_args()

    source, output = options.input.resolve(), options.output.resolve()
    model = str(Path(options.model).resolve()) if Path(options.model).exists() else options.model  # for other machines
    if output.exists():
        raise InputError(f"--output: {output} exists; delete it or use another file")
    if options.shard_lines < 1:
        raise InputError(f"--shard-lines: {options.shard_lines} given, must be at least 1")
    check_output_file(output, overwrite=False, inputs=[source])
    folder = output.with_name(f"{output.name}.shards")
    folder.mkdir(exist_ok=True)
    made_with = {"source": sample_hash(source), "bytes": source.stat().st_size, "long": options.long}
    made_with |= {"shard_lines": options.shard_lines} | identity(model)
    record = folder / "made_with.json"
    if record.exists() and read_json(record) != made_with:
        raise InputError(f"{folder} is from another model, text or size of shards; delete it, or use another --output")
    write_json(record, made_with)

    shards = shards_of(source, options.shard_lines)
    missing = [shard for shard in shards if not (folder / shard["name"]).exists()]
    print(f"{len(shards)} shards of {options.shard_lines} lines, {len(shards) - len(missing)} are translated")
    if missing:
        translated = ray.data.from_items(missing, override_num_blocks=len(missing)).map(
            Worker,
            fn_constructor_args=[model, source, folder, {"long": options.long}],
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=options.workers),
            num_cpus=options.cpus,
            num_gpus=options.gpus,
        )
        for _ in tqdm(translated.iter_rows(), total=len(missing), unit=" shards"):
            pass
    with atomic_file(output) as joined, joined.open("wb") as file:
        for shard in shards:
            path = folder / shard["name"]
            if (lines := count_lines(path)) != shard["lines"]:
                raise InputError(f"{path} has {lines} lines, must have {shard['lines']}: delete it, and start again")
            file.write(path.read_bytes())
    print(f"{output}: {sum(shard['lines'] for shard in shards)} lines; {folder} can be deleted")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"translate_corpus.py: {error}")
