# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
__version__ = "0.1.0"
