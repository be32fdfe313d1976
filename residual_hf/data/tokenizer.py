"""Special tokens of our tokenizers, dictionaries of fairseq, and a tokenizer for text that is already segmented."""

import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from residual_hf.base.errors import InputError

from .data_settings import SPECIAL_TOKENS
from .text_files import iter_lines

OVERWRITE = "#fairseq:overwrite"
EOS = [("</s>", SPECIAL_TOKENS.index("</s>"))]


def wrap_tokenizer(tokenizer: Tokenizer, model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A Transformers tokenizer with `SPECIAL_TOKENS`, from one of the `tokenizers` library.

    It encodes special tokens in a text as text (`<s>` is an HTML tag), unless it is called with
    `split_special_tokens=False`.
    """
    bos, pad, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def append_eos() -> processors.TemplateProcessing:
    """A post-processor that appends `</s>`, as in fairseq and Marian."""
    return processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=EOS)


def prepend_eos() -> processors.TemplateProcessing:
    """A post-processor that begins every text with `</s>`, as language models of fairseq do."""
    return processors.TemplateProcessing(single="</s> $A", special_tokens=EOS)


def join_subwords(text: str) -> str:
    """Text without the marks of subword-nmt, "cot@@ ton" as "cotton", as `pretokenized_tokenizer` decodes it."""
    return re.sub(r"@@( |\Z)", "", text)


def read_dictionary(path: str | Path) -> list[str]:
    """Read the tokens of a fairseq `dict.txt` in the order of their ids, special tokens first.

    The last entry of a repeated token counts. Raises `InputError` for a line that is not "token count", optionally
    followed by `#fairseq:overwrite`, and for a token that is repeated without that mark.
    """
    tokens, known = list(SPECIAL_TOKENS), set(SPECIAL_TOKENS)
    for number, line in enumerate(iter_lines(path), start=1):
        if not (entry := line.rstrip()):
            continue
        overwrite = entry.endswith(f" {OVERWRITE}")
        token, _, count = entry.removesuffix(f" {OVERWRITE}").rpartition(" ")
        if not token or not count.isdecimal():
            raise InputError(f"{path}: line {number} is {line!r}, must be a token, one space and its count")
        if token in known and not overwrite:
            raise InputError(f"{path}: line {number}: the token {token!r} is repeated without {OVERWRITE}")
        tokens.append(token)
        known.add(token)
    if len(tokens) == len(SPECIAL_TOKENS):
        raise InputError(f"{path}: the dictionary is empty")
    return tokens


def pretokenized_tokenizer(dict_path: str | Path) -> PreTrainedTokenizerFast:
    """A tokenizer for text that is already segmented, with the ids of a fairseq dictionary.

    Text is split at white space of any kind, as by fairseq, tokens that are not in the dictionary become `<unk>`, and
    `</s>` is appended. Decoding joins tokens with spaces and merges the subwords of subword-nmt ("cot@@ ton" to
    "cotton").

    Raises `InputError` as `read_dictionary` does, and for an overwritten token.
    """
    tokens = read_dictionary(dict_path)
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise InputError(f"{dict_path}: a token is repeated ({OVERWRITE}), must be unique in segmented text")
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL_TOKENS[3]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")
    tokenizer.post_processor = append_eos()
    tokenizer.decoder = decoders.Sequence([spaced(), decoders.Fuse(), decoders.Replace(Regex(r"@@( |\z)"), "")])
    return wrap_tokenizer(tokenizer)


def reads_segmented_text(tokenizer: Any) -> bool:
    """Whether this is a `pretokenized_tokenizer`, or a pair of them."""
    return isinstance(getattr(backend_of(tokenizer, "target"), "model", None), models.WordLevel)


def ends_text(tokenizer: Any, argument: str = "text") -> bool:
    """Whether `</s>` follows a text; with `argument` "text_target", a target. mBART adds the language after it."""
    return tokenizer.eos_token_id in tokenizer(**{argument: "a"})["input_ids"][1:]


def backend_of(tokenizer: Any, side: str) -> Any:
    """The `tokenizers.Tokenizer` of a side, `"source"` or `"target"`; None for a tokenizer in Python, as Marian's."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return getattr(tokenizer, "target_tokenizer", backend) if side == "target" else backend


def spaced() -> decoders.Decoder:
    """Joins tokens with spaces, which leaves subwords as a `pretokenized_tokenizer` reads them."""
    # WordPiece puts a space before every token but the first and those with its prefix; no token holds a space.
    return decoders.WordPiece(prefix=" ", cleanup=False)
