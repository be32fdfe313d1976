"""Fenced blocks of Markdown pages, the commands of shell blocks, and a folder with what the pages talk about."""

import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml
from transformers import MarianConfig, MarianMTModel

from residual_hf.base.yaml_files import load_yaml
from residual_hf.data.synthetic import generate_corpus
from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe, load_recipe
from residual_hf.runs.run import train
from support import small_sizes
from support.fairseq_files import (
    fairseq_weights,
    random_model,
    settings_of,
    write_checkpoint,
    write_codes,
    write_dictionary,
)
from support.tiny_translator import tiny_tokenizer

from . import ROOT

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run:(?P<reason>[^\n]*)-->\s*\Z")
SEPARATORS = {"&&", "||", ";", "|", "&"}


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` says why it is not run, from a comment `<!-- not run: ... -->` before it."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """The words of one command of a shell block, without what it is redirected to."""

    words: tuple[str, ...]
    stdin: str | None = None
    stdout: str | None = None

    @property
    def verb(self) -> list[str] | None:
        """The arguments of `residual-hf`, also where a launcher starts it; None for other commands."""
        for name in ("residual-hf", "residual_hf_cli"):
            if name in self.words:
                return list(self.words[self.words.index(name) + 1 :])
        return None

    def __str__(self) -> str:
        return shlex.join(self.words)


def pages() -> list[str]:
    """Every page with commands in it, by its path in the repository."""
    found = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
    return [page.relative_to(ROOT).as_posix() for page in found]


def read_blocks(page: str, language: str | None = None) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        mark = MARK.search(text[: match.start()])
        line = text.count("\n", 0, match.start("text")) + 1
        reason = mark["reason"].strip() if mark else None
        blocks.append(Block(page, line, match["language"], textwrap.dedent(match["text"]), reason))
    return [block for block in blocks if language in (None, block.language)]


def commands(block: Block) -> list[Command]:
    """The simple commands of a shell block, those inside loops too."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        redirected: dict[str, str] = {}
        for word in [*lexer, ";"]:
            if word in SEPARATORS:
                if words:
                    found.append(Command(tuple(words), redirected.get("<"), redirected.get(">")))
                words, redirected = [], {}
            elif words and words[-1] in ("<", ">"):
                redirected[words.pop()] = word
            else:
                words.append(word)
    return found


def complete_recipe() -> dict:
    """The recipe that the guide for practitioners begins with."""
    return load_yaml(read_blocks("docs/practitioner.md", "yaml")[0].text)


def shrunk(recipe: dict) -> dict:
    """A recipe of seconds with the fields of a real one."""
    training = {"max_tokens": 600, "max_updates": 4, "eval_every": 2, "warmup_updates": 1}
    return {
        **recipe,
        "data": {**recipe["data"], "cleaning": {"duplicates": "pair"}},  # such a model translates to any length
        "tokenizer": {**recipe["tokenizer"], "vocab_size": 400},
        "model": {**recipe["model"], **small_sizes(), "max_position_embeddings": 128},
        "training": {**recipe["training"], **training},
        "decoding": {"num_beams": 2, "max_length_a": 0.0, "max_length_b": 8},
    }


def make_folder(folder: Path) -> Path:
    """The files that the pages name: text, `recipe.yaml`, a finished run, and models of other code bases."""
    corpora = generate_corpus({"train": 200, "valid": 6, "test": 6})
    for name, pairs in corpora.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for language in ("en", "de"):
        shutil.copy(folder / f"test.{language}", folder / f"text.{language}")
    recipe = shrunk(complete_recipe())
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    train(load_recipe(folder / "recipe.yaml"))
    tuned = load_yaml(read_blocks("docs/continue_training.md", "yaml")[0].text)
    tuned["training"] |= {"max_updates": 2, "eval_every": 2, "warmup_updates": 1}
    (folder / "tuned.yaml").write_text(yaml.safe_dump(tuned, sort_keys=False), encoding="utf-8")
    shutil.copytree(folder / "runs" / "my_run" / "model", folder / "residual_hf_quickstart" / "model")
    write_marian(folder / "Helsinki-NLP" / "opus-mt-en-de")
    write_fairseq(folder)
    return folder


def write_marian(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **small_sizes()}
    tokens = {"pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2, "decoder_start_token_id": 1}
    MarianMTModel(MarianConfig(**sizes, **tokens)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_fairseq(folder: Path) -> None:
    model = random_model(max_position_embeddings=256)
    flags = {"arch": "resi_dual", "encoder_normalize_before": True}
    write_checkpoint(folder / "checkpoint_best.pt", fairseq_weights(model), settings_of(model.config, **flags))
    for language in ("en", "de"):
        write_dictionary(folder / f"dict.{language}.txt")
    write_codes(folder / "bpe_codes")


def merged(base: dict, changes: dict) -> dict:
    """`changes` over `base`, section by section."""
    both = {**base, **changes}
    for name in base.keys() & changes.keys():
        if isinstance(base[name], dict) and isinstance(changes[name], dict):
            both[name] = merged(base[name], changes[name])
    return both


def check_recipe(values: dict) -> None:
    """Refuses what a recipe would refuse before it looks at files."""
    recipe = from_mapping(Recipe, values)
    if recipe.starts_from is None:
        recipe.build_config()
