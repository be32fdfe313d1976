"""A user-defined residual connection: a Highway gate (Srivastava et al. 2015) between shortcut and branch."""

import torch
from torch import nn

from residual_hf import ResidualConnection, register_ln_mode
from residual_hf.model.norms import build_norm


@register_ln_mode("highway")
class Highway(ResidualConnection):
    """A learned gate per dimension mixes shortcut and branch."""

    equation = "x <- LN((1 - g) * x + g * a), g = sigmoid(c), c in R^d learned"
    source = "this example"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.norm = build_norm(config)
        self.gate = nn.Parameter(torch.zeros(config.d_model))

    def forward(self, stream, sublayer):
        (x,) = stream
        g = self.gate.sigmoid()
        return (self.norm((1 - g) * x + g * sublayer(x)),)
