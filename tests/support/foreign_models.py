"""Random translation models of Transformers' own classes with their tokenizers, of a few thousand weights."""

import json
from pathlib import Path
from string import ascii_letters
from typing import Any

import sentencepiece
import torch
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
)

from . import small_sizes
from .tiny_translator import coded_tokenizer, tiny_tokenizer

FAMILIES = ("nllb", "m2m100", "mbart", "mbart50", "marian")
SIZES = {**small_sizes(), "max_position_embeddings": 64}


def foreign_tokenizer(family: str, folder: Path) -> Any:
    """A tokenizer of a family, made from files in `folder`."""
    if family == "nllb":
        bpe = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
        return NllbTokenizer(vocab=bpe["vocab"], merges=[tuple(pair) for pair in bpe["merges"]])
    coded = coded_tokenizer(folder)
    if family == "m2m100":
        special = [*coded.lang_code_to_token.values()]  # as in the files on the Hub
        return M2M100Tokenizer(coded.vocab_file, coded.spm_file, additional_special_tokens=special)
    if family == "marian":
        names = dict.fromkeys(["</s>", "<unk>", *coded.get_vocab(), "<pad>"])
        (folder / "vocab.json").write_text(json.dumps({name: row for row, name in enumerate(names)}))
        pieces = str(folder / "m.model")
        return MarianTokenizer(pieces, pieces, str(folder / "vocab.json"), source_lang="en", target_lang="de")
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "m.model"))
    scored = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    scored += [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(3, len(pieces))]
    return (MBartTokenizer if family == "mbart" else MBart50Tokenizer)(vocab=scored)


def foreign_model(family: str, folder: Path) -> Path:
    """A folder with a model of a family and its tokenizer."""
    folder.mkdir()
    tokenizer = foreign_tokenizer(family, folder)
    codes = getattr(tokenizer, "lang_token_to_id", {})  # of M2M100, which are not in its vocabulary
    size = 4 + max(*tokenizer.get_vocab().values(), *codes.values(), 0)  # with rows that no token has, as in NLLB
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    torch.manual_seed(0)
    if family == "marian":
        start = {"decoder_start_token_id": ids["pad_token_id"], "forced_eos_token_id": ids["eos_token_id"]}
        model: Any = MarianMTModel(MarianConfig(vocab_size=size - 3, **SIZES, **ids, **start))
    elif family.startswith("mbart"):
        start = {"decoder_start_token_id": ids["eos_token_id"] if family == "mbart50" else None}
        fields = {**SIZES, **ids, **start, "scale_embedding": True, "forced_eos_token_id": ids["eos_token_id"]}
        model = MBartForConditionalGeneration(MBartConfig(vocab_size=size, **fields))
    else:
        start = {"decoder_start_token_id": ids["eos_token_id"], "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
        config = M2M100Config(vocab_size=size, **SIZES, **ids, **start)
        model = M2M100ForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def model_of_two_vocabularies(family: str, folder: Path, larger: str) -> tuple[Path, dict[str, int]]:
    """A folder with a model, `"fsmt"` or `"marian"`, whose tokens have other ids in the target, and both sizes.

    The source has no tokens with ä.
    """
    folder.mkdir()
    if family == "fsmt":
        special, letters = ["<s>", "<pad>", "</s>", "<unk>"], [*ascii_letters, *"äöüß"]
        tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    else:
        special = ["</s>", "<unk>", "<pad>"]
        tokens = [token for token in coded_tokenizer(folder).get_vocab() if token not in special]
    names = {"source": [*special, *(t for t in tokens if "ä" not in t)], "target": [*special, *tokens[::-1]]}
    names[larger] += [f"unused{number}" for number in range(9)]
    files = {side: str(folder / f"{side}.json") for side in names}
    for side, own in names.items():
        Path(files[side]).write_text(json.dumps({name: row for row, name in enumerate(own)}))
    sizes = {side: len(own) for side, own in names.items()}
    torch.manual_seed(0)
    if family == "fsmt":
        (folder / "merges.txt").write_text("#version: 0.2\n")
        vocabularies = {"src_vocab_file": files["source"], "tgt_vocab_file": files["target"]}
        tokenizer: Any = FSMTTokenizer(["en", "de"], merges_file=str(folder / "merges.txt"), **vocabularies)
        scale = FSMTConfig.__dataclass_fields__["scale_embedding"].type(True)  # an integer in 5.4
        fields = {"src_vocab_size": sizes["source"], "tgt_vocab_size": sizes["target"], "scale_embedding": scale}
        model: Any = FSMTForConditionalGeneration(FSMTConfig(langs=["en", "de"], **fields, **SIZES))
    else:
        pieces, languages = str(folder / "m.model"), {"source_lang": "en", "target_lang": "de"}
        separate = {"target_vocab_file": files["target"], "separate_vocabs": True}
        tokenizer = MarianTokenizer(pieces, pieces, files["source"], **separate, **languages)
        fields = {"vocab_size": sizes["source"], "decoder_vocab_size": sizes["target"]}
        fields |= {"share_encoder_decoder_embeddings": False, "eos_token_id": 0, "forced_eos_token_id": 0}
        model = MarianMTModel(MarianConfig(**fields, **SIZES, pad_token_id=2, decoder_start_token_id=2))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, sizes
