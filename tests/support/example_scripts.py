"""Scripts of `examples/` on small data."""

from support.processes import run_here
from support.tiny_translator import SENTENCES

from . import ROOT

GERMAN, ENGLISH = SENTENCES[::2], SENTENCES[1::2]


def run(script, *arguments):
    """What a script prints."""
    done = run_here(ROOT / "examples" / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
