# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Diagrams of the wiring of modes, the table of modes, reports of training runs, and short trainings."""
