"""Tokenizers read text as it is seen, lose nothing else, keep fairseq's ids, and come back from disk the same."""

import copy
import hashlib
import json
import os
import pickle
import random
import threading
import unicodedata
from itertools import product

import pytest
from support.processes import run_forked, run_without_the_package
from tokenizers import normalizers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from residual_hf.base.errors import InputError
from residual_hf.data import tokenizer_training
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.text_files import is_blank
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.data.tokenizer_training import LONGEST, as_seen, train_tokenizer
from residual_hf.model.tokenization_residual import ResidualTokenizer

TEXTS = {
    "en": [
        "The small boat lies in the harbour, and the wind is calm.",
        "She said: “We aren't going to sell the house (not yet)!”",
        "In 1987 the harbour was rebuilt; since then 3,500 boats have come.",
    ],
    "de": [
        "Das kleine Boot liegt im Hafen, und der Wind ist ruhig.",
        "Sie sagte: „Wir verkaufen das Haus nicht (noch nicht)!“ Größe und Maß zählen.",
        "Die STRAẞE heißt jetzt Hafenstraße; seit 1987 kamen 3.500 Boote.",
    ],
    "ru": [
        "Маленькая лодка стоит в гавани, и ветер тихий.",
        "Она сказала: «Мы не продаём дом (пока нет)!» Ёлка растёт.",
        "В 1987 году гавань перестроили; с тех пор пришло 3500 лодок.",
    ],
    "el": [
        "Το μικρό καράβι είναι στο λιμάνι και ο άνεμος είναι ήρεμος.",
        "Είπε: «Δεν πουλάμε το σπίτι (όχι ακόμα)!»",
        "Το 1987 το λιμάνι ξαναχτίστηκε· ήρθαν 3.500 καράβια.",
    ],
    "zh": [
        "小船停在港口里，风很平静。",
        "她说：“我们还不卖房子（暂时不卖）！”",
        "港口在1987年重建，从那以后来了3500条船。",
    ],
}
KINDS = ("bpe", "byte_bpe", "unigram")
SAME = {
    " The boat lies  in\u00a0the\u202fold\u2009 \u2007harbour,\tand\r\nthe\u3000wind\x85is\u2028calm\x1f.\u00a0": (
        "The boat lies in the old harbour, and the wind is calm ."
    ),
    " \ufeff\tThe boat\u00a0\r\n": "The boat",
    "\ufeffThe b\u00adoat\u200b li\u200ces\u2060 in\u200d th\u034fe\u200f \u202ahar\u202c\u2066\u2069\x07bour\x00.": (
        "The boat lies in the harbour."
    ),
    "The boat\U000e0049\U000e0067\U000e006e\U000e006f.": "The boat.",
    "a\ufe0f 5\ufe0f 葛\U000e0100 x\u180e": "a 5 葛 x",
    "Bo\u0308te, A\u030a, vie\u0323\u0302t, e\u200b\u0301": "B\u00f6te, \u00c5, vi\u1ec7t, \u00e9",
    "ﬁnd ﬂat oﬃce ＡＢｃ１２３ co\u2011op co\u2010op": "find flat office ABc123 co-op co-op",
    "\u2060a\u3164\uffa0b": "a b",
    "\x9dThe b\x81oat\x7f\ufffc": "The boat",
    "don\x92t \x93ask\x94 \x96 5 \x80": "don’t “ask” – 5 €",
}
"""Texts, and what a reader sees of them."""
KEPT = [
    "می\u200cخواهم",
    "क्\u200dष क्\u200cष ക്\u200d ന",
    "\u1820\u180b\u1820",
    "👩\u200d⚕\ufe0f ❤\ufe0f\u200d🔥 🙂\u200d↔\ufe0f 👍🏽 1\ufe0f\u20e3 🇩🇪",
    "🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f",
    "m² ½ ™ № ℃ ① … 1ª „So“ ´ ¨ a，（b）！",
]
"""Characters that a reader sees or needs."""
NASTY = [
    "",
    "▁ the mark ▁▁ itself ▁",
    "▁",
    "\ufdd0 the escape \ufdd0\ufdd1\ufdd0\ufdd2 itself \ufdd0",
    "literal </s> and <unk>, <s>struck</s>, <pad>",
    "bytes <0x41><0x0A> as text",
    "STRAẞE Straße STRASSE ſ",
    '"(Yes," he said.) Don\'t -- stop…!? [3.14] 50% #1',
    "😀 👩‍👩‍👧 🇩🇪",
    "русский Ёлка, Ελληνικά άνεμος, 中文，日本語、한국어 हिन्दी العربية ไทย",
    "\U0010ffff \ufffd \ue000",
]


def fuzz(texts: list[str], count: int = 300) -> list[str]:
    generator = random.Random(5)
    parts = [" ", "  ", "▁", "\ufdd0", "\ufdd1", "<", "</s>", "<0x41>", "7", "\u0301", "😀", "\n", "\u00a0"]
    parts += [text[i : i + 4] for text in texts for i in range(0, 40, 7)]
    return ["".join(generator.choices(parts, k=generator.randrange(1, 9))) for _ in range(count)]


def train(language: str, kind: str = "bpe", vocab_size: int = 450, **options) -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS[language] * 3, TokenizerSettings(kind=kind, vocab_size=vocab_size), **options)


@pytest.fixture(scope="module")
def joint() -> PreTrainedTokenizerFast:
    settings = TokenizerSettings(vocab_size=500)
    return train_tokenizer(TEXTS["en"] + TEXTS["de"], settings, language_tags=["<2de>", "<2en>"])


@pytest.fixture(scope="module")
def separate() -> ResidualTokenizer:
    return ResidualTokenizer.from_pair(train("en", model_max_length=64), train("ru", "unigram"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", TEXTS)
def test_encoding_and_decoding_is_exact(language, kind):
    tokenizer = train(language, kind)
    seen = normalizers.Sequence(as_seen()).normalize_str
    for text in TEXTS[language] + NASTY + KEPT + fuzz(TEXTS[language]):
        ids = tokenizer(text).input_ids
        assert ids[-1] == 2
        assert not {0, 1, 2, 3} & set(ids[:-1])
        assert tokenizer.decode(ids, skip_special_tokens=True) == seen(text)
        assert tokenizer.decode(ids) == seen(text) + "</s>"
    batch = tokenizer(NASTY, padding=True).input_ids
    assert tokenizer.batch_decode(batch, skip_special_tokens=True) == NASTY


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_look_the_same_have_the_same_tokens(kind):
    tokenizer = train("en", kind, language_tags=["<2de>"])
    for text, seen in SAME.items():
        assert tokenizer(text).input_ids == tokenizer(seen).input_ids
        for tagged in (f"<2de> {text}", f"\ufeff\t<2de> {text}"):
            assert tokenizer(tagged).input_ids == tokenizer(f"<2de> {seen}").input_ids
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == seen
    for text in KEPT:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_those_of_the_text_as_it_was(kind):
    text = "\ufeff\t The\u00a0 b\u00adoat lies\u200b  in ﬁne Ha\u0308fen\r\n"
    encoded = train("en", kind)(text, return_offsets_mapping=True, add_special_tokens=False)
    words: dict[int, list[int]] = {}
    for word, span in zip(encoded.word_ids(), encoded["offset_mapping"], strict=True):
        words.setdefault(word, []).extend(span)
    found = [text[min(places) : max(places)].strip("\ufeff\t \u00a0\u200b") for places in words.values()]
    assert found == ["The", "b\u00adoat", "lies", "in", "ﬁne", "Ha\u0308fen"]


def test_training_text_is_read_as_it_is_seen():
    plain = ["the boats lie in a harbour"] * 5
    spoiled = ["the\u00a0boats  lie \u200bin a har\u00adbour\r"] * 5
    for kind in KINDS:
        settings = TokenizerSettings(vocab_size=300, kind=kind)
        one, other = (train_tokenizer(texts, settings).backend_tokenizer.to_str() for texts in (plain, spoiled))
        assert one == other


def test_a_text_is_blank_if_nothing_of_it_is_read():
    normalizer, characters = normalizers.Sequence(as_seen()), map(chr, (*range(0xD800), *range(0xE000, 0x1F000)))
    unseen = [each for each in characters if not unicodedata.category(each).startswith(("L", "N", "P", "Co", "Cn"))]
    for character in [*unseen, *"\u115f\u1160\u3164\uffa0\ufff0", *map(chr, range(0xE0000, 0xE1000))]:
        assert is_blank(f" {character}{character}") is (normalizer.normalize_str(character) == "")
    assert is_blank("") and not is_blank("a")


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary(kind):
    tokenizer = train("de", kind, vocab_size=330, language_tags=["<2en>", "<2fr>"], model_max_length=77)
    assert tokenizer.convert_ids_to_tokens(list(range(6))) == ["<s>", "<pad>", "</s>", "<unk>", "<2en>", "<2fr>"]
    special = tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    assert special == (0, 1, 2, 3)
    assert len(tokenizer) <= 330
    assert tokenizer.model_max_length == 77
    assert len(tokenizer(TEXTS["de"][1] * 9, truncation=True).input_ids) == 77
    assert list(tokenizer("Boot")) == ["input_ids", "attention_mask"]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_entries_and_punctuation_stands_alone(kind):
    words = ["the house", "a mouse", "this louse", "the theme", "their blouse", "houses"]
    texts = [f"{one}, ({two}) and {one}." for one in words for two in words]
    tokenizer = train_tokenizer(texts, TokenizerSettings(vocab_size=330, kind=kind))
    mark, first = ("Ġ", "the") if kind == "byte_bpe" else ("▁", "▁the")
    tokens = tokenizer.tokenize("the house, the house.")
    assert tokens == [first, f"{mark}house", ",", f"{mark}the", f"{mark}house", "."]


def test_special_tokens_in_text_are_read_when_asked_for(joint):
    assert joint("a</s>b").input_ids.count(2) == 1
    assert joint("a</s>b", split_special_tokens=False).input_ids.count(2) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizer_is_the_same_and_needs_nothing_of_ours(tmp_path, kind):
    tokenizer = train("el", kind, language_tags=["<2el>"])
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is PreTrainedTokenizerFast
    texts = TEXTS["el"] + NASTY + ["<2el> " + TEXTS["el"][0]]
    assert again(texts).input_ids == tokenizer(texts).input_ids
    assert again.batch_decode(again(texts).input_ids, skip_special_tokens=True) == texts
    assert again.get_vocab() == tokenizer.get_vocab()


def test_training_again_in_another_process_gives_the_same(tmp_path):
    program = (
        "import sys, hashlib\n"
        "from pathlib import Path\n"
        "from residual_hf.data.data_settings import TokenizerSettings\n"
        "from residual_hf.data.tokenizer_training import train_tokenizer\n"
        f"for kind in {KINDS}:\n"
        "    settings = TokenizerSettings(kind=kind, vocab_size=330)\n"
        "    tokenizer = train_tokenizer(Path(sys.argv[1]).read_text().splitlines(), settings)\n"
        "    print(hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest())\n"
    )
    corpus = tmp_path / "corpus"
    lines = [" ".join(line.split()) for line in TEXTS["de"] + fuzz(TEXTS["de"])]
    corpus.write_text("\n".join(lines))
    run = run_forked("-c", program, corpus)
    settings = [TokenizerSettings(kind=kind, vocab_size=330) for kind in KINDS]
    here = [train_tokenizer(lines, one).backend_tokenizer.to_str() for one in settings]
    assert run.stdout.split() == [hashlib.sha256(text.encode()).hexdigest() for text in here]
    assert "%" not in run.stderr  # no progress bar without a terminal


def test_megabytes_without_a_space_are_cut():
    data = "".join(random.Random(1).choices("abcdef", k=2_000_000))  # hours if all of it were one word
    settings = TokenizerSettings(vocab_size=300)
    trained, expected = (train_tokenizer(["a few words", text], settings) for text in (data, data[:LONGEST]))
    assert trained.get_vocab() == expected.get_vocab()


def test_rare_characters_are_left_to_bytes():
    texts = ["common words " * 20, "q"]
    assert "q" in train_tokenizer(texts, TokenizerSettings(vocab_size=300)).get_vocab()
    for kind in ("bpe", "unigram"):
        tokenizer = train_tokenizer(texts, TokenizerSettings(vocab_size=300, kind=kind, character_coverage=0.99))
        assert not {"q", "▁q"} & set(tokenizer.get_vocab())
        assert tokenizer.decode(tokenizer("q common").input_ids, skip_special_tokens=True) == "q common"


def test_frequency_and_length_limits():
    words = "housebuilding " * 3 + "seldom"
    assert "▁seldom" in train_tokenizer([words], TokenizerSettings(vocab_size=400, min_frequency=1)).get_vocab()
    assert "▁seldom" not in train_tokenizer([words], TokenizerSettings(vocab_size=400, min_frequency=2)).get_vocab()
    for kind, limit in product(("bpe", "byte_bpe", "unigram"), (1, 2, 3, 4)):
        settings = TokenizerSettings(vocab_size=400, kind=kind, max_token_length=limit)
        learned = set(train_tokenizer([words] * 9, settings).get_vocab())
        longest = max(len(token) for token in learned if not token.startswith("<"))
        assert longest == limit or (kind == "unigram" and longest < limit)


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({"vocab_size": 262}, {"language_tags": ["<2de>", "<2en>"]}, "vocab_size: 262 given, must be >= 3"),
        (
            {"vocab_size": 270},
            {},
            "for the characters of the text and 260 for other entries; raise it, lower character_coverage",
        ),
        ({"vocab_size": 270, "kind": "unigram"}, {}, "vocab_size: 270 given, must be >= 3"),
        ({}, {"language_tags": ["2de"]}, "language_tags: '2de' given, must be such as <2de>"),
        ({}, {"language_tags": ["<to de>"]}, "language_tags: '<to de>'"),
        ({}, {"language_tags": ["</s>"]}, "language_tags: '</s>'"),
        ({}, {"language_tags": ["<2de>", "<2de>"]}, "language_tags: '<2de>' given, must be such as"),
        ({}, {"texts": "one text"}, "texts: 'one text' given, must be a sequence"),
        ({}, {"texts": []}, "texts: no text to train"),
        ({"kind": "unigram"}, {"texts": ["", " "]}, "texts: no text to train"),
    ],
)
def test_what_cannot_be_trained_is_refused(settings, arguments, message):
    settings = TokenizerSettings(**{"vocab_size": 400, **settings})
    with pytest.raises(InputError) as caught:
        train_tokenizer(**{"texts": TEXTS["de"], "settings": settings, **arguments})
    assert message in str(caught.value)


def test_small_corpora_are_reported(caplog):
    assert len(train_tokenizer(["a a a"], TokenizerSettings(vocab_size=5000))) < 5000
    assert "entries, not 5000 (vocab_size): the text is small" in caplog.text


def test_language_tags(joint):
    text = "The small boat"
    tagged = joint(f"<2de> {text}").input_ids
    assert tagged == [4, *joint(text).input_ids]
    assert joint.decode(tagged, skip_special_tokens=True) == "<2de> The small boat"
    for odd in (" <2de>  a  ", "<2de>a <2en>", "a<2de>"):
        assert joint.decode(joint(odd).input_ids, skip_special_tokens=True) == " ".join(odd.split())


def check_separate(tokenizer):
    sources, targets = TEXTS["en"] + NASTY, TEXTS["ru"] + NASTY
    encoded = tokenizer(sources, text_target=targets)
    assert encoded.input_ids == train("en")(sources).input_ids
    assert encoded.labels == train("ru", "unigram")(targets).input_ids
    assert tokenizer.batch_decode(encoded.labels, skip_special_tokens=True) == targets
    assert tokenizer.decode(encoded.labels[0]) == targets[0] + "</s>"
    back = tokenizer.batch_decode(encoded.input_ids, skip_special_tokens=True, use_source_tokenizer=True)
    assert back == sources
    assert tokenizer(text_target=targets).input_ids == encoded.labels
    assert tokenizer(sources).input_ids == encoded.input_ids


def test_separate_vocabularies(separate):
    check_separate(separate)
    assert len(separate) == len(train("en"))
    assert separate.target_vocab_size == len(train("ru", "unigram"))
    assert separate.model_max_length == 64
    labels = separate(text_target=TEXTS["ru"][0]).input_ids
    tokens = separate.convert_ids_to_tokens(labels, skip_special_tokens=True)
    assert tokens == train("ru", "unigram").tokenize(TEXTS["ru"][0])
    assert separate.convert_tokens_to_string(tokens) == TEXTS["ru"][0]
    assert separate.convert_tokens_to_ids(separate.tokenize("boat")) == separate("boat").input_ids[:-1]
    batch = separate(TEXTS["en"], text_target=TEXTS["ru"], padding=True, return_tensors="pt")
    assert batch["labels"].shape[0] == batch["input_ids"].shape[0] == 3
    assert separate.batch_decode(batch["labels"], skip_special_tokens=True) == TEXTS["ru"]


def test_separate_vocabularies_survive_pickle_copy_and_refused_targets(separate):
    check_separate(pickle.loads(pickle.dumps(separate)))
    check_separate(copy.deepcopy(separate))
    with pytest.raises((ValueError, TypeError)):
        separate("boat", text_target=[1])
    assert separate.encode("boat") == train("en").encode("boat")


def test_threads_use_the_two_vocabularies_at_the_same_time(separate):
    text = TEXTS["en"][0]
    ids, translation = separate(text)["input_ids"], separate(text_target=TEXTS["ru"][0])["input_ids"]
    expected = separate.decode(translation)
    found = []

    def decode(entered, encoded):
        with separate._vocabulary(use_source_tokenizer=False):
            entered.set()
            encoded.wait(10)
        found.append(separate.decode(translation))

    entered, encoded = threading.Event(), threading.Event()
    thread = threading.Thread(target=decode, args=(entered, encoded))
    thread.start()
    entered.wait(10)
    assert separate(text)["input_ids"] == ids
    encoded.set()
    thread.join()
    assert found == [expected]


def test_separate_vocabularies_must_agree_on_special_tokens(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    other = pretokenized_tokenizer(tmp_path / "dict.txt").backend_tokenizer
    swapped = json.loads(other.to_str())
    swapped["model"]["vocab"].update({"<unk>": 2, "</s>": 1, "<pad>": 3})
    for token in swapped["added_tokens"]:
        token["id"] = swapped["model"]["vocab"][token["content"]]
    swapped = PreTrainedTokenizerFast(tokenizer_object=type(other).from_str(json.dumps(swapped)))
    with pytest.raises(ValueError, match="eos_token </s> has the id 2 in the source, 1 in the target"):
        ResidualTokenizer.from_pair(train("en"), swapped)


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token"])
def test_a_new_special_token_has_one_id_in_separate_vocabularies(tmp_path, separate, name):
    separate.save_pretrained(tmp_path)
    loaded = ResidualTokenizer.from_pretrained(tmp_path, **{name: "<new>"})
    check_separate(loaded)
    new = getattr(loaded, f"{name}_id")
    assert new == len(loaded) - 1 == loaded.target_vocab_size - 1 == loaded.target_tokenizer.token_to_id("<new>")
    assert new >= max(len(separate), separate.target_vocab_size)
    assert loaded.decode([new], skip_special_tokens=True) == ""
    loaded.save_pretrained(tmp_path / "again")
    again = ResidualTokenizer.from_pretrained(tmp_path / "again")
    assert (getattr(again, f"{name}_id"), len(again), again.target_vocab_size) == (new, new + 1, new + 1)


def test_tokens_are_added_to_both_vocabularies(separate):
    pair = copy.deepcopy(separate)
    assert pair.add_tokens(["<2ru>", "\N{ROCKET}"]) == 2
    assert len(pair) == len(separate) + 2 and pair.target_vocab_size == separate.target_vocab_size + 2
    encoded = pair("<2ru> boat \N{ROCKET}", text_target="\N{ROCKET}")
    assert len(separate) in encoded.input_ids and len(separate) + 1 in encoded.input_ids
    assert separate.target_vocab_size + 1 in encoded.labels
    assert pair.decode(encoded.labels, skip_special_tokens=True) == "\N{ROCKET}"
    assert pair.add_tokens(["<2ru>"]) == 0 and pair.target_vocab_size == separate.target_vocab_size + 2


def test_special_tokens_of_one_vocabulary_and_tokens_without_rows_are_refused(separate):
    pair = copy.deepcopy(separate)
    pair.target_tokenizer.add_tokens(["<mine>"])
    with pytest.raises(ValueError, match="<mine> cannot be a new special token, because the target contains it"):
        pair.add_special_tokens({"pad_token": "<mine>"})
    known = ResidualTokenizer.from_pair(train("en"), train("ru"), known_tokens=(100, 100))
    with pytest.raises(ValueError, match="<2ru>: tokens cannot be added"):
        known.add_tokens(["<2ru>"])


def test_vocabularies_are_trained_anew(separate):
    check_separate(separate)
    source = separate.train_new_from_iterator(TEXTS["de"] * 3, 150)
    assert type(source) is ResidualTokenizer and len(source) == 150 and source.model_max_length == 64
    assert source.get_vocab().keys() != separate.get_vocab().keys()
    assert source.target_tokenizer.to_str() == separate.target_tokenizer.to_str()
    both = separate.train_new_from_iterator(TEXTS["de"] * 3, 150, target_iterator=TEXTS["en"] * 3)
    assert both.target_tokenizer.get_vocab().keys() != separate.target_tokenizer.get_vocab().keys()
    assert both.get_vocab() == source.get_vocab()
    ids = both(TEXTS["de"][0], text_target=TEXTS["en"][0])
    assert both.decode(ids.input_ids, skip_special_tokens=True, use_source_tokenizer=True) == TEXTS["de"][0]
    assert both.decode(ids.labels, skip_special_tokens=True) == TEXTS["en"][0]


def test_a_copy_is_made_from_init_kwargs(tmp_path, separate):
    separate.save_pretrained(tmp_path)
    loaded = ResidualTokenizer.from_pretrained(tmp_path)
    assert loaded.init_kwargs["target_tokenizer_file"] == str(tmp_path / "target_tokenizer.json")
    check_separate(ResidualTokenizer(tokenizer_file=str(tmp_path / "tokenizer.json"), **loaded.init_kwargs))
    loaded.save_pretrained(tmp_path / "again")
    assert "target_tokenizer_file" not in json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())


class ToyConfig(PreTrainedConfig):
    model_type = "toy_for_tokenizer_test"


@pytest.mark.parametrize("with_config", [False, True])
def test_saved_with_the_class_registered(tmp_path, joint, separate, with_config):
    AutoConfig.register("toy_for_tokenizer_test", ToyConfig, exist_ok=True)
    AutoTokenizer.register(ToyConfig, ResidualTokenizer, exist_ok=True)
    if with_config:
        ToyConfig().save_pretrained(tmp_path)
        ToyConfig().save_pretrained(tmp_path / "joint")
    joint.save_pretrained(tmp_path / "joint")
    assert type(AutoTokenizer.from_pretrained(tmp_path / "joint")) is PreTrainedTokenizerFast
    separate.save_pretrained(tmp_path)
    assert {"tokenizer.json", "target_tokenizer.json", "tokenization_residual.py"} <= set(os.listdir(tmp_path))
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is ResidualTokenizer
    check_separate(AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False))
    assert again.model_max_length == 64
    check_separate(again)
    again.save_pretrained(tmp_path / "twice")
    for name in ("tokenizer.json", "target_tokenizer.json"):
        first, second = (json.loads((folder / name).read_text()) for folder in (tmp_path, tmp_path / "twice"))
        assert first["model"] == second["model"]
    (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"target_tokenizer\.json is missing"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_saved_separate_vocabularies_without_this_package(tmp_path, separate):
    folder = tmp_path / "checkpoint"
    separate.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "unknown_to_transformers"}')
    program = (
        "from transformers import AutoTokenizer\n"
        "try:\n"
        "    AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)\n"
        "    sys.exit('read without its class')\n"
        "except ValueError as error:\n"
        "    assert 'trust_remote_code' in str(error), error\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "ids = tokenizer('boat', text_target=sys.argv[2])\n"
        "assert tokenizer.decode(ids.labels, skip_special_tokens=True) == sys.argv[2]\n"
        "tokenizer.save_pretrained(sys.argv[1] + '/again')\n"
        "print(ids.input_ids, ids.labels)\n"
    )
    run = run_without_the_package(program, folder, TEXTS["ru"][0], cwd=tmp_path)
    ids = separate("boat", text_target=TEXTS["ru"][0])
    assert run.stdout.strip() == f"{ids.input_ids} {ids.labels}"
    assert (folder / "again" / "tokenization_residual.py").is_file()


def test_pretokenized_text(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("the 9\nho@@ 5\nuse 5\n. 4\nmax 2\nmadeupword0000 0\n", encoding="utf-8")
    tokenizer = pretokenized_tokenizer(path)
    line = "the ho@@ use . max"
    assert tokenizer(line).input_ids == [4, 5, 6, 7, 8, 2]
    spaced = " the\u00a0ho@@\tuse\u202f.\x1c  max\u3000"  # fairseq splits at `\s+` of Python
    assert tokenizer(spaced).input_ids == tokenizer(" ".join(spaced.split())).input_ids == [4, 5, 6, 7, 8, 2]
    assert tokenizer("the zoo the").input_ids == [4, 3, 4, 2]
    assert len(tokenizer) == 10
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer(line).input_ids, skip_special_tokens=True) == "the house . max"
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(line).input_ids == tokenizer(line).input_ids
    assert again.decode([4, 5, 2], skip_special_tokens=True) == "the ho"


def test_a_dictionary_of_segmented_text_has_each_token_once(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\na 2 #fairseq:overwrite\n")
    with pytest.raises(InputError, match=r"dict\.txt: a token is repeated"):
        pretokenized_tokenizer(tmp_path / "dict.txt")


def test_a_unigram_vocabulary_of_much_text_is_of_evenly_spaced_lines(monkeypatch, caplog):
    caplog.set_level("INFO")
    lines = ["a red dog", "two blue cats"] * 40
    monkeypatch.setattr(tokenizer_training, "MOST_OF_UNIGRAM", sum(map(len, lines)) // 2)
    trained = train_tokenizer(lines, TokenizerSettings(kind="unigram", vocab_size=300))
    assert "unigram: trained on one of 2 of the 80 lines" in caplog.text
    assert len(trained("dog")["input_ids"]) < len(trained("cat")["input_ids"])
