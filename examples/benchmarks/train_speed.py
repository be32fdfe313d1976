"""Training speed compared with `MarianMTModel`: target tokens per second of forward, loss, backward and update.

    python examples/benchmarks/train_speed.py --shape multi30k_tiny --threads 1 --json speed.json

Every candidate has the same sizes, dropout rates, optimizer and batches. See README.md in this folder.
"""

import argparse
import itertools
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from decode_speed import marian_config
from instruction_sets import ISAS, restart_with
from torch import Tensor, nn
from transformers import MarianMTModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from residual_hf.base.files import write_json
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.losses.label_smoothing import fused_linear_smoothed_cross_entropy
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.training.acceleration import accelerated
from residual_hf.training.launch import keep_freed_memory

Batch = dict[str, Tensor]

LONGEST = 250
FIRST_WORD = 4  # after <s>, <pad>, </s>, <unk>
LABEL_SMOOTHING = 0.1
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Shape:
    """A model and the corpus it is usually trained on; lengths are log-normal, `</s>` counted."""

    preset: str
    sentences: int
    mean_length: float
    sigma: float  # of the logarithm of the source length
    max_tokens: int = 4096
    sizes: dict[str, Any] = field(default_factory=dict)  # that differ from the preset

    def config(self, **fields: Any) -> ResidualConfig:
        return ResidualConfig.preset(self.preset, **self.sizes, **fields)


SMALL = {"d_model": 256, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
SHAPES = {
    "multi30k_tiny": Shape("multi30k_tiny", sentences=29_000, mean_length=15, sigma=0.33),
    "multi30k_small": Shape("multi30k_tiny", sentences=29_000, mean_length=15, sigma=0.33, sizes=SMALL),
    "iwslt": Shape("resi_dual_iwslt_de_en", sentences=160_000, mean_length=25, sigma=0.6),
    "wmt_base": Shape("resi_dual_wmt_en_de", sentences=400_000, mean_length=29, sigma=0.6),
}


class MarianWithoutLogitsBias(MarianMTModel):
    """A Marian that does not add its (constant) bias to the logits: the strictest opponent."""

    def forward(self, **inputs: Any) -> Seq2SeqLMOutput:
        return Seq2SeqLMOutput(logits=self.lm_head(self.model(**inputs).last_hidden_state))


MARIANS = {"marian": MarianMTModel, "marian_no_bias": MarianWithoutLogitsBias}
LN_MODES = ("post_ln", "pre_ln", "resi_dual")
FUSED, NATIVE = "_fused_loss", "_native"
NATIVE_PRECISIONS = {NATIVE: "fp32", f"{NATIVE}_bf16": "bf16"}
CANDIDATES = (
    *MARIANS,
    *LN_MODES,
    *(f"{ln_mode}{FUSED}" for ln_mode in ("post_ln", "resi_dual")),
    *(f"{ln_mode}{suffix}" for suffix in NATIVE_PRECISIONS for ln_mode in LN_MODES),
)
REFERENCES = ("marian", "marian_no_bias", "post_ln")


def loss_from_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Label-smoothed cross entropy of torch, whoever the model is."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), label_smoothing=LABEL_SMOOTHING)


def loss_from_criterion(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def fused_criterion(hidden: Tensor, weight: Tensor, labels: Tensor, num_items: Any = None) -> Tensor:
    """The same loss as `loss_from_logits`, without holding all logits."""
    sums = fused_linear_smoothed_cross_entropy(hidden, weight, labels, epsilon=LABEL_SMOOTHING, form="torch")
    return sums.per_token(num_items)


@dataclass
class Candidate:
    """One model with its optimizer, and the time of every batch it was trained on."""

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor] = loss_from_logits
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in trainable)
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-4, betas=(0.9, 0.98), weight_decay=1e-4, fused=True)

    def step(self, batch: Batch, autocast: Callable[[], Any]) -> Tensor:
        """One update; the loss before it."""
        with autocast():
            loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def split_name(name: str) -> tuple[str, str]:
    """The `ln_mode`, or the name of a Marian, and the suffix of a candidate."""
    suffix = next((suffix for suffix in (FUSED, *reversed(NATIVE_PRECISIONS)) if name.endswith(suffix)), "")
    return name.removesuffix(suffix), suffix


def build_candidate(name: str, shape: Shape, device: str, seed: int, compiled: bool) -> Candidate:
    torch.manual_seed(seed)
    ln_mode, suffix = split_name(name)
    if ln_mode in MARIANS:
        model = MARIANS[ln_mode](marian_config(shape.config()))
    else:
        model = ResidualForConditionalGeneration(shape.config(ln_mode=ln_mode, attn_implementation="sdpa"))
    loss = loss_from_logits
    if suffix:
        model.criterion, loss = fused_criterion, loss_from_criterion
    model = model.to(device).train()
    return Candidate(name, torch.compile(model, dynamic=True) if compiled else model, loss)


def synthetic_batches(shape: Shape, max_tokens: int, seed: int) -> Iterator[Batch]:
    """Endless batches of a made-up corpus: lengths of both sides go together, words follow Zipf's law."""
    rng = np.random.default_rng(seed)
    mu = np.log(shape.mean_length) - shape.sigma**2 / 2
    sources = rng.lognormal(mu, shape.sigma, shape.sentences)
    targets = sources * rng.lognormal(0.0, 0.2, shape.sentences)
    lengths = [np.clip(side.round().astype(int), 2, min(LONGEST, max_tokens)) for side in (sources, targets)]
    config = shape.config()
    collate = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)

    def sentence(length: int) -> list[int]:
        words = FIRST_WORD - 1 + (config.vocab_size - FIRST_WORD) ** rng.random(length - 1)
        return [*words.astype(int).tolist(), config.eos_token_id]

    for indices in itertools.cycle(TokenBudgetSampler(*lengths, max_tokens, seed=seed)):
        yield collate([{"input_ids": sentence(lengths[0][i]), "labels": sentence(lengths[1][i])} for i in indices])


def measure(candidates: list[Candidate], batches: list[Batch], precision: str, device: str, warmup: int, seed: int):
    """Time every candidate on every batch after the first `warmup`, all candidates on one batch before the next batch.

    Their order is drawn anew for each batch, and one of them runs a batch untimed first: what a new shape costs the
    process (kernels made for it, memory) is nobody's.
    """
    autocast = partial(torch.autocast, device, torch.bfloat16) if precision == "bf16" else nullcontext
    synchronize = torch.cuda.synchronize if device == "cuda" else nullcontext
    rng = np.random.default_rng(seed)
    for batch in batches[:warmup]:
        for candidate in candidates:
            candidate.step(batch, autocast)
    for batch in batches[warmup:]:
        order = [candidates[i] for i in rng.permutation(len(candidates))]
        order[-1].step(batch, autocast)
        for candidate in order:
            synchronize()
            started = time.perf_counter()
            loss = candidate.step(batch, autocast)
            synchronize()
            candidate.seconds.append(time.perf_counter() - started)
            candidate.losses.append(loss.item())


def quartiles(values: Any) -> dict[str, float]:
    return dict(zip(("q1", "median", "q3"), np.quantile(values, (0.25, 0.5, 0.75)).tolist(), strict=True))


def rows(
    candidates: list[Candidate], tokens: np.ndarray, precision: str, references: list[str]
) -> list[dict[str, Any]]:
    """One row of figures per candidate; `ratios[reference]` is how many times as fast as the reference it is."""
    seconds = {candidate.name: np.array(candidate.seconds) for candidate in candidates}
    return [
        {
            "precision": precision,
            "candidate": candidate.name,
            "parameters": candidate.parameters,
            "tokens_per_second": quartiles(tokens / own),
            "ratios": {name: quartiles(seconds[name] / own) for name in references if name in seconds},
            "mean_loss": float(np.mean(candidate.losses)),
        }
        for candidate, own in zip(candidates, seconds.values(), strict=True)
    ]


def print_table(table: list[dict[str, Any]]) -> None:
    def cell(values: dict[str, float], form: str) -> str:
        return "{median:{0}} ({q1:{0}}-{q3:{0}})".format(form, **values)

    columns = "{:21}{:>11}{:>20}{:>10}" + "{:>22}" * len(table[0]["ratios"])
    ratios = [f"x {name}" for name in table[0]["ratios"]]
    print("\n" + columns.format(table[0]["precision"], "parameters", "target tokens/s", "mean loss", *ratios))
    for row in table:
        speed = cell(row["tokens_per_second"], ".0f")
        ratios = [cell(ratio, ".3f") for ratio in row["ratios"].values()]
        loss = f"{row['mean_loss']:.3f}"
        print(columns.format(row["candidate"], f"{row['parameters']:,}", speed, loss, *ratios))


def setting(args: argparse.Namespace, batches: list[Batch]) -> dict[str, Any]:
    """What was run and where, and how much of the timed batches is padding."""
    device = torch.cuda.get_device_name() if args.device == "cuda" else torch.backends.cpu.get_cpu_capability()
    real = {"source": [b["attention_mask"] == 1 for b in batches], "target": [b["labels"] != -100 for b in batches]}
    cells = {side: sum(mask.numel() for mask in masks) for side, masks in real.items()}
    tokens = {side: sum(int(mask.sum()) for mask in masks) for side, masks in real.items()}
    return {
        "shape": args.shape,
        "max_tokens": args.max_tokens,
        "batches": len(batches),
        "seed": args.seed,
        "device": f"{args.device} ({device})",
        "threads": torch.get_num_threads(),
        "compile": args.compile,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "target_tokens_per_batch": tokens["target"] / len(batches),
        "source_padding": 1 - tokens["source"] / cells["source"],
        "target_padding": 1 - tokens["target"] / cells["target"],
    }


def serves(args: argparse.Namespace, precision: str) -> bool:
    """Whether the native kernels have a part in a run: they do without autocast and compilation, on a CPU."""
    return args.device == "cpu" and precision == "fp32" and not args.compile


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="multi30k_tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS), help="bf16: autocast")
    parser.add_argument("--candidates", choices=CANDIDATES, nargs="+", default=list(CANDIDATES))
    parser.add_argument("--references", choices=CANDIDATES, nargs="+", default=list(REFERENCES), help="of the ratios")
    parser.add_argument("--compile", action="store_true", help="every model through torch.compile(dynamic=True)")
    parser.add_argument("--batches", type=int, default=24, help="timed batches (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=3, help="batches before them (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, help="padded tokens per batch on the longer side (default: 4096)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--isa", choices=ISAS, help="limit all candidates to an instruction set (default: the best)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this new file")
    args = parser.parse_args()
    for name, least in (("batches", 1), ("warmup", 0), ("max_tokens", 2), ("threads", 1), ("seed", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')}: {value} given, must be at least {least}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: cuda given, but torch sees no GPU; allowed is cpu")
    if args.json is not None and (args.json.exists() or not args.json.parent.is_dir()):
        parser.error(f"--json: {args.json} given, must be a new file in a folder that exists")
    args.candidates = list(dict.fromkeys(args.candidates))
    args.max_tokens = args.max_tokens or SHAPES[args.shape].max_tokens
    return args


def main() -> None:
    args = parse_arguments()
    restart_with(args.isa)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    kept = keep_freed_memory()
    shape = SHAPES[args.shape]
    endless = synthetic_batches(shape, args.max_tokens, args.seed)
    batches = list(itertools.islice(endless, args.warmup + args.batches))
    figures = setting(args, batches[args.warmup :]) | {"freed_memory_kept": kept}
    for name, value in figures.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    tokens = np.array([int((batch["labels"] != -100).sum()) for batch in batches[args.warmup :]])
    batches = [{name: tensor.to(args.device) for name, tensor in batch.items()} for batch in batches]
    figures["rows"] = []
    for precision in args.precision:
        names = [n for n in args.candidates if split_name(n)[1] not in NATIVE_PRECISIONS or serves(args, precision)]
        if not names:
            continue
        candidates = [build_candidate(name, shape, args.device, args.seed, args.compile) for name in names]
        with ExitStack() as kernels:
            for candidate in candidates:
                if native := NATIVE_PRECISIONS.get(split_name(candidate.name)[1]):
                    kernels.enter_context(accelerated(candidate.model, native))
            measure(candidates, batches, precision, args.device, args.warmup, args.seed)
        table = rows(candidates, tokens, precision, args.references)
        print_table(table)
        figures["rows"] += table
    if args.json is not None:
        write_json(args.json, figures)


if __name__ == "__main__":
    main()
