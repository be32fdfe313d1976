"""The verbs of `residual-hf`: `add_VERB` declares the options of one, `run_VERB` calls a function of the package.

Modules import at the top only what needs no PyTorch, so that `--help` answers at once.
"""

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def load_package() -> None:
    """Import PyTorch and Transformers, and register with them; the console script has not done so yet."""
    with imports():
        from residual_hf.registration import register
    register()


@contextmanager
def imports() -> Iterator[None]:
    """Context for slow imports, without garbage collection: modules stay alive, so that collecting only takes time.

    A process that has PyTorch already may hold other objects, which would never be collected again. What libraries log
    as warnings is not shown: Transformers imports torchao, which names each of its extensions that does not load.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.freeze()
        gc.enable()
