"""Convert SentencePiece models (unigram, BPE) with a fairseq dictionary to fast tokenizers."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from residual_hf.base.errors import input_errors, refuse_if
from residual_hf.base.files import expanded, readable
from residual_hf.data.tokenizer import SPECIAL_TOKENS, append_eos

from .moses import char_class

UNK = SPECIAL_TOKENS[3]
MARK = "\ufdd0"  # prefix of entries that no text maps to
RUN = "\ufdd1"  # replaces several consecutive unknown characters, which are one piece in SentencePiece
# text may contain the names of special tokens and bytes; splitting inside a name prevents a match
NO_NAME = pre_tokenizers.Split(Regex(r"(?<=<)(?=(?:/?s|pad|unk|0x[0-9A-F]{2})>)"), "isolated")
UNKNOWN_PENALTY = 10.0  # SentencePiece's constant: worst score minus that of an unknown character
Piece = ModelProto.SentencePiece


def read_sentencepiece(path: str | Path) -> ModelProto:
    """Read a `.model` file.

    Raises `InputError` for a model of words or characters, of symbols that its users defined, or with other marks of
    spaces.
    """
    with readable(Path(path)):
        content = expanded(path).read_bytes()
    with input_errors(f"{path}: not a SentencePiece model: ", DecodeError, ValueError):
        model = ModelProto.FromString(content)
        pieces = [(piece.piece, piece.type) for piece in model.pieces]
        if not pieces:
            raise ValueError("it has no pieces")
    trainer = model.trainer_spec
    normal, own = ({piece for piece, kind in pieces if kind == k} for k in (Piece.NORMAL, Piece.USER_DEFINED))
    if trainer.model_type == trainer.UNIGRAM:  # which finds those of known characters
        own = {piece for piece in own if not normal.issuperset(piece)}
    problems = {
        "of words or characters": trainer.model_type not in (trainer.UNIGRAM, trainer.BPE),
        "in which words do not begin with ▁": trainer.treat_whitespace_as_suffix
        or not model.normalizer_spec.escape_whitespaces,
        f"with user_defined_symbols ({', '.join(sorted(own))})": own,
    }
    refuse_if({f"{path}: a SentencePiece model {what}, which is not supported": so for what, so in problems.items()})
    return model


def sentencepiece_backend(dictionary: Sequence[str], model: ModelProto) -> Tokenizer:
    """SentencePiece with the ids of a dictionary; pieces that it lacks have ids from `len(dictionary)` on."""
    trainer, pieces = model.trainer_spec, {piece.piece: piece for piece in model.pieces}
    scores = {text: piece.score for text, piece in pieces.items() if piece.type in (Piece.NORMAL, Piece.USER_DEFINED)}
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    last = {token: number for number, token in enumerate(dictionary)}  # the last entry of a repeated token counts
    vocab: dict[str, float] = dict.fromkeys(SPECIAL_TOKENS, 0.0)
    for number, token in enumerate(dictionary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        strange = not any(character in scores for character in token)  # SentencePiece does not segment these
        reached = last[token] == number and token not in vocab and (token in pieces or strange)
        vocab[token if reached else f"{MARK}{token}{number}"] = scores.get(token, unknown * len(token) * strange)
    for text, piece in pieces.items():
        if text in scores or piece.type == Piece.BYTE:
            vocab.setdefault(text, scores.get(text, 0.0))
    if trainer.model_type == trainer.UNIGRAM:
        unk_id = SPECIAL_TOKENS.index(UNK)
        tokenizer = Tokenizer(models.Unigram(list(vocab.items()), unk_id=unk_id, byte_fallback=trainer.byte_fallback))
    else:
        tokenizer = Tokenizer(_bpe(vocab, scores, trainer.byte_fallback))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    runs = _unknown_runs(dictionary, scores, model) if not trainer.byte_fallback else []
    tokenizer.normalizer = normalizers.Sequence([*_normalizers(model.normalizer_spec), *runs])
    scheme = "always" if model.normalizer_spec.add_dummy_prefix else "never"
    words = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, NO_NAME])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Metaspace("▁", prepend_scheme=scheme),
            decoders.Fuse(),
            decoders.Replace(Regex(rf"{MARK}|\A +| +\z"), ""),
        ]
    )
    tokenizer.post_processor = append_eos()
    return tokenizer


def _bpe(vocab: dict[str, float], scores: dict[str, float], byte_fallback: bool) -> models.BPE:
    """SentencePiece merges the two neighbors whose union scores best, so every split of a piece is a merge."""
    merges = [
        (-score, piece[:split], piece[split:])
        for piece, score in scores.items()
        for split in range(1, len(piece))
        if piece[:split] in scores and piece[split:] in scores
    ]
    ids = {piece: number for number, piece in enumerate(vocab)}
    pairs = [(left, right) for _, left, right in sorted(merges)]
    return models.BPE(ids, pairs, unk_token=UNK, fuse_unk=True, byte_fallback=byte_fallback)


def _normalizers(spec: NormalizerSpec) -> Iterator[normalizers.Normalizer]:
    if spec.precompiled_charsmap:
        # `Precompiled` does not compose characters that have six bytes or more, nor those that it makes of half width
        composed = [normalizers.NFC()] if "nfkc" in spec.name else []
        yield from (*composed, normalizers.Precompiled(spec.precompiled_charsmap), *composed)
    if spec.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(" {2,}"), " ")
        yield normalizers.Replace(Regex(r"\A +| +\z"), "")
    elif spec.add_dummy_prefix:
        yield normalizers.Replace(Regex(r"\A "), "  ")  # Metaspace adds no prefix before a space


def _unknown_runs(
    dictionary: Sequence[str], scores: dict[str, float], model: ModelProto
) -> Iterator[normalizers.Normalizer]:
    """Replace consecutive unknown characters by one, unless the dictionary contains exactly this sequence."""
    known = char_class(" ▁" + "".join(piece for piece in scores if len(piece) == 1))
    runs = [token for token in dictionary if len(token) > 1 and not any(character in scores for character in token)]
    spared = "|".join(map(re.escape, runs)) if model.trainer_spec.model_type == TrainerSpec.UNIGRAM else ""
    but = rf"(?!(?:{spared})(?![^{known}]))" if spared else ""
    yield normalizers.Replace(Regex(rf"(?<![^{known}]){but}[^{known}]{{2,}}"), RUN)
