# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoder-decoder Transformers whose residual connections and layer norms are one config word, `ln_mode`."""
