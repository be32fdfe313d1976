# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The text of a model card: one function per section, an empty text for what is not known."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import PurePath
from typing import Any

import yaml

from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.connections import LN_MODES

from .card_facts import Card
from .card_scores import comparison, evaluation
from .citations import bibtex, papers
from .finished_run import SPLITS, FinishedRun

RECIPE_SECTIONS = ("tokenizer", "model", "training", "decoding")
FOLDERS = re.compile(r"(?<![\w.:/)~])~?/(?:[^\s/=,:{}'\"`]+/)+")
"""Of an absolute path all but its last part: where files lie on the machine of a run is nobody's business."""


def card_text(card: Card) -> str:
    """Everything of a card below its metadata, in Markdown."""
    sections = (summary, model, usage, limits, data, training, evaluation, comparison, carbon, licenses, citation)
    return FOLDERS.sub("", "\n\n".join(text for section in sections if (text := section(card)))) + "\n"


def summary(card: Card) -> str:
    modes = " and ".join(f"`{mode}`" for mode in card.run.ln_modes)
    return (
        f"# {card.name}\n\nTranslates from {_directions(card.run)}: an encoder-decoder Transformer with {modes} "
        "residual connections, trained from random weights with residual_hf. This card was generated from the files "
        "of its training run."
    )


def model(card: Card) -> str:
    config = card.run.config
    figures = {
        "layers (encoder + decoder)": _pair(config, "layers", " + "),
        "width": config.get("d_model"),
        "feed-forward width": _pair(config, "ffn_dim"),
        "attention heads": _pair(config, "attention_heads"),
        "vocabulary": _vocabulary(config),
        "longest sentence, in tokens": config.get("max_position_embeddings"),
        "parameters": _number(card.run.record.get("parameters")),
        "norm": config.get("norm_type"),
        "initialisation": config.get("init_style"),
        "options of the mode": config.get("ln_mode_options"),
    }
    modes = "\n\n".join(_mode(card.run, name) for name in card.run.ln_modes)
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures.items() if value not in (None, {}))
    return f"## Model\n\n{modes}\n\n| | |\n|---|---|\n{rows}"


def usage(card: Card) -> str:
    source, target = card.run.directions[0]
    tags = card.run.config.get("language_tags")
    longest = min(200, card.run.config.get("max_position_embeddings") or 200)
    sentence = f"A sentence in {source}."
    tagged = f"<2{target}> {sentence}" if tags == "source" else sentence
    language = f', tgt_lang="{target}"' if tags else ""
    options = f"max_new_tokens={longest}"
    if tags == "target":
        options += f', forced_bos_token_id=tokenizer.convert_tokens_to_ids("<2{target}>")'
    ways = [
        f"""## Use

With the pipeline of Transformers; the model code lies beside the weights, residual_hf need not be installed:

```python
from transformers import pipeline

translate = pipeline("translation", model="{card.name}", trust_remote_code=True)  # a folder, or a name on the Hub
print(translate("{sentence}"{language}))
```

With the Auto classes:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{card.name}", trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained("{card.name}", trust_remote_code=True)
batch = tokenizer(["{tagged}"], return_tensors="pt")
outputs = model.generate(**batch, {options})
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
```"""
    ]
    if tags != "target":
        ways.append(f"""With residual_hf, which needs no remote code and sorts many sentences into batches:

```python
from residual_hf import Translator

print(Translator.from_pretrained("{card.name}").translate(["{tagged}"]))
```""")
    return "\n\n".join(ways)


def limits(card: Card) -> str:
    length = card.run.config.get("max_position_embeddings")
    longest = f" of at most {length:,} tokens" if length else ""
    known = (
        "It has seen nothing but the training data below: expect worse translations of other kinds of text, and the "
        "errors and biases of the data in its own output.",
        "It can leave out, add or change meaning while the text reads well. A person who knows both languages must "
        "check whatever matters.",
        "It knows no other direction, and no context beyond the sentence.",
        "Nothing but the scores below was measured; in particular no human judged the translations.",
    )
    purpose = (
        f"Meant for research on residual connections and for translating single sentences{longest} from "
        f"{_directions(card.run)}."
    )
    return "\n".join(["## Intended use and limits", "", purpose, "", *(f"- {limit}" for limit in known)])


def data(card: Card) -> str:
    run = card.run
    rows, hashes = [], []
    for split, label in SPLITS.items():
        if run.corpora(split):
            rows.append(f"| {label} | {_number(run.pairs(split)) or 'not recorded'} | {run.corpus_title(split)} |")
            hashes += [f"{digest}  {PurePath(path).name}" for path, digest in run.hashes(split).items()]
    parts = ["## Data", "\n".join(["| | sentence pairs | read from |", "|---|---|---|", *rows])]
    parts += [_cleaned(name, report) for name, report in run.cleaning_reports.items()]
    parts.append(f"Licence of the data: {card.data_license or 'not stated'}.")
    if hashes:
        parts.append("SHA-256 of what was read:\n\n```\n" + "\n".join(dict.fromkeys(hashes)) + "\n```")
    return "\n\n".join(parts)


def training(card: Card) -> str:
    run, settings = card.run, card.run.recipe.get("training") or {}
    seed = run.record.get("seed", settings.get("seed"))
    facts = [
        f"{run.metrics['updates']:,} updates" if "updates" in run.metrics else None,
        f"one run with one seed ({seed}): other seeds give other figures" if seed is not None else None,
        _weights(settings),
        _time(run),
        f"{run.record['tokens_per_second']:,.0f} target tokens per second"
        if _known(run, "tokens_per_second")
        else None,
        _versions(run),
        _commit(run.record["commit"]) if _known(run, "commit") else None,
        f"command: `{_command(run.record['command'])}`" if _known(run, "command") else None,
    ]
    parts = ["## Training", "\n".join(f"- {fact}" for fact in facts if fact)]
    if card.picture:
        parts.append(f"![NLL over updates]({card.picture})")
    elif run.curve:
        parts.append("The learning curve is in `metrics.jsonl` of the run.")
    recipe = {name: run.recipe[name] for name in RECIPE_SECTIONS if name in run.recipe}
    listed = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).rstrip()
    parts.append(f"<details><summary>Hyper-parameters</summary>\n\n```yaml\n{listed}\n```\n\n</details>")
    return "\n\n".join(parts)


def carbon(card: Card) -> str:
    if card.emissions is None:
        return ""
    return f"## Carbon\n\nAbout {card.emissions.grams:,.3g} g CO2 equivalent: {card.emissions.assumption}"


def licenses(card: Card) -> str:
    return (
        f"## Licence\n\nWeights: {card.license or 'not stated'}. Model code in this folder: Apache-2.0. "
        f"Data: {card.data_license or 'not stated'}."
    )


def citation(card: Card) -> str:
    entries = [entry for mode in card.run.ln_modes if mode in LN_MODES for entry in bibtex(mode)]
    entries.append(papers()["post2018call"])
    if card.baseline is not None:
        entries.append(papers()["koehn2004statistical"])
    entries = "\n\n".join(dict.fromkeys(entries))
    return f"## Citation\n\n```bibtex\n{entries}\n```"


def _mode(run: FinishedRun, name: str) -> str:
    """A mode in the words of its class; of a class that is not imported here, only its name."""
    stacks = "Encoder and decoder" if len(run.ln_modes) == 1 else ("Encoder", "Decoder")[run.ln_modes.index(name)]
    mode = LN_MODES.get(name)
    own = {} if mode is None else vars(mode)
    lines = [
        f"{stacks}: `ln_mode` **{name}**."
        + (f" {inspect.cleandoc(own['__doc__']).splitlines()[0]}" if own.get("__doc__") else "")
    ]
    if own.get("equation"):
        lines.append(f"```\n{own['equation']}\n```\n\nHere `f` is a sub-layer, `a` its output after dropout.")
    if own.get("source"):
        lines.append(f"Source: {own['source']}.")
    return "\n\n".join(lines)


def _cleaned(corpus: str, report: dict[str, Any]) -> str:
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in (report.get("dropped") or {}).items() if count)
    return f"Cleaning kept {report['kept']:,} of {report['pairs']:,} training pairs of {corpus}" + (
        f"; left out: {reasons}." if reasons else "."
    )


def _directions(run: FinishedRun) -> str:
    return ", ".join(f"`{source}` to `{target}`" for source, target in run.directions)


def _pair(config: dict[str, Any], name: str, joint: str = " / ") -> str | None:
    values = [config.get(f"{stack}_{name}") for stack in ("encoder", "decoder")]
    if None in values:
        return None
    return str(values[0]) if values[0] == values[1] and joint == " / " else joint.join(map(str, values))


def _vocabulary(config: dict[str, Any]) -> str | None:
    if config.get("vocab_size") is None:
        return None
    if config.get("share_encoder_decoder_embeddings", True):
        return f"{config['vocab_size']:,}, of both languages together"
    return f"{config['vocab_size']:,} and {config.get('decoder_vocab_size', config['vocab_size']):,}"


def _number(value: Any) -> str | None:
    return None if value is None else f"{value:,}"


def _known(run: FinishedRun, name: str) -> bool:
    return run.record.get(name) is not None


def _weights(settings: dict[str, Any]) -> str | None:
    if settings.get("average"):
        return f"weights: the average of the {settings['average']} {settings.get('average_of', 'last')} checkpoints"
    if "metric" not in settings:
        return None
    kind = "moving average of the weights at the" if settings.get("ema_decay") else "weights: the"
    return f"{kind} checkpoint with the best validation {settings['metric']}"


def _time(run: FinishedRun) -> str | None:
    if run.hours is None:
        return None
    units = (("hours", 1), ("minutes", 60), ("seconds", 3600))
    unit, per_hour = next((pair for pair in units if run.hours * pair[1] >= 1), units[-1])
    text = f"{run.hours * per_hour:.1f} {unit}"
    if not _known(run, "device"):
        return text
    processes = run.record.get("processes") or 1
    return f"{text} on {f'{processes} x ' if processes > 1 else ''}{run.record['device']}"


def _versions(run: FinishedRun) -> str | None:
    versions = run.record.get("versions") or {}
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or None


def _commit(commit: str) -> str:
    changed = ", with changes that were not committed" if commit.endswith("+") else ""
    return f"code at commit `{commit.removesuffix('+')}`{changed}"


def _command(command: list[str]) -> str:
    program = PurePath(command[0])
    name = "residual-hf" if program.parts[-2:] == ("residual_hf", "cli.py") else program.name
    return shlex.join([name, *command[1:]])
