"""Units after (or before) a number: known ones convert, contradicting ones make two answers different."""

from __future__ import annotations

import re
from fractions import Fraction

_TABLE = """
length 1/1000 mm millimeter millimetre; length 1/100 cm centimeter centimetre; length 1/10 dm decimeter decimetre
length 1 m meter metre; length 1000 km kilometer kilometre; length 254/10000 in inch; length 3048/10000 ft foot feet
length 9144/10000 yd yard; length 1609344/1000 mi mile; mass 1/1000 mg milligram; mass 1 g gram; mass 1000 kg kilogram
weight 16 lb lbs pound; weight 1 oz ounce; time 1 s sec second; time 60 min minute; time 3600 h hr hour; time 86400 day
time 604800 week; month 1 month; month 12 year yr; volume 1 ml milliliter millilitre; volume 1000 l liter litre
gallon 16 gal gallon; gallon 4 quart qt; gallon 2 pint pt; gallon 1 cup; dollar 100 dollar usd buck; dollar 1 cent penny
euro 1 euro eur; yen 1 yen; yuan 1 yuan rmb; rupee 1 rupee rs; degree 1 degree deg; radian 1 radian rad
force 1 n newton; energy 1 j joule; power 1 w watt; volt 1 v volt; frequency 1 hz hertz; count 12 dozen
"""
"""Dimension, factor to its base unit, names; separated by semicolons."""
KNOWN = {
    name: (entry.split()[0], Fraction(entry.split()[1]))
    for entry in _TABLE.replace("\n", ";").split(";")
    for name in entry.split()[2:]
}
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
    """What the answer's number is multiplied by to be in the gold's unit; None when the units contradict."""
    if gold == NONE or answer == NONE or not (gold[0] or gold[2]) or not (answer[0] or answer[2]):
        return Fraction(1)
    if gold[0] and answer[0]:
        return answer[1] / gold[1] if gold[0] == answer[0] else None
    if not gold[0] and not answer[0]:
        return Fraction(1) if gold[2] <= answer[2] or answer[2] <= gold[2] else None
    return None
