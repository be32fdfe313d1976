"""Log-probabilities of given translations."""

import gzip
import logging

import pytest
import torch
from support.processes import run_forked
from support.tiny_translator import SENTENCES, stdin, tiny_model, tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.encoding import encode_corpus
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.evaluation.metrics import corpus_scores
from residual_hf.generation import scoring
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.scoring import score_translations, scored, translate_corpus
from residual_hf.generation.translator import Translator


@pytest.mark.parametrize(("tags", "forced"), [(None, None), ("source", None), ("target", None), (None, 0)])
def test_scores_are_sums_of_log_probabilities(tags, forced):
    tokenizer = tiny_tokenizer("<2de>", "<2en>")
    languages = {"source_lang": "en", "target_lang": "de"} if tags is None else {}
    model = tiny_model(tokenizer, language_tags=tags, **languages)
    model.generation_config.forced_bos_token_id = forced  # in BART
    translator = Translator(model, tokenizer, DecodingSettings(max_tokens=20))
    found = score_translations(translator, SENTENCES, SENTENCES[::-1], target_lang="de")
    model.generation_config.eos_token_id = [model.config.eos_token_id, 7]  # a translation ends with the first
    assert score_translations(translator, SENTENCES, SENTENCES[::-1], target_lang="de") == found
    sources, arguments = translator.encode(SENTENCES, target_lang="de")
    tag = [arguments["forced_bos_token_id"]] if tags == "target" else [] if forced is None else [forced]
    for ids, text, (log_prob, tokens) in zip(sources, SENTENCES[::-1], found, strict=True):
        labels = torch.tensor([*tag, *tokenizer(text).input_ids])  # with the end
        decoder_input = torch.cat((torch.tensor([model.config.decoder_start_token_id]), labels[:-1]))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=decoder_input[None]).logits[0]
        each = logits.log_softmax(-1)[torch.arange(len(labels)), labels][len(tag) :]
        assert tokens == len(each) and log_prob == pytest.approx(each.sum().item(), abs=1e-4)


def test_pairs_in_capitals_are_scored_as_they_are_translated():
    tokenizer = tiny_tokenizer()
    translator = Translator(tiny_model(tokenizer, source_lang="en", target_lang="de"), tokenizer)
    sources, translations = ["A dog runs", "A DOG RUNS"] * 2, ["Ein Hund", "EIN HUND 😊", "Ein hund", "Ein Hund"]
    lower, upper, small, other = score_translations(translator, sources, translations)
    assert upper == small and other == lower


def test_a_test_set_is_translated_as_its_lines_are():
    tokenizer = tiny_tokenizer()
    model, lines = tiny_model(tokenizer, source_lang="en", target_lang="de"), ["A dog runs", "A DOG RUNS", "12 - 3"]
    corpus = encode_corpus(ParallelCorpus(lines, lines, "test"), tokenizer)
    settings = DecodingSettings(num_beams=2, max_length_a=0, max_length_b=5)
    found = translate_corpus(model, tokenizer, corpus, lines, settings)
    assert found == Translator(model, tokenizer, settings).translate(lines)


def test_segmented_lines_in_capitals_are_read_as_they_are(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"{token} 1\n" for token in ("THE", "RE@@", "PUB@@", "LIC", "the")))
    tokenizer = pretokenized_tokenizer(tmp_path / "dict.txt")
    model, lines = tiny_model(tokenizer, source_lang="en", target_lang="de"), ["THE RE@@ PUB@@ LIC"]
    corpus = encode_corpus(ParallelCorpus(lines, lines, "test"), tokenizer)
    settings = DecodingSettings(num_beams=2, max_length_a=0, max_length_b=5)
    translator = Translator(model, tokenizer, settings)
    assert translator.encode(lines)[0] == [corpus.source(0).tolist()] and not {3} & {*corpus.source(0).tolist()}
    found = translate_corpus(model, tokenizer, corpus, ["THE REPUBLIC"], settings)
    assert found == translator.translate(lines)


def test_the_command_scores_a_table_or_two_files(model_folder, tmp_path, capsys, refused, monkeypatch):
    pairs = list(zip(SENTENCES, ["zwei Katzen", "ein Hund", "zwei", "a \U0001f989 dog"], strict=True))
    table = "".join(f"{source}\t{translation}\n" for source, translation in pairs)
    (tmp_path / "pairs.tsv").write_text(table)
    for name, side in (("a.en", 0), ("a.de", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(table.encode()))
    files = ["--source", str(tmp_path / "a.en"), "--translation", str(tmp_path / "a.de")]
    written = [run_forked("-m", "residual_hf_cli", "score", model_folder, tmp_path / "pairs.tsv").stdout]
    for arguments in ([str(tmp_path / "pairs.tsv")], [str(tmp_path / "pairs.tsv.gz")], files, []):
        monkeypatch.setattr("sys.stdin", stdin(table.encode()))
        assert main(["score", str(model_folder), *arguments]) == 0
        written.append(capsys.readouterr().out)
    assert len({*written}) == 1
    found = score_translations(Translator.from_pretrained(model_folder), *map(list, zip(*pairs, strict=True)))
    assert written[0] == "".join(f"{score.log_prob:.4f}\t{score.tokens}\n" for score in found)
    (tmp_path / "a.de").write_text("zwei\n")
    (tmp_path / "one").write_text("zwei\n")
    for arguments, message in (
        (files, "a.de has 1; both must have the same number"),
        (files[:2], "--source, --translation: both must be given"),
        ([str(tmp_path / "one")], "line 1 must be a source, a tab and a translation"),
        (["a.en", "a b.de"], "must be one with both sides; of two files use --source a.en --translation 'a b.de'"),
        (["page.html"], "page.html: has no lines of text: export its sentences"),
    ):
        refused(message, "score", model_folder, *arguments)


def test_what_the_model_cannot_read_is_refused(model_folder):
    translator = Translator.from_pretrained(model_folder)
    with pytest.raises(InputError, match=r"pair 2 has \d+ tokens, but the model reads at most"):
        score_translations(translator, ["zwei", "zwei"], ["two", "two cats sleep " * 300])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        score_translations(translator, ["zwei", "zwei"], ["two"])
    assert score_translations(translator, [], []) == []


def test_a_pair_that_is_too_long_may_be_skipped(model_folder):
    translator = Translator.from_pretrained(model_folder)
    pairs = [("ein Hund", "a dog"), ("ein " * 400, "a dog"), ("ein Hund", "a dog")]
    first, skipped, last = scored(translator, pairs, skip_long=True)
    assert first == last and skipped == "nan\t0"


def test_a_pair_is_named_by_its_place_among_all(model_folder, monkeypatch):
    monkeypatch.setattr(scoring, "WINDOW", 2)
    pairs = [("zwei", "two")] * 2 + [("zwei", "two cats sleep " * 300)]
    with pytest.raises(InputError, match="pair 3 has"):
        list(scoring.scored(Translator.from_pretrained(model_folder), pairs))


def test_no_advice_names_an_option_that_no_command_has(caplog):
    with caplog.at_level(logging.WARNING):
        corpus_scores(["a dog ."] * 200, ["a dog ."] * 200, ["bleu"], "13a")
    assert "force" not in caplog.text
