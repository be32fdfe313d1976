import re

import pytest

from residual_hf.base.errors import InputError
from residual_hf.base.yaml_files import MAX_DEPTH, MAX_VALUES, dump_yaml, load_yaml, read_yaml

TEN_TIMES = [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, 10)]
MERGED = [f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 10)}]}}" for i in range(1, 10)]


def test_anchors_aliases_and_merge_keys_are_read():
    text = "a: &corpus {source: a.de, target: a.en}\nb: {<<: *corpus, target: b.en}\nc: [*corpus]\n"
    corpus = {"source": "a.de", "target": "a.en"}
    assert load_yaml(text) == {"a": corpus, "b": {"source": "a.de", "target": "b.en"}, "c": [corpus]}
    assert load_yaml("[1e-5, 5E3, 1e5x, 1.0e2, .5e1, 1.e3]") == [1e-5, 5e3, "1e5x", 100.0, 5.0, 1000.0]


def test_long_text_that_begins_like_a_number_is_read_in_linear_time():
    text = "1" * 500_000 + "x"
    assert load_yaml(f"a: {text}") == {"a": text}


def test_text_that_looks_like_a_number_is_written_as_text():
    values = {"output_dir": "3e-4", "name": "1e6", "lr": 3e-4, "title": "zwölf", "epochs": None}
    assert load_yaml(dump_yaml(values)) == values and [*load_yaml(dump_yaml(values))] == [*values]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "line 5, column 3: 'c' is given twice, first in line 3"),
        ("\n".join(["x0: &x0 [laugh]", *TEN_TIMES]), f"line 5, .*more than {MAX_VALUES:,} values"),
        ("\n".join(["x0: &x0 {laugh: 1}", *MERGED]), f"line 5, .*more than {MAX_VALUES:,} values"),
        ("a: 1\nb: &b [1, *b]", r"line 2, column 11: \*b is used inside the value that it names"),
        ("[" * 100_000, f"line 1, column {MAX_DEPTH + 1}: nested more than {MAX_DEPTH} levels deep"),
        ("- " * 5_000, f"line 1, .*nested more than {MAX_DEPTH} levels deep"),
        ("a: 1\nb: 2026-13-41", "line 2, column 4: month must be in 1..12"),
        ("a: " + "1" * 1_001, "line 1, column 4: a number of more than 1,000 characters"),
        ("a: " + "1:" * 200_000 + "1", "line 1, column 4: a number of more than 1,000 characters"),
        ("a: !!float '" + "1:" * 2_000 + "1.0'", "line 1, column 4: a number of more than 1,000 characters"),
        ("a: " + "1:" * 400 + "1.0", "line 1, column 4: .* is a number to base 60 or 8 in YAML 1.1"),
        ("a: 8:00:00", "line 1, column 4: 8:00:00 is a number to base 60 or 8 in YAML 1.1; write a decimal"),
        ("a: -010", "line 1, column 4: -010 is a number"),
        ("a: 010", "line 1, column 4: 010 is a number to base 60 or 8 in YAML 1.1"),
        ("a: !!bool never", "line 1, column 4: KeyError: 'never'"),
        ("a: !!timestamp never", "line 1, column 4: AttributeError: "),
        ("#" * (2**20 + 1), "has 1,048,577 characters, must have at most 1,048,576"),
        ('a: "x\\0y"', r"line 1, column 4: text with \\0"),
        ('a: "\\ud800"', "line 1, column 4: .* surrogate pair"),
        ("a: [", "not a YAML file: line 1, column 5: "),
        ("a: !!python/object/apply:os.system [ls]", "not a YAML file: line 1, column 4: could not determine"),
        ("a: \x00", "not a YAML file: unacceptable character"),
    ],
    ids=lambda value: value[:12] if len(value) > 60 else value,
)
def test_text_that_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError, match=f"^{message}"):
        load_yaml(text)
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / 'a.yaml'))}: {message}"):
        read_yaml(tmp_path / "a.yaml")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(InputError, match="huge.yaml: has 256 MiB, must have at most 256"):
        read_yaml(tmp_path / "huge.yaml")
    (tmp_path / "utf16.yaml").write_text("a: 1", encoding="utf-16")
    for name, message in (("no.yaml", "no such file"), ("utf16.yaml", "not a UTF-8 file"), (".", "cannot be read")):
        with pytest.raises(InputError, match=message):
            read_yaml(tmp_path / name)
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(InputError, match=f"is a folder, must be a file such as {tmp_path}/recipe.yaml"):
        read_yaml(tmp_path, "recipe.yaml")
