"""Description of this process for records: command, time, commit, versions and device."""

import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import torch

from residual_hf._version import __version__

from .names import as_typed


def command() -> str:
    """The command line of this process, as a user types it."""
    program = Path(sys.argv[0])
    own = ("residual_hf", "cli.py"), ("residual_hf_cli", "__main__.py")  # of `python -m` and `torchrun -m`
    name = "residual-hf" if program.parts[-2:] in own else program.name
    return as_typed(name, *sys.argv[1:])


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the package's source folder, with `+` if files in it were changed; None outside of git."""
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None
    describe = ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    libraries = {name: version(name) for name in ("transformers", "accelerate", "tokenizers")}
    return {"residual_hf": __version__, "torch": torch.__version__, **libraries, "python": platform.python_version()}


def device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        return accelerator.type
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"
