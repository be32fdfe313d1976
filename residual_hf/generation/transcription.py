"""Transcripts of audio files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoFeatureExtractor

from residual_hf.base.errors import InputError, for_all
from residual_hf.base.names import model_folder
from residual_hf.checkpoint import load_checkpoint
from residual_hf.data.audio import FRAMES, RATE, SHORTEST, cut_at_pauses, features, is_silent, recording
from residual_hf.model.modeling_speech import ResidualForSpeechSeq2Seq

from .decode import move_in_precision, search, to_text
from .generation_settings import DecodingSettings


class Part(NamedTuple):
    """The text of a part of a recording, from and to a second."""

    begin: float
    end: float
    text: str


def transcribe(
    name: str | Path,
    files: Sequence[Path],
    *,
    longest: float = 30.0,
    device: str | None = None,
    trust_remote_code: bool = False,
    **settings: Any,
) -> Iterator[list[Part]]:
    """The parts of each recording that are not silent, file by file; all files are checked before.

    A recording that is silent, or shorter than two frames, has none.

    Args:
        name: folder of a speech model or of its run, or name on the Hub.
        longest: seconds of a part at most; longer recordings are cut where they are quietest. The model reads less if
            it has fewer positions.
        device: by default a GPU if there is one.
        settings: fields of `DecodingSettings`; None and others are those of the model.
    """
    if isinstance(files, str):
        raise InputError(f"files: {files!r} given, must be a list of paths")
    if not longest >= 1:
        raise InputError(f"longest: {longest} given, must be at least 1")
    DecodingSettings.given(settings)  # checked first
    recordings = for_all(recording, map(Path, files))
    for_all(lambda each: len(each.decoded()), recordings)
    model, tokenizer = load_checkpoint(
        name, trust_remote_code=trust_remote_code, classes=(ResidualForSpeechSeq2Seq,), other_families=False
    )
    decoding = DecodingSettings.of_model(model, settings)
    move_in_precision(model.eval(), device, decoding.dtype, requested=settings.get("dtype") is not None)
    extract = AutoFeatureExtractor.from_pretrained(model_folder(name))
    longest = min(longest, model.config.max_source_positions / FRAMES)
    for each in recordings:
        samples = each.decoded()
        spans = [
            (begin, end)
            for begin, end in cut_at_pauses(samples, longest)
            if end - begin >= SHORTEST and not is_silent(samples[begin:end])
        ]
        found = search(model, [features(samples[begin:end], extract) for begin, end in spans], decoding)
        texts = to_text(tokenizer, [best.ids for (best,) in found])
        yield [Part(begin / RATE, end / RATE, text) for (begin, end), text in zip(spans, texts, strict=True)]
