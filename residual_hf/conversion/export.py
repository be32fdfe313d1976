"""`residual-hf export`: write a model for another runtime, after comparing its translations with the model's.

A decoder alone continues texts instead.
"""

import importlib.util
import random
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from torch import nn

from residual_hf._version import __version__
from residual_hf.base.choices import EXPORT_TARGETS
from residual_hf.base.errors import InputError, refuse_if
from residual_hf.base.files import atomic_folder, check_output_folder, write_json
from residual_hf.checkpoint import load_checkpoint
from residual_hf.data.multilingual import check_tagged
from residual_hf.data.shortlist import load_shortlist
from residual_hf.data.text_files import iter_lines
from residual_hf.evaluation.metrics import EvaluationSettings
from residual_hf.generation.decode import to_text
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.model.connections import get_ln_mode
from residual_hf.model.length_limits import end_tokens, length_limit
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM

from .exported_model import ExportTarget, Model, translate
from .to_ctranslate2 import CTranslate2Target
from .to_onnx import OnnxTarget
from .to_torch_export import TorchExportTarget
from .to_web import WebTarget

REPORT = "export.json"
SENTENCES = 200  # that are compared
RANDOM_LENGTHS = (3, 20)  # without a text, sequences of random tokens are compared
TIE = 1e-3  # log-probabilities that differ by less may change places through rounding
TARGETS: dict[str, ExportTarget] = dict(
    zip(EXPORT_TARGETS, (CTranslate2Target(), OnnxTarget(), TorchExportTarget(), WebTarget()), strict=True)
)


class ExportDiffersError(RuntimeError):
    """The exported model translates differently from the model, so that nothing was written."""


@dataclass
class Verification:
    """Measurements of `export` on the exported model; saved as `export.json`.

    Attributes:
        sentences: number of sentences translated (or texts continued) by both models, with greedy search.
        identical: translations of the float32 export that equal the model's; for the web page, those of the kernels
            of Python with its weights of int8.
        tied: the other translations of the float32 export. They start to differ where the model gives both tokens the
            same log-probability up to 0.001.
        bleu: int8 with references only: BLEU of the exported model.
        bleu_loss: int8 only: BLEU of the model minus BLEU of the exported model. Without references the model's
            translations are the reference, so that this is an upper bound in most cases.
        task: "translation", or "text-generation" of a decoder alone.
    """

    target: str
    dtype: str
    sentences: int
    identical: int
    tied: int
    bleu: float | None = None
    bleu_loss: float | None = None
    task: str = "translation"

    def __str__(self) -> str:
        outputs = "translations" if self.task == "translation" else "continuations"
        compared = "int8" if self.target == "web" else "float32"
        text = f"{self.identical} of {self.sentences} {outputs} identical in {compared}"
        if self.tied:
            text += f", {self.tied} after a tie"
        if self.bleu_loss is not None:
            against = f"the {outputs} of the model" if self.bleu is None else "the references"
            change = "loses" if self.bleu_loss >= 0 else "gains"
            text += f"; int8 {change} {abs(self.bleu_loss):.2f} BLEU on this CPU against {against}"
        return text


def targets_of(mode: str) -> dict[str, str]:
    """The targets that a mode exports to, each with the mode as which it is exported."""
    get_ln_mode(mode)
    return {name: plain for name, target in TARGETS.items() if (plain := target.plain_mode(mode)) is not None}


@torch.no_grad()
def export(
    name: str | Path,
    to: str,
    output_dir: Path,
    *,
    dtype: str | None = None,
    verify_with: Path | None = None,
    references: Path | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> Verification:
    """Write a saved model for another runtime.

    The folder also gets the tokenizer and `export.json`, and the shortlist of the model, if it has one: for
    CTranslate2 as `vmap.txt`, which `translate_batch(..., use_vmap=True)` uses, for the web as `shortlist.bin`. It is
    written only after the float32 export has translated up to 200 sentences like the model; for the web, how many the
    int8 kernels of this machine translate like it is counted. For int8, the loss of BLEU is stated.

    Args:
        name: a saved folder or a name on the Hub.
        to: `"ctranslate2"`, `"onnx"`, `"torch"` or `"web"`.
        dtype: of the weights; default: the first of the target.
        verify_with: text file with one source sentence, or beginning of a text, per line. Default: sequences of random
            tokens.
        references: translations of `verify_with`, for BLEU.

    Raises:
        InputError: a missing package, a model that the target cannot represent.
        ExportDiffersError: the exported model translates differently.
    """
    target = TARGETS[to]
    dtype = dtype or target.dtypes[0]
    is_compared = references is not None
    missing = [package for package in target.requires if importlib.util.find_spec(package) is None]
    problems = {
        f"--dtype: {dtype!r} given, must be one of {', '.join(target.dtypes)} for {to}": dtype not in target.dtypes,
        "--reference: only with --dtype int8 and --verify-with": is_compared and (dtype != "int8" or not verify_with),
        f"--to {to}: {', '.join(missing)} not installed; pip install 'residual_hf[{to}]'": missing,
    }
    refuse_if(problems)
    check_output_folder(output_dir, overwrite=overwrite, holds=[REPORT], inputs=[name, verify_with, references])
    classes = ResidualForConditionalGeneration, ResidualForCausalLM
    model, tokenizer = load_checkpoint(
        name, trust_remote_code=trust_remote_code, classes=classes, other_families=False
    )
    is_relative, is_alone = model.config.position_embedding_type == "relative", not model.config.is_encoder_decoder
    problems = {
        "position_embedding_type: 'relative' given, must be another for an export": is_relative,
        "--reference: only for an encoder-decoder": is_compared and is_alone,
    }
    refuse_if(problems)
    shortlist = None if is_alone else load_shortlist(name, model.config)
    model = model.float().eval()
    for field in ("eos_token_id", "decoder_start_token_id"):  # `generate` reads those of the generation config
        if (value := getattr(model.generation_config, field)) is not None:
            setattr(model.config, field, value)
    target.check(model.config)
    forbid_tokens(model)
    sources, reference_texts = read_sentences(model, tokenizer, verify_with, references)
    longest, positions = max(map(len, sources)), model.config.max_position_embeddings
    limit = length_limit(longest, positions, DecodingSettings.max_length_a, DecodingSettings.max_length_b)
    limit = min(limit, positions - longest) if is_alone else limit
    own = translate(model, sources, limit)
    with atomic_folder(output_dir) as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch.export about torch's own code
            target.write(model, tokenizer, folder)
        exported = target.translate(model, tokenizer, folder, sources, limit)
        written = target.dtypes[0]
        found = compare(model, sources, own, exported, to, written)
        if dtype != written:
            target.quantize(model, tokenizer, folder)
            exported = target.translate(model, tokenizer, folder, sources, limit)
        if dtype == "int8":
            texts = to_text(tokenizer, own), to_text(tokenizer, exported)
            right = [reference_texts or texts[0]]
            tokenize = installed_tokenizer(model.config.target_lang)
            own_bleu, bleu = (sacrebleu.corpus_bleu(each, right, tokenize=tokenize).score for each in texts)
            found.dtype, found.bleu_loss = dtype, own_bleu - bleu
            found.bleu = None if reference_texts is None else bleu
        if shortlist is not None:
            target.write_shortlist(shortlist, model, tokenizer, folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / REPORT, {"residual_hf": __version__, **asdict(found)})
    return found


def installed_tokenizer(language: str | None) -> str:
    """sacreBLEU's tokenizer for a language, or characters where its MeCab is not installed."""
    try:
        return EvaluationSettings().tokenizer_for(language)
    except InputError:
        return "char"


def forbid_tokens(model: Model) -> None:
    """Give the tokens that the generation config forbids, such as padding in Marian, a bias that excludes them."""
    generation = model.generation_config
    words = generation.bad_words_ids or []
    forbidden = {*(word[0] for word in words if len(word) == 1), *(generation.suppress_tokens or [])}
    if not forbidden:
        return
    if model.config.adaptive_cutoffs:
        raise InputError("adaptive_cutoffs: given, must be None for a model whose generation config forbids tokens")
    if model.lm_head.bias is None:
        model.lm_head.bias = nn.Parameter(model.lm_head.weight.new_zeros(len(model.lm_head.weight)))
        model.config.output_bias = True
    model.lm_head.bias[list(forbidden)] = torch.finfo(torch.float16).min


def read_sentences(
    model: Model, tokenizer: Any, path: Path | None, references: Path | None
) -> tuple[list[list[int]], list[str] | None]:
    """Token ids of the first sentences of a file, or random ones, and their references."""
    config = model.config
    is_alone, ends = not config.is_encoder_decoder, end_tokens(config)
    most = config.max_position_embeddings // (2 if is_alone else 1)  # a text needs room to go on
    if path is None:
        special = set(tokenizer.all_special_ids) | {config.pad_token_id}
        ordinary = [i for i in range(len(tokenizer)) if i not in special]
        numbers = random.Random(0)
        longest = min(RANDOM_LENGTHS[1], most - 1)
        lengths = [numbers.randint(min(RANDOM_LENGTHS[0], longest), longest) for _ in range(SENTENCES)]
        last = [] if is_alone else ends[:1]
        return [[*numbers.choices(ordinary, k=length), *last] for length in lengths], None
    lines, texts = list(iter_lines(path)), None if references is None else list(iter_lines(references))
    if texts is not None and len(texts) != len(lines):
        raise InputError(f"--reference: {references} has {len(texts)} lines, {path} has {len(lines)}")
    if config.language_tags == "source":
        check_tagged(filter(str.strip, lines), tokenizer, f"--verify-with: {path} has a line")
    chosen: list[tuple[list[int], str]] = []
    for line, text in zip(lines, texts or lines, strict=True):
        ids = tokenizer(line)["input_ids"]
        ids = ids[:-1] if is_alone and ids[-1:] and ids[-1] in ends else ids
        if line.strip() and 0 < len(ids) <= most:
            chosen.append((ids, text))
        if len(chosen) == SENTENCES:
            break
    if not chosen:
        raise InputError(f"--verify-with: {path} has no sentence that the model can read")
    return [ids for ids, _ in chosen], None if texts is None else [text for _, text in chosen]


def compare(
    model: Model,
    sources: Sequence[list[int]],
    own: Sequence[list[int]],
    exported: Sequence[list[int]],
    to: str,
    dtype: str,
) -> Verification:
    """Count equal translations. Raises `ExportDiffersError` if one in float32 differs by more than rounding."""
    task, verb = ("translation", "translates") if model.config.is_encoder_decoder else ("text-generation", "continues")
    different = [each for each in zip(sources, own, exported, strict=True) if each[1] != each[2]]
    tied = different if dtype == "float32" else []
    for source, ours, theirs in tied:
        if not is_tie(model, source, ours, theirs):
            raise ExportDiffersError(
                f"{to} {verb} {source} to {theirs}, the model to {ours}; the export is wrong, nothing was written"
            )
    return Verification(to, dtype, len(sources), len(sources) - len(different), len(tied), task=task)


def is_tie(model: Model, source: list[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether the model has no preference between the first tokens that differ."""
    (end, *_), config = end_tokens(model.config), model.config
    ours, theirs = [*ours, end], [*theirs, end]
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    if config.is_encoder_decoder:
        prefix = torch.tensor([[config.decoder_start_token_id, *ours[:first]]])
        logits = model(torch.tensor([source]), decoder_input_ids=prefix).logits
    else:
        logits = model(torch.tensor([[*source, *ours[:first]]])).logits
    scores = logits[0, -1].log_softmax(dim=-1)
    return bool((scores[ours[first]] - scores[theirs[first]]).abs() < TIE)
