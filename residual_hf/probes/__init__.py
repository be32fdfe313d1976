# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Measurements of a model, each a function that returns rows."""
