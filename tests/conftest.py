# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
import torch

torch.set_num_threads(1)  # the tensors are tiny, and tests run side by side
