"""Speech in a language of two words, which are tones."""

from pathlib import Path

import numpy as np
import soundfile

WORDS = {"low": 300, "high": 2400}


def tones(text: str, rate: int = 16_000) -> np.ndarray:
    """A fifth of a second for each word, with a pause before it."""
    times, pause = np.arange(rate // 5) / rate, np.zeros(rate // 20)
    random = np.random.default_rng(0)
    parts = [part for word in text.split() for part in (pause, 0.3 * np.sin(2 * np.pi * WORDS[word] * times))]
    samples = np.concatenate(parts)
    return (samples + random.normal(0, 1e-3, samples.shape)).astype(np.float32)


def write_tones(folder: Path, count: int = 6, seed: int = 0) -> Path:
    """A manifest `tones.tsv` of recordings of one to four words, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    random, lines = np.random.default_rng(seed), []
    for number in range(count):
        text = " ".join(random.choice(list(WORDS), 1 + number % 4))
        soundfile.write(folder / f"{number}.wav", tones(text), 16_000)
        lines.append(f"{number}.wav\t{text}\n")
    (folder / "tones.tsv").write_text("".join(lines), encoding="utf-8")
    return folder / "tones.tsv"
