# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Probes during training, spikes, and the replay of an update."""
