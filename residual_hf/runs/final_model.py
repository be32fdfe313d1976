"""The last stage of a run: the final weights, their scores, and the records; a model from its checkpoints later."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list
from transformers import AutoTokenizer

from residual_hf.base.environment import now
from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json, write_atomically, write_json
from residual_hf.checkpoint import SHORTLIST, check_model_output, save_checkpoint, saved_class
from residual_hf.checkpoint_checks import check_shapes_before_loading, check_undamaged
from residual_hf.data.corpus import describe_corpus
from residual_hf.data.language_modeling import count_words, predicted_tokens
from residual_hf.data.pipeline import PreparedData, encode_training, first_pairs
from residual_hf.data.shortlist import Shortlist, build_shortlist
from residual_hf.evaluation.metrics import detokenize
from residual_hf.evaluation.perplexity import word_perplexity
from residual_hf.evaluation.scorer import full_report, make_scorers
from residual_hf.evaluation.sentence_metrics import ERROR_RATES
from residual_hf.evaluation.translation_metric import load_metric
from residual_hf.generation.decode import check_shortlist_use
from residual_hf.generation.scoring import translate_corpus
from residual_hf.hub.card import write_card
from residual_hf.hub.plain_card import save_with_card
from residual_hf.model.checksums import file_hash
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.records.recording import measured_emissions
from residual_hf.records.run_record import RunRecord
from residual_hf.training.checkpoints import choose_checkpoints, load_average
from residual_hf.training.lora import merge
from residual_hf.training.trainer import ResidualTrainer

from .building import set_search
from .recipe import Recipe, load_recipe
from .resuming import other_tokenizer

logger = logging.getLogger(__name__)


def check_scoring(recipe: Recipe) -> None:
    """Raise `InputError` for a metric or its library that is missing."""
    for name in (*recipe.evaluation.metrics, *({*ERROR_RATES} & {*recipe.chosen_task.scores})):
        load_metric(name)
    if recipe.data.pretokenized is not None:
        detokenize([], None)


def finish(
    trainer: ResidualTrainer, recipe: Recipe, data: PreparedData, folder: Path, started: float
) -> dict[str, Any]:
    """Save and score the final model; returns the metrics of the run, which began at the time `started`."""
    averaged = choose_final_weights(trainer, folder / "checkpoints")
    shortlist = training_shortlist(recipe, data, trainer.model.config) if recipe.decoding.shortlist else None
    if trainer.is_world_process_zero():
        RunRecord.update(folder, averaged=averaged)
        complete = None if shortlist is None else shortlist.save
        keep_changed_card(folder)
        save_checkpoint(trainer.model, data.tokenizer, folder / "model", overwrite=True, complete=complete)
    metrics = {"updates": trainer.state.global_step, "minutes": round((time.time() - started) / 60, 2)}
    if recipe.chosen_task.scores:
        metrics |= final_scores(trainer, recipe, data, folder, shortlist)
    else:
        metrics |= perplexities(trainer, recipe, data)
    if trainer.is_world_process_zero():
        record_end(recipe, trainer, metrics, folder, time.time() - started)
    return metrics


def keep_changed_card(folder: Path) -> None:
    """Copy a card that somebody has changed, or made by `residual-hf card`, before the model folder is replaced."""
    card = folder / "model" / "README.md"
    if card.is_file() and (found := file_hash(card)) != RunRecord.read(folder).card:
        kept = folder / f"README.{found[:8]}.md"
        write_atomically(kept, card.read_bytes())
        logger.warning("%s is not as the run wrote it: it is kept as %s, a new one replaces it", card, kept)


def choose_final_weights(trainer: ResidualTrainer, checkpoints: Path) -> int | None:
    """Load an average of checkpoints or the EMA into the model; the trainer has loaded the best checkpoint.

    Returns the number of checkpoints in the average.
    """
    model, settings = trainer.gather_model(), trainer.settings
    if trainer.ema is not None:
        trainer.ema.apply()
        trainer.ema = None
    merge(model)
    if not settings.average:
        return None
    of, metric = settings.average_of, settings.metric
    chosen = choose_checkpoints(checkpoints, settings.average, of=of, metric=metric, fewer=True)
    load_average(model, chosen)
    return len(chosen)


def training_shortlist(recipe: Recipe, data: PreparedData, config: ResidualConfig) -> Shortlist:
    """The lexical shortlist of the training corpus, of a stream of its first pairs."""
    corpus, tokenizer = data.encoded.get("train"), data.tokenizer
    if corpus is None:
        longest, seed = config.max_position_embeddings, recipe.training.seed
        corpus = encode_training(list(first_pairs(recipe.data, seed)), recipe.data, tokenizer, longest, seed=seed)
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    always = [number for number in sorted(special) if number < config.decoder_vocab_size]
    logger.info("building the shortlist")
    return build_shortlist(corpus, config.vocab_size, always=always, joint=config.share_encoder_decoder_embeddings)


def perplexities(trainer: ResidualTrainer, recipe: Recipe, data: PreparedData) -> dict[str, Any]:
    """Loss and perplexities of the final language model on `valid` and `test`, the same in every process."""
    metrics: dict[str, Any] = {}
    for split, corpora in data.references.items():
        blocks, started = data.encoded[split], time.perf_counter()
        figures = trainer.evaluate(blocks, metric_key_prefix=split)
        found = {name.removeprefix(f"{split}_"): value for name, value in figures.items()}
        words = count_words(corpora, recipe.data.sample_break_mode)
        metrics[split] = found | word_perplexity(found["nll"], predicted_tokens(blocks), words)
        seconds = round(time.perf_counter() - started, 3)
        metrics[split] |= {"context_window": recipe.evaluation.context_window, "seconds": seconds}
    return metrics


def final_scores(
    trainer: ResidualTrainer, recipe: Recipe, data: PreparedData, folder: Path, shortlist: Shortlist | None
) -> dict[str, Any]:
    """Loss and scores (see `full_report`) of the final model on `valid` and `test`, the same in every process."""
    metrics: dict[str, Any] = {}
    decoding = recipe.decoding
    if shortlist is not None:
        try:
            with trainer.inference() as model:
                check_shortlist_use(model)
        except InputError as error:
            logger.warning("scores are without the shortlist: %s", error)
            decoding, shortlist = replace(decoding, shortlist=False), None
    for split, corpora in data.references.items():
        sentences, beams = len(data.encoded[split]), recipe.decoding.num_beams
        logger.info("scoring the model on %s: %d sentences, beam size %d", split, sentences, beams)
        scorers = make_scorers(corpora, recipe.data.pretokenized, recipe.evaluation, task=recipe.chosen_task)
        figures = trainer.evaluate(data.encoded[split], metric_key_prefix=split)
        started = time.perf_counter()
        sources = [line for scorer in scorers for line in scorer.corpus.sources]
        read = sources if recipe.chosen_task.has_source_text else [""] * sentences
        with trainer.inference() as model:
            hypotheses = translate_corpus(model, data.tokenizer, data.encoded[split], read, decoding, shortlist)
        seconds = time.perf_counter() - started
        report: list[Any] = [None]
        if trainer.is_world_process_zero():
            references = [line for scorer in scorers for line in scorer.plain_references]
            for kind, lines in (("sources", sources), ("hypotheses", hypotheses), ("references", references)):
                text = "".join(line.replace("\n", " ") + "\n" for line in lines)
                write_atomically(folder / f"{split}.{kind}.txt", text)
            report = [{**full_report(scorers, hypotheses), "sentences": len(hypotheses), "seconds": round(seconds, 3)}]
        metrics[split] = {name.removeprefix(f"{split}_"): value for name, value in figures.items()}
        metrics[split] |= broadcast_object_list(report)[0]
        metrics[split] |= {"shortlist": True} if decoding.shortlist else {}
        for corpus, scores in metrics[split].get("corpora", {"": metrics[split]}).items():
            for name, score in scores.items():
                if isinstance(score, dict) and "signature" in score:
                    logger.info("%s %s %s %.2f  (%s)", split, corpus, name, score["value"], score["signature"])
    return metrics


def record_end(
    recipe: Recipe, trainer: ResidualTrainer, metrics: dict[str, Any], folder: Path, seconds: float
) -> None:
    """Write the metrics, the record of the run and the model card."""
    write_json(folder / "metrics.json", metrics)
    speeds = [entry["tokens_per_second"] for entry in trainer.state.log_history if entry.get("tokens_per_second")]
    RunRecord.update(
        folder,
        finished=now(),
        seconds=round(seconds, 1),
        updates=trainer.state.global_step,
        tokens_per_second=float(np.median(speeds)) if speeds else None,
        emissions=measured_emissions(trainer.callback_handler.callbacks),
    )
    if recipe.data.stream:  # at the end, because hashing large files takes time
        data = RunRecord.read(folder).data
        hashes = [describe_corpus(spec).sha256 for spec in recipe.data.train]
        train = tuple(replace(corpus, sha256=sha) for corpus, sha in zip(data.train, hashes, strict=True))
        RunRecord.update(folder, data=replace(data, train=train))
    try:
        RunRecord.update(folder, card=file_hash(write_card(folder, overwrite=True)))
    except InputError as error:
        logger.warning("the model has no card: %s", error)
    logger.info("%s", summary(metrics, folder))


def summary(metrics: dict[str, Any], folder: Path) -> str:
    parts = [f"{metrics['updates']} updates in {metrics['minutes']:.1f} minutes"]
    for split in ("valid", "test"):
        figures = metrics.get(split, {})
        scores = [
            f"{n} {figures[n]['value']:.2f}" for n in ("tokenized_bleu", "bleu", "chrf", *ERROR_RATES) if n in figures
        ]
        scores += [f"{n} {figures[n]:.2f}" for n in ("ppl", "word_ppl") if "word_ppl" in figures]
        if figures:
            parts.append(f"{split}: nll {figures['nll']:.3f}, {', '.join(scores)}")
    return "; ".join([*parts, f"model in {folder / 'model'}"])


def average_run(
    run_folder: str | Path, output_dir: str | Path, count: int, *, of: str = "last", overwrite: bool = False
) -> list[Path]:
    """Average the last or the best checkpoints of a run folder and save the model; returns the checkpoints.

    The model gets the lexical shortlist of the run, if there is one.
    """
    run_folder, output_dir = Path(run_folder), Path(output_dir)
    recipe = load_recipe(run_folder / "recipe.yaml")
    settings = recipe.training
    settings.require(not settings.ema_decay, "ema_decay", "0: a run with it evaluates and keeps other weights")
    chosen = choose_checkpoints(run_folder / "checkpoints", count, of=of, metric=settings.metric)
    for difference in other_tokenizer(run_folder, RunRecord.read(run_folder)):
        raise InputError(difference)
    check_model_output(output_dir, overwrite=overwrite, inputs=[run_folder, *chosen])
    check_undamaged(chosen[-1])
    values = read_json(chosen[-1] / "config.json")
    model_class: Any = saved_class(values)[0]
    for checkpoint in chosen:
        check_shapes_before_loading(checkpoint, model_class, values)
    model = model_class.from_pretrained(chosen[-1])
    load_average(model, chosen)
    set_search(model, recipe.decoding)  # which may have changed after the checkpoints
    tokenizer = AutoTokenizer.from_pretrained(run_folder / "tokenizer")
    origin = f"The weights are the average of {', '.join(path.name for path in chosen)} of one run."
    shortlist = (run_folder / "model").glob(SHORTLIST)
    save_with_card(model, tokenizer, output_dir, origin, overwrite=overwrite, copies=shortlist)
    return chosen
