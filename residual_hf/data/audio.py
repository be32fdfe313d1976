"""Recordings as samples: audio files, the `Audio` columns of data sets, and cuts at pauses."""

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from residual_hf.base.errors import InputError, for_all, input_errors, requires
from residual_hf.base.files import expanded
from residual_hf.model.checksums import file_hash

from .corpus import ParallelCorpus
from .data_settings import CorpusSpec
from .pair_reader import is_audio, load_dataset_of

RATE = 16_000
"""Samples per second of the filter bank in `Speech2TextFeatureExtractor`."""
FRAMES = 100
"""Frames per second."""
WINDOW, STEP = 400, RATE // FRAMES
"""Samples of a frame, and between the starts of two."""
SHORTEST = WINDOW + STEP
"""Samples of two frames: over fewer, features cannot be divided by their deviation."""
BYTES_OF_WAV = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
"""What libsndfile notes if a WAV file has other bytes of samples than its header says."""
UNKNOWN = 0x7FFF0000
"""From here on, a length is that of a program that wrote to a pipe and did not know it."""
LENGTH_OF_MP3 = re.compile(rb"\0{7}(?:Xing|Info)")
"""The header with the length of an MP3 file; that of others is an estimate of libsndfile."""


def features(samples: np.ndarray, extract: Any) -> np.ndarray:
    """The features (frames, bins) of samples by an `extractor`, in float32."""
    return extract(samples, sampling_rate=RATE)["input_features"][0]


@dataclass(frozen=True)
class Recording:
    """A file, or a function that gives its bytes (`source`), and its name in messages (`where`)."""

    where: str
    source: Path | Callable[[], bytes]

    def samples(self) -> np.ndarray:
        """As `decoded`; raises `InputError` also for audio that is too short or silent."""
        samples = self.decoded()
        if len(samples) < SHORTEST:
            raise self.error(f"has {len(samples)} samples, must have at least {SHORTEST}")
        if is_silent(samples):
            raise self.error("is silent")
        return samples

    def decoded(self) -> np.ndarray:
        """The samples in float32, the mean of the channels.

        Raises `InputError` for audio that is damaged, cut off or of another rate, or without soundfile.
        """
        with requires("speech"):
            import soundfile
        unreadable = (soundfile.SoundFileError, OSError, RuntimeError, TypeError)
        with input_errors(f"{self.where}: cannot be read as audio: ", *unreadable):
            opened = self.source if isinstance(self.source, Path) else io.BytesIO(self.content())
            with soundfile.SoundFile(opened) as file:
                samples: np.ndarray = file.read(dtype="float32", always_2d=True)
                rate, notes, is_mp3 = file.samplerate, file.extra_info, file.format == "MP3"
                said, found, unit = file.frames, len(samples), "samples"
            if note := BYTES_OF_WAV.search(notes):
                said, found, unit = int(note[1]), int(note[2]), "bytes of samples"
            if is_mp3 and found < said and not LENGTH_OF_MP3.search(self.content()):
                said = found
        if found < said < UNKNOWN:
            raise self.error(f"is cut off or damaged: has {found:,} {unit}, its header says {said:,}")
        if rate != RATE:
            raise self.error(f"has {rate:,} samples per second, must have {RATE:,}; resample it")
        samples = samples.mean(axis=1)
        if not np.isfinite(samples).all():
            raise self.error("has samples that are not finite")
        return samples

    def frames(self) -> int:
        """The number of its frames. Raises `InputError` as `samples` does."""
        return 1 + (len(self.samples()) - WINDOW) // STEP

    def digest(self) -> str:
        """The sha256 of its bytes. Raises `InputError` for a file that cannot be read."""
        with input_errors(f"{self.where}: cannot be read: ", OSError):
            if isinstance(self.source, Path):
                return file_hash(self.source)
            return hashlib.sha256(self.content()).hexdigest()

    def content(self) -> bytes:
        return self.source.read_bytes() if isinstance(self.source, Path) else self.source()

    def error(self, what: str) -> InputError:
        return InputError(f"{self.where}: {what}")


def is_silent(samples: np.ndarray) -> bool:
    """Whether nothing was recorded: samples of 16 bits differ by three steps at most."""
    return bool(np.ptp(samples) < 1e-4)


def recordings(spec: CorpusSpec, corpus: ParallelCorpus) -> list[Recording]:
    """The recordings of a corpus, whose sources are paths that start from the folder of the manifest, or numbers of
    rows of a data set. Raises `InputError` for files that are missing, and a column without recordings."""
    if spec.dataset is None:
        home = expanded(spec.audio_folder) if spec.audio_folder is not None else spec.files[0].parent
        return for_all(partial(recording, place=f"{spec.title}: "), (home / expanded(path) for path in corpus.sources))
    rows = load_dataset_of(spec, streaming=False)
    if not is_audio(rows.features[spec.source_column]):
        raise InputError(f"{spec.title}: the column {spec.source_column} has no recordings; cast it to datasets.Audio")

    def content(source: str) -> bytes:
        found = rows[int(source.partition(":")[0])][spec.source_column]
        return found["bytes"] or Path(found["path"]).read_bytes()

    return [Recording(f"{spec.title}: row {source}", partial(content, source)) for source in corpus.sources]


def recording(path: Path, place: str = "") -> Recording:
    """The recording in a file. Raises `InputError` for one that is missing, with the `place` that names it."""
    if not path.is_file():
        raise InputError(f"{place}{path}: {'not a file' if path.exists() else 'no such file'}")
    return Recording(str(path), path)


def cut_at_pauses(samples: np.ndarray, longest: float) -> Iterator[tuple[int, int]]:
    """Begin and end of parts of samples that last at most `longest` seconds, cut at the quietest places.

    A cut is in the second half of what a part may last, in the middle of the 0.2 seconds with the least energy.
    """
    window, most, begin = RATE // 5, int(longest * RATE), 0
    while len(samples) - begin > most:
        half = begin + most // 2
        energy = np.cumsum(np.square(samples[half : begin + most], dtype=np.float64))
        end = half + window // 2 + int((energy[window:] - energy[:-window]).argmin())
        yield begin, end
        begin = end
    yield begin, len(samples)
