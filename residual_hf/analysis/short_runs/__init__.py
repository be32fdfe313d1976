# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Trainings of a few hundred updates that say what a long one will do: the check of a recipe and the stress test."""
