"""Features of recordings, computed once and read from disk, with their transcripts as token ids."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from tqdm.auto import tqdm

from residual_hf.base.errors import InputError, for_all, input_errors
from residual_hf.base.files import acquire_lock, atomic_file, check_space, expanded, read_json, write_json
from residual_hf.checkpoint import extractor
from residual_hf.model.checksums import CHECKSUMS, write_checksums

from .audio import Recording, features, recordings
from .data_settings import SPEC_AUGMENT
from .encoding import IGNORED, EncodedCorpus, encode_corpus, is_cached
from .multilingual import concatenate
from .pipeline import Preparation, PreparedData, get_tokenizer
from .sample_checks import warn_about_unknown_tokens

logger = logging.getLogger(__name__)

BAR: dict[str, Any] = {"leave": False, "disable": None}


class FeatureFile:
    """The frames (frames, bins) of a file, which is mapped when they are first read; workers get its path only."""

    def __init__(self, path: Path, bins: int):
        self.path, self.bins = path, bins
        self.mapped: np.ndarray | None = None

    def __getitem__(self, rows: slice) -> np.ndarray:
        if self.mapped is None:
            self.mapped = np.memmap(self.path, np.float32, "r").reshape(-1, self.bins)
        return self.mapped[rows]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "mapped": None}


class SpeechCorpus(EncodedCorpus):
    """Frames and token ids, `{"input_features": (frames, bins), "labels": [...]}`.

    Args:
        frames: the features of all recordings, (frames, bins), in memory or on disk.
        starts, lengths: first frame and number of frames of each recording.
        texts: `target_ids` and `target_offsets`, see `EncodedCorpus`.
        policy: of SpecAugment; masks depend on `seed`, the epoch and the row only.
    """

    def __init__(
        self,
        frames: np.ndarray | FeatureFile,
        starts: np.ndarray,
        lengths: np.ndarray,
        texts: dict[str, np.ndarray],
        *,
        policy: str | None = None,
        seed: int = 1,
    ):
        super().__init__(texts, seed=seed)
        self.frames, self.starts, self.source_lengths, self.policy = frames, starts, lengths, policy

    def source(self, index: int) -> np.ndarray:
        start = self.starts[index]
        return self.frames[start : start + self.source_lengths[index]]

    def __getitem__(self, index: int | None) -> dict[str, np.ndarray]:
        row = index or 0
        frames, labels = self.source(row), self._row("target", row)
        if self.policy is not None:
            random = np.random.default_rng((self.seed, self.epoch, row))
            frames = spec_augment(frames, SPEC_AUGMENT[self.policy], random)
        return {"input_features": frames, "labels": np.full_like(labels, IGNORED) if index is None else labels}

    def select(self, indices: Sequence[int] | np.ndarray) -> "SpeechCorpus":
        places = self.starts[indices], self.source_lengths[indices]
        return SpeechCorpus(self.frames, *places, self.selected(indices), policy=self.policy, seed=self.seed)


def spec_augment(frames: np.ndarray, masks: tuple[int, int, int, int], random: np.random.Generator) -> np.ndarray:
    """Features (frames, bins) with random bands and stretches at their mean, as in fairseq without time warping.

    `masks`: number and largest width of bands, number and largest length of stretches. Park et al. 2019.
    """
    frames, mean = frames.copy(), frames.mean()
    for axis, count, largest in ((1, *masks[:2]), (0, *masks[2:])):
        size = frames.shape[axis]
        for _ in range(count):
            width = int(random.integers(min(largest, size)))
            start = int(random.integers(size - width))
            np.moveaxis(frames, axis, 0)[start : start + width] = mean
    return frames


def hash_recordings(found: Sequence[Recording]) -> str:
    """A hash of the bytes of recordings, in their order."""
    digests = for_all(Recording.digest, tqdm(found, "hashing recordings", **BAR))
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def check_same_recordings(digests: dict[str, str], path: Path) -> None:
    """Record the hashes of recordings of a run in `path`. Raises `InputError` if it was started with others."""
    before = read_json(path) if path.exists() else {}
    for name, digest in digests.items():
        if name != "test" and before.get(name, digest) != digest:
            raise InputError(f"data.{name}: other recordings than those that the run was started with ({path})")
    write_json(path, digests)


def compute_features(found: Sequence[Recording], lengths: np.ndarray, bins: int, path: Path) -> None:
    """Write features, (frames, bins) per recording, to `path`, and their lengths to a `.npy` file next to it."""
    logger.info("computing features: %d recordings, %s", len(found), path.name)
    for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a process that was killed
        with suppress(OSError):  # of another user
            left.unlink()
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        for each, length in zip(tqdm(found, "features", **BAR), lengths, strict=True):
            frames = features(each.samples(), extractor(bins))
            if len(frames) != length:
                raise each.error("has changed since it was checked")
            if not np.isfinite(frames).all():
                raise each.error("has the same features in every frame")
            frames.tofile(file)
    with atomic_file(path.with_suffix(".npy")) as temporary, open(temporary, "wb") as file:
        np.save(file, lengths)
    with acquire_lock(path.parent / f".{CHECKSUMS}.lock", mode=0o666):
        write_checksums(path.parent, [path.name, path.with_suffix(".npy").name])


def without_long(
    corpus: SpeechCorpus, name: str, found: Sequence[Recording], frames: int, tokens: int
) -> SpeechCorpus:
    """A corpus without training recordings of more frames or tokens.

    Raises `InputError` for one in another split, and if no training recording is left.
    """
    long = (corpus.source_lengths > frames) | (corpus.target_lengths > tokens)
    if long.any() and (name != "train" or long.all()):
        row = int(long.argmax())
        sizes = f"{corpus.source_lengths[row]} frames and {corpus.target_lengths[row]} tokens"
        raise InputError(f"data.{name}: {found[row].where} has {sizes}, must have at most {frames} and {tokens}")
    if dropped := int(long.sum()):
        counts = dropped, len(long), frames, tokens
        level = logging.WARNING if 2 * dropped > len(long) else logging.INFO
        logger.log(level, "dropped %d of %d training recordings, longer than %d frames or %d tokens", *counts)
    return corpus.select(np.flatnonzero(~long))


def prepare_speech(given: Preparation) -> PreparedData:
    """As `prepare`, for recordings and their transcripts.

    Raises `InputError` naming the recordings that cannot be used; only those whose frames are all alike are found
    while features are computed.
    """
    texts, data, folder, config = given.texts, given.data, given.folder, given.config
    processes, positions, bins = PartialState(), config.max_position_embeddings, config.num_mel_bins
    most = min(data.max_length or config.max_source_positions, config.max_source_positions)
    held_out = {name: corpora for name, corpora in texts.items() if name != "train"}
    transcripts = [replace(corpus, sources=corpus.targets) for corpus in texts["train"]]
    names = (*held_out, "train")  # the long one last
    found = {name: list(chain.from_iterable(map(recordings, getattr(data, name), texts[name]))) for name in names}
    store = folder / "cache" if data.features is None else expanded(data.features)
    with input_errors(f"data.features: {store} cannot be a folder: ", OSError):
        store.mkdir(parents=True, exist_ok=True)
    with processes.main_process_first():
        tokenizer = get_tokenizer(given, transcripts)
        digests = {name: hash_recordings(found[name]) for name in names}
        check_same_recordings(digests, folder / "recordings.json")
        files = {name: store / f"{name}-{digests[name][:16]}-{bins}.f32" for name in names}
        missing = [name for name, path in files.items() if not is_cached(path, path.with_suffix(".npy"))]
        every = [each for name in missing for each in found[name]]
        counted = iter(for_all(Recording.frames, tqdm(every, "recordings", **BAR)))
        new = {name: np.fromiter(islice(counted, len(found[name])), np.int64) for name in missing}
        encoded: dict[str, EncodedCorpus] = {}
        for name, path in files.items():
            lengths = new[name] if name in new else np.load(path.with_suffix(".npy"))
            text = concatenate(texts[name], name)
            ids = encode_corpus(text, tokenizer, name=name, cache_dir=folder / "cache", sides=("target",)).arrays
            policy = data.spec_augment if name == "train" else None
            places = np.cumsum(lengths) - lengths, lengths
            corpus = SpeechCorpus(FeatureFile(path, bins), *places, ids, policy=policy, seed=given.seed)
            limit = min(most, given.max_tokens or most) if name == "train" else config.max_source_positions
            encoded[name] = without_long(corpus, name, found[name], limit, positions)
        if new:
            check_space(store, 4 * bins * sum(int(lengths.sum()) for lengths in new.values()), field="data.features")
        for name, lengths in new.items():
            path = files[name]
            with acquire_lock(path.with_name(f".{path.name}.lock"), mode=0o666):  # other runs share the folder
                if not is_cached(path, path.with_suffix(".npy")):
                    compute_features(found[name], lengths, bins, path)
    if processes.is_main_process:
        warn_about_unknown_tokens(encoded, tokenizer)
    return PreparedData(tokenizer, encoded, held_out, encoded["train"].longest)
