"""Transformers' own tests of models, unmodified, on every class of the package and modes of each shape of connection.

    TRANSFORMERS_TESTS=transformers/tests TRANSFORMERS_TESTS_MODES=all pytest tests/transformers_suite

With a checkout of Transformers' repository this includes its tests of generation and of exports. The source
distribution on PyPI, which `.ci/run` uses, has `ModelTesterMixin` alone. There, `tests/model` covers generation
(`test_generation.py`, `test_official_outputs.py`, `test_decoding.py`, `test_caches.py`, `test_single_stack.py`) and
pipelines (`test_pipeline_translation.py`), whose tests in Transformers need models of the Hub.
"""

import os

from support.models import OURS
from support.transformers_tests import FAMILIES, IMAGES, import_tests, make_test

common = import_tests()
MODES = os.environ.get("TRANSFORMERS_TESTS_MODES", "post_ln resi_dual b2t dlcl_pre hyper_connections realformer")

for mode in OURS if MODES == "all" else MODES.split():
    for family in (*FAMILIES, *IMAGES):
        if family == "resnet" and mode == "realformer":
            continue  # which has scores of attention
        generation = () if family in ("encoder", *IMAGES) else (common.GenerationTesterMixin,)
        test = make_test(family, mode, common.ModelTesterMixin, *generation)
        globals()[test.__name__] = test
del test
