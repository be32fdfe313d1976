"""A translator of a few thousand random weights, and its tokenizer."""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import M2M100Tokenizer, PreTrainedTokenizerFast

from residual_hf.checkpoint import save_checkpoint
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from support import small_sizes

SENTENCES = [
    "ein kleiner Hund läuft im Park",
    "a small dog runs in the park",
    "zwei Katzen schlafen",
    "two cats sleep",
]


def stdin(content: bytes) -> io.TextIOWrapper:
    """What `sys.stdin` is for a pipe with this content."""
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)))


def tiny_tokenizer(*tags: str, max_length: int = 64, end: bool = True) -> PreTrainedTokenizerFast:
    """A BPE tokenizer of 120 tokens that appends `</s>` if `end`; `tags` are added tokens such as `<2de>`."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.add_tokens(list(tags))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=max_length,
    )


def coded_tokenizer(folder: Path) -> M2M100Tokenizer:
    """A tokenizer of 42 pieces that adds the codes of languages itself, made from files in `folder`."""
    (folder / "text").write_text("\n".join(SENTENCES * 9))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=38, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "m.model"))
    names = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(38))])
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    return M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "m.model"))


def tiny_model(tokenizer: PreTrainedTokenizerFast, **fields: Any) -> ResidualForConditionalGeneration:
    """A random model of one layer and 64 positions whose output depends on its input."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **small_sizes()}
    config = ResidualConfig(**{**sizes, **fields})
    model = ResidualForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj.weight" in name:
                parameter.mul_(3)  # attention looks at the source
    return model


def save_tiny(folder: Path, *tags: str, overwrite: bool = False, **fields: Any) -> Path:
    """The folder, with a tiny model of these fields of the config and its tokenizer."""
    tokenizer = tiny_tokenizer(*tags)
    return save_checkpoint(tiny_model(tokenizer, **fields), tokenizer, folder, overwrite=overwrite)
