"""Sphinx extension: a page for each residual connection, written from its class when the documentation is built.

The pages are `modes/NAME.md`; drawings of all modes are added to `modes.md`.
"""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from draw import STYLE, draw_modes
from equations import to_latex
from latex2mathml.converter import convert

from residual_hf import ResidualConfig, ResidualModel
from residual_hf.analysis.mode_list import connection_parameters, warmup
from residual_hf.hub.citations import bibtex
from residual_hf.model.connections import LN_MODES, STACKS, ResidualConnection, build_connections
from residual_hf.model.options import describe_option

ROOT = Path(__file__).parents[1]
PLACES = {  # the modules of a layer or stack that hold parameters of a mode
    "self_attn_residual": "self-attention",
    "encoder_attn_residual": "cross-attention",
    "ffn_residual": "feed-forward",
    "self_attn": "inside self-attention",
    "encoder_attn": "inside cross-attention",
    "ffn": "inside feed-forward",
    "boundary": "boundary",
}
FAMILIES = {  # the modules that define modes, and their headings in the gallery
    "ln_modes": "Post-LN, Pre-LN, ResiDual",
    "modes_skip_scaling": "Scaled shortcuts",
    "modes_layer_input": "Input of the layer at its end",
    "modes_branch_scaling": "Scaled branches",
    "modes_gpas": "Scaled activations",
    "modes_norm_placement": "Placement of norms",
    "modes_norm_free": "Without norms",
    "modes_sublayer": "Inside the branch",
    "modes_cross_layer": "Across layers",
    "modes_multi_stream": "Several streams",
}


def mode_page(name: str) -> str:
    mode = LN_MODES[name]
    summary, _, details = inspect.cleandoc(mode.__doc__ or "").partition("\n")
    sections = [
        f"# {name}\n\n{summary}",
        equation(mode),
        figure(name),
        f"## Use\n\n{use(mode)}",
        f"## Properties\n\n{properties(mode)}",
        options(mode),
        constants(name),
        parameters(name),
        f"## Notes\n\n{details.strip()}" if details.strip() else "",
        f"## Code\n\n{code(mode)}",
        f"## Evidence\n\n{evidence(name)}",
        f"## Source\n\n{mode.source}.\n\n```bibtex\n" + "\n\n".join(bibtex(mode)) + "\n```",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def equation(mode: type[ResidualConnection]) -> str:
    lines = (f"<div>{convert(line, display='block')}</div>" for line in to_latex(mode.equation))
    note = "`a = D f(x)` is the output of the branch after dropout." if re.search(r"\ba\b", mode.equation) else ""
    return f'<div class="equation">{"".join(lines)}</div>\n\n{note}'.strip()


def drawing(name: str, stack: str = "encoder") -> str:
    """A diagram for a page: its style is in a file that follows the theme, its size stays legible on a phone."""
    svg = re.sub("<(style|metadata)>.*?</(style|metadata)>", "", draw_modes([name], stack), flags=re.DOTALL).strip()
    return re.sub(r'width="([\d.]+)"', lambda m: f'{m[0]} style="min-width:{0.7 * float(m[1]):.0f}px"', svg, count=1)


def figure(name: str) -> str:
    encoder, decoder = drawing(name), drawing(name, stack="decoder")
    return (
        f'<figure class="diagram">{encoder}<figcaption>Encoder</figcaption></figure>\n\n'
        f'<details class="diagram"><summary>Decoder</summary><figure>{decoder}</figure></details>'
    )


def use(mode: type[ResidualConnection]) -> str:
    values = {f.name: f.default for f in fields(mode.Options)}
    argument = "".join(f'        "{name}": {value!r},\n' for name, value in values.items())
    if values:
        call = f'ResidualConfig(\n    ln_mode="{mode.name}",\n    ln_mode_options={{\n{argument}    }},\n)'
    else:
        call = f'ResidualConfig(ln_mode="{mode.name}")'
    entries = "".join(f"\n    {name}: {json.dumps(value)}" for name, value in values.items())
    recipe = f"model:\n  ln_mode: {mode.name}" + (f"\n  ln_mode_options:{entries}" if values else "")
    return f"```python\nconfig = {call}\n```\n\nIn a recipe:\n\n```yaml\n{recipe}\n```"


def properties(mode: type[ResidualConnection]) -> str:
    rows = [
        ("parameters of norms and connections", f"{connection_parameters(mode.name):,} in 6+6 layers of width 512"),
        ("default `norm_type`, `init_style`", f"`{mode.default_norm_type}`, `{mode.default_init_style}`"),
        ("learning-rate warm-up in the paper", warmup(mode)),
    ]
    if mode.folds_into:
        rows.append(("folds exactly into", f"[`{mode.folds_into}`]({mode.folds_into}.md) (`conversion.fold`)"))
    start = mode.starts_from or mode.folds_into
    if start:
        rows.append(("starts exactly from", f"a trained [`{start}`]({start}.md) (`conversion.change_ln_mode`)"))
    if mode.attention_implementations:
        rows.append(("`attn_implementation`", ", ".join(mode.attention_implementations) + " only"))
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def options(mode: type[ResidualConnection]) -> str:
    rows = []
    for f in fields(mode.Options):
        allowed = describe_option(f).partition(f"= {f.default!r}")[2].strip(" ()")
        rows.append(f"| `{f.name}` | `{f.default}` | {allowed} | {f.metadata['help']} |")
    table = "| option | default | allowed | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
    return f"## Options\n\nEntries of `ln_mode_options`.\n\n{table}" if rows else ""


def constants(name: str) -> str:
    """Numbers that a connection computes from the shape of the model."""
    found: dict[str, dict[str, list[float]]] = {}
    for own in ResidualConfig(ln_mode=name).stack_configs:
        for layer in range(6):
            first = build_connections(own, layer)[0]
            for attribute, value in vars(first).items():
                if type(value) is float and not attribute.startswith("initial"):
                    found.setdefault(attribute, {}).setdefault(own.stack, []).append(value)
    if not found:
        return ""

    def shown(values: list[float]) -> str:
        first, last = f"{values[0]:.4g}", f"{values[-1]:.4g}"
        return first if first == last else f"{first} (layer 1) to {last} (layer 6)"

    rows = "\n".join(f"| `{key}` | {' | '.join(shown(by[stack]) for stack in STACKS)} |" for key, by in found.items())
    return f"## Constants\n\nIn 6+6 layers of width 512.\n\n| constant | encoder | decoder |\n|---|---|---|\n{rows}"


def parameters(name: str) -> str:
    """Learned tensors of the connections of one layer and of the boundaries, norms included."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 512, "vocab_size": 8}
    model = ResidualModel(ResidualConfig(ln_mode=name, **sizes))
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for stack in STACKS:
        for path, module in getattr(model, stack).named_modules():
            place = PLACES.get(path.removeprefix("layers.1."))
            for key, tensor in getattr(module, "inner", module).named_parameters() if place else ():
                values = tensor.detach().flatten()
                initial = f"{values[0]:g}" if values.min() == values.max() else "see the code"
                row = (key, " × ".join(map(str, tensor.shape)), initial)
                rows.setdefault(row, {}).setdefault(place, []).append(stack)
    if not rows:
        return "## Parameters\n\nNone."
    lines = []
    for row, where in rows.items():
        places = ", ".join(name_place(place, stacks) for place, stacks in where.items())
        lines.append("| `{}` | {} | {} | {} |".format(*row, places))
    return (
        "## Parameters\n\nOf the second layer and of the boundaries of the stacks, for width 512.\n\n"
        "| parameter | shape | initial value | of |\n|---|---|---|---|\n" + "\n".join(lines)
    )


def name_place(place: str, stacks: list[str]) -> str:
    return place if len(stacks) == 2 or place.endswith("cross-attention") else f"{place} ({stacks[0]})"


def code(mode: type[ResidualConnection]) -> str:
    """The classes of a mode: connection, boundary and options, as far as they are its own."""
    base = mode.__mro__[1]
    own = [cls for cls in (mode.Options, mode.Boundary, mode) if cls.__module__ == mode.__module__]
    if base.Boundary is mode.Boundary and mode.Boundary in own:
        own.remove(mode.Boundary)
    module = mode.__module__.replace(".", "/")
    text = f"`{module}.py`"
    if base in LN_MODES.values():
        text += f", derived from [`{base.name}`]({base.name}.md)"
    return text + ":\n\n```python\n" + "\n\n".join(inspect.getsource(cls).strip() for cls in own) + "\n```"


def evidence(name: str) -> str:
    """Stored outputs of official implementations that tests compare this mode with."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests" / "fixtures").glob("*.json")):
        settings = json.loads(file.read_text(encoding="utf-8"))
        if settings.get("ln_mode") == name and settings.get("source"):
            found.setdefault(settings["source"], []).append(f"`{file.stem}`")
    if not found:
        return (
            "No outputs of an official implementation are stored for this mode. `tests/model/test_equations.py` "
            "compares whole models with its equation, outputs and gradients, in fp64."
        )
    rows = "\n".join(f"| {source} | {', '.join(names)} |" for source, names in found.items())
    return (
        "Tests compare this mode with stored outputs of official implementations in fp32: encoder output, layer "
        "states and logits to 1e-5, losses and norms of gradients to 1e-4. `init_*` are initial standard deviations, "
        "`beam_*` translations.\n\n"
        f"| implementation | files in `tests/fixtures` |\n|---|---|\n{rows}"
    )


def gallery() -> str:
    """All modes as drawings that link to their pages, by the module that defines them."""
    modes = [LN_MODES[name] for name in sorted(LN_MODES)]
    sections = []
    for module, heading in FAMILIES.items():
        members = [mode for mode in modes if mode.__module__.endswith(f".{module}")]
        cards = "".join(
            f'<a class="mode" href="modes/{mode.name}.html"><b>{mode.name}</b>{drawing(mode.name)}</a>'
            for mode in members
        )
        sections.append(f'## {heading}\n\n<div class="gallery">{cards}</div>')
    names = "\n".join(f"modes/{mode.name}" for mode in modes)
    return "\n\n".join([*sections, f"```{{toctree}}\n:hidden:\n{names}\n```"])


def write_pages(app: Any) -> None:
    """Write pages whose content changed, so that an unchanged mode is not built again."""
    folder = Path(app.srcdir) / "modes"
    folder.mkdir(exist_ok=True)
    for page in folder.glob("*.md"):
        if page.stem not in LN_MODES:
            page.unlink()
    for name in LN_MODES:
        page, text = folder / f"{name}.md", mode_page(name)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    style = re.sub(r"(?m)^(\.wiring{|@media).*\n", "", STYLE)  # on a page, drawings have the color of its text
    (Path(app.srcdir) / "_static" / "wiring.css").write_text(style.lstrip(), encoding="utf-8")


def add_gallery(app: Any, docname: str, source: list[str]) -> None:
    """Drawings instead of the picture of the first page, and before the table of modes, whose names become links."""
    if docname == "index":
        figures = (
            f"<figure>{drawing(name)}<figcaption>{name}</figcaption></figure>"
            for name in ("post_ln", "pre_ln", "resi_dual")
        )
        inline = f'<div class="side-by-side">{"".join(figures)}</div>'
        source[0] = re.sub(r"(?m)^!\[[^\n]*$", lambda _: inline, source[0])
    if docname == "modes":
        intro, heading, table = source[0].partition("## Table")
        table = re.sub(r"(?m)^\| `(\w+)` (?=\| `)", r"| [`\1`](modes/\1.md) ", table)
        source[0] = f"{intro}{gallery()}\n\n{heading}{table}"


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("source-read", add_gallery)
    app.connect("env-get-outdated", lambda *_: ["index", "modes"])
    return {"parallel_read_safe": True}
