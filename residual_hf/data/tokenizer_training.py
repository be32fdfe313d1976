"""Training of subword tokenizers that read a text as a reader sees it, and lose nothing else of it.

How this is done, with the `tokenizers` library:

- A text is normalized, as part of `tokenizer.json`: invisible characters are removed, white space of every kind
  becomes single spaces, none at the ends, and letters have one form (NFC, ligatures, full width); see `as_seen`. The
  rest of NFKC would lose what a translation needs: ², ½, ™, №, ①, … and full-width punctuation stay as they are.
- Decoding returns the normalized text. Characters that do not occur in the training text become UTF-8 bytes
  (`byte_fallback`, or byte-level BPE).
- "▁" marks a space and is prepended to the first word. A "▁" in the text is escaped with noncharacters (code points
  that Unicode reserves for internal use), and so is the escape character.
- Pre-tokens consist of letters, digits or other characters, so that text never produces entries such as `</s>` or
  `<0x0A>`; with `split_special_tokens` a literal `</s>`, or the HTML tag `<s>`, is encoded as text.
"""

import io
import json
import logging
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from residual_hf.base.errors import InputError
from residual_hf.model.options import refusal

from .background import interruptible
from .data_settings import TokenizerSettings
from .tokenizer import SPECIAL_TOKENS, append_eos, wrap_tokenizer

logger = logging.getLogger(__name__)

MOST_OF_UNIGRAM = 200_000_000
"""Characters that the vocabulary of `unigram` is trained on at most: SentencePiece needs 22 bytes for each."""
LONGEST = 4000
"""Characters of a line to train on: the time grows with the square of the longest word, in data without spaces."""
_MARK = "▁"
_ESCAPES = {"\ufdd0": "\ufdd0\ufdd1", _MARK: "\ufdd0\ufdd2"}  # the escape character first, undone last
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

_BLANK = r"\s\x1c-\x1f\x85\u2800\u3164\uffa0"
"""White space, separators of ASCII, and blanks of Braille and Hangul."""
_JOINED = r"[\u0600-\u109f\u1700-\u18af\u1900-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc𐨀-𑿿𞤀-𞥟]"
"""Scripts whose letters take other forms beside each other, from Arabic to Adlam."""
_TAG = "[\U000e0020-\U000e007f]"
_WINDOWS = {chr(byte): text for byte in range(0x80, 0xA0) if (text := bytes([byte]).decode("cp1252", "ignore"))}
del _WINDOWS["\x85"]  # a line end
"""Controls that are characters of Windows-1252 read as Latin-1, such as U+0092 for an apostrophe."""
_INVISIBLE = (
    rf"(?![{_BLANK}]"
    rf"|(?<={_JOINED})(?:\u200c(?={_JOINED})|\u200d)"  # in words of Persian and of India
    r"|(?<=[\p{S}\ufe0f])\u200d(?=\p{S})|(?<=\p{S})[\ufe0e\ufe0f]|\ufe0f(?=\u20e3)"  # within an emoji
    rf"|(?<={'|'.join('🏴' + _TAG * before for before in range(6))}){_TAG}"  # flags such as that of Wales
    r"|(?<=[\u1820-\u18aa])[\u180b-\u180f]|[\u115f\u1160](?=[\u1160-\u11ff])"  # Mongolian, old Hangul
    rf"|[{''.join(_WINDOWS)}])[\p{{DI}}\x00-\x1f\u007f-\u009f\ufff9-\ufffc]"
)
"""Characters without a shape, and controls, except where they change what is seen."""
_SAME = (
    _WINDOWS
    | dict.fromkeys("\u2010\u2011", "-")
    | {
        character: unicodedata.normalize("NFKC", character)
        for character in map(chr, (*range(0xFB00, 0xFB07), *range(0xFF10, 0xFF5B)))
        if character.isalnum()
    }
)
"""Windows-1252, hyphens that look like "-", ligatures such as ﬁ, and letters and digits of full width."""


def train_tokenizer(
    texts: Iterable[str],
    settings: TokenizerSettings | None = None,
    *,
    language_tags: Sequence[str] = (),
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer with the ids 0 to 3 for `<s> <pad> </s> <unk>`, which appends `</s>` to every sequence.

    For a joint vocabulary pass the texts of both languages. For separate vocabularies train two tokenizers and join
    them with `ResidualTokenizer.from_pair`. Training is deterministic.

    Args:
        settings: the kind of model, trained by `tokenizers` (BPE) or SentencePiece (unigram), the vocabulary size and
            limits of entries. A small text may yield fewer entries, which is logged. Lines are cut to `LONGEST`.
        language_tags: tokens such as `<2de>`; their ids follow the special tokens. They are found in text and are not
            removed by `skip_special_tokens`.
        model_max_length: number of tokens to which `truncation=True` cuts.

    Raises `InputError` for no text, and for a vocabulary smaller than the alphabet of the text.
    """
    settings = settings or TokenizerSettings()
    logger.info("training a tokenizer: %s, %d entries", settings.kind, settings.vocab_size)
    reserved = _reserved_entries(settings, language_tags)
    sentences: Iterable[str] = _sentences(texts)
    if settings.character_coverage < 1:
        sentences = _without_rare_characters(list(sentences), settings.character_coverage)
    if settings.kind != "byte_bpe":
        sentences = _checking_alphabet(sentences, settings.vocab_size, len(reserved))
    train = {"bpe": _train_bpe, "byte_bpe": _train_bpe, "unigram": _train_unigram}[settings.kind]
    trained = interruptible(lambda check: train(_checking(sentences, check), settings, reserved))
    tokenizer = _with_processing(trained, settings.kind, language_tags)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in language_tags])
    size = tokenizer.get_vocab_size()
    if size < settings.vocab_size:
        logger.warning(
            "the vocabulary has %d entries, not %d (vocab_size): the text is small", size, settings.vocab_size
        )
    return wrap_tokenizer(tokenizer, model_max_length)


def _reserved_entries(settings: TokenizerSettings, language_tags: Sequence[str]) -> tuple[str, ...]:
    """The entries at the beginning of the vocabulary."""
    for tag in language_tags:
        is_tag = re.fullmatch(r"<(?=\S*\w)[^\s<>]+>", tag) and tag not in SPECIAL_TOKENS + _BYTES
        if not is_tag or language_tags.count(tag) > 1:
            raise InputError(refusal("language_tags", tag, "such as <2de>, not a special token, and given once"))
    return (*SPECIAL_TOKENS, *language_tags, *(() if settings.kind == "byte_bpe" else _BYTES))


def as_seen(start: str = "", tags: Sequence[str] = ()) -> list[normalizers.Normalizer]:
    """The steps after which texts that look the same are the same.

    Args:
        start: what replaces white space and invisible characters before the first word. Metaspace marks this word if
            it stands at the place 0 of the text as it was, or if it follows a space that does.
        tags: which are no words.
    """
    unseen = rf"\A(?:[{_BLANK}]|{_INVISIBLE})+"
    before = [normalizers.Replace(Regex(f"{unseen}(?={'|'.join(map(re.escape, tags))})"), "")] if tags else []
    before += [normalizers.Replace(Regex(unseen), start), normalizers.Replace(Regex(_INVISIBLE), "")]
    same = [normalizers.Replace(character, plain) for character, plain in _SAME.items()]
    spaces = [normalizers.Replace(Regex(f"[{_BLANK}]+"), " "), normalizers.Strip(left=not start)]
    return [*before, *same, normalizers.NFC(), *spaces]


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise InputError(refusal("texts", texts, "a sequence of texts"))
    empty, normalizer = True, normalizers.Sequence(as_seen())
    for text in texts:
        text = normalizer.normalize_str(text[:LONGEST])
        empty = empty and not text
        yield text
    if empty:
        raise InputError("texts: no text to train a tokenizer on")


def _checking(sentences: Iterable[str], check: Callable[[], None]) -> Iterator[str]:
    for sentence in sentences:
        check()
        yield sentence


def _checking_alphabet(sentences: Iterable[str], vocab_size: int, reserved: int) -> Iterator[str]:
    """Yield the sentences; after the last one, fail if their alphabet does not fit into the vocabulary."""
    alphabet: set[str] = set()
    for sentence in sentences:
        alphabet.update(sentence)
        yield sentence
    entries = len((alphabet | {_MARK, *(_ESCAPES[_MARK] if _MARK in alphabet else "")}) - {" "})
    if reserved + entries > vocab_size:
        allowed = f">= {reserved + entries}, {entries} for the characters of the text and {reserved} for other entries"
        advice = "raise it, lower character_coverage or use the kind byte_bpe"
        raise InputError(f"{refusal('vocab_size', vocab_size, allowed)}; {advice}")


def _without_rare_characters(sentences: list[str], coverage: float) -> Iterator[str]:
    """Replace the rarest characters, up to a share of `1 - coverage` of the text, by spaces."""
    counts = Counter(chain.from_iterable(sentences))
    allowance = (1 - coverage) * counts.total()
    rare = {}
    for character in sorted(counts, key=lambda c: (counts[c], c)):
        allowance -= counts[character]
        if allowance < 0:
            break
        rare[ord(character)] = " "
    return (sentence.translate(rare) for sentence in sentences)


def _train_bpe(sentences: Iterable[str], settings: TokenizerSettings, reserved: Sequence[str]) -> models.BPE:
    tokenizer, longest = _with_processing(models.BPE(), settings.kind), settings.max_token_length
    trainer = trainers.BpeTrainer(
        vocab_size=0 if longest == 1 else settings.vocab_size,  # whatever the length, it joins two characters
        special_tokens=list(reserved),
        min_frequency=settings.min_frequency or 2,
        max_token_length=longest and longest + 1,  # entries are shorter than it
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if settings.kind == "byte_bpe" else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer=trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in trained["merges"]]
    return models.BPE(trained["vocab"], merges, unk_token=SPECIAL_TOKENS[3], byte_fallback=settings.kind == "bpe")


def _train_unigram(sentences: Iterable[str], settings: TokenizerSettings, reserved: Sequence[str]) -> models.Unigram:
    """Train with SentencePiece.

    The unigram trainer of `tokenizers` (0.23) takes its candidates from the list of distinct words, so that a word
    which is part of no other word never becomes an entry, however frequent (the same text then takes 6 to 48 % more
    tokens in our trials), and its scores differ between runs.
    """
    lines = list(sentences)
    step = -(-sum(map(len, lines)) // MOST_OF_UNIGRAM) or 1
    if step > 1:
        logger.info("unigram: trained on one of %d of the %d lines", step, len(lines))
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # which leaves out sentences with U+2585
        sentence_iterator=(sentence.replace("\u2585", " ") for sentence in lines[::step]),
        model_writer=written,
        model_type="unigram",
        vocab_size=settings.vocab_size - len(reserved) + 1,  # its <unk> is dropped below
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentencepiece_length=settings.max_token_length or 16,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=1 << 20,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=16,  # fixed, because the sums depend on it
        minloglevel=0 if sys.stderr.isatty() else 2,
    )
    learned = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [(learned.id_to_piece(i), learned.get_score(i)) for i in range(1, learned.get_piece_size())]
    return models.Unigram([(token, 0.0) for token in reserved] + pieces, unk_id=3, byte_fallback=True)


def _word_pattern(space: str) -> Regex:
    """Letters with their marks, digits or other characters, each with one `space` before it; or a lone space."""
    letters, digits = r"\p{L}\p{M}", r"\p{N}"
    return Regex(f"{space}?[{letters}]+|{space}?[{digits}]+|{space}?[^{space}{letters}{digits}]+|{space}")


def _with_processing(trained: models.Model, kind: str, tags: Sequence[str] = ()) -> Tokenizer:
    """A model with its normalizer, pre-tokenizer, post-processor and decoder. `tags`: see `as_seen`."""
    tokenizer = Tokenizer(trained)
    tokenizer.post_processor = append_eos()
    if kind == "byte_bpe":
        tokenizer.normalizer = normalizers.Sequence(as_seen())
        split = pre_tokenizers.Split(_word_pattern(" "), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    escapes = [normalizers.Replace(plain, escaped) for plain, escaped in _ESCAPES.items()]
    tokenizer.normalizer = normalizers.Sequence([*as_seen(" ", tags), *escapes])
    split = pre_tokenizers.Split(_word_pattern(_MARK), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(_MARK, "first"), split])
    unescape = [decoders.Replace(escaped, plain) for plain, escaped in reversed(_ESCAPES.items())]
    spaces = decoders.Metaspace(_MARK, prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *unescape])
    return tokenizer
