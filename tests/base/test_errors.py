from residual_hf.base.errors import InputError


def test_control_characters_are_escaped():
    name = "a\x1b[2Jb\rc\u202ed\ue000\ud800ü漢\ne"
    assert str(InputError(f"{name}: no such file")) == "a\\x1b[2Jb\\rc\\u202ed\\ue000\\ud800ü漢\ne: no such file"
