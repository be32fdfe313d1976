"""Every figure is measured and drawn, at sizes that take no time."""

import csv
import dataclasses

import cifar_figures
import figure as drawing
import points as output
import pytest
import theory
import trained_figures as trained
from all_figures import FIGURES, find_figures
from own_model import OwnModel, draw_for_model
from support import small_sizes
from support.example_scripts import ROOT, refusal, run
from support.processes import run_here
from support.slow import slow_except
from support.tiny_translator import SENTENCES, save_tiny, tiny_model, tiny_tokenizer
from transformers import BartConfig, BartForConditionalGeneration

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint

TINY = {"layers": 2, "decoder_layers": 1, "width": 32, "ffn": 32, "updates": 3, "tokens": 128, "depth": 14}
QUICK = {"resi_dual-2", "resi_dual-3", "b2t-3", "b2t-4", "b2t-5", "admin-3", "admin-4", "admin-5", "admin-7"}
OTHERS = {"admin-1", "admin-8", "admin-table-1", "b2t-1", "resi_dual-eq5", "theorems"}
OTHERS |= {"skip-3", "skip-cifar-3", "skip-cifar-4"}
AS_ANOTHER = {"admin-10", "b2t-9"}  # measured as another figure is
LONG = {"admin-1", "admin-8", "reviewer-5", "reviewer-7", "reviewer-9", "skip-3", "skip-cifar-3"}
REVIEWERS = {f"reviewer-{number}" for number in (1, 2, 4, 5, 6, 7, 9)}
MEASURED = QUICK | REVIEWERS | OTHERS

SCRIPT = ROOT / "examples/papers/figures.py"

pytestmark = pytest.mark.usefixtures("small_generated_corpus")


def tiny_sizes(figure):
    return {key: TINY.get(key, value) for key, value in figure.sizes.items()}


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing one takes half a second; the tables are written."""
    monkeypatch.setattr(output, "to_pictures", lambda *arguments: {"svg": b""})


def test_names_are_those_of_the_papers():
    assert set(FIGURES) == MEASURED | AS_ANOTHER
    assert find_figures(["all"]) == list(FIGURES.values())
    with pytest.raises(InputError, match="unknown figure admin-99.*admin-3"):
        find_figures(["admin-99"])


@pytest.mark.parametrize("name", slow_except(MEASURED - LONG, sorted(MEASURED)))
def test_measured_values(name, monkeypatch):
    monkeypatch.setattr(cifar_figures.squares, "__defaults__", (4, 8))  # images, and their size
    figure = FIGURES[name]
    sizes = tiny_sizes(figure)
    sizes |= {"updates": 10} if name == "reviewer-9" else {}  # its curve has a point every ten
    modes = figure.modes[:1] if name in REVIEWERS | {"b2t-1"} else figure.modes
    points = [point for mode in modes for point in figure.points(mode, 1, sizes)]
    if name in REVIEWERS:
        assert {point.panel for point in points} == {panel.name for panel in figure.panels}
        return
    of_more_layers = {"middle decoder layer"}  # in two, it is the first
    assert {panel.name for panel in figure.panels} - {point.panel for point in points} <= of_more_layers
    for mode in modes:
        assert any(mode in point.series or mode in point.panel for point in points)


@pytest.mark.parametrize("name", [name for name in sorted(FIGURES) if name.startswith("admin-")])
def test_models_of_admin_have_the_initial_weights_of_its_code(name, monkeypatch):
    made = []
    monkeypatch.setattr(drawing, "new_model", lambda mode, *sizes, **fields: made.append(fields) or 1 / 0)
    styles = {"post_ln": "fairseq_legacy", "admin": None, "t_fixup": None}
    for mode in styles:
        with pytest.raises(ZeroDivisionError):
            list(FIGURES[name].points(mode, 1, tiny_sizes(FIGURES[name])))
    assert [fields.get("init_style") for fields in made] == list(styles.values())


def test_both_curves_of_a_run_that_diverged_end_with_the_largest_value(monkeypatch):
    monkeypatch.setattr(trained, "train", lambda *arguments, **options: [5.0] * 3)
    points = list(FIGURES["b2t-1"].points("post_ln", 1, tiny_sizes(FIGURES["b2t-1"]) | {"updates": 9}))
    for panel in ("training loss", "validation NLL"):  # also at later points, where other seeds go on
        found = [(point.x, point.y) for point in points if point.panel == panel]
        assert found[-6:] == [(x, trained.DIVERGED) for x in range(4, 10)]


def test_pictures_and_table(tmp_path):
    name = "admin-3"
    figure = FIGURES[name]
    figure = dataclasses.replace(figure, sizes=tiny_sizes(figure))
    paths = drawing.draw_figure(figure, tmp_path / "figures", seeds=(1,))
    assert [path.name for path in paths] == [f"{name}.{kind}" for kind in ("csv", "svg", "png")]
    assert {row["panel"] for row in csv.DictReader(paths[0].open())} == {panel.name for panel in figure.panels}
    assert "<svg" in paths[1].read_text() and paths[2].read_bytes().startswith(b"\x89PNG")


def test_caption_says_what_is_reduced(tmp_path, monkeypatch):
    captions = []
    monkeypatch.setattr(drawing, "write_points", lambda *arguments: captions.append(arguments[-1]))
    figure = dataclasses.replace(FIGURES["b2t-4"], sizes={"layers": 1, "width": 32, "ffn": 32}, full={"width": 64})
    for full in (False, True):
        drawing.draw_figure(figure, tmp_path, seeds=(1,), full=full)
    assert captions[0].endswith("Sizes: layers 1, width 32, ffn 32. Seeds: 1. Reduced: --full has width 64.")
    assert captions[1].endswith("Sizes: layers 1, width 64, ffn 32. Seeds: 1.")


def test_modes_and_sizes_of_the_user(no_pictures, tmp_path):
    figure = dataclasses.replace(FIGURES["admin-3"], sizes={"layers": 2, "width": 32, "ffn": 32})
    (table, *_) = drawing.draw_figure(figure, tmp_path, modes=("pre_ln", "mhc"), seeds=(1, 2))
    rows = list(csv.DictReader(table.open()))
    assert {row["series"] for row in rows} == {"post_ln", "pre_ln", "admin", "mhc"}
    assert {row["seed"] for row in rows} == {"1", "2"}
    with pytest.raises(InputError, match="--modes: unknown ln_mode .postln.*--import FILE"):
        drawing.draw_figure(figure, tmp_path, modes=("postln",))


@pytest.fixture
def own_run(tmp_path):
    """A folder with a model, and its text as a run has it."""
    save_tiny(tmp_path / "run" / "model", ln_mode="pre_ln", decoder_layers=2)
    for side, line in (("sources", SENTENCES[0]), ("references", SENTENCES[1])):
        (tmp_path / "run" / f"valid.{side}.txt").write_text(f"{line}\n\n{line} {line}\n")
    return tmp_path / "run"


def test_figures_of_a_model(own_run, no_pictures, tmp_path):
    options = ["--model", own_run, "--seeds", 1, "--output-dir", tmp_path / "out"]
    drawn = run_here(SCRIPT, "all", *options, "--modes", "admin")
    assert drawn.returncode == 0
    assert {path.stem for path in (tmp_path / "out").iterdir()} == QUICK - {"admin-5"}
    left_out = drawn.stderr
    assert "left out: theorems: trains models of its own" in left_out
    assert "left out: resi_dual-eq5: the ln_mode of run is pre_ln, must be resi_dual" in left_out
    with (tmp_path / "out" / "b2t-3.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["series"] for row in rows} == {"run", "fresh admin"}
    assert max(float(row["x"]) for row in rows if row["panel"].startswith("decoder")) == 2
    assert "theorems: trains models of its own" in refusal(SCRIPT, "theorems", *options)
    save_tiny(own_run / "model", overwrite=True, ln_mode="t_fixup")
    assert "figures.py: b2t-4: run has none of the norms" in refusal(SCRIPT, "b2t-4", *options)


def test_fresh_models_have_no_branch_warmup_of_the_model(own_run):
    """Its factor would be 0, and with it all gradients of the branches."""
    save_tiny(own_run / "model", overwrite=True, branch_warmup={"updates": 5})
    own = OwnModel.load(str(own_run))
    points = FIGURES["b2t-3"].probe(own.fresh("post_ln", 1), own.batch(1), "fresh post_ln", 1)
    assert min(point.y for point in points) > 0


def test_fresh_models_have_no_layerdrop_of_the_model(own_run):
    save_tiny(own_run / "model", overwrite=True, encoder_layerdrop=0.1)
    assert OwnModel.load(str(own_run)).fresh("dlcl_pre", 1).config.encoder_layerdrop == 0


def test_models_in_half_precision_are_measured_in_fp32(own_run):
    tokenizer = tiny_tokenizer()
    save_checkpoint(tiny_model(tokenizer).bfloat16(), tokenizer, own_run / "model", overwrite=True)
    own = OwnModel.load(str(own_run))
    assert all(point.y > 0 for point in FIGURES["admin-4"].probe(own.model, own.batch(1), "run", 1))


def test_text_and_modes_for_a_model_are_checked(own_run, no_pictures, tmp_path):
    with pytest.raises(InputError, match="--source, --reference: missing"):
        OwnModel.load(str(own_run / "model"))
    with pytest.raises(InputError, match="3 lines for 4 of"):
        (tmp_path / "longer.txt").write_text("a\n" * 4)
        OwnModel.load(str(own_run), tmp_path / "longer.txt", own_run / "valid.references.txt")
    own = OwnModel.load(str(own_run))
    assert own.batch(1)["labels"].shape[0] == 2  # without the empty pair
    config = BartConfig(vocab_size=120, **small_sizes())
    bart = dataclasses.replace(own, model=BartForConditionalGeneration(config))
    with pytest.raises(InputError, match="--modes: run is a BartForConditionalGeneration"):
        draw_for_model(FIGURES["b2t-3"], bart, tmp_path, modes=("post_ln",), seeds=(1,))
    assert draw_for_model(FIGURES["admin-3"], bart, tmp_path, seeds=(1,))


@pytest.mark.parametrize(("side", "name"), [("source", "sources"), ("target", "references")])
def test_text_for_a_model_has_its_tags_and_no_unknown_tokens(side, name, own_run):
    save_tiny(own_run / "model", "<2de>", "<2en>", overwrite=True, language_tags=side)
    with pytest.raises(InputError, match=rf"valid\.{name}\.txt: a line without a language tag.* <2"):
        OwnModel.load(str(own_run))
    text = own_run / f"valid.{name}.txt"
    text.write_text("".join(f"<2de> {line}\n" if line else "\n" for line in text.read_text().splitlines()))
    assert OwnModel.load(str(own_run)).batch(1)["labels"].shape[0] == 2
    text.write_text("<2de> \u4e00\n\n<2de> \u4e01\n")
    with pytest.raises(InputError, match=rf"valid\.{name}\.txt: .* % of the tokens are unknown"):
        OwnModel.load(str(own_run))


def test_closed_forms_equal_simulations():
    """Values of theorems 3.3 and 3.6 in the paper's form, and within the error of sampling."""
    assert [theory.pre_ln_change(k) for k in (2, 3, 5, 10, 18, 36, 72)] == pytest.approx(
        [0.6107, 0.4834, 0.3666, 0.2556, 0.1894, 0.1334, 0.0942], abs=5e-5
    )
    simulated = theory.simulated_changes(False, 37, size=100_000)
    assert [simulated[k - 2] for k in (2, 10, 36)] == pytest.approx([0.6107, 0.2556, 0.1334], rel=0.01)
    for sigma_squared, value in {0.1: 0.2434, 0.25: 0.3666, 0.5: 0.4834, 1: 0.6107, 2: 0.7336}.items():
        assert theory.post_ln_change(sigma_squared) == pytest.approx(value, abs=5e-5)
        simulated = theory.simulated_changes(True, 4, sigma_squared, size=100_000)
        assert simulated == pytest.approx([value] * 3, rel=0.01)
    assert [theory.post_ln_gradient(d) for d in (0, 1, 4, 9, 16, 35)] == pytest.approx(
        [1, 1.922, 1.847, 0.888, 0.213, 2.0e-3], rel=5e-3
    )


def test_other_modes_have_no_theorems(tmp_path, monkeypatch):
    """The curves of ResiDual would be shown next to the theorem on Pre-LN."""
    with pytest.raises(InputError, match="theorems: resi_dual given, but it shows post_ln and pre_ln only"):
        drawing.draw_figure(FIGURES["theorems"], tmp_path, ["resi_dual"])
    with pytest.raises(InputError, match="reviewer-9: b2t given, but it shows resi_dual only"):
        drawing.draw_figure(FIGURES["reviewer-9"], tmp_path, ["b2t"])
    monkeypatch.setattr(drawing.Figure, "points", lambda figure, mode, seed, sizes: [])
    monkeypatch.setattr(drawing, "write_points", lambda *arguments: [])
    drawn = run_here(SCRIPT, "all", "--modes", "b2t", "--seeds", 1, "--output-dir", tmp_path)
    left_out = [line for line in drawn.stderr.splitlines() if "left out" in line]
    assert drawn.returncode == 0
    assert [line.split(": ")[2] for line in left_out] == ["resi_dual-eq5", "theorems", "admin-table-1", "reviewer-9"]


def test_figures_of_which_none_can_be_drawn_are_an_error(tmp_path):
    assert "typo" in refusal(SCRIPT, "all", "--modes", "typo", "--output-dir", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_gradients_of_theorem_1_are_relative_to_the_last_sublayer():
    points = FIGURES["theorems"].points("post_ln", 1, {"layers": 2, "width": 32, "ffn": 32})
    decoder = [p for p in points if (p.panel, p.series) == ("Admin's theorem 1", "post_ln decoder")]
    assert [round(p.x * 6) for p in decoder] == [1, 2, 3, 4, 5, 6]
    assert decoder[0].y < 0.9 and decoder[-1].y == 1.0


def test_a_sublayer_changes_the_output_of_resi_dual_more_than_that_of_pre_ln():
    """Corollaries 3.5 and 3.7: the bound holds although the two parts of the difference are correlated."""
    changes = theory.simulated_output_changes(37, size=20_000)
    assert min(changes) > theory.post_ln_change(1.0)
    assert theory.pre_ln_change(37) < 0.25 * changes[-1]


def test_toy_gradients_vanish_only_with_cross_attention():
    """With sigma^2 = 0.5 the toy decoder of 36 layers falls as the official code's does, from 0.946 to 6.0e-4."""
    assert min(theory.simulated_gradients(True, 72, sigma_squared=0.5)) > 0.5
    vanished = theory.simulated_gradients(True, 108, cross_every=3, sigma_squared=0.5)[0]
    assert vanished == pytest.approx(6.0e-4 / 0.946, rel=0.3)
    assert min(theory.simulated_gradients(False, 108, cross_every=3)) > 0.5


def test_depths_are_those_below_the_largest(monkeypatch):
    monkeypatch.setattr(trained, "final_nll", lambda mode, seed, sizes, lr: 1.0)
    for layers, expected in {18: [6, 12, 18], 50: [6, 12, 18, 36, 50], 2: [2]}.items():
        points = FIGURES["b2t-9"].points("b2t", 1, {"layers": layers, "updates": 1})
        assert [point.x for point in points] == expected


def test_figures_are_listed_without_a_name():
    lines = run(SCRIPT).splitlines()
    assert len(lines) > 20
    assert any(line.startswith("resi_dual-2 ") and "figure 2" in line for line in lines)
    assert "--output-dir: missing" in refusal(SCRIPT, "resi_dual-2")
