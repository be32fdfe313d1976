"""A pre-activation ResNet for CIFAR in plain `torch.nn`, as an oracle, written from He et al. 2016."""

import torch
from torch import nn


def shortcut(x, channels):
    """(batch, channels, height, width): every second pixel, and zeros as new channels."""
    if x.shape[1] == channels:
        return x
    x = x[:, :, ::2, ::2]
    return torch.cat([x, x.new_zeros(len(x), channels - x.shape[1], *x.shape[2:])], dim=1)


class Block(nn.Module):
    def __init__(self, fan_in, channels):
        super().__init__()
        self.channels, stride = channels, 1 if fan_in == channels else 2
        self.branch = nn.Sequential(
            nn.BatchNorm2d(fan_in),
            nn.ReLU(),
            nn.Conv2d(fan_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )


class PlainResNet(nn.Module):
    """`join(i, shortcuts of the streams, branch of the first)` gives the streams after block i."""

    def __init__(self, depth, classes, join=lambda i, streams, a: (streams[0] + a,), streams=1):
        super().__init__()
        self.join, self.streams = join, streams
        widths = [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(map(Block, [16, *widths], widths))
        self.head = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.score = nn.Linear(64, classes)

    def forward(self, images, end=lambda streams: streams[0]):
        streams = (self.stem(images),) * self.streams
        for i, block in enumerate(self.blocks):
            a = block.branch(streams[0])
            streams = self.join(i, [shortcut(x, block.channels) for x in streams], a)
        return self.score(self.head(end(streams)))


def copy_weights(model, plain):
    """From a `ResidualForImageClassification`: its tensors that are not of connections have the same order."""
    ours = [t for name, t in model.state_dict().items() if "residual" not in name and "boundary" not in name]
    plain.load_state_dict(dict(zip(plain.state_dict(), ours, strict=True)))
    return plain
