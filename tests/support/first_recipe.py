"""A first recipe as `residual-hf init` writes it."""

from residual_hf.runs import first_recipe
from residual_hf.runs.first_corpora import first_corpora


def write_first_recipe(*files, start=None, trial_seconds=10, **options):
    corpora, folder = first_corpora(*files, start=start, **options)
    return first_recipe.write_first_recipe(corpora, folder, start=start, trial_seconds=trial_seconds)
