"""Units after (or before) a number: known ones convert, contradicting ones make two answers different."""

from __future__ import annotations

import re
from fractions import Fraction

_TABLE: dict[str, tuple[str, int | str]] = {
    "mm millimeter millimetre": ("length", "1/1000"), "cm centimeter centimetre": ("length", "1/100"), "dm decimeter": ("length", "1/10"),
    "m meter metre": ("length", 1), "km kilometer kilometre": ("length", 1000), "in inch inche": ("length", "254/10000"),
    "ft foot feet": ("length", "3048/10000"), "yd yard": ("length", "9144/10000"), "mi mile": ("length", "1609344/1000"),
    "mg milligram": ("mass", "1/1000"), "g gram": ("mass", 1), "kg kilogram": ("mass", 1000), "lb lbs pound": ("weight", 16), "oz ounce": ("weight", 1),
    "s sec second": ("time", 1), "min minute": ("time", 60), "h hr hour": ("time", 3600), "day": ("time", 86400), "week": ("time", 604800),
    "month": ("month", 1), "year yr": ("month", 12), "ml milliliter millilitre": ("volume", 1), "l liter litre": ("volume", 1000),
    "gal gallon": ("gallon", 16), "quart qt": ("gallon", 4), "pint pt": ("gallon", 2), "cup": ("gallon", 1),
    "dollar usd buck": ("dollar", 100), "cent": ("dollar", 1), "euro eur": ("euro", 1), "yen": ("yen", 1), "yuan rmb": ("yuan", 1), "rupee rs": ("rupee", 1),
    "degree deg": ("degree", 1), "radian rad": ("radian", 1), "mph": ("speed", 1), "n newton": ("force", 1), "j joule": ("energy", 1),
    "w watt": ("power", 1), "v volt": ("volt", 1), "hz hertz": ("frequency", 1), "dozen": ("count", 12),
}  # fmt: skip
KNOWN = {name: (dim, Fraction(factor)) for names, (dim, factor) in _TABLE.items() for name in names.split()}
EMPTY = {
    "unit",
    "square",
    "sq",
    "cubic",
    "of",
    "the",
    "a",
    "an",
    "per",
    "each",
    "approximately",
    "about",
    "exactly",
    "only",
    "total",
    "in",
}

Unit = tuple[tuple[tuple[str, int], ...], Fraction, frozenset[str]]
"""Dimensions with powers, factor to the base unit, and words that are no known unit."""
NONE: Unit = ((), Fraction(1), frozenset())


def _stem(word: str) -> str:
    word = word.lower().rstrip(".")
    if word in KNOWN:
        return word
    for ending, to in (("ches", "ch"), ("ies", "y"), ("s", "")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word[: -len(ending)] + to
    return word


def read_unit(text: str) -> Unit:
    """`cm^2`, `square feet`, `km/h`, `miles per hour`, `apples` as dimensions, factor and unknown words."""
    dims: dict[str, int] = {}
    factor, unknown, sign, power = Fraction(1), set[str](), 1, 1
    text = (
        text.replace("\\circ", "degree")
        .replace("mph", "mile/hour")
        .replace("kmph", "km/hour")
        .replace("kph", "km/hour")
    )
    for token in re.finditer(r"/|([A-Za-z.']+)(?:\s*\^?\s*\{?(-?[1-4])\}?)?", text):
        if token.group(0) == "/":
            sign = -1
            continue
        word = _stem(token.group(1))
        if word == "per":
            sign = -1
        elif word in ("square", "sq", "squared"):
            power = 2
        elif word in ("cubic", "cubed"):
            power = 3
        elif word in KNOWN:
            exponent = sign * (int(token.group(2)) if token.group(2) else power)
            dim, size = KNOWN[word]
            dims[dim] = dims.get(dim, 0) + exponent
            factor *= size**exponent
            power = 1
        elif word not in EMPTY:
            unknown.add(word)
    return tuple(sorted((d, p) for d, p in dims.items() if p)), factor, frozenset(unknown)


def conversion(gold: Unit, answer: Unit) -> Fraction | None:
    """What the answer's number is multiplied by before it is compared with the gold's; None when the units contradict."""
    if gold == NONE or answer == NONE or not (gold[0] or gold[2]) or not (answer[0] or answer[2]):
        return Fraction(1)
    if gold[0] and answer[0]:
        return answer[1] / gold[1] if gold[0] == answer[0] else None
    if not gold[0] and not answer[0]:
        return Fraction(1) if gold[2] <= answer[2] or answer[2] <= gold[2] else None
    return None
