# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The figures of the papers, and those for the reviewers of ResiDual, for any mode or model."""
