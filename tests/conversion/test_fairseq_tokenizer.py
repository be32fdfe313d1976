import random
from collections import Counter
from types import SimpleNamespace

import pytest
import sentencepiece
from support.fairseq_files import write_dictionary
from transformers import AutoTokenizer

from residual_hf.base.errors import InputError
from residual_hf.conversion.fairseq_checkpoint import MosesOptions, moses_rules
from residual_hf.conversion.fairseq_tokenizer import fairseq_tokenizer, read_codes
from residual_hf.conversion.moses import MosesRules
from residual_hf.data.synthetic.generator import generate_corpus
from residual_hf.data.tokenizer import pretokenized_tokenizer, read_dictionary
from residual_hf.model.tokenization_residual import ResidualTokenizer

STRANGE = [
    "foo@@ bar", "@@", "@@@", "a@@@@b", "☃☃☃x", "☃", "x" * 300, "abab" * 40, "12345678 3.14", "𝒳y", "<unk> </s> <s>",
    "o'clock 'em ' ''", "naïve Ärger", "a", "</w> b</w>c", "  two  spaces ", "",
]  # fmt: skip


def segment(word, ranks):
    """subword-nmt, written down once more: merge the pair of the lowest rank everywhere, until there is none."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    while len(symbols) > 1:
        pairs = [(ranks[pair], pair) for pair in zip(symbols, symbols[1:], strict=False) if pair in ranks]
        if not pairs:
            break
        left, right = min(pairs)[1]
        merged, i = [], 0
        while i < len(symbols):
            if symbols[i] == left and symbols[i + 1 : i + 2] == [right]:
                merged.append(left + right)
                i += 2
            else:
                merged.append(symbols[i])
                i += 1
        symbols = merged
    return [f"{symbol}@@" for symbol in symbols[:-1]] + [symbols[-1].removesuffix("</w>")]


def learn(words, merges):
    """Codes of subword-nmt from counted words."""
    counted = [([*word[:-1], word[-1] + "</w>"], n) for word, n in sorted(words.items())]
    codes = []
    for _ in range(merges):
        pairs = Counter()
        for symbols, n in counted:
            for pair in zip(symbols, symbols[1:], strict=False):
                pairs[pair] += n
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        codes.append(best)
        for symbols, _ in counted:
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i : i + 2] = ["".join(best)]
                i += 1
    return codes


def whole(word):
    """Codes that make one piece of a word, from the left."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    return "".join(f"{''.join(symbols[:i])} {symbols[i]}\n" for i in range(1, len(symbols)))


def write_codes(path, merges):
    path.write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return {pair: rank for rank, pair in reversed(list(enumerate(merges)))}  # the first of equal merges counts


def fairseq_ids(line, ranks, dictionary):
    """What fairseq makes of a line: cut, looked up, `</s>` at the end."""
    index = {token: number for number, token in enumerate(dictionary)}
    pieces = [piece for word in line.split(" ") if word for piece in segment(word, ranks)]
    return [index.get(piece, 3) for piece in pieces] + [2]


@pytest.fixture(scope="module")
def lines():
    return [text for pair in generate_corpus({"train": 400}, seed=3)["train"] for text in pair]


@pytest.fixture(scope="module")
def trained(lines, tmp_path_factory):
    """(codes, dictionary) learned on the first half of the lines; the dictionary keeps what is there twice."""
    folder = tmp_path_factory.mktemp("codes")
    words = Counter(word for line in lines[: len(lines) // 2] for word in line.split())
    merges = learn(words, 300)
    codes, dictionary = folder / "codes", folder / "dict.txt"
    ranks = write_codes(codes, merges)
    pieces = Counter(piece for word, n in words.items() for piece in segment(word, ranks) * n)
    write_dictionary(dictionary, [piece for piece, n in pieces.most_common() if n > 2])
    return codes, dictionary


def test_pieces_are_those_of_subword_nmt(trained, lines):
    codes, dictionary = trained
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(read_codes(codes))))}
    tokens = read_dictionary(dictionary)
    texts = lines + STRANGE
    expected = [fairseq_ids(text, ranks, tokens) for text in texts]
    assert tokenizer(texts)["input_ids"] == expected
    assert any(3 in ids for ids in expected[: len(lines)])
    assert len(tokenizer) == len(tokens)


def test_random_words_over_a_small_alphabet(trained, tmp_path):
    """Codes are learned on words of four letters, so that merges compete for the same letters."""
    draw = random.Random(0)
    words = Counter("".join(draw.choices("abcd", k=draw.randint(1, 12))) for _ in range(3000))
    merges = learn(words, 120)
    codes = tmp_path / "codes"
    ranks = write_codes(codes, merges)
    pieces = Counter(piece for word in words for piece in segment(word, ranks))
    dictionary = write_dictionary(tmp_path / "dict.txt", [piece for piece, n in pieces.items() if n > 5])
    texts = ["".join(draw.choices("abcde", k=draw.randint(1, 30))) for _ in range(2000)]
    expected = [fairseq_ids(text, ranks, read_dictionary(dictionary)) for text in texts]
    assert fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)(texts)["input_ids"] == expected


def test_decoding_glues_pieces_and_spaces_words(trained, lines):
    codes, dictionary = trained
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    known = [line for line in lines if 3 not in tokenizer(line)["input_ids"]]
    assert len(known) > 50
    decoded = tokenizer.batch_decode(tokenizer(known)["input_ids"], skip_special_tokens=True)
    assert decoded == [" ".join(line.split()) for line in known]


def test_saved_and_loaded_tokenizers_are_equal(trained, lines, tmp_path):
    codes, dictionary = trained
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    tokenizer.save_pretrained(tmp_path)
    loaded = ResidualTokenizer.from_pretrained(tmp_path)
    assert loaded(lines)["input_ids"] == tokenizer(lines)["input_ids"]
    assert loaded(text_target=lines[:9])["input_ids"] == tokenizer(lines[:9])["input_ids"]
    assert len(loaded) == loaded.target_vocab_size == len(read_dictionary(dictionary))
    unknown = [token for token in tokenizer.get_vocab() if tokenizer.get_vocab()[token] >= len(tokenizer)]
    assert unknown and loaded.convert_tokens_to_ids(unknown) == [3] * len(unknown)


def test_a_dictionary_that_has_all_pieces_needs_no_class_of_ours(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\na b\nab c</w>\n")
    pieces = ["a@@", "b@@", "c@@", "a", "b", "c", "ab@@", "abc"]
    dictionary = write_dictionary(tmp_path / "dict.txt", pieces)
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    assert not isinstance(tokenizer, ResidualTokenizer)
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded("abc abb cab")["input_ids"] == [11, 10, 8, 6, 4, 8, 2]


def test_without_codes_text_is_cut_already(tmp_path):
    dictionary = write_dictionary(tmp_path / "dict.txt")
    tokenizer = fairseq_tokenizer(dictionary, dictionary)
    text = "the lo@@ w@@ er xyz"
    assert tokenizer(text)["input_ids"] == pretokenized_tokenizer(dictionary)(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == "the lower"


def test_overwritten_tokens(tmp_path):
    """`#fairseq:overwrite`: the last id counts, also for a word that reads like a special token."""
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("a 5\nb 4\n<s> 9 #fairseq:overwrite\na 3 #fairseq:overwrite\n<@@ 2\ns@@ 2\n> 2\n")
    assert read_dictionary(dictionary)[4:] == ["a", "b", "<s>", "a", "<@@", "s@@", ">"]
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n< s\n<s ></w>\n")
    tokenizer = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    assert tokenizer("a b <s>")["input_ids"] == [7, 5, 6, 2]


def test_codes_of_another_dictionary_are_refused(tmp_path):
    """As GPT-2's `vocab.bpe`, whose dictionary has numbers: all text would be unknown."""
    dictionary = write_dictionary(tmp_path / "dict.txt", ["13", "262", "198"])
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nĠ t\nh e\nĠt he\n", encoding="utf-8")
    with pytest.raises(InputError, match="bpe_codes: no merge makes a token of a dictionary"):
        fairseq_tokenizer(dictionary, dictionary, bpe_codes=tmp_path / "vocab.bpe")
    train_sentencepiece(tmp_path, ["a small cat", "two small dogs"] * 20, 30)
    with pytest.raises(InputError, match="spm.model: none of its pieces is a token of a dictionary"):
        fairseq_tokenizer(dictionary, dictionary, sentencepiece=tmp_path / "spm.model")
    other = write_dictionary(tmp_path / "dict.en.txt", ["the", "t@@"])  # the other side is cut otherwise
    (tmp_path / "codes").write_text("#version: 0.2\n" + whole("the"))
    assert len(fairseq_tokenizer(dictionary, other, bpe_codes=tmp_path / "codes"))


def test_codes_of_fastbpe_are_read(tmp_path):
    (tmp_path / "codes").write_text("e n</w> 120\nt h 3\ne n</w> 2\n")
    assert read_codes(tmp_path / "codes") == [("e", "n</w>"), ("t", "h")]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_codes, "", "has no merges"),
        (read_codes, "#version: 0.1\na b\n", "#version 0.1, must be 0.2"),
        (read_codes, "a b\n", "line 1 is 'a b'; codes must be those of subword-nmt"),
        (read_codes, "#version: 0.2\na b c\n", "line 2 is 'a b c'"),
        (read_dictionary, "", "the dictionary is empty"),
        (read_dictionary, "word\n", "line 1 is 'word'"),
        (read_dictionary, "a 1\nb x\n", "line 2 is 'b x'"),
        (read_dictionary, "a 1\na 2\n", "line 2: the token 'a' is repeated"),
        (read_dictionary, "<pad> 2\n", "line 1: the token '<pad>' is repeated"),
    ],
)
def test_other_codes_and_dictionaries_are_named(read, text, message, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "file")


def test_what_a_dictionary_shows_of_moses():
    config = SimpleNamespace(source_lang="en", target_lang="de")
    words = {"source_dict": ["a", "&apos;s"], "target_dict": ["@-@", "&", "'s", "R&D"]}
    rules = moses_rules(MosesOptions(), config, words)
    assert rules["source_rules"] == MosesRules("en", hyphens=False, escape=True)
    assert rules["target_rules"] == MosesRules("de", hyphens=True, escape=False)


def test_moses_in_front_of_the_codes(tmp_path):
    pytest.importorskip("sacremoses")
    words = ["the", "newest", ".", "&quot;", "@-@", "(", ")", "low"]
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n" + "".join(whole(word) for word in words), encoding="utf-8")
    dictionary = write_dictionary(tmp_path / "dict.txt", words)
    rules = MosesRules("en", hyphens=True, escape=True)
    plain = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes)
    moses = fairseq_tokenizer(dictionary, dictionary, bpe_codes=codes, source_rules=rules, target_rules=rules)
    text = "the (low-newest) “low”."
    cut = "the ( low @-@ newest ) &quot; low . &quot;"
    assert moses(text)["input_ids"] == plain(cut)["input_ids"]
    assert 3 not in moses(text)["input_ids"]
    assert moses(text, text_target=text)["labels"] == plain(cut)["input_ids"]
    assert moses.decode(moses(text)["input_ids"], skip_special_tokens=True) == 'the (low-newest) "low."'
    moses.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded(text)["input_ids"] == moses(text)["input_ids"]


def train_sentencepiece(folder, lines, size, **options):
    options |= {"model_prefix": str(folder / "spm"), "vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), **options)


@pytest.mark.parametrize("byte_fallback", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_is_equal_to_sentencepiece(kind, byte_fallback, lines, tmp_path):
    options = {"model_type": kind, "byte_fallback": byte_fallback}
    train_sentencepiece(tmp_path, lines[: len(lines) // 2], 600 if byte_fallback else 300, **options)
    official = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    texts = [*lines, "<s> a </s> <unk> <pad>", "  a   b ", "☃ x☃☃", "\ta\u00a0b ½", "<0x41> ÿ", "か\u3099", "", " "]
    texts.append("ｶﾞﾝﾊﾟ")
    pieces = Counter(piece for line in lines[:300] + ["☃"] for piece in official.encode(line, out_type=str))
    dictionary = write_dictionary(tmp_path / "dict.txt", [*(p for p, n in pieces.items() if p != "▁"), "madeup"])
    tokenizer = fairseq_tokenizer(dictionary, dictionary, sentencepiece=tmp_path / "spm.model")
    index = {token: number for number, token in enumerate(read_dictionary(dictionary))}
    expected = [[index.get(piece, 3) for piece in official.encode(text, out_type=str)] + [2] for text in texts]
    assert tokenizer(texts)["input_ids"] == expected
    decoded = tokenizer.batch_decode(expected, skip_special_tokens=True)
    whole = [number for number, ids in enumerate(expected) if 3 not in ids]
    assert len(whole) > 40
    assert [decoded[i] for i in whole] == [official.decode(official.encode(texts[i])) for i in whole]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model_type": "bpe", "user_defined_symbols": ["<BT>"]},
            r"spm\.model: .* with user_defined_symbols \(<BT>\)",
        ),
        ({"user_defined_symbols": ["<2de>"]}, r"with user_defined_symbols \(<2de>\)"),
        ({"treat_whitespace_as_suffix": True}, "in which words do not begin with ▁"),
    ],
)
def test_sentencepiece_models_that_cut_text_otherwise_are_refused(options, message, lines, tmp_path):
    train_sentencepiece(tmp_path, lines[:200], 200, **options)
    dictionary = write_dictionary(tmp_path / "dict.txt", ["a"])
    with pytest.raises(InputError, match=message):
        fairseq_tokenizer(dictionary, dictionary, sentencepiece=tmp_path / "spm.model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bpe_codes": "a", "sentencepiece": "b"}, "bpe_codes, sentencepiece: both given"),
        ({"source_rules": MosesRules("en")}, "moses: given without bpe_codes"),
        ({"sentencepiece": "dict.txt"}, r"dict\.txt: not a SentencePiece model"),
        ({"sentencepiece": "none.model"}, "no such file"),
    ],
)
def test_wrong_arguments_are_named(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dictionary = write_dictionary(tmp_path / "dict.txt")
    with pytest.raises(InputError, match=message):
        fairseq_tokenizer(dictionary, dictionary, **options)
