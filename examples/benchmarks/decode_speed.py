"""Decoding speed on a CPU compared with `MarianMTModel` and CTranslate2 (`pip install ctranslate2`).

    python examples/benchmarks/decode_speed.py --size iwslt --threads 1 --json decode.json --plot decode.svg

All candidates have the same sizes and random weights and generate the same number of tokens. `--isa avx2` limits all
of them to the instructions of a CPU without AVX-512. See README.md.
"""

import argparse
import importlib.util
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from instruction_sets import ISAS, restart_with
from memory import peak_memory
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from residual_hf import ResidualConfig, ResidualForConditionalGeneration, native
from residual_hf.base.files import write_atomically, write_json
from residual_hf.model import decoding
from residual_hf.model.connections import LN_MODES
from residual_hf.model.fingerprint import unchanged
from residual_hf.native.decoder import packed_model
from residual_hf.training.launch import keep_freed_memory

SIZES = {
    "tiny": "multi30k_tiny",
    "iwslt": "resi_dual_iwslt_de_en",
    "base": "resi_dual_wmt_en_de",
    "deep": "resi_dual_wmt_en_de_18l",
}
CASES = {"encode": (32, 0), "greedy": (32, 1), "beam": (32, 5), "single": (1, 5)}  # sentences, beams
SOURCE_LENGTH, GENERATED = 25, 30
DTYPES = ("float32", "bfloat16", "int8")
USUAL = ("post_ln", "resi_dual")
STUDENTS = ("student_6l_2l", "student_8l_2l", "student_12l_1l")  # of the size "base"
OTHERS = ["marian", "ctranslate2_float32", "ctranslate2_int8"]
Run = Callable[[], Any]
Name = TypeVar("Name")
held = ExitStack()
"""Of models that nothing changes, as in `Translator` and the server; other calls of `generate` compare all weights."""


def main() -> None:
    options = parse_options()
    restart_with(options.isa)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.peak_memory_of is not None:
        make_run(options.peak_memory_of, options.size, options.cases[0], options.threads)()
        print(peak_memory())
        return
    report: dict[str, Any] = {"size": options.size, "machine": machine(options.threads), "cases": {}}
    for case in options.cases:
        runs = {name: make_run(name, options.size, case, options.threads) for name in options.candidates}
        report["cases"][case] = results = summarize(measure(runs, options.repeats), options.reference)
        for name in runs:
            results[name]["isa"] = instructions_of(name)
        for name in runs if options.memory else ():
            results[name]["peak_memory_mib"] = peak_memory_of(name, options, case)
        print_table(case, results, options.reference)
    if options.json is not None:
        write_json(options.json, report)
    if options.plot is not None:
        plot(report, options.reference, options.plot)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decoding speed on a CPU.")
    has_ctranslate2 = importlib.util.find_spec("ctranslate2") is not None
    others = [name for name in OTHERS if has_ctranslate2 or not name.startswith("ctranslate2")]
    usual, ours = (
        [f"{mode}_{kind}" for mode in modes for kind in ("pytorch", *DTYPES)]
        for modes in (USUAL, [*LN_MODES, *STUDENTS])
    )
    available = {"choices": [*others, *ours], "metavar": "NAME"}
    parser.add_argument("--size", choices=SIZES, default="iwslt")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--candidates",
        nargs="+",
        **available,
        default=[*others, *usual],
        help=f"{', '.join(others)}, or a mode or student with _pytorch, _float32, _bfloat16 or _int8",
    )
    parser.add_argument("--reference", help="the candidate that ratios refer to (default: CTranslate2 or Marian)")
    parser.add_argument("--isa", choices=ISAS, help="limit all candidates to an instruction set (default: the best)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="measure peak memory, each candidate in its own process")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the ratios into this file (needs matplotlib)")
    parser.add_argument("--peak-memory-of", **available, help=argparse.SUPPRESS)
    options = parser.parse_args()
    first = "ctranslate2_float32" if "ctranslate2_float32" in options.candidates else options.candidates[0]
    options.reference = options.reference or first
    if options.reference not in options.candidates:
        parser.error(f"--reference: {options.reference!r} given, must be one of the candidates")
    return options


def make_run(name: str, size: str, case: str, threads: int) -> Run:
    """A function that encodes or decodes one batch with a candidate."""
    sentences, beams = CASES[case]
    generator = torch.Generator().manual_seed(1)
    preset = ResidualConfig.preset(SIZES[size])
    sources = torch.randint(4, preset.vocab_size, (sentences, SOURCE_LENGTH), generator=generator)
    sources[:, -1] = preset.eos_token_id
    if name.startswith("ctranslate2"):
        return ctranslate2_run(name.partition("_")[2], size, sources, beams, threads)
    if name == "marian":
        return transformers_run(make_marian(size), sources, beams)
    mode, _, kind = name.rpartition("_")
    return transformers_run(make_model(size, mode), sources, beams, kind)


@cache
def make_model(size: str, mode: str) -> ResidualForConditionalGeneration:
    torch.manual_seed(0)
    config = ResidualConfig.preset(mode) if mode in STUDENTS else ResidualConfig.preset(SIZES[size], ln_mode=mode)
    model = ResidualForConditionalGeneration(config).eval()
    held.enter_context(unchanged(model))
    return model


@cache
def make_marian(size: str) -> MarianMTModel:
    model = MarianMTModel(marian_config(ResidualConfig.preset(SIZES[size]))).eval()
    model.generation_config.bad_words_ids = None
    return model


def marian_config(config: ResidualConfig) -> MarianConfig:
    """Marian's words for the sizes, dropout rates and special tokens of `config`."""
    same = (
        "vocab_size d_model encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim encoder_attention_heads "
        "decoder_attention_heads dropout attention_dropout activation_dropout activation_function scale_embedding "
        "max_position_embeddings share_encoder_decoder_embeddings tie_word_embeddings pad_token_id bos_token_id "
        "eos_token_id decoder_start_token_id"
    )
    return MarianConfig(
        **{name: getattr(config, name) for name in same.split()},
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )


def transformers_run(model: Any, sources: Tensor, beams: int, kind: str | None = None) -> Run:
    dtype = {} if kind in (None, "pytorch") else {"decoding_dtype": kind}
    mask = torch.ones_like(sources)
    search = {"early_stopping": True} if beams > 1 else {}

    def run() -> Any:
        decoding.register_kernels(decoding.without_kernels if kind == "pytorch" else packed_model)
        with torch.inference_mode():
            if not beams:
                return encode(model, sources, mask, kind)
            return model.generate(
                input_ids=sources,
                attention_mask=mask,
                num_beams=beams,
                do_sample=False,
                min_new_tokens=GENERATED,
                max_new_tokens=GENERATED,
                **search,
                **dtype,
            )

    return run


def encode(model: Any, sources: Tensor, mask: Tensor, kind: str | None) -> Any:
    packed = packed_model(model, kind) if kind in DTYPES else None
    if packed is not None:
        return packed.encode(sources, mask)
    return model.get_encoder()(sources, attention_mask=mask)


def ctranslate2_run(dtype: str, size: str, sources: Tensor, beams: int, threads: int) -> Run:
    """CTranslate2 with its fastest instruction set: by itself it selects AVX2 on some CPUs with AVX-512."""
    if native.instruction_set() in ("avx512", "avx512_bf16", "amx"):
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    (translator,) = load_ctranslate2(size, dtype, [(1, threads)]).values()
    words = [[str(token) for token in row] for row in sources.tolist()]
    steps = GENERATED if beams else 1  # it has no call for the encoder alone: one decoding step is the closest
    lengths = {"min_decoding_length": steps, "max_decoding_length": steps}
    return partial(translator.translate_batch, words, beam_size=beams or 1, max_batch_size=len(words), **lengths)


def load_ctranslate2(size: str, dtype: str, ways: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Any]:
    """Translators of CTranslate2 by their way to use threads: batches at a time, and threads for each."""
    import ctranslate2

    from residual_hf.conversion.to_ctranslate2 import save_spec

    model = make_model(size, "post_ln")
    quantization, kind = (None, "float32") if dtype == "float32" else (dtype, "int8_float32")
    with tempfile.TemporaryDirectory() as folder:
        save_spec(model, NumberTokenizer(model.config.vocab_size), Path(folder), quantization=quantization)
        return {
            (inter, intra): ctranslate2.Translator(
                folder, device="cpu", compute_type=kind, inter_threads=inter, intra_threads=intra
            )
            for inter, intra in ways
        }


class NumberTokenizer:
    """Token i is the text of i."""

    bos_token, unk_token = "0", "3"
    vocab_files_names: dict[str, str] = {}

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(i) for i in ids]


def instructions_of(name: str) -> str:
    """The instruction set of a candidate; "own choice" where it does not tell."""
    if name.startswith("ctranslate2"):
        return os.environ.get("CT2_FORCE_CPU_ISA", "own choice").lower()
    if name == "marian" or name.endswith("_pytorch") or native.library() is None:
        return torch.backends.cpu.get_cpu_capability().lower()
    return native.instruction_set()


def measure(
    runs: dict[Name, Run], repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[Name, list[float]]:
    """Seconds of each candidate, by default of CPU. They take turns; one round is not counted."""
    seconds: dict[Name, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            started = clock()
            run()
            if repeat > 0:
                seconds[name].append(clock() - started)
    return seconds


def summarize(seconds: dict[str, list[float]], reference: str) -> dict[str, dict[str, Any]]:
    """Median seconds, and median and quartiles of the speed relative to the reference, round by round."""
    found: dict[str, dict[str, Any]] = {}
    for name, times in seconds.items():
        ratios = [other / own for other, own in zip(seconds[reference], times, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        found[name] = {"seconds": statistics.median(times), "ratio": median, "low": low, "high": high}
    return found


def peak_memory_of(name: str, options: argparse.Namespace, case: str) -> float:
    """Peak resident memory of one run in a process of its own, in MiB."""
    arguments = ["--size", options.size, "--cases", case, "--threads", str(options.threads)]
    command = [sys.executable, __file__, *arguments, "--peak-memory-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def machine(threads: int) -> dict[str, Any]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return {
        "processor": next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""),
        "threads": threads,
        "kernels": native.instruction_set(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def print_table(case: str, results: dict[str, dict[str, Any]], reference: str) -> None:
    sentences, beams = CASES[case]
    print(f"\n{case}: {sentences} sentences, {beams or 'no'} beams\n")
    print(f"| | instructions | seconds | x {reference} | MiB |\n|---|---|---|---|---|")
    for name, row in results.items():
        memory = f"{row['peak_memory_mib']:.0f}" if "peak_memory_mib" in row else ""
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f}-{row['high']:.2f})"
        print(f"| {name} | {row['isa']} | {row['seconds']:.4f} | {ratio} | {memory} |", flush=True)


def plot(report: dict[str, Any], reference: str, path: Path) -> None:
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(report["cases"]), 3.6), layout="constrained")
    axes = figure.subplots(1, len(report["cases"]), sharey=True, squeeze=False)[0]
    for axis, (case, results) in zip(axes, report["cases"].items(), strict=True):
        axis.barh(list(results), [row["ratio"] for row in results.values()])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(case)
        axis.invert_yaxis()
    figure.suptitle(f"Speed relative to {reference}, size {report['size']}")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.removeprefix(".") or "svg")
    write_atomically(path, drawn.getvalue())


if __name__ == "__main__":
    main()
