"""Metrics by further libraries: error rates, ROUGE, BLEU of split compounds, COMET."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unicodedata
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Protocol

import regex
import torch

from residual_hf.base.errors import InputError, requires
from residual_hf.base.files import expanded
from residual_hf.data.language_names import detected_as
from residual_hf.data.scripts import UNSPACED, share_of_script, words
from residual_hf.data.text_files import one_line

from .metrics import Lines, check_lines, tokenized_bleu

ERROR_RATES = ("wer", "cer")
ROUGE = ("rouge1", "rouge2", "rougeL")
MARKS = r"[\p{M}\u200c\u200d]*"
LETTERS = rf"(?:[\p{{L}}\p{{N}}]{MARKS})+"
SPOKEN = regex.compile(f"{LETTERS}(?:'{LETTERS})*")
"""Letters and digits with their marks and joiners, such as vowels of Hindi and half spaces of Persian; apostrophes
between them."""
APOSTROPHES = dict.fromkeys(map(ord, "’‘ʻʼ`´"), "'")
GAP = regex.compile(f"(?<={UNSPACED.pattern}{MARKS}) | (?={UNSPACED.pattern})")
"""A space beside a letter of a script that has none between words."""
HYPHEN = re.compile(r"(\S)-(\S)")
PROGRAM = "comet-score"


class SentenceMetric(Protocol):
    """A metric that compares translations with references and sources.

    One that `is_fast` is computed at every evaluation of a training run, not only of the final translations.
    """

    is_fast: ClassVar[bool]

    def compute(self, predictions: Lines, references: Lines, sources: Lines) -> dict[str, float]: ...


@dataclass(frozen=True)
class ErrorRate:
    """Substitutions, deletions and insertions per 100 words (`"wer"`) or characters (`"cer"`) of the references.

    Text is normalized before: NFC; lower case; no soft hyphens; characters other than letters with their marks and
    joiners, digits, and apostrophes between these become spaces; spaces are single. The variant `"raw"` compares text
    as it is. Spaces between words count as characters; without `"raw"`, not beside letters of Chinese, Thai and other
    scripts that put none between words.
    """

    unit: str
    variant: str = ""
    is_fast: ClassVar[bool] = True

    def __post_init__(self) -> None:
        with requires("speech"):
            import jiwer  # noqa: F401

    @property
    def signature(self) -> str:
        """The settings that the value depends on, like a signature of sacreBLEU."""
        text = "raw" if self.variant else "nfc.lower.letters-marks-joiners-digits-inner_apostrophes"
        if self.unit == "cer" and not self.variant:
            text += ".no_spaces_in_unspaced_scripts"
        return f"text:{text}|version:jiwer-{version('jiwer')}"

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The rate by the name of its unit; sources are not used."""
        import jiwer

        check_lines("predictions", predictions, references)
        if not self.variant:
            predictions, references = ([normalized(line) for line in lines] for lines in (predictions, references))
            if self.unit == "cer":
                predictions, references = (
                    [GAP.sub("", line) for line in lines] for lines in (predictions, references)
                )
        rate = jiwer.wer if self.unit == "wer" else jiwer.cer
        return {self.unit: 100 * rate(list(references), list(predictions))}


def normalized(text: str) -> str:
    """Lower case, without punctuation but apostrophes within words, with single spaces."""
    text = unicodedata.normalize("NFC", text.lower()).translate(APOSTROPHES).replace("\u00ad", "")
    return " ".join(SPOKEN.findall(text))


@dataclass(frozen=True)
class Rouge:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L in percent, the means over the summaries; case is ignored.

    The tokens are runs of the letters a to z and of digits; where most letters of the references are not Latin, those
    of `ErrorRate`: words, and letters in scripts without spaces. The variant `"stem"` compares Porter stems of Latin
    text, as ROUGE-1.5.5 does with `-m` and most papers report; the default compares words, as `evaluate.load("rouge")`
    does.
    """

    variant: str = ""
    is_fast: ClassVar[bool] = True

    def __post_init__(self) -> None:
        with requires("rouge"):
            import rouge_score  # noqa: F401

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The scores by the names of `ROUGE`; sources are not used."""
        from rouge_score.rouge_scorer import RougeScorer

        check_lines("predictions", predictions, references)
        is_latin = share_of_script("".join(references), "Latin") >= 0.5
        other = None if is_latin else SimpleNamespace(tokenize=lambda text: words(normalized(text)))
        scorer = RougeScorer(ROUGE, use_stemmer=self.variant == "stem", tokenizer=other)
        scores = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
        return {name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE}


@dataclass(frozen=True)
class CompoundBLEU:
    """Cased BLEU of Moses tokens whose compounds are split at hyphens, which counts more matches.

    The procedure of `get_ende_bleu.sh` of tensor2tensor (B2T, footnote 7), except that it has references that were
    tokenized before; here Moses tokenizes both sides.

    Args:
        language: of the rules of the tokenizer.
    """

    language: str = "de"
    is_fast: ClassVar[bool] = False

    def __post_init__(self) -> None:
        with requires("moses"):
            import sacremoses  # noqa: F401

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The score as `compound_bleu`; sources are not used."""
        return {"compound_bleu": tokenized_bleu(self.split(predictions), self.split(references)).value}

    def split(self, lines: Lines) -> list[str]:
        """The tokens of lines, joined by spaces: `Ost-West` becomes `Ost ##AT##-##AT## West`."""
        from sacremoses import MosesTokenizer

        moses = MosesTokenizer(lang=detected_as(self.language, ()))
        return [HYPHEN.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(line, return_str=True)) for line in lines]


@dataclass(frozen=True)
class Comet:
    """A COMET model (Rei et al. 2020): a name on the Hub, or a file `*.ckpt`.

    By its command line, in an environment of its own: its library does not run with the Transformers of this package.
    """

    model: str = "Unbabel/wmt22-comet-da"
    is_fast: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if shutil.which(PROGRAM) is None:
            raise InputError(
                f"evaluation.metrics: comet needs the program {PROGRAM}, which is not on the PATH: "
                "pipx install unbabel-comet (in its own environment, because it requires Transformers 4)"
            )
        if self.model.endswith(".ckpt") and not expanded(self.model).is_file():
            raise InputError(f"evaluation.metrics: comet:{self.model}: no such file")

    def compute(self, predictions: Lines, references: Lines, sources: Lines) -> dict[str, float]:
        """The mean score of the sentences, by the name of the model."""
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "scores.json"
            options = ["--model", os.path.expanduser(self.model), "--gpus", str(int(torch.cuda.is_available()))]
            texts = {"sources": sources, "translations": predictions, "references": references}
            for name, lines in texts.items():
                file = Path(folder) / name
                file.write_text("".join(f"{one_line(line)}\n" for line in lines), encoding="utf-8")
                options += [f"--{name}", str(file)]
            options += ["--quiet", "--only_system", "--to_json", str(result)]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run([PROGRAM, *options], capture_output=True, text=True, env=environment)
            if done.returncode or not result.is_file():
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise InputError(f"evaluation.metrics: {PROGRAM} --model {self.model} failed: {last}")
            (segments,) = json.loads(result.read_text(encoding="utf-8")).values()
        return {self.model: sum(segment["COMET"] for segment in segments) / len(segments)}
