"""The figures of the papers for a model of the user, on text of the user."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from figure import Figure
from points import Point, check_matplotlib, write_points

from residual_hf.analysis.short_training import profiled
from residual_hf.base.errors import InputError
from residual_hf.base.modes import check_modes
from residual_hf.checkpoint import load_checkpoint
from residual_hf.data.multilingual import check_tagged
from residual_hf.data.sample_checks import MOST_UNKNOWN
from residual_hf.data.text_files import iter_lines
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.length_limits import position_limit
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.probes.undisturbed import Batch

SENTENCES, LONGEST = 16, 128
OF_A_MODE = ("ln_mode", "ln_mode_options", "norm_type", "init_style", "branch_warmup")
TEXTS = [[f"{split}.{side}.txt" for side in ("sources", "references")] for split in ("valid", "test")]


@dataclass(frozen=True)
class OwnModel:
    """A loaded model with sentence pairs to measure it on. `title` describes both in captions."""

    name: str
    title: str
    model: Any
    tokenizer: Any
    pairs: list[tuple[str, str]] = field(repr=False)

    @classmethod
    def load(cls, name: str, source: Path | None = None, reference: Path | None = None) -> "OwnModel":
        """Load a model of this or another family, and its text.

        Args:
            name: folder of a run or of a model, or a name on the Hub.
            source, reference: text files; default: the validation or test set of the run.

        Raises:
            InputError: no text, files of different length, text without the language tags of the model or with many
                unknown tokens, or a model that cannot be loaded.
        """
        name = os.path.expanduser(name)
        given = [path for path in (source, reference) if path is not None]
        of_run = [[Path(name, file) for file in files] for files in TEXTS]
        files = given or next((files for files in of_run if all(file.is_file() for file in files)), [])
        if len(files) < 2:
            raise InputError("--source, --reference: missing, both required for a model without its run folder")
        sides = [list(iter_lines(file)) for file in files]
        if len(sides[0]) != len(sides[1]):
            raise InputError(f"{files[1]}: {len(sides[1])} lines for {len(sides[0])} of {files[0]}, must be as many")
        pairs = [(a, b) for a, b in zip(*sides, strict=True) if a.strip() and b.strip()]
        if not pairs:
            raise InputError(f"{files[0]}: no lines")
        model, tokenizer = load_checkpoint(name)
        check_text(model.config, tokenizer, files, pairs)
        short = Path(name).resolve().name or name
        title = f"Model {short}, {min(SENTENCES, len(pairs))} sentence pairs of {files[0].name}, without dropout."
        return cls(short, title, model.float(), tokenizer, pairs)

    def batch(self, seed: int) -> Batch:
        """Some of the pairs, drawn at random, cut to `LONGEST` tokens."""
        longest = min(LONGEST, position_limit(self.model.config) or LONGEST)
        order = torch.randperm(len(self.pairs), generator=torch.Generator().manual_seed(seed))[:SENTENCES].tolist()
        sources, targets = zip(*(self.pairs[i] for i in order), strict=True)
        shape = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
        encoded = self.tokenizer(list(sources), text_target=list(targets), **shape)
        labels = encoded["labels"].masked_fill(encoded["labels"] == self.tokenizer.pad_token_id, -100)
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}

    def fresh(self, mode: str, seed: int) -> Any:
        """A new model of the same sizes with another mode. Raises `InputError` for a model of another family."""
        if not isinstance(self.model, ResidualForConditionalGeneration):
            raise InputError(f"--modes: {self.name} is a {type(self.model).__name__}, must be a model of residual_hf")
        torch.manual_seed(seed)
        values = self.model.config.to_dict()
        for name in OF_A_MODE:
            values |= {name: None, f"encoder_{name}": None, f"decoder_{name}": None}
        values = {key: value for key, value in values.items() if hasattr(ResidualConfig, key)}
        values |= {"ln_mode": mode, "admin_profile": None, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
        model = ResidualForConditionalGeneration(ResidualConfig(**values))
        return profiled(model, self.batch(seed))


def check_text(config: Any, tokenizer: Any, files: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> None:
    """Raise `InputError` for text that a model does not read or write in training, such as that of a run whose
    corpora get language tags or have segmented text."""
    tagged = getattr(config, "language_tags", None)
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        file = files[side == "target"]
        if tagged == side:
            check_tagged(texts, tokenizer, f"{file}: a line")
        ids = tokenizer(**{"text" if side == "source" else "text_target": list(texts[:SENTENCES])})["input_ids"]
        tokens = [token for row in ids for token in row]
        unknown = tokens.count(tokenizer.unk_token_id) / len(tokens)
        if unknown > MOST_UNKNOWN:
            raise InputError(
                f"{file}: {100 * unknown:.0f} % of the tokens are unknown to the tokenizer, must be text segmented "
                "and normalized like that of the training (--source, --reference)"
            )


def draw_for_model(
    figure: Figure, own: OwnModel, output_dir: Path, modes: Sequence[str] = (), seeds: Sequence[int] = (1, 2, 3)
) -> list[Path]:
    """Measure a model, and fresh ones of its sizes with these modes; write NAME.csv, NAME.svg and NAME.png.

    Args:
        seeds: of the choice of sentences, and of the weights of fresh models.

    Raises:
        InputError: an unknown mode, no matplotlib, or a figure that needs trainings or a model of another kind.
    """
    check_modes(modes)
    check_matplotlib()
    if figure.probe is None:
        raise InputError(f"{figure.name}: trains models of its own, so it has no --model")
    caption = f"As {figure.source}. {own.title} {figure.protocol} Seeds: {', '.join(map(str, seeds))}."
    points: list[Point] = []
    for seed in seeds:
        batch = own.batch(seed)
        points += figure.probe(own.model, batch, own.name, seed)
        for mode in modes:
            points += figure.probe(own.fresh(mode, seed), batch, f"fresh {mode}", seed)
    if not points:
        raise InputError(f"{figure.name}: {own.name} has none of the norms or sub-layers that it shows")
    return write_points(output_dir, figure.name, figure.panels, points, caption)
