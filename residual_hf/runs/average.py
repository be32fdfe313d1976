"""A model from the average of checkpoints of a run."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from residual_hf.base.errors import InputError
from residual_hf.base.files import check_output_folder, read_json
from residual_hf.checkpoint import SHORTLIST, WEIGHT_FILES, saved_class
from residual_hf.checkpoint_checks import check_shapes_before_loading, check_undamaged
from residual_hf.hub.plain_card import save_with_card
from residual_hf.records.run_record import RunRecord
from residual_hf.training.checkpoints import choose_checkpoints, load_average

from .building import set_search
from .recipe import load_recipe
from .resuming import other_tokenizer


def average_run(
    run_folder: Path, output_dir: Path, count: int, *, of: str = "last", overwrite: bool = False
) -> list[Path]:
    """Average the last or the best checkpoints of a run folder and save the model; returns the checkpoints.

    The model gets the lexical shortlist of the run, if there is one.
    """
    recipe = load_recipe(run_folder / "recipe.yaml")
    settings = recipe.training
    settings.require(not settings.ema_decay, "ema_decay", "0: a run with it evaluates and keeps other weights")
    chosen = choose_checkpoints(run_folder / "checkpoints", count, of=of, metric=settings.metric)
    for difference in other_tokenizer(run_folder, RunRecord.read(run_folder)):
        raise InputError(difference)
    check_output_folder(output_dir, overwrite=overwrite, holds=WEIGHT_FILES, inputs=[run_folder, *chosen])
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
