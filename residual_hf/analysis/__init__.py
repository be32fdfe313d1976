# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""See what residual connections do: before, during and after a training.

- `probes` measure a model: gradients, hidden states, weights;
- `figures` draws the published figures with them, `diagrams` the wiring of a mode;
- `short_runs` says before a training how it will go;
- `monitoring` watches a training, `report` shows it.
"""
