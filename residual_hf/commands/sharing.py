"""Verbs that import, export and publish models."""

import argparse
import sys
from pathlib import Path

from residual_hf.base.choices import EXPORT_TARGETS
from residual_hf.base.errors import FAILED, InputError
from residual_hf.base.files import read_json
from residual_hf.base.names import as_typed

from .arguments import Verb, add_overwrite, arguments_of, option_of, refuse

MOSES = {
    "normalize": "Moses: was punctuation normalized? (default: yes)",
    "hyphens": "Moses: were hyphens split as @-@? (default: inferred from the dictionary)",
    "escape": "Moses: was ' escaped as &apos;? (default: inferred from the dictionary)",
    "lowercase": "Moses: was the text lower-cased? (default: no)",
}
OF_FAIRSEQ = ("source_dict", "target_dict", "bpe_codes", "sentencepiece", "moses", "source_lang", "target_lang")


def add_card(card: argparse.ArgumentParser) -> None:
    card.add_argument("run_folder", type=Path, metavar="RUN_FOLDER", help="output folder of `residual-hf train`")
    card.add_argument(
        "--name", dest="model_name", metavar="NAME", help="name of the model (default: the name of the folder)"
    )
    card.add_argument("--baseline", type=Path, metavar="RUN_FOLDER", help="compare with this run on the same test set")
    card.add_argument("--license", help="license of the weights: an identifier of the Hub, such as apache-2.0")
    card.add_argument("--data-license", help="license of the training data")
    card.add_argument(
        "--dataset", dest="datasets", action="append", metavar="ID", help="training data on the Hub; repeatable"
    )
    card.add_argument(
        "--samples", type=int, default=3, metavar="N", help="sample translations of the test set (default: 3); 0: none"
    )
    card.add_argument("--output", type=Path, help="Markdown file (default: model/README.md of the run)")
    add_overwrite(card)


def run_card(options: argparse.Namespace) -> None:
    from residual_hf.hub.card import write_card

    print(write_card(**arguments_of(write_card, options)))


def add_push(push: argparse.ArgumentParser) -> None:
    push.add_argument("folder", type=Path, help="output folder of `residual-hf train`, or of a model")
    push.add_argument("repo_id", metavar="user/name", help="repository on the Hub")
    push.add_argument("--private", action="store_true", help="make a new repository private")
    push.add_argument("--revision", help="branch to commit to, created if it does not exist (default: main)")
    push.add_argument("--dry-run", action="store_true", help="write the card and list the files; works offline")
    push.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run model code of another version; replace it by the installed code if the results are the same",
    )


def run_push(options: argparse.Namespace) -> None:
    from residual_hf.hub.push import push_run

    print(push_run(**arguments_of(push_run, options)))


def add_convert(convert: argparse.ArgumentParser) -> None:
    convert.add_argument(
        "checkpoint",
        help="a fairseq .pt file, or a folder or Hub name of a Marian, FSMT, M2M100, NLLB, BART, mBART or "
        "Speech2Text model",
    )
    convert.add_argument("--source-dict", type=Path, help="fairseq: dict.txt of the source")
    convert.add_argument("--target-dict", type=Path, help="fairseq: dict.txt of the target")
    subwords = convert.add_mutually_exclusive_group()
    subwords.add_argument(
        "--bpe-codes", type=Path, help="fairseq: codes of subword-nmt or fastBPE (default: input is segmented)"
    )
    subwords.add_argument("--sentencepiece", type=Path, metavar="MODEL", help="fairseq: SentencePiece .model file")
    convert.add_argument("--moses", action="store_true", help="fairseq: the training text was tokenized by Moses")
    for name, question in MOSES.items():
        convert.add_argument(f"--moses-{name}", action=argparse.BooleanOptionalAction, default=None, help=question)
    convert.add_argument("--source-lang", help="fairseq: override the source language in the checkpoint")
    convert.add_argument("--target-lang", help="fairseq: override the target language in the checkpoint")
    convert.add_argument("--output-dir", type=Path, required=True, help="model folder to write")
    add_overwrite(convert)


def run_convert(options: argparse.Namespace) -> None:
    from residual_hf.conversion import convert_transformers
    from residual_hf.conversion.fairseq_checkpoint import MosesOptions, convert_fairseq_checkpoint

    chosen = {name: answer for name in MOSES if (answer := getattr(options, f"moses_{name}")) is not None}
    options.moses = MosesOptions(**chosen) if options.moses or chosen else None
    if not options.checkpoint.endswith(".pt") and not Path(options.checkpoint).is_file():
        refuse(options, OF_FAIRSEQ, "only for a fairseq checkpoint (.pt)")
        folder = convert_transformers(options.checkpoint, options.output_dir, options.overwrite)
    else:
        for name in ("source_dict", "target_dict"):
            if getattr(options, name) is None:
                raise InputError(f"{option_of(name)}: missing, required for a fairseq checkpoint")
        folder = convert_fairseq_checkpoint(**arguments_of(convert_fairseq_checkpoint, options))
    config, arguments = read_json(folder / "config.json"), ["translate", str(folder)]
    if config.get("is_decoder_only"):
        arguments = ["evaluate", str(folder), "--text", "FILE"]
    if config.get("conv_channels"):
        arguments = ["transcribe", str(folder), "FILE"]
    print(f"{folder}: converted; try residual-hf {as_typed(*arguments)}")


def add_export(export: argparse.ArgumentParser) -> None:
    export.add_argument("name", metavar="model", help="folder of a model or a run, or a name on the Hub")
    export.add_argument("--to", required=True, choices=EXPORT_TARGETS, help="format")
    export.add_argument("--output-dir", type=Path, required=True, help="folder to write")
    export.add_argument("--dtype", choices=("float32", "int8"), help="default: float32, int8 for web")
    export.add_argument("--verify-with", type=Path, metavar="FILE", help="text to translate (default: random tokens)")
    export.add_argument("--reference", dest="references", type=Path, help="references, for BLEU of int8")
    export.add_argument("--trust-remote-code", action="store_true", help="run the code in the model folder")
    add_overwrite(export)


def run_export(options: argparse.Namespace) -> int:
    from residual_hf.conversion.export import ExportDiffersError, export

    try:
        verification = export(**arguments_of(export, options))
    except ExportDiffersError as difference:
        print(f"residual-hf export: {difference}", file=sys.stderr)
        return FAILED
    print(f"{options.output_dir}: {verification}")
    return 0


VERBS = {
    "card": Verb("write the model card of a finished run", add_card, run_card),
    "push": Verb("upload a model to the Hugging Face Hub", add_push, run_push),
    "export": Verb("export a model to CTranslate2, ONNX, torch.export or a web page", add_export, run_export),
    "convert": Verb("convert a fairseq or Transformers checkpoint", add_convert, run_convert, has_modes=False),
}
