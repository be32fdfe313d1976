import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.data_settings import (
    CleaningSettings,
    CorpusSpec,
    DataSettings,
    SubwordRegularizationSettings,
    TokenizerSettings,
)

FILES = {"source": "a.en", "target": "a.de"}
WEIGHTED = {"tsv": "a.tsv", "weight": 1}
BAD_CORPORA = [
    ({}, "source: missing, must be source and target, or one of tsv, jsonl, dataset"),
    ({"source": "a.en"}, "source: given, must be source and target, or one of"),
    ({**FILES, "tsv": "a.tsv"}, "source, target, tsv: given, must be"),
    ({"tsv": ""}, "tsv: '' given, must be a path or null"),
    ({**FILES, "limit": 0}, "limit: 0 given, must be an integer >= 1 or null"),
    ({**FILES, "tag": "BT"}, "tag: 'BT' given, must be such as <BT>"),
    ({**FILES, "tag": "<2de>"}, "tag: '<2de>' given"),
    ({**FILES, "tag": "</s>"}, "tag: '</s>' given"),
    ({**FILES, "weight": float("inf")}, "weight: inf given, must be a number > 0 or null"),
    ({**FILES, "skip_empty": True, "raw_target": "b.de"}, "skip_empty: true given, must be false with raw_target"),
    ({**FILES, "dataset_config": "x"}, "dataset_config: 'x' given, must be null without a dataset"),
    ({**FILES, "source_column": 1, "target_column": 2}, "source_column: 1 given, must be null for two text files"),
    ({"tsv": "a", "source_column": 1}, "target_column: missing, must be given with source_column"),
    ({"tsv": "a", "source_column": 2, "target_column": 2}, "target_column: 2 given, must be another than"),
    ({"tsv": "a", "source_column": 0, "target_column": 2}, "source_column: 0 given, must be text or an integer >= 1"),
    ({"tsv": "a", "source_column": "en", "target_column": 2}, "source_column: 'en' given, must be the number of a"),
    ({"jsonl": "a", "source_column": 1, "target_column": 2}, "source_column: 1 given, must be a key or column name"),
    ({"file": "a.doc"}, "file: 'a.doc' given, must be *.tmx, *.xlf, *.xliff, *.po, *.csv, *.tsv, *.xlsx, *.jsonl"),
    ({"file": "a.csv", "tsv": "b"}, "tsv, file: given, must be source and target, or one of"),
    ({"file": "a.tmx", "source_column": 1, "target_column": 2}, "source_column: 1 given, must be null for a .tmx"),
    ({"file": "a.csv", "text_column": "x"}, "text_column: 'x' given, must be null without jsonl or dataset"),
    ({"file": "a.jsonl", "source_column": 1, "target_column": 2}, "source_column: 1 given, must be a key"),
    ({"text": "a", "text_column": "b"}, "text_column: 'b' given, must be null without jsonl or dataset"),
    ({"text": "a", "tag": "<BT>"}, "tag: '<BT>' given, must be null for the text of a language model"),
    ({"text": "a", "skip_empty": True}, "skip_empty: true given, must be false for the text"),
    ({"jsonl": "a", "text_column": "b", "source_column": "c", "target_column": "d"}, "source_column: 'c' given"),
    ({"jsonl": "a", "source_lang": "en", "target_lang": "en"}, "target_lang: 'en' given, must be another language"),
]
BAD_SETTINGS = [
    (CleaningSettings, {"max_ratio": 0.5}, "max_ratio: 0.5 given, must be a number >= 1 or null"),
    (CleaningSettings, {"max_words": 2, "min_words": 3}, "max_words: 2 given, must be >= min_words"),
    (CleaningSettings, {"duplicates": "both"}, "duplicates: 'both' given, must be one of 'pair', 'source', 'target'"),
    (CleaningSettings, {"source_script": "Klingon"}, "source_script: 'Klingon' given, must be Unicode scripts"),
    (CleaningSettings, {"script_share": 2.0}, "script_share: 2.0 given, must be a number >= 0 and <= 1"),
    (SubwordRegularizationSettings, {}, "bpe_dropout: missing, must be given unless unigram_alpha is"),
    (SubwordRegularizationSettings, {"bpe_dropout": 0.1, "unigram_alpha": 0.1}, "unigram_alpha: 0.1 given, must be"),
    (SubwordRegularizationSettings, {"bpe_dropout": 1.5}, "bpe_dropout: 1.5 given"),
    (SubwordRegularizationSettings, {"unigram_alpha": -1.0}, "unigram_alpha: -1.0 given"),
    (SubwordRegularizationSettings, {"bpe_dropout": 0.1, "sides": "all"}, "sides: 'all' given, must be one of 'both'"),
    (TokenizerSettings, {"vocab_size": 260}, "vocab_size: 260 given, must be an integer > 260"),
    (TokenizerSettings, {"kind": "pretokenized"}, "path: missing, must be a fairseq dictionary for kind"),
    (TokenizerSettings, {"kind": "unigram", "min_frequency": 3}, "min_frequency: 3 given, must be null for kind"),
    (TokenizerSettings, {"kind": "byte_bpe", "character_coverage": 0.9}, "character_coverage: 0.9 given, must be 1"),
    (TokenizerSettings, {"character_coverage": 0}, "character_coverage: 0 given, must be a number > 0 and <= 1"),
    (DataSettings, {"train": {"text": "a"}}, "valid[0]: text and sentence pairs given, must be one or the other"),
    (DataSettings, {"upper_case": 2}, "upper_case: 2 given, must be a number >= 0 and <= 1"),
    (DataSettings, {"title_case": 0.1, "pretokenized": "moses"}, "pretokenized: 'moses' given, must be null with"),
    (DataSettings, {"train": []}, "train: [] given, must be a corpus or a list of corpora"),
    (DataSettings, {"train": [WEIGHTED, FILES]}, "train[1].weight: missing, must be given for all"),
    (DataSettings, {"test": {**FILES, "tag": "<BT>"}}, "test[0].tag: '<BT>' given, must be null outside of train"),
    (DataSettings, {"valid": {**FILES, "weight": 2}}, "valid[0].weight: 2.0 given, must be null outside of train"),
    (DataSettings, {"train": WEIGHTED, "temperature": 5}, "temperature: 5.0 given, must be 1 with weights"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_CORPORA, ids=str)
def test_bad_corpora_are_refused_by_field(fields, message):
    with pytest.raises(InputError) as error:
        CorpusSpec(**fields)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("settings", "fields", "message"), BAD_SETTINGS, ids=str)
def test_bad_settings_are_refused_by_field(settings, fields, message):
    if settings is DataSettings:
        fields = {"train": FILES, "valid": FILES, **fields}
    with pytest.raises(InputError) as error:
        settings(**fields)
    assert str(error.value).startswith(message)
