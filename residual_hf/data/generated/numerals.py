# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Numbers, prices, dates and times of day in English and German words; each function returns (English, German)."""

from __future__ import annotations

_ENGLISH = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_GERMAN = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
_ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GERMAN_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")

_ENGLISH_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
                     "nine": "ninth", "twelve": "twelfth"}  # fmt: skip
_GERMAN_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}

MONTHS = (
    ("January", "Januar", 31), ("February", "Februar", 29), ("March", "März", 31), ("April", "April", 30),
    ("May", "Mai", 31), ("June", "Juni", 30), ("July", "Juli", 31), ("August", "August", 31),
    ("September", "September", 30), ("October", "Oktober", 31), ("November", "November", 30),
    ("December", "Dezember", 31),
)  # fmt: skip


def _english(n: int) -> str:
    if n < 20:
        return _ENGLISH[n]
    if n < 100:
        return _ENGLISH_TENS[n // 10] + (f"-{_ENGLISH[n % 10]}" if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    joint = " and " if n % size < 100 else " "
    return f"{_english(n // size)} {name}" + (joint + _english(n % size) if n % size else "")


def _german(n: int, final: bool = True) -> str:
    """`final` tells eins (at the end) from ein (before hundert, tausend or a noun)."""
    if n < 20:
        return "ein" if n == 1 and not final else _GERMAN[n]
    if n < 100:
        return (f"{_german(n % 10, final=False)}und" if n % 10 else "") + _GERMAN_TENS[n // 10]
    size, name = (100, "hundert") if n < 1000 else (1000, "tausend")
    rest = n % size
    many = "" if n // size == 1 else _german(n // size, final=False)
    inner_hundred = "ein" if size == 1000 and 100 <= rest < 200 else ""
    return many + name + (inner_hundred + _german(rest, final) if rest else "")


def cardinal(n: int) -> tuple[str, str]:
    """0 to 999999: 21 -> (twenty-one, einundzwanzig), 2300 -> (two thousand three hundred, zweitausenddreihundert)."""
    return _english(n), _german(n)


def ordinal(n: int) -> tuple[str, str]:
    """1 to 99; the German is the stem that adjective endings join: 3 -> (third, dritt)."""
    head, dash, last = _english(n).rpartition("-")
    if last in _ENGLISH_ORDINALS:
        last = _ENGLISH_ORDINALS[last]
    else:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return head + dash + last, _GERMAN_ORDINALS.get(n) or _german(n) + ("t" if n < 20 else "st")


def price(euros: int, cents: int = 0) -> tuple[str, str]:
    """A price in the accusative: (twenty-one euros fifty, einundzwanzig Euro fünfzig)."""
    en, de = cardinal(euros)
    english, german = (f"{en} euros", f"{de} Euro") if euros != 1 else ("one euro", "einen Euro")
    if cents:
        en, de = cardinal(cents)
        english, german = f"{english} {en}", f"{german} {de}"
    return english, german


def date(day: int, month: int, ending: str) -> tuple[str, str]:
    """Day of the month, `month` from 1: (the third of May, dritten Mai), the German without its article."""
    english, german, _ = MONTHS[month - 1]
    en, de = ordinal(day)
    return f"the {en} of {english}", f"{de}{ending} {german}"


def clock(hour: int, minute: int) -> tuple[str, str]:
    """A time of day on the twelve-hour clock, in steps of five minutes: (half past seven, halb acht).

    Minutes 25 and 35 have no short German name and are refused by a KeyError.
    """
    after = hour % 12 + 1
    if minute == 0:
        return f"{_english(hour)} o'clock", f"{_german(hour, final=False)} Uhr"
    if minute == 30:
        return f"half past {_english(hour)}", f"halb {_german(after)}"
    en, de = {5: ("five", "fünf"), 10: ("ten", "zehn"), 15: ("a quarter", "Viertel"), 20: ("twenty", "zwanzig")}[
        min(minute, 60 - minute)
    ]
    if minute < 30:
        return f"{en} past {_english(hour)}", f"{de} nach {_german(hour)}"
    return f"{en} to {_english(after)}", f"{de} vor {_german(after)}"
