import gzip
import random

import pytest
from support.reference import SHARED
from tokenizers import decoders, normalizers

from residual_hf.conversion.moses import MosesRules, char_class
from residual_hf.data.synthetic.generator import generate_corpus

sacremoses = pytest.importorskip("sacremoses")

TRICKY = [
    "Mr. Smith's dog isn't 3.5 kg, it's 5,300 kg (or so)... He said: \"Why?\"",
    "the U.S. and No. 5, pp. 3-4; e.g. this. And that.",
    "rock'n'roll 'tis the dogs' '90s' end'",
    "A,B,C 1,2 ,5 5, ,, 1,,2",
    "well-known twenty-one-day - -x x- a--b",
    "What?!  Tabs\there\x07 and\u00a0spaces \u2009 ",
    "«Bonjour» „Hallo“ “hello” ‘so’ ´x´ `y` ''z''",
    "50 % 20 : 30 ; ( a ) [b] {c} <d> a|b & c @home #tag $5 £3 ☃",
    "l'homme qu'il aujourd'hui d' un",
    "日本語 text 中文。 русский текст.",
    "end of sentence.' and. then ... and .... more..",
    'She said "No." and "yes", \'maybe,\' he said.',
    "",
    " ",
    ".",
]
LANGUAGES = ["en", "de", "fr", "it", "cs", "ru", "vi"]


def official(text, language, normalize, hyphens, escape):
    if normalize:
        text = sacremoses.MosesPunctNormalizer(language).normalize(text)
    tokenizer = sacremoses.MosesTokenizer(language)
    tokens = tokenizer.tokenize(text, aggressive_dash_splits=hyphens, escape=escape, return_str=True)
    return " ".join(tokens.split(" ")).strip()


def tokenized(texts, **options):
    pipeline = normalizers.Sequence(MosesRules(**options).normalizers())
    return [pipeline.normalize_str(text) for text in texts]


def detokenized(texts, language):
    pipeline = decoders.Sequence([decoders.Fuse(), *MosesRules(language).decoders()])
    return [pipeline.decode([text]) for text in texts]


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_tricky_sentences_are_tokenized_as_by_sacremoses(language, normalize):
    for hyphens, escape in ((True, False), (False, True)):
        expected = [official(text, language, normalize, hyphens, escape) for text in TRICKY]
        found = tokenized(TRICKY, language=language, normalize=normalize, hyphens=hyphens, escape=escape)
        assert found == expected


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_random_sequences_are_tokenized_as_by_sacremoses(language):
    """Marks and words in any order: what no corpus holds."""
    draw = random.Random(1)
    parts = [*"ab5.,;:!?()[]&-%$", " ", "  ", " word", " Dr.", "'s", " U.S.", "...", '"', " 1,5", " z.B.", " No.", "ß"]
    texts = ["".join(draw.choices(parts, k=draw.randint(1, 20))) for _ in range(500)]
    expected = [official(text, language, True, True, True) for text in texts]
    found = tokenized(texts, language=language)
    equal = sum(mine == theirs for mine, theirs in zip(found, expected, strict=True))
    assert equal >= 0.995 * len(texts)


@pytest.mark.parametrize("language", ["en", "de"])
def test_detokenized_text_is_that_of_sacremoses_and_the_original(language):
    lines = [pair[language == "de"] for pair in generate_corpus({"train": 200}, seed=1)["train"]]
    cut = tokenized(lines, language=language)
    assert detokenized(cut, language) == lines
    detokenizer = sacremoses.MosesDetokenizer(language)
    tricky = tokenized(TRICKY, language=language)
    expected = [detokenizer.detokenize(text.split()) for text in tricky]
    equal = sum(mine == theirs for mine, theirs in zip(detokenized(tricky, language), expected, strict=True))
    assert equal >= len(TRICKY) - 2


@pytest.mark.parametrize(
    ("language", "cut", "text"),
    [
        ("en", "He said &quot; no &quot; , didn &apos;t he ?", 'He said "no", didn \'t he?'.replace(" 't", "'t")),
        ("en", "&apos; &quot; Stop &quot; is a word , &apos; she said .", "'\"Stop\" is a word,' she said."),
        ("en", "well @-@ known ( and 5 $ ) .", "well-known (and 5 $)."),
        ("de", "@-@ und ein @-@ zwanzig @-@", "-und ein-zwanzig-"),
        ("fr", "l&apos; homme dit : &quot; oui ! &quot;", 'l\'homme dit : "oui !"'),
        ("de", "„ Ja “ , sagt er .", "„Ja“, sagt er."),
        ("ja", "日本 語 です 。", "日本語です。"),
    ],
)
def test_detokenized_examples(language, cut, text):
    assert detokenized([cut], language) == [text]


def test_lower_case_comes_last():
    assert tokenized(["Dr. Who said: NO."], language="en", lowercase=True) == ["dr. who said : no ."]


@pytest.mark.parametrize("corpus", ["wmt_news_de-en/valid_newstest2013", "ted_raw_de-en/valid_tst2013"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_real_text(corpus, language):
    path = SHARED / "data" / f"{corpus}.{language}.gz"
    if not path.exists():
        pytest.skip("real text is not part of the repository")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        texts = [line.rstrip("\n") for line in file][:300]
    expected = [official(text, language, True, True, True) for text in texts]
    assert tokenized(texts, language=language) == expected
    detokenizer = sacremoses.MosesDetokenizer(language)
    assert detokenized(expected, language) == [detokenizer.detokenize(text.split()) for text in expected]


def test_character_classes_are_ranges():
    assert char_class("acbz\U0001f600") == r"\x{61}-\x{63}\x{7a}\x{1f600}"
