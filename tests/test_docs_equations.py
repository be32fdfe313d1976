"""The equations of the gallery, which the documentation makes of those of the modes."""

import re

import pytest
from support import ROOT

from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.connections import LN_MODES

DOCS = ROOT / "docs"
LATEX = {
    "x <- LN(x + a)": [r"x \leftarrow \mathrm{LN} ( x + a )"],
    "r <- r + s*a;  out = alpha*x + LN(r)": [
        r"r \leftarrow r + s \, a",
        r"\text{out} = \alpha \, x + \mathrm{LN} ( r )",
    ],
    "omega = sqrt((n+1)/ln(n+1) - 1)": [r"\omega = \sqrt{( n + 1 ) / \ln ( n + 1 ) - 1}"],
    "w * f(LN(x)), w in R^d learned": [r"w \, f ( \mathrm{LN} ( x ) ) , w \in \mathbb{R}^{d} \;\text{learned}"],
    "y_j = LN_j(x + y_{j-1}),  x <- y_lambda": [
        r"y_{j} = \mathrm{LN}_{j} ( x + y_{j-1} )",
        r"x \leftarrow y_{\lambda}",
    ],
    "p = softmax_i(w . RMSNorm(v_i))": [r"p = \mathrm{softmax}_{i} ( w \cdot \mathrm{RMSNorm} ( v_{i} ) )"],
    "at the end of a layer x <- x_inp": [r"\text{at the end of a layer}\; x \leftarrow x_{\mathrm{inp}}"],
    "L^-0.15 W2 K_l^T": [r"L^{-0.15} W_{2} K_{l}^{T}"],
    "m = sigmoid(.), A = Sinkhorn(exp(.))": [
        r"m = \mathrm{sigmoid} ( \cdot ) , A = \mathrm{Sinkhorn} ( \exp ( \cdot ) )"
    ],
}


@pytest.fixture
def to_latex(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from equations import to_latex

    return to_latex


@pytest.mark.parametrize("equation", LATEX)
def test_plain_text_becomes_latex(equation, to_latex):
    assert to_latex(equation) == LATEX[equation]


@pytest.mark.parametrize("name", sorted(LN_MODES))
def test_equation_of_every_mode_is_complete_latex(name, to_latex):
    """Nothing of the notation is left over, and no symbol has become a word."""
    for line in to_latex(LN_MODES[name].equation):
        assert line.count("{") == line.count("}")
        plain = re.sub(r"\\text\{[^}]*\}|\\mathrm\{\w+\}|[_^]\{[^}]*\}", "", line)
        assert not re.search(r"<-|\*|(?<![\\a-zA-Z{])[a-zA-Z]{2,}(?![a-zA-Z}])", plain), line
        for words in re.findall(r"\\text\{([^}]*)\}", line):
            assert not re.search(r"[_^\d]|\b(alpha|beta|omega|lambda|sum|sqrt)\b", words), line


def test_open_bracket_is_an_error(to_latex):
    with pytest.raises(ValueError, match="not closed"):
        to_latex("x <- sqrt(x + a")
