"""Imported once for all processes of `isolation`, without what libraries log about themselves."""

import logging
from contextlib import suppress
from importlib import import_module

logging.disable(logging.WARNING)
for module in ("serving.isolation", "documents.translation"):
    with suppress(ImportError):  # an extra that is not installed
        import_module(f"residual_hf.{module}")
logging.disable(logging.NOTSET)
