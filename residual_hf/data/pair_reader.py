"""Sentence pairs read in order from text, TSV, JSONL, other files or a `datasets` data set, from any position."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from residual_hf.base.errors import InputError, for_all
from residual_hf.base.files import expanded
from residual_hf.base.names import check_repository, similar_path

from .data_settings import AUDIO_FILES, PAIR_FILES, CorpusSpec
from .pair_formats import pairs_of_file
from .pair_rows import Pair, check_unquoted, json_pair, names_columns, record_pair, tsv_pair
from .text_files import LineReader, count_lines, is_blank, iter_lines, uncompressed_name

BLOCK = 100_000


def check_files(specs: Iterable[CorpusSpec]) -> None:
    """Raise `InputError` naming all missing files of `specs`, or one that cannot be read twice, such as a pipe.

    Also for a data set that is a file, or neither a folder nor on the Hub.
    """
    specs = list(specs)
    check_paths(path for spec in specs for path in (*spec.files, *filter(None, [spec.raw_references])))
    for spec in specs:
        if spec.audio_folder is not None and not expanded(spec.audio_folder).is_dir():
            raise InputError(f"corpus.audio_folder: {spec.audio_folder}: no such folder")
    for name in dict.fromkeys(str(spec.dataset) for spec in specs if spec.dataset is not None):
        _check_dataset(name)


def check_paths(paths: Iterable[Path]) -> None:
    """Raise `InputError` naming all missing files, or one that cannot be read twice."""
    paths = list(dict.fromkeys(paths))
    if missing := [path for path in paths if not path.exists()]:
        relative = not all(path.is_absolute() for path in missing)
        start = f"; seen from {Path.cwd()} (in a recipe, `paths_from` says where paths start)" if relative else ""
        raise InputError(f"no such file: {', '.join(f'{path}{similar_path(path)}' for path in missing)}{start}")
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: not a regular file, which can be read several times")


def _check_dataset(name: str) -> None:
    path = expanded(name)
    if path.is_file():
        known = uncompressed_name(path.name.lower()).endswith(PAIR_FILES)
        advice = "read it with `file`" if known else "must be a folder or a name on the Hub"
        raise InputError(f"corpus.dataset: {name} is a file; {advice}")
    if path.is_dir():
        return
    from datasets import packaged_modules  # takes a second, which reading files need not wait for

    if name in {module.name for module in iter_modules(packaged_modules.__path__)}:
        raise InputError(f"corpus.dataset: {name!r} is a file format, must be a name on the Hub or a local folder")
    check_repository(name, f"corpus.dataset: {name}", "dataset")


@dataclass(frozen=True)
class Cursor:
    """A position in a corpus; the beginning by default.

    `passes`: completed passes over the corpus. In the current pass, `rows`: lines or rows read; `kept`: pairs
    returned; `offsets`: bytes read of each file, uncompressed.
    """

    passes: int = 0
    rows: int = 0
    kept: int = 0
    offsets: Sequence[int] = ()


class PairReader:
    """Reads the sentence pairs of a corpus in order, pass after pass.

    Text is strict UTF-8, taken unchanged except that `skip_empty` drops pairs with an empty (or blank) side and
    `limit` ends a pass early. Of the text of a language model, a line is both sides of a pair, blank lines are kept,
    and `limit` counts the others. `skipped_empty` counts the pairs dropped by this reader.

    Args:
        cursor: where to start: the `cursor` of another reader. Text files are sought, compressed files read up to
            there; data sets and other files skip rows.
        streaming: for a data set, read it without downloading and converting all of it first.

    Raises:
        InputError: a missing file, at once; a line or row that cannot be used, text files of unequal length or a
            corpus without pairs, when reading gets there.
    """

    def __init__(self, spec: CorpusSpec, cursor: Cursor | None = None, *, streaming: bool = True):
        check_files([spec])
        spec.check_keys()
        self.spec = spec
        self.skipped_empty = 0
        self._dataset: Any = None
        self._streaming = streaming
        self._start(cursor or Cursor())

    @property
    def cursor(self) -> Cursor:
        return Cursor(self._passes, self._rows, self._kept, [file.offset for file in self._files])

    def take(self, count: int | None = None) -> list[Pair]:
        """The next `count` pairs, fewer only at the end of a pass: the next call then starts a new pass.

        None reads to the end of the pass.
        """
        pairs = list(islice(self._pass, count))
        if count is None or len(pairs) < count:
            if self._kept == 0:
                kinds = ("sentence pair", "pair has an empty side"), ("line", "line is blank")
                unit, empty = kinds[self.spec.is_text]
                why = f"every {empty}" if self._rows else f"empty, must have at least one {unit}"
                raise InputError(f"{self.spec.files[0] if self.spec.files else self.spec.title}: {why}")
            self._start(Cursor(self._passes + 1))
        return pairs

    def one_pass(self) -> Iterator[Pair]:
        """The pairs of the rest of a pass."""
        passes = self._passes
        while self._passes == passes:
            yield from self.take(BLOCK)

    def _start(self, cursor: Cursor) -> None:
        self._passes, self._rows, self._kept = cursor.passes, cursor.rows, cursor.kept
        places = zip(self.spec.files, cursor.offsets or (0,) * len(self.spec.files), strict=True)
        self._files = [LineReader(path, cursor.rows, offset) for path, offset in places]
        self._pass = self._rest_of_pass()

    def _rest_of_pass(self) -> Iterator[Pair]:
        if self._kept == self.spec.limit:
            return
        for pair in self._rows_as_pairs():
            self._rows += 1
            if self._rows == 1 and self.spec.tsv is not None:
                if names_columns(pair, self.spec):
                    raise InputError(f"{self.location(1)} names the columns; to read such a table, give it as file")
                where, advice = str(self.spec.tsv), "give it as file, with a name that ends in .csv"
                check_unquoted(iter_lines(self.spec.files[0]), where, advice)
            blank = is_blank(pair[0]) or is_blank(pair[1])
            if blank and not self.spec.is_text:
                if not self.spec.skip_empty:
                    side = int(not is_blank(pair[0]))
                    fault = f"{self.location(self._rows, side)} has an empty {('source', 'target')[side]}"
                    raise InputError(f"{fault}; remove the pair, or set skip_empty: true in a recipe")
                self.skipped_empty += 1
                continue
            self._kept += not blank
            yield ("", "") if blank else pair
            if self._kept == self.spec.limit:
                return

    def _rows_as_pairs(self) -> Iterator[Pair]:
        spec = self.spec
        if spec.source is not None:
            return aligned_lines(*self._files)
        if spec.text is not None:
            return ((line, line) for line in self._files[0])
        if spec.audio_folder is not None:
            return islice(folder_pairs(expanded(spec.audio_folder)), self._rows, None)
        if spec.file is not None and not spec.is_jsonl:
            return islice(pairs_of_file(spec), self._rows, None)
        parse = tsv_pair if spec.tsv is not None else json_pair if spec.is_jsonl else record_pair
        rows = self._files[0] if self._files else self._dataset_rows()
        return (parse(row, spec, self.location(self._rows + 1)) for row in rows)

    def _dataset_rows(self) -> Iterator[Any]:
        if self._dataset is None:
            self._dataset = load_dataset_of(self.spec, self._streaming)
        if isinstance(self._dataset, Sized) and self._rows >= len(self._dataset):
            return  # `skip` would raise
        rows = self._dataset.skip(self._rows) if self._rows else self._dataset
        audio = [name for name, feature in (self._dataset.features or {}).items() if is_audio(feature)]
        try:
            for number, row in enumerate(rows, self._rows):
                names = {name: f"{number}:{Path(row[name]['path'] or '').name}" for name in audio if row[name]}
                yield row | names if audio else row
        except (ValueError, OSError, RuntimeError) as error:  # of pyarrow, of the network
            raise InputError(f"{self.spec.title}: cannot be read past row {self._rows}: {error}") from error

    def location(self, row: int, side: int = 0) -> str:
        """File and line, or row, for messages; `side` selects the file if source and target are separate."""
        if not self._files:
            return f"{self.spec.title}: row {row}"
        in_lines = self.spec.file is None or self.spec.is_jsonl
        return f"{self._files[side % len(self._files)].path}: {'line' if in_lines else 'pair'} {row}"


def count_rows(spec: CorpusSpec, most: float = math.inf) -> float:
    """The rows that a pass over a corpus reads at most, or a number above `most`; infinite for a data set."""
    rows = math.inf
    if spec.files and (spec.file is None or spec.is_jsonl):
        rows = count_lines(spec.files[0], most)
    elif spec.files:
        rows = sum(1 for _ in islice(pairs_of_file(spec), None if most == math.inf else int(most) + 1))
    return min(rows, spec.limit or math.inf)


def locate_pair(spec: CorpusSpec, index: int, side: int) -> str:
    """File and line, or row, of a pair; reads the corpus up to this pair, because empty pairs may be skipped."""
    reader = PairReader(spec)
    reader.take(index + 1)
    return reader.location(reader.cursor.rows, side)


def aligned_lines(sources: LineReader, targets: LineReader) -> Iterator[Pair]:
    """The lines of two files as pairs. Raises `InputError` for files of unequal length."""
    lines = iter(sources), iter(targets)
    for source, target in zip_longest(*lines):
        if source is None or target is None:
            deque(chain(*lines), maxlen=0)  # counts the rest
            counts = f"{sources.path} has {sources.number} lines, but {targets.path} has {targets.number}"
            raise InputError(f"{counts}; both must have the same number")
        yield source, target


def folder_pairs(folder: Path) -> Iterator[Pair]:
    """Path from the folder and text of each recording: of LibriSpeech's `*.trans.txt`, or of `x.txt` beside `x.wav`.

    Raises `InputError` naming recordings without one text, and texts without one recording.
    """
    files, texts = defaultdict[Path, list[Path]](list), defaultdict[Path, list[str]](list)
    for path in sorted(folder.rglob("[!.]*")):
        if path.suffix.lower() in AUDIO_FILES:
            files[path.with_suffix("")].append(path)
        elif path.name.endswith(".trans.txt"):
            for name, _, text in (line.partition(" ") for line in iter_lines(path) if line.strip()):
                texts[path.parent / name].append(text)
        elif path.suffix == ".txt":
            texts[path.with_suffix("")].append(" ".join(iter_lines(path)))

    def pair(stem: Path) -> Pair:
        found, said = files[stem], texts[stem]
        if (len(found), len(said)) != (1, 1):
            kinds = f"audio files ({', '.join(AUDIO_FILES)}), and {len(said)} texts ({stem.name}.txt or *.trans.txt)"
            raise InputError(f"{stem}: has {len(found)} {kinds}, must have one of each")
        return str(found[0].relative_to(folder)), said[0]

    return iter(for_all(pair, dict.fromkeys([*files, *texts])))


def is_audio(feature: Any) -> bool:
    """Whether a column of a data set has recordings, as such or as they are stored."""
    return getattr(feature, "_type", "") == "Audio" or (isinstance(feature, dict) and {*feature} == {"bytes", "path"})


def load_dataset_of(spec: CorpusSpec, streaming: bool) -> Any:
    """The data set of a corpus, with recordings as they are stored, `{"bytes": ..., "path": ...}`."""
    import datasets

    name, folder = str(spec.dataset), expanded(str(spec.dataset))
    try:
        if (folder / "state.json").is_file():
            data = datasets.load_from_disk(str(folder))
            if spec.split not in ("train", str(data.split)):  # "train" is the default
                raise KeyError(spec.split)
        elif (folder / "dataset_dict.json").is_file():
            data = datasets.load_from_disk(str(folder))[spec.split]
        else:
            found = str(folder) if folder.is_dir() else name
            data = datasets.load_dataset(found, spec.dataset_config, split=spec.split, streaming=streaming)
    except KeyError as error:
        raise InputError(f"corpus.split: {name} has no split {error}") from error
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"corpus.dataset: {spec.title} cannot be loaded: {error.__cause__ or error}") from error
    for name in [name for name, feature in (data.features or {}).items() if isinstance(feature, datasets.Audio)]:
        data = data.cast_column(name, datasets.Audio(decode=False))
    return data
