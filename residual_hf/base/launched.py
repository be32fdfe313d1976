"""What `torchrun`, or a command with `--devices`, tells a process that it has started; read without PyTorch."""

import os


def in_group() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the only one or the first of several, which alone writes."""
    return os.environ.get("RANK", "0") == "0"
