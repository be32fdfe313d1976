"""The `equation` of a mode, which is plain text, as LaTeX.

Written as in `x <- LN(omega * x + a), omega in R^d learned`: names of Greek letters, `sum_k`, `sqrt(...)`, subscripts
and superscripts of one word, number or `{group}`, `*` for products, ` . ` for inner products; other words are text.
Two spaces after a comma or semicolon begin a new line.
"""

import re

GREEK = {"alpha", "beta", "gamma", "lambda", "omega", "tau"}
FUNCTIONS = {
    "LN",
    "RMSNorm",
    "SA",
    "CA",
    "FF",
    "softmax",
    "sigmoid",
    "Sinkhorn",
    "act",
    "heads",
    "floor",
    "SiLU",
    "detach",
}
COMMANDS = {"exp", "ln", "min", "max"}
SYMBOLS = {"<-": r"\leftarrow", "*": r"\,", ".": r"\cdot", "in": r"\in", "scale_heads": r"\mathrm{scale}"}
SCRIPT = r"\{[^}]*\}|-?[\d.]*\d|[A-Za-z]+"
TOKEN = re.compile(
    rf"(?P<space>\s+)|<-|\d+(?:\.\d+)?|(?P<prose>[A-Za-z]+-[A-Za-z]+)"
    rf"|(?P<name>scale_heads|[A-Za-z]+?(?=\d|_|\^|\b))(?P<digit>\d?)(?:_(?P<sub>{SCRIPT}))?(?:\^(?P<sup>{SCRIPT}))?"
    rf"|."
)


def to_latex(equation: str) -> list[str]:
    """The lines of an equation as LaTeX, without delimiters."""
    return [translate(line.strip(" ,;")) for line in re.split(r"(?<=[,;])  +", equation)]


def translate(line: str) -> str:
    pieces: list[tuple[str, str]] = []  # kind, LaTeX
    position = 0
    while position < len(line):
        match = TOKEN.match(line, position)
        assert match is not None
        position = match.end()
        if match["name"] == "sqrt" and line[position : position + 1] == "(":
            end = closing(line, position)
            pieces.append(("math", rf"\sqrt{{{translate(line[position + 1 : end])}}}"))
            position = end + 1
        else:
            pieces.append(piece(match))
    return join(pieces)


def closing(line: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(line)):
        depth += (line[i] == "(") - (line[i] == ")")
        if depth == 0:
            return i
    raise ValueError(f"equation {line!r}: a bracket is not closed")


def piece(match: re.Match[str]) -> tuple[str, str]:
    if match["space"]:
        return "space", " "
    if match["prose"]:
        return "text", match["prose"]
    if match["name"] is None:
        return "math", SYMBOLS.get(match[0], match[0])
    name = match["name"]
    scripts = match["digit"] or match["sub"] or match["sup"]
    if name == "sum":
        base = r"\sum"
    elif name in GREEK or name in COMMANDS:
        base = f"\\{name}"
    elif name in SYMBOLS:
        base = SYMBOLS[name]
    elif name in FUNCTIONS:
        base = rf"\mathrm{{{name}}}"
    elif name == "R" and match["sup"]:
        base = r"\mathbb{R}"
    elif len(name) == 1:
        base = name
    elif scripts:
        base = rf"\mathrm{{{name}}}"
    else:
        return "text", name
    for mark, script in (("_", match["digit"] or match["sub"]), ("^", match["sup"])):
        if script:
            base += f"{mark}{{{script_latex(script.strip('{}'))}}}"
    return "math", base


def script_latex(script: str) -> str:
    if script in GREEK:
        return f"\\{script}"
    return rf"\mathrm{{{script}}}" if len(script) > 2 and script.isalpha() else script


def join(pieces: list[tuple[str, str]]) -> str:
    """Neighbouring words become one text; an `a` between words is one of them."""
    words = [i for i, (kind, _) in enumerate(pieces) if kind == "text"]
    for before, after in zip(words, words[1:], strict=False):
        if after == before + 4 and pieces[before + 2] == ("math", "a"):
            pieces[before + 2] = ("text", "a")
    found, text = [], ""
    for i, (kind, latex) in enumerate([*pieces, ("end", "")]):
        if kind == "text" or (kind == "space" and text and pieces[i + 1 : i + 2] and pieces[i + 1][0] == "text"):
            text += latex
            continue
        if text:
            found.append(rf"\;\text{{{text}}}\;" if kind == "space" else rf"\;\text{{{text}}}")
            text = ""
        if kind == "math":
            found.append(latex)
    return re.sub(r"^\\; ?|(?<=}) ?\\;(?= [=<]|$)| ?\\;(?= \\;)", "", " ".join(found))
