# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The main job on a corpus that the package makes itself: train, score, save, reload, translate."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import yaml

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.generated import generate_corpus
from residual_hf.data.settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.files import make_output_folder, write_atomically
from residual_hf.generation.decode import DecodingSettings

from .recipe import Recipe
from .records import log_file
from .run import train_on
from .settings import TrainingSettings

logger = logging.getLogger(__name__)

SIZES = {"train": 100000, "valid": 200, "test": 500}
REQUIRED_BLEU = 90.0


def quickstart_recipe(folder: Path) -> Recipe:
    """A ResiDual model of a million parameters, trained for minutes on two CPU cores."""
    nothing = CorpusSpec(source="(generated)", target="(generated)")
    return Recipe(
        source_lang="en",
        target_lang="de",
        output_dir=str(folder),
        data=DataSettings(train=[nothing], valid=[nothing]),
        tokenizer=TokenizerSettings(kind="bpe", vocab_size=1500),
        model={
            "d_model": 128,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "ln_mode": "resi_dual",
            "dropout": 0.0,
            "max_position_embeddings": 256,
        },
        training=TrainingSettings(
            max_tokens=2048,
            max_updates=1000,
            lr=3e-3,
            schedule="linear",
            warmup_updates=100,
            label_smoothing=0.0,
            weight_decay=0.0,
            clip_norm=1.0,
            eval_every=500,
            eval_bleu=False,
            keep_last=1,
        ),
        decoding=DecodingSettings(num_beams=1),
    )


def quickstart(folder: str | Path = "residual_hf_quickstart", *, overwrite: bool = False) -> bool:
    """Train on generated English-German pairs, save, reload by `AutoModelForSeq2SeqLM`, translate five sentences.

    Prints the translations and the score on held-out sentences; False if BLEU is below `REQUIRED_BLEU`. Raises
    `InputError` for an output folder that is not empty.
    """
    started = time.time()
    folder = make_output_folder(Path(folder), overwrite=overwrite)
    recipe = quickstart_recipe(folder)
    with log_file(folder / "train.log"):
        logger.info("making %s sentence pairs", SIZES)
        texts = {}
        for name, pairs in generate_corpus(SIZES).items():
            sources, targets = zip(*pairs, strict=True)
            texts[name] = [ParallelCorpus(list(sources), list(targets), name, "en", "de")]
            for language, lines in (("en", sources), ("de", targets)):
                write_atomically(folder / f"{name}.{language}", "\n".join(lines) + "\n")
        recipe.data = DataSettings(
            **{name: [CorpusSpec(source=f"{folder}/{name}.en", target=f"{folder}/{name}.de")] for name in texts}
        )
        write_recipe(recipe, folder)
        metrics = train_on(recipe, texts, folder)
    bleu, signature = metrics["test"]["bleu"]["value"], metrics["test"]["bleu"]["signature"]

    print("\nThe saved folder, loaded again and used through pipeline('translation'):\n")
    for english, german, reference in translate_again(folder / "model", texts["test"][0], 5):
        print(f"  {english}\n  -> {german}{'' if german == reference else f'   (reference: {reference})'}\n")
    print(f"BLEU {bleu:.2f} on {len(texts['test'][0])} held-out sentences ({signature})")
    print(f"{(time.time() - started) / 60:.1f} minutes; model in {folder / 'model'}")
    if bleu < REQUIRED_BLEU:
        print(f"\nFAILED: BLEU {bleu:.2f} is below {REQUIRED_BLEU}: the installation does not train as it should.")
        return False
    return True


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write a recipe as YAML, so that `residual-hf train` can repeat or vary the run."""
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict(), sort_keys=False))


def translate_again(model: Path, corpus: ParallelCorpus, count: int) -> list[tuple[str, str, str]]:
    """(source, translation, reference) of sentences spread over a corpus, by a freshly loaded pipeline."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    translator = pipeline(
        "translation",
        model=AutoModelForSeq2SeqLM.from_pretrained(model),
        tokenizer=AutoTokenizer.from_pretrained(model),
    )
    chosen = range(0, len(corpus), max(1, len(corpus) // count))[:count]
    sources = [corpus.sources[i] for i in chosen]
    translations = [result["translation_text"] for result in translator(sources)]
    return list(zip(sources, translations, [corpus.targets[i] for i in chosen], strict=True))
