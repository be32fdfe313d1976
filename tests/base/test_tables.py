import pytest

from residual_hf.base.tables import duration, figure


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7000, "117 min"), (3e5, "3 days"), (9000, "2 h")],
)
def test_duration_in_a_unit_of_which_there_are_two(seconds, text):
    assert duration(seconds) == text


def test_numbers_are_plain():
    assert [figure(value) for value in (0.0312512, 2.5, 9999.4, 9999.6, 12314.4, 1.74e9)] == [
        "0.03125", "2.5", "9999", "10,000", "12,314", "1,740,000,000",
    ]  # fmt: skip
    assert (figure(float("nan")), figure(float("inf")), figure(-20000.0)) == ("nan", "inf", "-20,000")
