"""Translation of lines as they are read, in constant memory: what `residual-hf translate` runs."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from tqdm import tqdm

from residual_hf.base.errors import InputError, requires
from residual_hf.base.files import IS_WINDOWS
from residual_hf.base.launched import is_first
from residual_hf.base.processes import this_process
from residual_hf.data.glossary import Glossary
from residual_hf.data.text_files import iter_lines, one_line

from .checks import suspicions
from .generation_settings import StreamSettings
from .long_text import LongLines
from .resumable_file import ResumableFile
from .translator import Hypothesis, Translator

CHECKED_TOGETHER = 10_000  # lines
SECONDS_BETWEEN = 60.0  # lines about progress, where no bar can be


def translate_file(
    load: Callable[[], Translator],
    settings: StreamSettings,
    *,
    source: Path | None = None,
    output: Path | None = None,
    made_with: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    inputs: Iterable[Path | str] = (),
) -> None:
    """Translate a file or standard input to a file or standard output; a terminal line by line.

    Names of files are checked before `load` is called.

    Args:
        made_with: what identifies the translator. An interrupted `output` is continued with the same one only.
        inputs: files and folders in addition to `source` that `output` must not replace.
    """
    if resume and output is None:
        raise InputError("--resume: only with --output")
    can_check = source is not None and not source.is_fifo() and not source.is_char_device()  # which are read once
    typed = source is None and sys.stdin.isatty()
    if typed:
        settings = replace(settings, window=1)
    lines = typed_lines() if typed else iter_lines(source)
    with ExitStack() as stack:
        file: ResumableFile | None = None
        write: Callable[[Sequence[str], str], Any] = write_to_stdout
        done = 0
        if output is not None and is_first():
            made_with = {**(made_with or {}), **replace(settings, long="error", window=1, review=0).declared}
            kept = [source, *inputs]
            file = ResumableFile(output, made_with, resume=resume, overwrite=overwrite, inputs=kept)
            lines = stack.enter_context(file).remaining(lines)
            write, done = file.append, file.lines
        if can_check:
            next(iter_lines(source), None)
        translator = load()
        translator.encode([""], settings.source_lang, settings.target_lang)  # refuses languages
        total = None
        if can_check and is_first():
            languages = settings.source_lang, settings.target_lang
            treatment = "split" if settings.split_sentences else settings.long
            total = check_lengths(translator, iter_lines(source), treatment, str(source), *languages)
        long = translate_stream(translator, lines, write, settings, done=done, total=total, recover=typed)
        if file is not None:
            file.finish()
    if long.count and is_first():
        print(long, file=sys.stderr)


def write_to_stdout(lines: Sequence[str], text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def translate_stream(
    translator: Translator,
    lines: Iterator[str],
    write: Callable[[Sequence[str], str], Any],
    settings: StreamSettings,
    *,
    done: int = 0,
    total: int | None = None,
    recover: bool = False,
) -> LongLines:
    """Translate lines in windows, write each window when it is translated, and return the lines that were too long.

    The processes of a `torchrun` share the work. Only the first reads `lines` and writes.

    Args:
        write: called with the lines of a window and the text to write for them.
        done: lines that were translated before, for line numbers and the progress bar.
        total: number of lines with those that are done, if it is known.
        recover: report a line that cannot be translated, and continue.
    """
    process = this_process(on_cpu=translator.model.device.type == "cpu")
    long = LongLines(translator.inputs.positions, settings.long)
    start: list[Any] = [done, recover]
    broadcast_object_list(start)  # only the first process knows them, and the seeds of all depend on `done`
    done, recover = start
    hidden = None if process.is_main_process and not recover else True  # None: without a terminal
    review = Review(settings.review, translator.glossary, done)
    answer = translator.answer
    if settings.split_sentences:
        with requires("documents"):
            from .markup import paragraph_hypotheses
        answer = partial(paragraph_hypotheses, translator)
    aligned, scored = settings.alignments or settings.word_scores, settings.scores or settings.review > 0
    request = replace(settings, generate_arguments=settings.sampling, shared=True, alignments=aligned, scores=scored)
    report = None if hidden or sys.stderr.isatty() else progress_lines()
    with tqdm(desc="translating", unit=" sentences", initial=done, total=total, disable=hidden) as bar:
        for window in shared_windows(lines, settings.window):
            if settings.sample:
                seed = 1 if settings.seed is None else settings.seed
                torch.manual_seed(seed + done + (process.process_index << 32))
            try:
                asked = replace(request, on_long=partial(long.add, done + 1), progress=bar.update)
                found = answer(window, asked)
            except InputError as error:
                if not recover:
                    raise
                if process.is_main_process:
                    print(error, file=sys.stderr)
            else:
                if process.is_main_process:
                    pairs = [(line, each) for line, best in zip(window, found, strict=True) for each in best]
                    write(window, "".join(written(*pair, settings, translator.glossary) for pair in pairs))
                    review.add(done + 1, window, [best[0] for best in found])
            done += len(window)
            bar.update(done - bar.n)  # empty and split lines
            if report is not None:
                report(done, total)
    if process.is_main_process and review.most:
        print(review, file=sys.stderr)
    return long


def progress_lines() -> Callable[[int, int | None], None]:
    """A function that writes the number of lines that are done to a log, at most once in `SECONDS_BETWEEN`."""
    last = time.monotonic()

    def report(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN:
            last = time.monotonic()
            of = "" if total is None else f" of {total:,} ({done / total:.0%})"
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} translated {done:,}{of} lines", file=sys.stderr, flush=True)

    return report


def written(line: str, hypothesis: Hypothesis, settings: StreamSettings, glossary: Glossary | None = None) -> str:
    """The text to write for a translation of a line."""
    score = f"{hypothesis.score:.4f}\t" if settings.scores else ""
    columns = []
    if settings.alignments:
        columns.append(str(hypothesis.alignment or ""))
    if settings.word_scores:
        words = hypothesis.alignment.word_scores if hypothesis.alignment else []
        columns.append(" ".join(f"{probability:.4f}" for probability in words))
    if settings.flags:
        columns.append(" ".join(suspicions(line, hypothesis.text, glossary)))
    text = one_line(hypothesis.text)
    return score + "\t".join([text.replace("\t", " ") if columns else text, *columns]) + "\n"


def shared_windows(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines that the first process reads, in all processes."""
    while True:
        window = [list(islice(lines, size)) if this_process().is_main_process else []]
        broadcast_object_list(window)
        if not window[0]:
            return
        yield window[0]


def check_lengths(
    translator: Translator, lines: Iterable[str], treatment: str, name: str, *languages: str | None
) -> int:
    """Number of lines of the text `name`. Raises `InputError` for a line that cannot be read or is too long.

    `languages`: source and target, whose tags count too.
    """
    long, first, lines = LongLines(translator.inputs.positions, treatment, name), 1, iter(lines)
    while window := list(islice(lines, CHECKED_TOGETHER)):
        if long.positions is not None and treatment == "error":
            enough = long.positions * 3 // 4  # a token has a byte or more, but for tags and annotations
            large = (i for i, line in enumerate(window) if len(line.encode()) > enough)
            numbers = [i for i in large if translator.inputs.kept(window[i]) is None]
            encoded, _ = translator.encode([window[i] for i in numbers], *languages)
            for i, ids in zip(numbers, encoded, strict=True):
                if len(ids) > long.positions:
                    long.add(first, i, len(ids))
        first += len(window)
    return first - 1


def typed_lines() -> Iterator[str]:
    """Lines that a user types, until the end of input."""
    with suppress(ImportError):
        import readline  # noqa: F401  # lets `input` edit lines
    end = "Ctrl-Z and Enter" if IS_WINDOWS else "Ctrl-D"
    print(f"Type a sentence and press Enter. {end} ends.", file=sys.stderr)
    with suppress(EOFError):
        while True:
            yield input("> " if sys.stdout.isatty() else "")


class Review:
    """The `most` worst translations of a text: those with suspicions, then those with low scores."""

    def __init__(self, most: int, glossary: Glossary | None = None, done: int = 0):
        self.most, self.glossary, self.done, self.lines, self.suspicious = most, glossary, done, 0, 0
        self.worst: list[tuple[int, float, str]] = []
        """Higher numbers for what needs a look more, and what is shown."""

    def add(self, first: int, lines: Sequence[str], found: Sequence[Hypothesis]) -> None:
        """Look at the translations of lines that follow each other from the number `first`."""
        if not self.most:
            return
        self.lines += len(lines)
        for number, (line, best) in enumerate(zip(lines, found, strict=True), start=first):
            if line.strip():
                flags, score = suspicions(line, best.text, self.glossary), best.score or 0.0
                named = f"line {number}, score {score:.4f}{''.join(f', {flag}' for flag in flags)}"
                self.suspicious += bool(flags)
                self.worst.append((len(flags), -score, f"{named}\n  {line.strip()}\n  {best.text}"))
        self.worst = nlargest(self.most, self.worst, key=itemgetter(0, 1))

    def __str__(self) -> str:
        after = f" after the {self.done} that were translated before" if self.done else ""
        found = f"{self.suspicious} of {self.lines} lines{after} are suspicious"
        return "\n".join([f"{found}; look first at" if self.worst else found, *(shown for *_, shown in self.worst)])
