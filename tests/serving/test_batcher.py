import queue
import threading
from types import SimpleNamespace

import pytest
import torch
from support.foreign_models import foreign_tokenizer
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer

pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.html_text import HTMLText
from residual_hf.generation.translator import Hypothesis, Translator
from residual_hf.serving.batcher import Batcher, ClosingError, Metrics, Request
from residual_hf.serving.layout import Texts


class Dictionary:
    """Stands in for a translator: a sentence becomes "en:" and upper case, or its entry in `words`."""

    def __init__(self, **words):
        self.inputs, self.model = SimpleNamespace(positions=20), torch.nn.Module()
        self.model.generation_config = SimpleNamespace(no_repeat_ngram_size=None)
        self.settings = DecodingSettings(num_beams=2, max_tokens=40)
        self.glossary = None
        self.words, self.encoded, self.batches, self.arguments = words, [], [], []
        self.free = threading.Event()
        self.free.set()
        self.reader = self

    def encode(self, sentences, source_lang, target_lang):
        self.encoded += sentences
        return [sentence.split() for sentence in sentences], {"target": target_lang}

    def translate_encoded(self, sources, texts, request):
        sentences = [" ".join(source) for source in sources]
        self.free.wait()
        self.batches.append(list(sentences))
        self.arguments.append((request.num_return_sequences, request.generate_arguments))
        if "crash" in sentences:
            raise RuntimeError("out of memory")
        found = [self.words.get(s, f"en:{s.upper()}") for s in sentences]
        if "no_repeat_ngram_size" in request.generate_arguments:
            found = ["again" if s in self.words else text for s, text in zip(sentences, found, strict=True)]
        return [[Hypothesis(text + "'" * k, -0.5 - k) for k in range(request.num_return_sequences)] for text in found]


@pytest.fixture
def make():
    made = []

    def make(translator, max_queue=100):
        made.append(Batcher({("de", "en"): translator}, max_queue=max_queue, metrics=Metrics()))
        made[-1].start()
        return made[-1]

    yield make
    for batcher in made:
        batcher.close()


def ask(*texts, **options):
    return Request(Texts(texts, "de", **options), "en")


def test_a_translation_is_that_of_the_model_alone(make):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config.no_repeat_ngram_size = 3  # random weights repeat themselves, which is flagged
    translator = Translator(model, tokenizer, DecodingSettings(3, max_length_a=1, max_length_b=5, max_tokens=60))
    batcher = make(translator)
    futures = [batcher.submit(ask(sentence, alternatives=k % 3)) for k in range(3) for sentence in SENTENCES]
    plain = dict(zip(SENTENCES, translator.translate(SENTENCES), strict=True))
    for k, future in enumerate(futures):
        (found,) = future.result(30)
        sentence = SENTENCES[k % len(SENTENCES)]
        assert not found.flags and found.texts[0] == plain[sentence]
        assert len(found.scores) == (len(found.texts) if k // len(SENTENCES) % 3 else 0)
        assert found.scores == sorted(found.scores, reverse=True)


def test_sources_are_not_read_as_the_targets_that_a_translation_reads(make, tmp_path):
    tokenizer = foreign_tokenizer("marian", tmp_path)
    batcher = make(Translator(tiny_model(tokenizer), tokenizer))
    expected = batcher.encoder(ask())("a dog")
    tokenizer.spm_target = SimpleNamespace(encode=lambda text, **_: ["▁another"])
    # as if the thread that translates read the terms of a glossary between this call and the next line of Transformers
    tokenizer._switch_to_input_mode = tokenizer._switch_to_target_mode
    assert tokenizer("a dog")["input_ids"] != expected[0] == batcher.encoder(ask())("a dog")[0]


def test_sentences_that_wait_share_batches_of_similar_length(make):
    translator = Dictionary()
    batcher = make(translator)
    translator.free.clear()
    first = batcher.submit(ask("first"))
    while batcher._new:  # until the model is busy
        pass
    long, short = "x " * 9 + "y", "a b"
    futures = [batcher.submit(ask(text)) for text in (short, long, short, long, short)]
    translator.free.set()
    assert [future.result(5)[0].texts[0] for future in [first, *futures][:2]] == ["en:FIRST", "en:A B"]
    assert [future.result(5) for future in futures]
    assert translator.batches == [["first"], [short] * 3, [long] * 2]
    assert translator.encoded == ["first", short, long, short, long, short]  # once each


def test_a_text_is_joined_from_its_sentences_with_alternatives(make):
    batcher = make(Dictionary())
    (found,) = batcher.submit(ask("Guten Tag.\n\nAuf bald.", alternatives=1)).result(5)
    assert found.texts == ["en:GUTEN TAG.\n\nen:AUF BALD.", "en:GUTEN TAG.'\n\nen:AUF BALD.'"]
    assert found.scores == [-0.5, -1.5] and found.flags == []
    (nothing,) = batcher.submit(ask(" 1 ")).result(5)
    assert nothing.texts == [" 1 "]
    assert batcher.submit(ask()).result(5) == []


@pytest.mark.parametrize(("own", "size"), [(None, 4), (3, 3)])
def test_suspicious_translations_are_searched_again_and_flagged(make, own, size):
    loop, copy = "ja ja nein", "eins zwei drei vier"
    translator = Dictionary(**{loop: "yes " * 9, copy: copy, "um 12": "at 21"})
    translator.model.generation_config.no_repeat_ngram_size = own
    batcher = make(translator)
    found = batcher.submit(ask(loop, copy, "gut", "um 12")).result(5)
    assert [f.flags for f in found] == [["repetition"], ["copy"], [], ["numbers"]]
    assert [f.texts for f in found] == [["again"], ["again"], ["en:GUT"], ["at 21"]]
    again = (4, {"target": "en", "no_repeat_ngram_size": size})  # shorter passages may occur again
    assert [given for given in translator.arguments if given != (1, {"target": "en"})] == [again]
    for flag in ("copy", "numbers"):
        assert batcher.metrics.registry.get_sample_value("residual_hf_flagged_sentences_total", {"flag": flag}) == 1


def test_an_error_fails_the_batch_only(make):
    batcher = make(Dictionary())
    with pytest.raises(RuntimeError, match="out of memory"):
        batcher.submit(ask("crash")).result(5)
    assert batcher.submit(ask("gut")).result(5)[0].texts == ["en:GUT"]


def test_translations_that_cannot_be_joined_fail_their_request_only(make, monkeypatch):
    batcher = make(Dictionary())
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(HTMLText, "render", lambda layout, blocks: 1 / 0)
        batcher.submit(ask("<b>gut</b>", markup=True)).result(5)
    assert batcher.submit(ask("gut")).result(5)[0].texts == ["en:GUT"]


def test_full_queue_cancelled_requests_and_close(make):
    translator = Dictionary()
    batcher = make(translator, max_queue=3)
    translator.free.clear()
    accepted = [batcher.submit(ask("eins"))]
    while batcher._new:
        pass
    accepted += [batcher.submit(ask(text)) for text in ("zwei", "drei")]
    with pytest.raises(queue.Full):
        batcher.submit(ask("vier"))
    assert accepted.pop().cancel()
    accepted.append(batcher.submit(ask("fünf")))
    threading.Timer(0.1, translator.free.set).start()
    batcher.close()
    assert [future.result(0)[0].texts for future in accepted] == [["en:EINS"], ["en:ZWEI"], ["en:FÜNF"]]
    assert "drei" not in sum(translator.batches, [])
    with pytest.raises(ClosingError):
        batcher.submit(ask("sechs"))
