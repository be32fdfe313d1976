# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""See what residual connections do, by `residual_hf.probes`: the published figures, diagrams of the wiring of a mode,
a report of training runs."""
