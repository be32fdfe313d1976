import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import small_sizes
from support.tiny_translator import SENTENCES, coded_tokenizer, tiny_model, tiny_tokenizer
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import model_folder, save_checkpoint
from residual_hf.generation import decode
from residual_hf.generation import translator as translator_module
from residual_hf.generation.decode import search
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest
from residual_hf.generation.long_text import split_text
from residual_hf.generation.markup import translate_blocks
from residual_hf.generation.scoring import score_translations
from residual_hf.generation.stream import check_lengths
from residual_hf.generation.translator import Hypothesis, Translator, joined
from residual_hf.model import alignment
from residual_hf.model.evaluation_mode import evaluation_mode
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.pipeline_translation import Text2TextGenerationPipeline, TranslationPipeline

SETTINGS = DecodingSettings(num_beams=3, max_length_a=1, max_length_b=3)
LONG = " ".join(SENTENCES * 4)


def translator(*tags, **fields):
    tokenizer = tiny_tokenizer(*tags)
    return Translator(tiny_model(tokenizer, **fields), tokenizer, SETTINGS)


@pytest.fixture(scope="module")
def plain():
    return translator()


def test_one_sentence_gives_one_translation_and_several_a_list(plain):
    first, second = plain.translate(SENTENCES[:2])
    assert plain.translate(SENTENCES[0]) == first != second
    assert plain.translate(tuple(SENTENCES[:2])) == [first, second]
    assert plain.translate([]) == [] and plain.translate(" ") == "" and plain.translate(["", "\t"]) == ["", ""]
    best = plain.translate(SENTENCES[0], num_return_sequences=3)
    assert len(best) == 3 and best[0] == first
    assert plain.translate([SENTENCES[0], ""], num_return_sequences=3) == [best, ["", "", ""]]


def test_sentences_may_be_any_iterable_of_strings_and_nothing_else(plain):
    first = plain.translate(SENTENCES[0])
    assert plain.translate(text for text in SENTENCES[:1]) == plain.translate(np.array(SENTENCES[:1])) == [first]
    for sentences, message in (
        ([None], "sentence 1: missing, must be a string"),
        (["a", b"b"], "sentence 2: b'b' given, must be a string"),
        ("a\ud800", "sentence 1 has an unpaired surrogate: .* in position 1"),
    ):
        with pytest.raises(InputError, match=message):
            plain.translate(sentences)
    with pytest.raises(InputError, match="sentences: 'a dog' given, must be a list of strings"):
        plain.hypotheses("a dog")
    with pytest.raises(InputError, match="generate: .*not used by the model.*num_beam'"):
        plain.translate("a dog", num_beam=3)
    for count in (0, -1, 1.5):
        with pytest.raises(InputError, match=f"num_return_sequences: {count} given, must be an integer >= 1"):
            plain.translate("a dog", num_return_sequences=count)


def test_a_model_without_an_end_token_is_refused(plain, monkeypatch):
    monkeypatch.setattr(plain.model.generation_config, "eos_token_id", None)
    with pytest.raises(InputError, match="eos_token_id: missing"):
        plain.translate(SENTENCES[0])


KEPT = [
    *("-", "...", "123", "12:30 - 14:00", "* * *", "😊", "6171-1231", " 50 % ", "٣٤", "½ ²", "№ 7", "①"),
    *("👩\u200d⚕\ufe0f", "🇩🇪", "ℹ\ufe0f", "1\ufe0f\u20e3", "Ⅳ.", "。", "ーー", "ـــ", "\u0301", "\u200b", "\ue000"),
    *("{name}", "%1$s: 5", "https://example.org/a?b=c"),
    *("<b>", "<b>5</b>", '<img src="a.png"/>', "&nbsp;", "&#xa0;-&#160;"),
]
READ = ["5 km", "7 Hunde", "№ 5a", "三", "कि", "ไทย", "ª", "x {name}", "<b>Hund</b>", "a < b > c", "R&D; X"]


def test_lines_without_letters_are_kept_whoever_translates(plain):
    sentences = [SENTENCES[0], *KEPT, *READ]
    pipe = TranslationPipeline(plain.model, tokenizer=plain.tokenizer, device="cpu")
    found = plain.hypotheses(sentences, 2, alignments=True)
    assert [best[0].text for best in found[1 : len(KEPT) + 1]] == KEPT
    assert all(best[0].text != text for best, text in zip(found[len(KEPT) + 1 :], READ, strict=True))
    first = [(best[1].text, best[0].score, best[0].alignment.links) for best in found[1:3]]
    assert first == [("-", 0.0, []), ("...", 0.0, [])]
    options = {"batch_size": 4, "max_new_tokens": 9, "return_tensors": True, "return_text": True}
    piped = pipe(sentences, return_alignments=True, **options)
    assert [each["translation_text"] for each in piped[1 : len(KEPT) + 1]] == KEPT
    assert not {each["translation_text"] for each in piped[len(KEPT) + 1 :]} & {*READ}
    kept, ids = piped[3], plain.tokenizer("123", add_special_tokens=False)["input_ids"]
    assert (kept["alignment"], kept["word_scores"]) == ([], [1.0])
    assert kept["translation_token_ids"].tolist() == [2, *ids]
    blocks = translate_blocks(plain, [[text] for text in KEPT])
    assert ["".join(map(str, block)) for block in blocks] == KEPT


def test_a_model_of_one_language_reads_lines_without_letters():
    speller = translator(source_lang="en", target_lang="en")
    assert speller.translate(["123"]) != ["123"] and speller.translate([" "]) == [""]
    options = {"tokenizer": speller.tokenizer, "device": "cpu", "task": "text2text-generation"}
    pipe = Text2TextGenerationPipeline(translator().model, **options)
    assert pipe("123") != [{"generated_text": "123"}]
    tagged = translator("<2de>", "<2fr>")  # a tag is no letter
    assert tagged.translate(["<2de> 123"]) == tagged.translate(["123"], target_lang="fr") == ["123"]


def test_lines_in_capitals_are_translated_by_all_ways_in():
    fields = {"source_lang": "en", "target_lang": "de"}
    reader, (first, *_) = translator(**fields), SENTENCES
    pipe = TranslationPipeline(reader.model, tokenizer=reader.tokenizer, device="cpu")
    capital = first[0].upper() + first[1:].lower()
    ((plain,), (upper,)) = reader.hypotheses([capital, first.upper()], alignments=True)
    assert upper.text == plain.text.upper() != plain.text
    assert upper.alignment.links == plain.alignment.links and upper.alignment.source == first.upper()
    assert pipe(first.upper())[0]["translation_text"] == pipe(capital)[0]["translation_text"].upper()
    assert translate_blocks(reader, [[first.upper()]]) == [[upper.text]]
    for other in (translator(**fields, reads_capitals=True), translator()):
        assert other.inputs.edited(first.upper()).text == first.upper()


def test_a_long_line_without_letters_is_not_too_long(plain):
    assert plain.translate("-" * 999) == "-" * 999
    assert check_lengths(plain, ["-" * 999], "error", "lines") == 1


SAMPLING = {"do_sample": True, "suppress_tokens": [0, 1, 3]}


@pytest.mark.parametrize(
    "arguments", [{"num_return_sequences": 3}, {"num_return_sequences": 2, **SAMPLING}, {"num_beams": 1}]
)
def test_scores_are_those_of_the_model(plain, arguments):
    torch.manual_seed(1)
    sources = plain.tokenizer(SENTENCES)["input_ids"]
    settings = DecodingSettings(num_beams=arguments.pop("num_beams", 1 if "do_sample" in arguments else 3))
    request = SearchRequest.of(scores=True, **arguments)
    for source, found in zip(sources, search(plain.model, sources, settings, request), strict=True):
        assert len(found) == request.num_return_sequences
        for candidate in found:
            ended = len(candidate.ids) < min(2 * len(source) + 50, 63)
            labels = torch.tensor([[*candidate.ids, *([2] if ended else [])]])
            loss = plain.model(torch.tensor([source]), labels=labels).loss
            assert candidate.score == pytest.approx(-loss.item(), rel=1e-4)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_search_gives_the_scores_without_another_pass(plain, num_beams, monkeypatch):
    monkeypatch.setattr(decode, "sequence_log_probs", None)
    sources = plain.tokenizer(SENTENCES)["input_ids"]
    for (found,) in search(plain.model, sources, DecodingSettings(num_beams=num_beams), SearchRequest(scores=True)):
        assert found.score is not None


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_leave_out_the_tag_of_the_language(num_beams):
    tagged = translator("<2de>", language_tags="target")
    (ids,), forced = tagged.encode([SENTENCES[0]], target_lang="de")
    settings, scores = DecodingSettings(num_beams=num_beams, max_length_a=0, max_length_b=6), []
    for fast in (True, False):  # False: as on a GPU
        tagged.model.generation_config.fast_decoding = fast
        (((target, score),),) = search(tagged.model, [ids], settings, SearchRequest.of(scores=True, **forced))
        scores.append(score)
    labels = torch.tensor([target])
    with torch.no_grad():
        chosen = tagged.model(torch.tensor([ids]), labels=labels).logits.log_softmax(-1).gather(2, labels[..., None])
    assert len(target) == 6 and scores == pytest.approx([chosen[0, 1:].sum().item() / 6] * 2)


def test_keywords_and_a_request_ask_for_the_same(plain):
    asked = {"alignments": True, "long": "skip", "max_new_tokens": 7}
    request = SearchRequest.of(num_return_sequences=2, scores=True, **asked)
    assert request.generate_arguments == {"max_new_tokens": 7} and request.long == "skip"
    texts = [SENTENCES[0], LONG]
    by_keywords, by_request = plain.hypotheses(texts, 2, **asked), plain.answer(texts, request)
    assert [[best[:2] for best in row] for row in by_keywords] == [[best[:2] for best in row] for row in by_request]
    assert by_request[1][0].text == "" != by_request[0][0].text and by_request[0][0].alignment.links


def test_arguments_of_generate_come_before_the_settings(plain):
    def asked(settings, count=1, **arguments):
        found = Translator(plain.model, plain.tokenizer, settings).hypotheses(SENTENCES, count, **arguments)
        return [[best[:2] for best in row] for row in found]

    greedy = DecodingSettings(num_beams=1, length_penalty=3.0, early_stopping=False, max_length_a=0, max_length_b=5)
    beam, longer = replace(greedy, num_beams=3), replace(greedy, max_length_b=9)
    assert asked(greedy, num_beams=3) == asked(beam) != asked(greedy) == asked(beam, num_beams=1)
    assert asked(greedy, length_penalty=0.0) == asked(replace(greedy, length_penalty=0.0)) != asked(greedy)
    assert asked(beam, max_new_tokens=9) == asked(beam, max_length=10) == asked(replace(beam, max_length_b=9))
    assert asked(longer, max_length=6) == asked(greedy, max_new_tokens=None) == asked(greedy) != asked(longer)
    assert asked(greedy, 2, num_beams=1) == asked(replace(greedy, num_beams=2), 2)
    for name in ("max_length", "max_new_tokens"):
        with pytest.raises(InputError, match=f"^{name}: 0 given, must be an integer >= 1"):
            asked(greedy, **{name: 0})
    with pytest.raises(InputError, match="generation_config: .* give these as arguments"):
        asked(greedy, generation_config=plain.model.generation_config)


@pytest.mark.parametrize("read", ["translate", "score", "pipeline"])
def test_a_model_in_training_translates_without_dropout_and_stays_in_training(read):
    plain = translator(dropout=0.5)
    plain.model.train()
    plain.model.model.encoder.eval()  # as one that is frozen
    pipe = TranslationPipeline(plain.model, plain.tokenizer, return_alignments=True)
    calls = {
        "translate": lambda: plain.translate(SENTENCES),
        "score": lambda: score_translations(plain, SENTENCES, SENTENCES),
        "pipeline": lambda: pipe(SENTENCES),
    }
    assert calls[read]() == calls[read]()
    assert plain.model.training and plain.model.model.decoder.training and not plain.model.model.encoder.training


def test_threads_that_share_a_model_in_training_translate_without_dropout():
    model = translator(dropout=0.5).model.train()
    entered, left = threading.Event(), threading.Event()

    def first():
        with evaluation_mode(model):
            entered.wait(10)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    with evaluation_mode(model):
        entered.set()
        assert left.wait(10) and not model.training
    thread.join()
    assert model.training and all(module.training for module in model.modules())


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("fast", [None, False])
def test_a_prefix_belongs_to_one_sentence_and_counts_neither_as_length_nor_in_the_score(num_beams, fast):
    own, given = translator(), {"num_beams": num_beams, "max_new_tokens": 5, "early_stopping": True}
    own.model.generation_config.fast_decoding = fast
    inputs, prefix = own.tokenizer(SENTENCES[1], return_tensors="pt"), own.tokenizer("two cats").input_ids[:-1]
    for ids in ([2, *prefix], prefix):
        given["decoder_input_ids"] = torch.tensor([ids])
        ((found,),) = own.hypotheses(SENTENCES[1:2], **given)
        wanted = own.model.generate(**inputs, **given, output_scores=True, return_dict_in_generate=True)
        assert found.text == own.tokenizer.decode(wanted.sequences[0], skip_special_tokens=True)
        indices = wanted.get("beam_indices")
        log_probs = own.model.compute_transition_scores(wanted.sequences, wanted.scores, indices, num_beams == 1)
        assert found.score == pytest.approx(log_probs.sum().item() / 5)
    with pytest.raises(InputError, match="decoder_input_ids: given for 2 sentences, must be for one"):
        own.translate([SENTENCES[1], "two"], decoder_input_ids=torch.tensor([prefix] * 2))


def test_sampling_is_without_a_beam_and_follows_the_seed(plain):
    def draw(seed, **arguments):
        torch.manual_seed(seed)
        return plain.translate(SENTENCES, do_sample=True, num_return_sequences=4, **arguments)

    assert draw(1) == draw(1) != draw(2)
    (greedy,) = {tuple(row) for row in draw(1, top_k=1)[0:1]}
    assert len(set(greedy)) == 1


def test_long_sentences(plain):
    seen = []
    with pytest.raises(InputError, match="sentence 2 has .* at most 64 .*truncate, split or skip"):
        plain.translate(["zwei", LONG])
    with pytest.raises(InputError, match="long: 'cut' given, must be one of 'error', 'truncate'"):
        plain.translate("zwei", long="cut")
    skipped = plain.hypotheses(["zwei", LONG], long="skip", on_long=lambda i, tokens: seen.append((i, tokens > 64)))
    assert skipped[1][0].text == "" and seen == [(1, True)]
    truncated = plain.tokenizer(LONG, truncation=True, max_length=64)["input_ids"][:-1]
    assert plain.translate(LONG, long="truncate") == plain.translate(plain.tokenizer.decode(truncated))
    parts = list(split_text(LONG, lambda text: len(plain.tokenizer(text)["input_ids"]) <= 64))
    assert len(parts) > 1 and "".join(part + space for part, space in parts) == LONG
    spaced = SENTENCES[0] + 200 * " " + SENTENCES[1]
    first, second = plain.translate(SENTENCES[:2])
    assert plain.translate(["", 300 * " ", spaced], long="split") == ["", "", first + 200 * " " + second]
    assert plain.translate(300 * " ") == ""
    assert plain.translate(LONG, long="split") == " ".join(plain.translate([part for part, _ in parts]))


def test_a_very_long_sentence_is_never_tokenized_as_a_whole(monkeypatch):
    bounded, whole, sizes = translator(), translator(), []
    whole._most_characters = None
    encode = bounded.inputs.encode
    monkeypatch.setattr(
        bounded.inputs, "encode", lambda texts, *a, **k: sizes.append(sum(map(len, texts))) or encode(texts, *a, **k)
    )
    text = " ".join(SENTENCES * 60)
    assert len(text) > 2 * bounded._most_characters
    for long in ("truncate", "split", "skip"):
        assert bounded.translate([text, SENTENCES[0]], long=long) == whole.translate([text, SENTENCES[0]], long=long)
    with pytest.raises(InputError, match="sentence 1 has at least .* tokens"):
        bounded.translate(text)
    assert max(sizes) <= bounded._most_characters + len(SENTENCES[0])
    bounded._most_characters = 3  # fewer than the characters of 64 tokens
    assert bounded.encode(SENTENCES) == whole.encode(SENTENCES)
    assert bounded.translate(LONG, long="truncate") == whole.translate(LONG, long="truncate")


def test_parts_of_a_text_without_spaces_get_them_in_other_scripts(plain, monkeypatch):
    monkeypatch.setattr(plain, "encode", lambda texts, *a, **b: ([[5] * len(text) for text in texts], {}))
    parts = plain._shortened("你好。我很好。", "split", 4)
    assert [part.text for part in parts] == ["你好。", "我很好。"]
    (found,) = joined(parts, [[Hypothesis("Hello.", -1.0)], [Hypothesis("I am fine.", -3.0)]], 1, "", "")
    assert found == Hypothesis("Hello. I am fine.", -2.0)


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[:1]])
def test_processes_align_a_share_of_the_translations_each(monkeypatch, sentences):
    """Two threads in the place of the processes of a `torchrun`."""
    state, barrier, given, aligned = threading.local(), threading.Barrier(2, timeout=60), {}, {}

    def gather(objects):
        given[state.process_index] = objects
        barrier.wait()
        found = [*given[0], *given[1]]
        barrier.wait()
        return found

    def align(model, tokenizer, *columns):
        aligned[state.process_index] = len(columns[0])
        return alignment.align(model, tokenizer, *columns)

    def process(index):
        state.process_index, state.num_processes = index, 2
        return translators[index].hypotheses(sentences, 2, alignments=True, shared=True)

    translators = translator(), translator()
    alone = translators[0].hypotheses(sentences, 2, alignments=True)
    monkeypatch.setattr(decode, "threads_of", lambda *arguments: 1)
    monkeypatch.setattr(translator_module, "align", align)
    for module in (decode, translator_module):
        monkeypatch.setattr(module, "PartialState", lambda: state)
        monkeypatch.setattr(module, "gather_object", gather)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(process, range(2)))
    assert aligned == {0: len(sentences), 1: len(sentences)}
    expected = [[(each.text, str(each.alignment)) for each in best] for best in alone]
    assert [[[(each.text, str(each.alignment)) for each in best] for best in rows] for rows in found] == [expected] * 2


def test_alignments_are_of_the_hypotheses_of_the_search(plain):
    sentences = [*SENTENCES, "", LONG]
    found = plain.hypotheses(sentences, 2, alignments=True, long="split")
    texts = [[hypothesis[:2] for hypothesis in best] for best in found]
    assert texts == [[hypothesis[:2] for hypothesis in best] for best in plain.hypotheses(sentences, 2, long="split")]
    for sentence, best in zip(sentences, found, strict=True):
        for hypothesis in best:
            alignment, words = hypothesis.alignment, len(hypothesis.text.split())
            assert (alignment.source, alignment.target) == (sentence, hypothesis.text)
            assert {target for _, target in alignment.links} == set(range(words))
            assert len(alignment.word_scores) == words and all(0 < score <= 1 for score in alignment.word_scores)
    *_, (long, _) = found
    assert len(long.alignment.parts) > 1
    assert max(source for source, _ in long.alignment.links) >= len(LONG.split()) * 2 / 3  # counted in the whole line


def test_a_model_that_asks_for_int8_on_a_cpu_decodes_in_float32_elsewhere(plain, tmp_path, monkeypatch):
    save_checkpoint(plain.model, plain.tokenizer, tmp_path / "model")
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(generation | {"decoding_dtype": "int8"}))
    (tmp_path / "model" / "checksums.json").unlink()
    monkeypatch.setattr(ResidualForConditionalGeneration, "device", torch.device("cuda"))
    assert Translator.from_pretrained(tmp_path / "model").model.dtype == torch.float32
    with pytest.raises(InputError, match="dtype: int8 given, only supported for models of this package on a CPU"):
        Translator.from_pretrained(tmp_path / "model", dtype="int8")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_language_that_the_model_does_not_have_is_refused(side):
    tagged = translator("<2de>", "<2en>", language_tags=side)
    assert tagged.translate(SENTENCES, target_lang="de") != tagged.translate(SENTENCES, target_lang="en")
    for languages in ({}, {"target_lang": "fr"}):
        with pytest.raises(InputError, match="de.*en"):
            tagged.translate(SENTENCES, **languages)
    pair = translator(source_lang="de", target_lang="en")
    assert pair.translate("zwei", source_lang="de", target_lang="en") == pair.translate("zwei")
    for languages in ({"target_lang": "fr"}, {"source_lang": "en"}):
        with pytest.raises(InputError, match="Supported: de to en"):
            pair.translate("zwei", **languages)


def test_other_regions_and_english_names_of_languages_are_those_of_the_model(caplog):
    pair = translator(source_lang="de-CH", target_lang="en-GB")
    expected = pair.translate("zwei")
    for languages in (("de", "en"), ("German", "English"), ("de_AT", "en-US"), ("DE", "EN"), ("de-CH", "en-GB")):
        assert pair.translate("zwei", source_lang=languages[0], target_lang=languages[1]) == expected
    assert caplog.messages.count("de is taken as de-CH, the nearest language of the model") == 1
    assert not any("en-GB is taken" in message for message in caplog.messages)
    with pytest.raises(InputError, match="does not translate en to de"):
        pair.translate("zwei", source_lang="en", target_lang="de")


def marian(tokenizer, end=2):
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 1, "eos_token_id": end, "decoder_start_token_id": 1}
    return MarianMTModel(MarianConfig(**small_sizes(), **tokens, forced_eos_token_id=end, max_position_embeddings=64))


def t5(tokenizer):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "initializer_factor": 8.0}
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens))


@pytest.mark.parametrize("family", [marian, t5])
def test_other_families_translate_as_generate_does(family, tmp_path):
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    model = family(tokenizer).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = Translator.from_pretrained(tmp_path, num_beams=2, max_length_b=9, max_length_a=0)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    rows = model.generate(**inputs, num_beams=2, max_new_tokens=9)
    assert loaded.translate(SENTENCES) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    model.generation_config.update(num_beams=3, max_length=8)
    model.save_pretrained(tmp_path)
    expected = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    assert Translator.from_pretrained(tmp_path).translate(SENTENCES) == expected
    assert [len(best) for best in loaded.hypotheses(SENTENCES, 2)] == [2] * len(SENTENCES)
    ((best,),) = loaded.hypotheses(SENTENCES[:1], alignments=True)
    assert {target for _, target in best.alignment.links} == set(range(len(best.text.split())))
    half = Translator.from_pretrained(tmp_path, dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16 and isinstance(half.translate(SENTENCES[0]), str)
    with pytest.raises(InputError, match="dtype: int8 given"):
        Translator.from_pretrained(tmp_path, dtype="int8")


@pytest.mark.parametrize("end", [0, 2])
def test_marian_is_forced_to_end_at_the_limit_of_each_sentence(end):
    """`</s>` is 0 in OPUS-MT."""
    torch.manual_seed(0)
    model, settings = (
        marian(tiny_tokenizer(), end).eval(),
        DecodingSettings(num_beams=2, max_length_a=1, max_length_b=1),
    )
    sources = [[5, 6, end], [*range(4, 12), end]]
    expected = [
        model.generate(torch.tensor([row]), num_beams=2, max_new_tokens=len(row) + 1)[0, 1:] for row in sources
    ]
    found = search(model, sources, settings)
    for (best,), row in zip(found, expected, strict=True):
        assert best.ids == row.tolist()[: len(best.ids)] and row[len(best.ids)] == end


@pytest.mark.parametrize("family", [marian, t5])
def test_translations_of_other_families_do_not_depend_on_their_batch(family):
    """Also at a forced end, which is at the limit of each sentence."""
    torch.manual_seed(7)
    tokenizer, sentences = tiny_tokenizer(), ["two", "two cats", " ".join(SENTENCES[:2] * 2)]
    other = Translator(family(tokenizer).eval(), tokenizer, replace(SETTINGS, num_beams=4))
    assert other.translate(sentences) == [other.translate(each) for each in sentences]


def test_the_languages_of_the_tokenizer_of_marian():
    tokenizer = tiny_tokenizer()
    tokenizer.source_lang, tokenizer.target_lang = "de", "en"
    pair = Translator(marian(tokenizer).eval(), tokenizer, SETTINGS)
    assert pair.translate("zwei", target_lang="en") == pair.translate("zwei")
    for language, message in (("fr", "de to fr. Supported: de to en"), ("", "target_lang: '' given, must be text")):
        with pytest.raises(InputError, match=message):
            pair.translate("zwei", target_lang=language)


def test_a_model_whose_tokenizer_has_language_codes(tmp_path):
    tokenizer = coded_tokenizer(tmp_path)
    torch.manual_seed(0)
    size = max(tokenizer.lang_code_to_id.values()) + 1
    config = M2M100Config(**small_sizes(), vocab_size=size, max_position_embeddings=64, decoder_start_token_id=2)
    model = M2M100ForConditionalGeneration(config).eval()
    several = Translator(model, tokenizer, SETTINGS)
    tokenizer.src_lang = "de"
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    search = {"num_beams": 3, "early_stopping": True, "forced_bos_token_id": tokenizer.get_lang_id("en")}
    rows = model.generate(**inputs, **search, max_new_tokens=9)
    found = several.translate(SENTENCES, source_lang="de", target_lang="en", max_new_tokens=9)
    assert found == tokenizer.batch_decode(rows, skip_special_tokens=True)
    pair = {"source_lang": "de", "target_lang": "en"}
    ((best,),) = several.hypotheses(SENTENCES[:1], alignments=True, max_new_tokens=9, **pair)
    assert best.text == found[0] and len(best.alignment.word_scores) == len(best.text.split())
    assert all(score.log_prob < 0 < score.tokens for score in score_translations(several, SENTENCES, found, **pair))
    assert {target for _, target in best.alignment.links} == set(range(len(best.text.split())))
    for languages in ({}, {"source_lang": "de"}, {"source_lang": "de", "target_lang": "xx"}):
        with pytest.raises(InputError):
            several.translate(SENTENCES, **languages)


def test_a_model_of_one_language_with_a_multilingual_tokenizer_gets_no_tags():
    tokenizer = tiny_tokenizer("<2de>", "<2en>")
    model = tiny_model(tokenizer, source_lang="en", target_lang="de")
    ids, arguments = Translator(model, tokenizer).encode(["a dog"], target_lang="de")
    assert ids == tokenizer(["a dog"]).input_ids and not arguments
    with pytest.raises(InputError, match="does not translate en to fr. Supported: en to de"):
        Translator(model, tokenizer).encode(["a dog"], target_lang="fr")


@pytest.mark.parametrize("fast", [True, False])
def test_without_positions_the_length_has_no_limit(fast):
    endless = translator(ln_mode="post_ln", position_embedding_type="none", max_position_embeddings=8)
    endless.model.generation_config.suppress_tokens = [2]
    endless.model.generation_config.fast_decoding = fast
    (ids,), _ = endless.encode([LONG])
    ((best,),) = search(endless.model, [ids], SETTINGS)
    assert len(ids) > 8 and len(best.ids) == len(ids) + 3


def test_the_folder_of_a_run_is_its_model(plain, tmp_path):
    folder = save_checkpoint(plain.model, plain.tokenizer, tmp_path / "run" / "model")
    assert model_folder(tmp_path / "run") == folder == model_folder(folder)
    assert model_folder("user/name") == "user/name"
    loaded = Translator.from_pretrained(tmp_path / "run", num_beams=3, max_length_a=1.0, max_length_b=3)
    assert loaded.translate(SENTENCES) == plain.translate(SENTENCES)


def test_weights_in_half_precision_are_decoded_in_that_of_the_settings(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer).half()
    model.generation_config.num_beams, model.generation_config.early_stopping = 2, "never"
    save_checkpoint(model, tokenizer, tmp_path / "half")
    loaded = Translator.from_pretrained(tmp_path / "half")
    assert loaded.settings.dtype == "float32" and loaded.model.dtype == torch.float32
    assert loaded.settings.early_stopping is False
