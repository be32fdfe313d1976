"""Export to a web page: static files that translate in a browser or in Node, with the kernels in WebAssembly."""

import hashlib
import json
import re
import shutil
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from tokenizers import normalizers

from residual_hf._version import __version__
from residual_hf.base.errors import InputError, refuse_if
from residual_hf.base.files import read_json, read_page, write_atomically
from residual_hf.data.shortlist import Shortlist
from residual_hf.data.task import TRANSLATION, task_of
from residual_hf.data.tokenizer import backend_of
from residual_hf.generation import long_text
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.model import placeholders, translation_inputs
from residual_hf.model.checksums import file_hash
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.embeddings import first_position, positions_padding
from residual_hf.model.length_limits import end_tokens
from residual_hf.model.translation_inputs import TranslationInputs
from residual_hf.native.image import KERNELS, PANEL_WIDTH, Image, layout
from residual_hf.native.structures import interface_version, is_current
from residual_hf.native.support import unsupported_stack
from residual_hf.native.weights import Packer, last_position

from .exported_model import ExportTarget, Model, Sentences, translate

PAGE = Path(__file__).with_name("web")
FORMAT = 1
"""Of `model.json`, the same in `translator.js`: a new one for what older JavaScript would read wrongly."""
WEIGHTS = "model.bin"
SHORTLIST = "shortlist.bin"
SAME_STEPS = (
    *("Sequence", "Metaspace", "ByteLevel", "WhitespaceSplit", "Digits", "BertPreTokenizer"),
    *("Precompiled", "Replace", "Strip", "StripAccents", "Lowercase", "Prepend", "BertNormalizer"),
    *("NFC", "NFD", "NFKC", "NFKD"),
)
"""Steps before the model of a tokenizer that the library in JavaScript computes alike."""
STRUCTURES = ("Source", "Memory", "Search", "Rule", "Linear")
PATTERNS = {
    placeholders: (
        *("PLACEHOLDER", "RUN", "EMOJI_RUN", "EMOJI", "MARKS_ALONE", "ENDS_WORD", "BEGINS_WORD"),
        *("WORD", "BARE_WORD", "TAG", "SPAN", "TOKEN", "LETTERS"),
    ),
    translation_inputs: ("TAG_PATTERN", "MARKUP", "BEFORE_SENTENCE"),
    long_text: ("SENTENCE_END", "STOP", "COMMA", "JOINED", "UNSPACED"),
}
CHARSMAP = re.compile(r'"precompiled_charsmap": ?"([^"]+)"')
WORD = r"\p{L}\p{N}_"
PART = re.compile(r"\[\^\\W((?:\\.|[^\[\]\\])*)\]|\[(?:\\.|[^\[\]\\])*\]|\\U[0-9a-f]{8}|\\.")
ESCAPE = re.compile(r"\\U([0-9a-f]{8})|\\(.)")


def javascript(pattern: str) -> str:
    """A pattern of `re` for a `RegExp` with the flag `u`, whose own `\\w` and `\\d` are those of ASCII."""

    def escape(match: re.Match[str]) -> str:
        digits, letter = match.groups()
        if digits:
            return rf"\u{{{int(digits, 16):x}}}"
        if letter in "\"'#":  # which need none
            return letter
        return {"w": WORD, "d": r"\p{Nd}"}.get(letter, match[0])

    def part(match: re.Match[str]) -> str:
        if match[1] is not None:  # [^\W...]: a character of words, but none of these
            return f"(?:(?![{ESCAPE.sub(escape, match[1])}])[{WORD}])"
        if match[0] in (r"\w", r"\W"):
            return ("[^" if match[0] == r"\W" else "[") + f"{WORD}]"
        return ESCAPE.sub(escape, match[0])

    return PART.sub(part, pattern)


class WebTarget(ExportTarget):
    """A folder for any server of files, with the weights of the kernels of Python in int8, and tables of float16."""

    dtypes = ("int8",)

    def check(self, config: ResidualConfig) -> None:
        """Also raises `InputError` without the library."""
        if task_of(config) is not TRANSLATION:
            raise InputError("--to web: only for a translation model (an encoder-decoder that reads text)")
        if not KERNELS.exists():
            raise InputError(
                f"--to web: {KERNELS.name} was not built: install a wheel of residual_hf or, from its sources, "
                "`pip install ziglang setuptools` and `pip install --no-build-isolation .` (in a clone: "
                "`python setup.py build_ext --inplace`)"
            )
        if not is_current(KERNELS):
            raise InputError(
                f"--to web: {KERNELS.name} does not match the C sources next to it: run "
                "`pip install ziglang setuptools` and `python setup.py build_ext --inplace --force`"
            )

    def write(self, model: Model, tokenizer: Any, folder: Path) -> None:
        """Write the page, the library, the weights and `model.json`; `tokenizer.json` comes with all exports."""
        if not getattr(tokenizer, "is_fast", False) or TranslationInputs(model.config, tokenizer).has_own_codes:
            raise InputError(f"--to web: {type(tokenizer).__name__} given, must be a tokenizer of tokenizer.json")
        backends = backend_of(tokenizer, "source"), backend_of(tokenizer, "target")
        for backend in backends:
            check_steps(json.loads(backend.to_str()))
        for source in PAGE.iterdir():
            write_atomically(folder / source.name, source.read_bytes())
        shutil.copyfile(KERNELS, folder / KERNELS.name)
        description: dict[str, Any] = {"residual_hf": __version__, "format": FORMAT}
        description |= {"interface": interface_version(), **packed(model, folder / WEIGHTS)}
        description |= search_of(model) | texts_of(model, tokenizer)
        files = [file_hash(folder / name) for name in (WEIGHTS, KERNELS.name)]
        description["export"] = digest(json.dumps(description), *files, *(backend.to_str() for backend in backends))
        write_atomically(folder / "model.json", json.dumps(description, ensure_ascii=False) + "\n")
        for name in ("README.md", "index.html"):
            text = read_page(PAGE / name).replace("TITLE", title_of(model.config))
            write_atomically(folder / name, text)

    def write_shortlist(self, shortlist: Shortlist, model: Model, tokenizer: Any, folder: Path) -> None:
        """Write the lists of all sentences and of each source token, as `translator.js` describes them."""
        lists = [shortlist.frequent, *(own[own >= 0] for own in shortlist.candidates)]
        ids = np.concatenate(lists).astype("<u2" if model.config.decoder_vocab_size <= 1 << 16 else "<u4")
        starts = np.cumsum([0, *map(len, lists)])
        head = np.array([len(lists), ids.itemsize, *starts], "<u4")
        write_atomically(folder / SHORTLIST, head.tobytes() + ids.tobytes())
        description = read_json(folder / "model.json")
        description["export"] = digest(description["export"], file_hash(folder / SHORTLIST))
        write_atomically(folder / "model.json", json.dumps(description, ensure_ascii=False) + "\n")

    def translate(self, model: Model, tokenizer: Any, folder: Path, sources: Sentences, limit: int) -> Sentences:
        """By the kernels of Python, which have the same weights; without them, by PyTorch in float32."""
        return translate(model, sources, limit, decoding_dtype="int8")


def digest(*content: str) -> str:
    return hashlib.sha256("".join(content).encode()).hexdigest()[:8]


def check_steps(described: dict[str, Any]) -> None:
    """Raise `InputError` for a tokenizer with steps that its library in JavaScript has not, or computes otherwise."""
    steps = json.dumps([described["normalizer"], described["pre_tokenizer"], described["decoder"]])
    charsmaps = map(b64decode, CHARSMAP.findall(steps))
    folds = any(normalizers.Precompiled(charsmap).normalize_str("A") != "A" for charsmap in charsmaps)
    problems = {
        **{f"with {step}": True for step in unlike_steps([described["normalizer"], described["pre_tokenizer"]])},
        "of words (pretokenized text)": described["model"]["type"] == "WordLevel",
        "with Moses": re.search(r'"Regex": "(?:[^"\\]|\\.)*?\\\\[KG]', steps),
        "of SentencePiece that folds case (nmt_nfkc_cf)": folds,
    }
    refuse_if({f"--to web: a tokenizer {which} given, which no browser can run": so for which, so in problems.items()})


def unlike_steps(step: Any) -> Iterator[str]:
    """The steps of a tokenizer that the library in JavaScript does not have, or computes otherwise."""
    for part in step.values() if isinstance(step, dict) else step if isinstance(step, list) else ():
        yield from unlike_steps(part)
    kind, behavior = (step.get(name) for name in ("type", "behavior")) if isinstance(step, dict) else (None, None)
    if kind == "Split":
        inverts = step["invert"] and behavior != "Removed"
        if inverts or behavior not in ("Isolated", "Removed"):
            yield f"{'the inverse of ' * inverts}Split {behavior}"
    elif kind is not None and kind not in SAME_STEPS:
        yield kind


def charsmap_steps(tokenizer: str) -> list[dict[str, Any]] | None:
    """Steps with the results of a table of SentencePiece: NFKC, but for some characters."""
    found = CHARSMAP.search(tokenizer)
    if found is None:
        return None
    table = normalizers.Precompiled(b64decode(found[1]))
    others: defaultdict[str, list[str]] = defaultdict(list)
    kept: list[str] = []
    for character in map(chr, (*range(1, 0xD800), *range(0xF900, 0x10000))):  # without private ones
        result = table.normalize_str(character)
        if result != normalize("NFKC", character):
            (kept if result == character else others[result]).append(character)
    before = [("".join(map(escaped, characters)), result) for result, characters in others.items()]
    hidden = [(escaped(character), chr(0xE000 + number)) for number, character in enumerate(kept)]
    shown = [(escaped(private), character) for character, (_, private) in zip(kept, hidden, strict=True)]
    steps = [
        [{"type": "Replace", "pattern": {"Regex": f"[{c}]"}, "content": to} for c, to in rows]
        for rows in ([*before, *hidden], shown)
    ]
    return [*steps[0], {"type": "NFKC"}, *steps[1]]


def escaped(character: str) -> str:
    return rf"\u{{{ord(character):x}}}"


@torch.no_grad()
def packed(model: Model, path: Path) -> dict[str, Any]:
    """Write the weights; returns where a loader finds them. The tables of the model are rounded to float16."""
    packer, config = Packer("int8", PANEL_WIDTH), model.config
    stacks = {name: model.model.get_submodule(name) for name in ("encoder", "decoder")}
    for stack in stacks.values():
        for table in (stack.embed_tokens, stack.embed_positions):
            for values in () if table is None else (*table.parameters(), *table.buffers()):
                values.copy_(values.half())
        if (reason := unsupported_stack(stack)) is not None:
            raise InputError(f"--to web: {reason}")
    found = {name: packer.stack(stack) for name, stack in stacks.items()}
    found["decoder"].logits = packer.linear(model.output_weight, model.lm_head.bias, padding_bias=-torch.inf)
    image = Image(packer.tensors)
    places = {name: image.add([stack]) for name, stack in found.items()}
    sizes = ("layers", "stride", "attention_width")
    stack_sizes = {name: {field: getattr(stack, field) for field in sizes} for name, stack in found.items()}
    limits = [limit for stack in stacks.values() if (limit := last_position(stack)) is not None]
    return {
        "image": image.write(path),
        "stacks": {name: {"place": places[name], **stack_sizes[name]} for name in found},
        "logits": {"place": layout("Stack")["fields"]["logits.type"][0], "panel": PANEL_WIDTH},
        "layouts": {name: layout(name) for name in STRUCTURES},
        "firstPosition": first_position(positions_padding(config)),
        "positions": min(limits, default=None),
    }


def search_of(model: Model) -> dict[str, Any]:
    """The settings that the search reads."""
    settings = DecodingSettings.of_model(model, {})
    names = ("num_beams", "length_penalty", "early_stopping", "max_length_a", "max_length_b")
    config = model.config
    tokens = {"start": config.decoder_start_token_id, "ends": end_tokens(config), "pad": config.pad_token_id}
    least = model.generation_config.min_length or 0
    return {"search": {**{name: getattr(settings, name) for name in names}, "min_length": least, **tokens}}


def texts_of(model: Model, tokenizer: Any) -> dict[str, Any]:
    """The data of `TranslationInputs` for `text.js`, which prepares text and completes translations."""
    inputs = TranslationInputs(model.config, tokenizer)
    (source, target), forced = inputs.pair, model.generation_config.forced_bos_token_id
    own_target = getattr(tokenizer, "target_tokenizer", None)
    number = tokenizer.convert_tokens_to_ids if own_target is None else own_target.token_to_id
    targets = [{"language": target, "prefix": getattr(model.config, "prefix", None) or "", "forced": forced}]
    if inputs.tags:
        chosen = sorted(inputs.tags.items())
        targets = [{"language": code, "prefix": f"{tag} ", "forced": forced} for code, tag in chosen]
        if inputs.tags_targets:
            targets = [{"language": code, "prefix": "", "forced": number(tag)} for code, tag in chosen]
    return {
        "source": source,
        "targets": targets,
        "hasTarget": own_target is not None,
        "text": {
            "patterns": {
                name: javascript(getattr(module, name).pattern) for module, names in PATTERNS.items() for name in names
            },
            "brackets": placeholders.BRACKETS,
            "noLetters": long_text.NO_LETTERS,
            "placeholders": list(placeholders.PLACEHOLDER_TOKENS) if inputs.has_placeholders else [],
            "lowersCapitals": inputs.lowers_capitals,
            "wordInCapitals": translation_inputs.WORD_IN_CAPITALS,
            "readsAll": inputs.is_monolingual,
            "tagsSources": bool(inputs.tags) and not inputs.tags_targets,
            "tagsTargets": inputs.tags_targets,
            "charsmap": charsmap_steps(tokenizer.backend_tokenizer.to_str()),
            "splitsSpecial": bool(getattr(tokenizer, "split_special_tokens", False)),
            "known": getattr(tokenizer, "known_tokens", None),
            "unknown": tokenizer.unk_token_id,
            "special": sorted(tokenizer.all_special_ids),
        },
    }


def title_of(config: ResidualConfig) -> str:
    """A title of the page, with the languages of a pair."""
    named = filter(None, (config.source_lang, config.target_lang))
    pair = [re.sub(r"[^\w-]", "", language) for language in named]  # in HTML and YAML
    return f"Translate {' to '.join(pair)}" if len(pair) == 2 else "Translate"
