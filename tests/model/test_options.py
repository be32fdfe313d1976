from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from residual_hf.model.options import Settings, describe_option, from_mapping, option


@dataclass(frozen=True)
class Engine(Settings):
    power: int = option(minimum=1, help="in kW")
    fuel: str | None = option("gas", choices=("gas", "wood"), help="what it burns")


@dataclass(frozen=True)
class Car(Settings):
    engine: Engine = option(help="what drives it")
    spares: tuple[Engine, ...] = option((), help="further engines")
    seats: int | Literal["auto"] = option(4, minimum=1, help="number of seats")
    price: float | None = option(None, above=0, below=1e6, help="in euros")
    gears: tuple[float, float] = option((0.1, 0.2), minimum=0, maximum=1, help="lowest and highest")
    manual: str | Path | None = option(None, help="file")
    radio: bool = option(True, help="with a radio")
    extras: dict = option({}, help="anything else")

    def check(self) -> None:
        self.require(self.radio or self.engine.power > 1, "engine.power", "> 1 without a radio")


ENGINE = {"power": 50, "fuel": None}


def test_plain_values_become_typed_ones():
    car = from_mapping(Car, {"engine": ENGINE, "spares": {"power": 3}, "gears": [0, 0.1], "price": 5})
    assert car == Car(Engine(50, None), (Engine(3),), gears=(0.0, 0.1), price=5.0)
    assert [type(number) for number in (*car.gears, car.price)] == [float] * 3
    assert from_mapping(Car, {"engine": ENGINE, "seats": "auto"}).seats == "auto"
    assert Car(ENGINE, seats=np.int64(2), manual=Path("a")) == Car(Engine(50, None), seats=2, manual=Path("a"))


@pytest.mark.parametrize("kind", [float | None, "float | None"])
def test_options_are_described_whether_or_not_annotations_are_evaluated(kind):
    (field,) = fields(make_dataclass("Options", [("alpha", kind, option(None, minimum=1.0))]))
    assert describe_option(field) == "alpha: float | None = None (>= 1)"


def test_mappings_are_not_shared():
    assert Car(ENGINE).extras is not Car(ENGINE).extras


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "car.engine: missing, must be a mapping of fields"),
        ({"engine": 7}, "car.engine: 7 given, must be a mapping of fields"),
        ({"engine": {"power": 0}}, "car.engine.power: 0 given, must be an integer >= 1"),
        ({"engine": {"power": 2**63}}, "car.engine.power: 9223372036854775808 given, must be an integer >= 1"),
        ({"price": 1e300}, "car.price: 1e+300 given, must be a number > 0 and < 1000000 or null"),
        ({"engine": {"power": 1.0}}, "car.engine.power: 1.0 given, must be an integer >= 1"),
        ({"engine": {"power": True}}, "car.engine.power: true given, must be an integer >= 1"),
        ({"spares": [ENGINE, {"power": "x"}]}, "car.spares[1].power: 'x' given, must be an integer >= 1"),
        (
            {"engine": {"power": 1, "fuel": "water"}},
            "car.engine.fuel: 'water' given, must be one of 'gas', 'wood' or null",
        ),
        ({"engine": {"powre": 1}}, "car.engine.powre: unknown field; did you mean 'power'?"),
        ({"engine": {"x": 1}}, "car.engine.x: unknown field; known: power, fuel"),
        ({"seats": "many"}, "car.seats: 'many' given, must be an integer >= 1 or 'auto'"),
        ({"price": 0}, "car.price: 0 given, must be a number > 0 and < 1000000 or null"),
        ({"price": float("nan")}, "car.price: nan given, must be a number > 0 and < 1000000 or null"),
        ({"gears": [0.5]}, "car.gears: [0.5] given, must be a list of 2, each a number >= 0 and <= 1"),
        ({"gears": [0.5, 2]}, "car.gears: [0.5, 2] given, must be a list of 2, each a number >= 0 and <= 1"),
        ({"manual": " "}, "car.manual: ' ' given, must be a path or null"),
        ({"radio": "no"}, "car.radio: 'no' given, must be true or false"),
        ({"radio": None}, "car.radio: missing, must be true or false"),
        ({"engine": {"power": 1}, "radio": False}, "car.engine.power: 1 given, must be > 1 without a radio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_the_field_the_value_and_what_is_allowed(values, message):
    if values and isinstance(values, dict):
        values = {"engine": ENGINE, **values}
    with pytest.raises(ValueError) as error:
        from_mapping(Car, values, "car.")
    assert str(error.value) == message


def test_settings_are_checked_however_they_are_made():
    with pytest.raises(ValueError, match="^power: 0 given"):
        Engine(0)
    with pytest.raises(ValueError, match="^seats: 0 given"):
        replace(Car(ENGINE), seats=0)
