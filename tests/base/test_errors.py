import pytest

from residual_hf.base.errors import InputError, requires


def test_control_characters_are_escaped():
    name = "a\x1b[2Jb\rc\u202ed\ue000\ud800ü漢\ne"
    assert str(InputError(f"{name}: no such file")) == "a\\x1b[2Jb\\rc\\u202ed\\ue000\\ud800ü漢\ne: no such file"


def test_a_package_of_another_version_is_not_missing():
    with (
        pytest.raises(InputError, match=r"nowhere is not installed: pip install 'residual_hf\[serve\]'"),
        requires("serve"),
    ):
        import nowhere  # noqa: F401
    with pytest.raises(InputError, match="cannot import name 'nothing' .*: pip install --upgrade"), requires("serve"):
        from json import nothing  # noqa: F401
