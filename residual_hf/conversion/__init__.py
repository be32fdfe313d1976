"""Import checkpoints of fairseq and Transformers, change the `ln_mode` of a model, and fold it into a plain mode."""

from .change_mode import change_ln_mode, modes_from
from .fairseq import convert_fairseq_state_dict
from .fairseq_checkpoint import convert_fairseq_checkpoint, load_fairseq_model
from .fold import fold, fold_branch_warmup, foldable_modes
from .transformers_models import convert_transformers, from_transformers

__all__ = [
    "change_ln_mode",
    "convert_fairseq_checkpoint",
    "convert_fairseq_state_dict",
    "convert_transformers",
    "fold",
    "fold_branch_warmup",
    "foldable_modes",
    "from_transformers",
    "load_fairseq_model",
    "modes_from",
]
