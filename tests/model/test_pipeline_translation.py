import io

import datasets
import pytest
import torch
from support import small_sizes
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from torch.utils.data import Dataset
from transformers import (
    AddedToken,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GenerationConfig,
    MBartTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from residual_hf.model.pipeline_translation import TranslationPipeline
from residual_hf.model.tokenization_residual import ResidualTokenizer


@pytest.fixture
def translate(model, tokenizer):
    return TranslationPipeline(model, tokenizer=tokenizer, device="cpu")


@pytest.fixture
def generated(monkeypatch):
    """The keyword arguments of every call of a model's `generate`."""
    calls = []

    def watch(model):
        generate = model.generate
        monkeypatch.setattr(model, "generate", lambda **kwargs: calls.append(kwargs) or generate(**kwargs))
        return calls

    return watch


def by_hand(model, tokenizer, text, **kwargs):
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    kwargs = {"num_beams": 4, "max_new_tokens": min(2 * inputs["input_ids"].shape[1] + 50, 63), **kwargs}
    return tokenizer.batch_decode(model.generate(**inputs, **kwargs), skip_special_tokens=True)


def texts(results):
    return [result["translation_text"] for result in results]


def test_result_is_what_generate_gives(translate, model, tokenizer):
    expected = [by_hand(model, tokenizer, sentence)[0] for sentence in SENTENCES]
    assert len(set(expected)) > 1
    assert translate(SENTENCES[0]) == [{"translation_text": expected[0]}]
    assert translate(SENTENCES) == [{"translation_text": text} for text in expected]
    assert translate(tuple(SENTENCES)) == translate(SENTENCES)
    assert translate([]) == []


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_do_not_change_results(model, side):
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
    one_by_one = translate(SENTENCES, max_new_tokens=12)
    assert translate(SENTENCES, batch_size=3, max_new_tokens=12) == one_by_one
    set_before = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", batch_size=3, max_new_tokens=12)
    assert set_before(SENTENCES) == one_by_one


def test_generators_and_datasets_are_streamed(translate):
    class Lines(Dataset):
        def __len__(self):
            return len(SENTENCES)

        def __getitem__(self, index):
            return SENTENCES[index]

    taken = []

    def lines():
        for sentence in SENTENCES:
            taken.append(sentence)
            yield sentence

    expected = [[result] for result in translate(SENTENCES, max_new_tokens=5)]
    stream = iter(translate(lines(), batch_size=2, max_new_tokens=5))
    assert next(stream) == expected[0]
    assert len(taken) < len(SENTENCES)
    assert list(stream) == expected[1:]
    assert list(translate(iter(SENTENCES), max_new_tokens=5)) == expected
    assert list(translate(Lines(), batch_size=2, max_new_tokens=5)) == expected
    assert list(translate(line for line in [])) == []
    whole = [[result] for result in translate(SENTENCES, max_new_tokens=5, return_alignments=True)]
    file = io.StringIO("".join(f"{sentence}\n" for sentence in SENTENCES))
    assert list(translate(file, max_new_tokens=5, return_alignments=True)) == whole


def test_column_of_a_data_set(translate):
    column = datasets.Dataset.from_dict({"de": SENTENCES})["de"]
    assert translate(column, max_new_tokens=5) == translate(SENTENCES, max_new_tokens=5)


def test_generate_arguments_of_call_win_over_those_of_constructor(model, tokenizer):
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", num_beams=2, max_new_tokens=6)
    first = SENTENCES[0]
    assert texts(translate(first)) == by_hand(model, tokenizer, first, num_beams=2, max_new_tokens=6)
    assert texts(translate(first, num_beams=1)) == by_hand(model, tokenizer, first, num_beams=1, max_new_tokens=6)
    shorter = by_hand(model, tokenizer, first, num_beams=2, max_length=4, max_new_tokens=None)
    assert texts(translate(first, max_length=4)) == shorter != texts(translate(first))


def test_several_translations_of_a_sentence(translate, model, tokenizer):
    best = translate(SENTENCES[0], num_return_sequences=3)
    assert texts(best) == by_hand(model, tokenizer, SENTENCES[0], num_return_sequences=3)
    both = translate(SENTENCES[:2], num_return_sequences=3, batch_size=2)
    assert [len(results) for results in both] == [3, 3]
    assert len(translate(SENTENCES[0], num_return_sequences=6)) == 6


def test_token_ids(translate, tokenizer):
    (result,) = translate(SENTENCES[0], return_tensors=True)
    assert list(result) == ["translation_token_ids"]
    text = tokenizer.decode(result["translation_token_ids"], skip_special_tokens=True)
    assert translate(SENTENCES[0]) == [{"translation_text": text}]
    (both,) = translate(SENTENCES[0], return_tensors=True, return_text=True)
    assert set(both) == {"translation_token_ids", "translation_text"}
    with pytest.raises(ValueError, match="return_tensors=True"):
        translate(SENTENCES[0], return_text=False)


def test_outputs_in_a_dict(translate):
    plain = translate(SENTENCES[0], max_new_tokens=5)
    assert translate(SENTENCES[0], max_new_tokens=5, return_dict_in_generate=True, output_scores=True) == plain


def test_length_without_a_setting(translate, tokenizer, monkeypatch):
    def new_tokens(text):
        (result,) = translate(text, suppress_tokens=[2], return_tensors=True)  # never ends by itself
        return len(result["translation_token_ids"]) - 1

    assert new_tokens("a") == 2 * len(tokenizer("a")["input_ids"]) + 50
    assert new_tokens(" ".join(SENTENCES)) == 63  # the model has 64 positions, one for the start
    for name, value in {"max_length_a": 1.5, "max_length_b": 3}.items():  # those of a recipe
        monkeypatch.setattr(translate.model.generation_config, name, value, raising=False)
    assert new_tokens("a") == int(1.5 * len(tokenizer("a")["input_ids"]) + 3)
    endless = {"suppress_tokens": [2], "return_tensors": True}
    pad, lengths = tokenizer.pad_token_id, [int(1.5 * len(tokenizer(text)["input_ids"]) + 3) for text in SENTENCES]
    together = translate(SENTENCES, batch_size=len(SENTENCES), **endless)
    assert [int(each["translation_token_ids"].ne(pad).sum()) - 1 for each in together] == lengths
    assert len({*lengths}) > 1


def test_defaults_that_a_trainer_has_entered_are_no_settings(translate, model, monkeypatch):
    """`Seq2SeqTrainer` writes those of Transformers into the generation config when it generates."""
    endless, ids = {"suppress_tokens": [2]}, {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    found = translate(SENTENCES, **endless)
    entered = GenerationConfig(max_length=20, num_beams=1, early_stopping=False, length_penalty=1.0, **ids)
    monkeypatch.setattr(model, "generation_config", entered)
    assert translate(SENTENCES, **endless) == found


def test_model_settings_win_over_defaults(model, tokenizer, generated, monkeypatch):
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
    calls = generated(model)
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    monkeypatch.setattr(model, "generation_config", GenerationConfig(max_length=9, num_beams=1, **ids))
    translate("a")
    translate("a", generation_config=GenerationConfig(num_beams=3))
    translate("a", do_sample=True)
    monkeypatch.setattr(model, "generation_config", GenerationConfig(**ids))
    translate("a", generation_config=GenerationConfig(num_beams=3))
    translate("a", do_sample=True, max_length=5)
    settings = ["num_beams", "max_new_tokens", "max_length"]
    seen = [{name: call[name] for name in settings if call.get(name) is not None} for call in calls]
    assert seen == [{}, {}, {}, {}, {"max_length": 5}]
    assert calls[3]["generation_config"].max_new_tokens == 2 * len(tokenizer("a")["input_ids"]) + 50
    assert calls[3]["generation_config"].num_beams == 3


def test_empty_text(translate, model):
    assert texts(translate("")) == [""]
    assert texts(translate(" ", num_return_sequences=2)) == ["", ""]
    (expected,) = texts(translate(SENTENCES[0]))
    for batch_size in (1, 2):
        assert texts(translate(["", SENTENCES[0], "   "], batch_size=batch_size)) == ["", expected, ""]
    silent = TranslationPipeline(model, tokenizer=tiny_tokenizer(end=False), device="cpu")
    assert texts(silent("")) == [""]


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", {"de": "Hund"}])
def test_not_a_text(translate, wrong):
    with pytest.raises(TypeError, match=type(wrong).__name__):
        translate(wrong)
    with pytest.raises(TypeError, match=f"item 1.*{type(wrong).__name__}"):
        translate(["Hund", wrong])
    with pytest.raises(TypeError, match=type(wrong).__name__):
        list(translate(text for text in ["Hund", wrong]))


def test_long_text(model, caplog):
    long = " ".join(SENTENCES * 4)
    translate = TranslationPipeline(model, tokenizer=tiny_tokenizer(max_length=10), device="cpu")
    with pytest.raises(ValueError, match="64 positions.*truncation=True"):
        translate(long)
    cut = TranslationPipeline(model, tokenizer=tiny_tokenizer(max_length=None), device="cpu")
    assert len(cut.preprocess(long, truncation=True)["input_ids"][0]) == 64
    assert cut(long, truncation=True, max_new_tokens=3)
    assert "😀" not in cut(f"{long} 😀", truncation=True, max_new_tokens=3)[0]["translation_text"]
    assert "😀" in cut(f"Hund 😀 {long}", truncation=True, max_new_tokens=3)[0]["translation_text"]
    assert len(translate.preprocess(long, truncation=True)["input_ids"][0]) == 10

    translate(" ".join(SENTENCES[:2]), max_new_tokens=3)
    assert "model_max_length" in caplog.text


def test_languages_of_the_model(tokenizer):
    model = tiny_model(tokenizer, source_lang="de", target_lang="en")
    expected = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")(SENTENCES[0])
    for settings in (
        {"task": "translation_de_to_en"},
        {"src_lang": "de", "tgt_lang": "en"},
        {"task": "translation_de_to_fr", "tgt_lang": "en"},
    ):
        translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", **settings)
        assert translate(SENTENCES[0]) == expected
        with pytest.raises(ValueError, match="de to cs.*de to en"):
            translate(SENTENCES[0], tgt_lang="cs")
    for settings in ({"task": "translation_en_to_de"}, {"src_lang": "fr"}, {"tgt_lang": "fr"}):
        with pytest.raises(ValueError, match="does not translate.*de to en"):
            TranslationPipeline(model, tokenizer=tokenizer, device="cpu", **settings)


def test_unstated_languages_are_believed(model, tokenizer, translate, caplog):
    pair = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", task="translation_xx_to_yy")
    assert pair(SENTENCES[0]) == translate(SENTENCES[0])
    assert caplog.text == ""
    assert translate(SENTENCES[0], tgt_lang="zz") == pair(SENTENCES[0])
    assert "The model names no languages: 'zz' is not checked" in caplog.text


def test_language_tags():
    tokenizer = tiny_tokenizer("<2de>", "<2en>")
    model = tiny_model(tokenizer)
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
    german, english = (by_hand(model, tokenizer, f"<2{to}> {SENTENCES[0]}") for to in ("de", "en"))
    assert german != english
    assert texts(translate(SENTENCES[0], tgt_lang="de")) == german
    assert texts(translate(f"<2en> {SENTENCES[0]}")) == english
    named = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", task="translation_fr_to_en")
    assert texts(named(SENTENCES[0])) == english
    with pytest.raises(ValueError, match="de, en"):
        translate(SENTENCES[0])
    with pytest.raises(ValueError, match="any to fr.*any to de, any to en"):
        translate(SENTENCES[0], tgt_lang="fr")
    model.config.target_lang = "de"
    assert texts(translate(SENTENCES[0])) == german


def test_a_tag_of_the_target_is_looked_up_among_its_tokens():
    tokenizer = ResidualTokenizer.from_pair(tiny_tokenizer(), tiny_tokenizer("<2en>"))
    tokenizer.add_tokens([AddedToken("<2de>", normalized=True)])
    ids = tokenizer.convert_tokens_to_ids("<2de>"), tokenizer.target_tokenizer.token_to_id("<2de>")
    assert ids[0] != ids[1]
    sizes = {"decoder_vocab_size": tokenizer.target_vocab_size, "share_encoder_decoder_embeddings": False}
    model = tiny_model(tokenizer, **sizes, language_tags="target", target_lang="de")
    (result,) = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")(SENTENCES[0], return_tensors=True)
    assert result["translation_token_ids"][1] == ids[1]


def tiny_t5(tokenizer, **settings):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens, initializer_factor=8.0, **settings)).eval()


def test_t5_prompts(tokenizer):
    prompts = {
        f"translation_en_to_{to}": {"prefix": f"a {to}: ", "max_length": 6, "num_beams": 2} for to in ("de", "fr")
    }
    model = tiny_t5(tokenizer, task_specific_params={"summarization": {"prefix": "no"}, **prompts})
    settings = {"num_beams": 2, "max_length": 6, "max_new_tokens": None}
    german, french = (by_hand(model, tokenizer, f"a {to}: {SENTENCES[1]}", **settings) for to in ("de", "fr"))
    assert german != french
    named = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", task="translation_en_to_fr")
    assert texts(named(SENTENCES[1])) == french
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", task="translation")
    assert texts(translate(SENTENCES[1], src_lang="en", tgt_lang="fr")) == french
    assert texts(translate(SENTENCES[1])) == german  # the first, as in Transformers 4
    assert texts(translate(SENTENCES[1], tgt_lang="fr")) == french
    with pytest.raises(ValueError, match="any to it.*en to de, en to fr"):
        translate(SENTENCES[1], tgt_lang="it")
    own = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", task="translation_en_to_it")
    plain = by_hand(model, tokenizer, SENTENCES[1], max_new_tokens=9)  # fine-tuned for another pair
    assert texts(own(SENTENCES[1], max_new_tokens=9)) == plain
    longer = by_hand(model, tokenizer, f"a fr: {SENTENCES[1]}", num_beams=2, max_new_tokens=9)
    assert texts(named(SENTENCES[1], max_new_tokens=9)) == longer


def tiny_bart(tokenizer, **settings):
    torch.manual_seed(0)
    config = BartConfig(**small_sizes(), vocab_size=len(tokenizer), **settings)
    return BartForConditionalGeneration(config).eval()


def test_tokenizer_with_its_own_language_codes():
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("b", -3.0)]
    tokenizer = MBartTokenizer(vocab=vocab, src_lang="en_XX")
    model = tiny_bart(tokenizer, forced_eos_token_id=None)
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu", max_new_tokens=6)
    german = tokenizer.convert_tokens_to_ids("de_DE")
    results = translate(["a", "b a b"], src_lang="en_XX", tgt_lang="de_DE", return_tensors=True, batch_size=2)
    assert [int(result["translation_token_ids"][1]) for result in results] == [german, german]
    with pytest.raises(ValueError, match="src_lang"):
        translate("a")
    for pair in ({"src_lang": "en_XX", "tgt_lang": "xx"}, {"src_lang": "xx", "tgt_lang": "de_DE"}):
        with pytest.raises(ValueError, match="'xx'.*de_DE"):
            translate("a", **pair)


def test_other_encoder_decoders(tokenizer):
    model = tiny_bart(tokenizer)
    translate = TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
    expected = by_hand(model, tokenizer, SENTENCES[0], max_new_tokens=8)
    assert texts(translate(SENTENCES[0], max_new_tokens=8)) == expected


def test_model_that_cannot_translate(tokenizer):
    model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    with pytest.raises(ValueError, match="BertModel is not a generative encoder-decoder"):
        TranslationPipeline(model, tokenizer=tokenizer, device="cpu")
