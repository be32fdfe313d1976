"""Scripts of `examples/` on small data."""

from pathlib import Path

from support.processes import run_here
from support.tiny_translator import SENTENCES

GERMAN, ENGLISH = SENTENCES[::2], SENTENCES[1::2]
ROOT = Path(__file__).parents[2]


def run(script, *arguments):
    """What a script prints."""
    done = run_here(ROOT / "examples" / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
