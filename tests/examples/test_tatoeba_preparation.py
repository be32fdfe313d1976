"""The script that cuts Tatoeba into train, validation and test."""

from support import ROOT
from support.example_scripts import run
from support.processes import run_forked

from residual_hf.data.text_files import iter_lines

PREPARE = ROOT / "examples" / "tatoeba_de_en" / "prepare.py"


def test_no_sentence_is_in_two_parts(tmp_path):
    """Hello 1 has two translations, one of them (in other case) of Hello 2 too: the three pairs stay together."""
    lines = [f"Hello {n // 2}.\tHallo {n}.\tCC-BY 2.0 (France)" for n in range(200)]
    lines += [f"HELLO {n}.\tHallo {2 * n + 2}.\tCC-BY" for n in range(0, 99, 2)]
    (tmp_path / "deu.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(PREPARE, tmp_path / "deu.txt", tmp_path / "a", "--held-out", 20)
    run_forked(PREPARE, tmp_path / "deu.txt", tmp_path / "b", "--held-out", 20)  # there sets have another order
    parts = {}
    for name in ("train", "valid", "test"):
        sides = [list(iter_lines(tmp_path / "a" / f"{name}.{language}.gz")) for language in ("de", "en")]
        assert [list(iter_lines(tmp_path / "b" / f"{name}.{language}.gz")) for language in ("de", "en")] == sides
        parts[name] = list(zip(*sides, strict=True))
    assert sum(map(len, parts.values())) == 250
    assert 15 <= len(parts["valid"]) <= 20 and 15 <= len(parts["test"]) <= 20
    for side in (0, 1):
        train, valid, test = ({pair[side].lower() for pair in parts[name]} for name in parts)
        assert not train & valid and not train & test and not valid & test
