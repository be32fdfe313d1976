"""Train, score, save, reload and use a small model on the generated corpus: what `residual-hf quickstart` runs."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.utils import logging as transformers_logging

from residual_hf.base.files import RECORD, check_output_folder, write_atomically
from residual_hf.base.names import as_typed
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.synthetic import generate_corpus
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.training.training_settings import TrainingSettings

from .reading import TerminalHandler, log_to, run_folder
from .recipe import Recipe
from .run import train_on

logger = logging.getLogger(__name__)

SIZES = {"train": 60000, "valid": 200, "test": 500}
SAMPLES = 5
REQUIRED_BLEU = 90.0


def quickstart_recipe(folder: Path) -> Recipe:
    """A ResiDual model of a million parameters, trained in about two minutes on a CPU."""
    train, valid, test = ((CorpusSpec(source=f"{folder}/{name}.en", target=f"{folder}/{name}.de"),) for name in SIZES)
    return Recipe(
        source_lang="en",
        target_lang="de",
        output_dir=str(folder),
        data=DataSettings(train=train, valid=valid, test=test),
        tokenizer=TokenizerSettings(kind="bpe", vocab_size=1000),
        model={
            "d_model": 128,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "ln_mode": "resi_dual",
            "ln_mode_options": {"output_gain": 0.5},  # learns faster at first
            "dropout": 0.0,
            "max_position_embeddings": 256,
        },
        training=TrainingSettings(
            max_tokens=1024,
            max_updates=750,
            lr=3e-3,
            schedule="linear",
            warmup_updates=100,
            label_smoothing=0.0,
            weight_decay=0.0,
            clip_norm=1.0,
            eval_every=750,
            eval_bleu=False,
            keep_last=1,
        ),
        decoding=DecodingSettings(num_beams=1),
    )


def quickstart(folder: str | Path = "residual_hf_quickstart", *, overwrite: bool = False) -> bool:
    """Train on generated English-German pairs, save, reload by `AutoModelForSeq2SeqLM` and translate.

    Prints translations and the score on held-out sentences; returns False if BLEU is below `REQUIRED_BLEU`.

    Raises `InputError` for an output folder that is not empty, without `overwrite`.
    """
    started = time.time()
    folder = Path(folder)
    check_output_folder(folder, overwrite=overwrite, holds=[RECORD])
    recipe = quickstart_recipe(folder)
    transformers_logging.disable_progress_bar()  # those of single files
    with log_to(TerminalHandler()), run_folder(folder, overwrite=overwrite), one_thread():
        logger.info("generating the corpus")
        texts = {}
        for name, pairs in generate_corpus(SIZES).items():
            sources, targets = map(list, zip(*pairs, strict=True))
            texts[name] = [ParallelCorpus(sources, targets, name, "en", "de")]
            for language, lines in (("en", sources), ("de", targets)):
                write_atomically(folder / f"{name}.{language}", "\n".join(lines) + "\n")
        metrics = train_on(recipe, texts, folder)
        logger.info("reloading the model")
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        translate = pipeline("translation", model=model, tokenizer=tokenizer)
        logger.info("translating")
        test = texts["test"][0]
        chosen = range(0, len(test), len(test) // SAMPLES)
        translations = [result["translation_text"] for result in translate([test.sources[i] for i in chosen])]

    print(f"\n{SAMPLES} held-out sentences, translated by the saved model:\n")
    for i, german in zip(chosen, translations, strict=True):
        correction = "" if german == test.targets[i] else f"  (reference: {test.targets[i]})"
        print(f"  {test.sources[i]}\n  {german}{correction}\n")
    bleu, signature = metrics["test"]["bleu"]["value"], metrics["test"]["bleu"]["signature"]
    print(f"BLEU {bleu:.2f} on {len(test)} held-out sentences ({signature})")
    print(f"{(time.time() - started) / 60:.1f} minutes; model in {folder / 'model'}")
    model_folder = as_typed(str(folder / "model"))
    print(f'Try it: echo "The bear says that the owl found three hats." | residual-hf translate {model_folder}')
    if bleu < REQUIRED_BLEU:
        print(f"\nFAILED: BLEU {bleu:.2f} is below {REQUIRED_BLEU}: the installation does not train correctly.")
    return bleu >= REQUIRED_BLEU


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: two gain a tenth with matrices this small, and wait for each other beside another program."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
