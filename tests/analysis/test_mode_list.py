import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.models import OURS

from residual_hf.analysis.mode_list import connection_parameters, describe_mode
from residual_hf.cli import main
from residual_hf.conversion.export import targets_of
from residual_hf.model import connections
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualModel

PAGE = ROOT / "docs" / "modes.md"


def rows(table):
    return {match[1]: line for line in table.splitlines() if (match := re.match(r"\| `(\w+)`", line))}


@pytest.mark.parametrize("name", OURS)
def test_every_mode_declares_what_the_catalogue_shows(name):
    mode = LN_MODES[name]
    assert mode.__doc__ and mode.equation and mode.source
    text = describe_mode(name, targets_of(name))
    assert mode.equation in text and mode.source in text
    file, line = re.search(r"^in (.*), line (\d+)$", text, re.MULTILINE).groups()
    assert f'@register_ln_mode("{name}")' == Path(file).read_text().splitlines()[int(line) - 1]
    for option in fields(mode.Options):
        assert f"{option.name}: " in text and option.metadata["help"] in text


def test_nothing_is_said_of_a_paper_that_a_mode_of_a_user_does_not_name(monkeypatch):
    monkeypatch.setattr(connections, "LN_MODES", dict(LN_MODES))
    own = type("Own", (LN_MODES["post_ln"],), {"__module__": "own", "equation": "x <- LN(x + f(x))", "source": "mine"})
    connections.register_ln_mode("own")(own)
    assert "paper" not in describe_mode("own", {})
    own.warmup = "not needed"
    assert "learning-rate warm-up: not needed in the paper" in describe_mode("own", {})


def test_page_of_modes_has_the_table_of_the_command(monkeypatch):
    for name in LN_MODES.keys() - set(OURS):
        monkeypatch.delitem(LN_MODES, name)
    page = PAGE.read_text(encoding="utf-8")
    assert page == runpy.run_path(str(PAGE.with_suffix(".py")))["render"](page), "update it: python docs/modes.py"
    assert set(rows(page)) >= set(OURS)


def test_no_guide_counts_the_modes():
    for page in [*PAGE.parent.glob("*.md"), *PAGE.parents[1].glob("*.md")]:
        if page.stem not in ("log", "CHANGELOG"):
            assert not re.search(rf"\b{len(OURS)} (residual )?(modes|connections)", page.read_text("utf-8")), page


def test_page_of_a_mode_is_made_from_its_class(monkeypatch):
    pytest.importorskip("latex2mathml")
    monkeypatch.syspath_prepend(str(PAGE.parent))
    import gallery

    page = gallery.mode_page("resi_dual")
    for expected in (
        "<math",
        "</svg>",
        "| `dual_scale` | `1.0` | > 0 |",
        "32,768 in 6+6 layers",
        "[`post_ln`](post_ln.md)",
        "class DualStream(StreamBoundary)",
        "github.com/microsoft/ResiDual@8682f75",
        "`beam_trained_resi_dual`",
        "@misc{xie2023residual",
    ):
        assert expected in page
    assert "| `alpha` | 1.418 | 2.06 |" in gallery.mode_page("deep_norm")
    assert "No outputs of an official implementation" in gallery.mode_page("mhc")
    monkeypatch.setattr(gallery, "drawing", lambda *arguments: "<svg></svg>")
    assert set(re.findall(r'href="modes/(\w+).html"', gallery.gallery())) == set(OURS)


def test_command(capsys, refused):
    assert main(["modes"]) == 0
    assert set(OURS) <= set(rows(capsys.readouterr().out))
    assert main(["modes", "resi_dual", "pre_ln"]) == 0
    assert "dual_scale: float = 1.0 (> 0)" in (printed := capsys.readouterr().out)
    assert LN_MODES["resi_dual"].equation in printed and LN_MODES["pre_ln"].equation in printed
    refused("unknown ln_mode 'nothing'", "modes", "nothing")


@pytest.mark.parametrize("name", OURS)
def test_parameters_are_those_of_a_built_model(name):
    with torch.device("meta"):
        model = ResidualModel(ResidualConfig(ln_mode=name, vocab_size=10))
    branches = {id(p) for m in model.modules() if hasattr(m, "role") for p in m.parameters()}
    others = sum(p.numel() for p in model.parameters() if id(p) not in branches)
    assert connection_parameters(name) == others - model.encoder.embed_tokens.weight.numel()
