"""Sequence-level knowledge distillation (Kim & Rush 2016): a student is trained on the translations of a teacher."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_file, check_output_folder, read_json, write_atomically, write_json
from residual_hf.base.yaml_files import dump_yaml
from residual_hf.data.cleaning import cleaned_pairs
from residual_hf.data.corpus import ParallelCorpus, describe_corpus, read_parallel
from residual_hf.data.data_settings import CorpusSpec, DataSettings
from residual_hf.data.multilingual import directions
from residual_hf.data.pair_reader import check_files
from residual_hf.data.pair_rows import Pair
from residual_hf.data.pipeline import given_tokenizer
from residual_hf.data.text_files import iter_lines, one_line
from residual_hf.data.tokenizer import backend_of, reads_segmented_text, spaced
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.generation.stream import translate_file
from residual_hf.generation.translator import Translator

from .recipe import Recipe, placed_in, plain

logger = logging.getLogger(__name__)

RECORD = "distill.json"


def distill(
    recipe: Recipe,
    load_teacher: Callable[[], Translator],
    folder: Path,
    *,
    student: str = "6+2",
    settings: StreamSettings | None = None,
    closest: bool = False,
    tokenizer: Path | None = None,
    made_with: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Path:
    """Translate the training sources of a recipe, and write the recipe of a student that is trained on the result.

    `folder` receives `trainN.source` and `trainN.target` for each training corpus and direction, the held-out corpora
    of a bidirectional recipe from target to source, and `recipe.yaml`: the given recipe with these corpora and the
    student's layers. Corpora with a `tag` have genuine targets and are used as they are. Where loss or NLL select the
    checkpoint, BLEU does instead: the NLL of the validation references rises while a student that learns translations
    still improves.

    Args:
        recipe: that of the teacher, or of another student; its training corpora are cleaned as it says.
        load_teacher: returns the teacher; called once, and not if a resumed call has nothing to translate.
        student: layers of encoder and decoder, as "6+2".
        settings: of the translations. With several per sentence, each is a pair of its own.
        closest: of several translations, keep only the one with the highest sentence BLEU (sequence-level
            interpolation).
        tokenizer: folder of the tokenizer that the student shares with the teacher; None: it gets its own. Segmented
            text keeps its dictionary.
        made_with: what identifies the teacher.
        resume: continue an interrupted call with the same arguments.

    Returns:
        The recipe of the student.

    Raises:
        InputError: a recipe of a language model, a `student` of another form, `closest` with one translation, a folder
            that is not empty or has been made with something else, or what reading and translating raise.
    """
    found = re.fullmatch(r"([1-9]\d*)\+([1-9]\d*)", student)
    if found is None:
        raise InputError(f"student: {student!r} given, must be the layers of encoder and decoder, such as 6+2")
    recipe.require(recipe.chosen_task.has_source_text, "task", "'translation' or 'summarization'")
    absent = "absent: a student has other sizes; give another with --recipe"
    recipe.require(recipe.starts_from is None, "model.from", absent)
    settings = settings or StreamSettings(long="skip")
    settings.require(not closest or settings.num_return_sequences > 1, "num_return_sequences", "above 1 with closest")
    layers = {"encoder_layers": int(found[1]), "decoder_layers": int(found[2])}
    replace(recipe, model={**recipe.model, **layers}).build_config()  # refuses layers
    check_files(recipe.data.train)
    splits = ("valid", "test") if recipe.data.bidirectional else ()
    held_out = {split: [(each, read_parallel(each)) for each in getattr(recipe.data, split) or ()] for split in splits}
    values, load_teacher = recipe.as_dict(), cache(partial(with_subwords, load_teacher))
    text = [list(describe_corpus(spec).sha256.values()) for spec in recipe.data.train]
    made_with = {**settings.declared, **(made_with or {}), "closest": closest, "data": values["data"], "text": text}
    if resume:
        before, now = read_json(folder / RECORD), json.loads(json.dumps(made_with))
        if changed := [name for name in now if before.get(name) != now[name]]:
            raise InputError(f"--resume: {folder} was made with other {', '.join(changed)}")
    else:
        check_output_folder(folder, overwrite=False, holds=[RECORD], options="--resume")
        load_teacher()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, made_with)
    several, both = recipe.data.language_tags is not None, recipe.data.bidirectional
    corpora = [plain(spec) for spec in recipe.data.train if spec.tag is not None]
    for number, pairs in enumerate(training_text(recipe), start=1):
        source, target = (folder / f"train{number}.{side}" for side in ("source", "target"))
        languages = pairs.languages
        if not target.exists():
            own = replace(settings, **languages) if several else settings
            tokenize = recipe.evaluation.tokenizer_for(languages["target_lang"]) if closest else None
            write_targets(pairs, load_teacher, source, target, own, tokenize)
        weight = pairs.spec.weight and pairs.spec.weight / (1 + both)  # that of one direction
        corpora.append({"source": str(source), "target": str(target), "weight": weight, **languages})
    values["data"] |= {"train": corpora, "bidirectional": False}
    for split, read in held_out.items():
        both_ways = []
        for number, (spec, corpus) in enumerate(read, start=1):
            both_ways += [plain(spec), write_reverse(corpus, folder / f"{split}{number}")]
        values["data"][split] = both_ways or None
    if cleaning := values["data"]["cleaning"]:
        if cleaning["duplicates"] is not None:
            cleaning["duplicates"] = "pair"  # translations of a sentence may be several
        if both:
            cleaning["source_script"] = cleaning["target_script"] = None  # those of one direction
    if values["training"]["metric"] in ("nll", "loss"):
        values["training"] |= {"metric": "bleu", "eval_bleu": True}
    values["model"] |= layers
    values["output_dir"] = str(folder / "student")
    if tokenizer is not None and recipe.tokenizer.kind != "pretokenized":
        try:
            given_tokenizer(tokenizer, recipe.tokenizer.kind, recipe.data)
            values["tokenizer"] |= {"path": str(tokenizer)}
        except InputError as error:
            logger.warning("the student gets a tokenizer of its own: %s", error)
    path = folder / "recipe.yaml"
    write_atomically(path, dump_yaml(placed_in(Path.cwd(), values, Recipe)))  # usable from any folder
    return path


def with_subwords(load_teacher: Callable[[], Translator]) -> Translator:
    """A teacher, which translates segmented text to segmented text if it reads such text."""
    teacher = load_teacher()
    if reads_segmented_text(teacher.tokenizer):
        backend_of(teacher.tokenizer, "target").decoder = spaced()
    return teacher


@dataclass(frozen=True)
class TrainingText:
    """The pairs of a training corpus, cleaned, in one direction; they are read anew each time, not kept in memory."""

    spec: CorpusSpec
    data: DataSettings
    is_reversed: bool

    @property
    def languages(self) -> dict[str, Any]:
        pair = self.spec.source_lang, self.spec.target_lang
        return dict(zip(("source_lang", "target_lang"), pair[::-1] if self.is_reversed else pair, strict=True))

    def __iter__(self) -> Iterator[Pair]:
        for pair in cleaned_pairs(self.spec, self.data.cleaning, streaming=self.data.stream):
            yield pair[::-1] if self.is_reversed else pair


def training_text(recipe: Recipe) -> list[TrainingText]:
    """The training text in every direction."""
    ways = (False, True) if recipe.data.bidirectional else (False,)
    return [TrainingText(spec, recipe.data, way) for spec in recipe.data.train if spec.tag is None for way in ways]


def write_reverse(corpus: ParallelCorpus, name: Path) -> dict[str, Any]:
    """Write a corpus from target to source to `name.source` and `name.target`; the entry of a recipe for these."""
    _, back = directions(corpus, True)
    files = {side: name.with_name(f"{name.name}.{side}") for side in ("source", "target")}
    for path, lines in zip(files.values(), (back.sources, back.targets), strict=True):
        write_atomically(path, "".join(f"{one_line(line)}\n" for line in lines))
    languages = {"source_lang": back.source_lang, "target_lang": back.target_lang}
    return {**{side: str(path) for side, path in files.items()}, **languages}


def write_targets(
    pairs: TrainingText,
    load_teacher: Callable[[], Translator],
    source: Path,
    target: Path,
    settings: StreamSettings,
    tokenize: str | None,
) -> None:
    """Write the sources of training text and their translations, pair by pair; the target is written last.

    `tokenize`: of sacreBLEU, to keep the translation with the highest sentence BLEU only.
    """
    count = settings.num_return_sequences
    lines, found = source.with_name(f"{source.name}.lines"), target.with_name(f"{target.name}.found")
    if not found.exists():
        with atomic_file(lines) as path, path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{one_line(text)}\n" for text, _ in pairs)
        resume = found.with_name(f"{found.name}.partial.json").exists()
        translate_file(load_teacher, settings, source=lines, output=found, resume=resume, overwrite=True)
    translations, sentences, written = iter_lines(found), 0, 0
    with ExitStack() as stack:
        files = []
        for path in (target, source):  # the first is the last to have its name
            path = stack.enter_context(atomic_file(path))
            files.append(stack.enter_context(path.open("w", encoding="utf-8", newline="\n")))
        for text, reference in pairs:
            best = list(dict.fromkeys(islice(translations, count)))
            if tokenize is not None:
                best = [closest_to(reference, best, tokenize)]
            kept = [line for line in best if line.strip()]
            files[0].writelines(f"{line}\n" for line in kept)
            files[1].writelines([f"{one_line(text)}\n"] * len(kept))
            sentences, written = sentences + 1, written + len(kept)
    logger.info("%s: %d pairs of %d sentences", pairs.spec.title, written, sentences)
    found.unlink()
    lines.unlink()


def closest_to(reference: str, translations: list[str], tokenize: str) -> str:
    """The translation with the highest sentence BLEU, of a tokenizer of sacreBLEU, the first of equal ones."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True, tokenize=tokenize)
    return max(translations, key=lambda line: bleu.sentence_score(line, [reference]).score)
