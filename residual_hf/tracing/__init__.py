# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The computation of a residual connection as a graph of operations.

`trace` runs the code of a connection, or of the boundary of a stack, on placeholders and records what it does to them
in a `torch.fx.Graph`. The decoding programs (`native.programs`), the joint kernels of training (`training.fusion`) and
the diagrams (`analysis.diagrams`) read these graphs. Nothing outside of the traced module is changed, so that other
threads can run it at the same time.
"""

from .tracer import Untraceable, operation_of, trace

__all__ = ["Untraceable", "operation_of", "trace"]
