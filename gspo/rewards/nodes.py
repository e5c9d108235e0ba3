"""The shapes an answer can have, and the text functions that find them; structure.py reads, compare.py judges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gspo.rewards.answers import group_end
from gspo.rewards.units import NONE, Unit

OPENING, CLOSING = "([{", ")]}"
OPEN_MACROS, CLOSE_MACROS = ("\\{", "\\langle", "\\lfloor", "\\lceil"), ("\\}", "\\rangle", "\\rfloor", "\\rceil")


@dataclass(frozen=True, slots=True)
class Nothing:
    """No answer at all."""

    why: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A number or an expression without structure of its own."""

    text: str
    value: Fraction | None = None
    unit: Unit = NONE
    percent: bool = False
    big: str | None = None
    """Why its value must not be worked out."""
    undefined: bool = False
    """Divides by zero."""


@dataclass(frozen=True, slots=True)
class Word:
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A letter, with what stands behind it."""

    letter: str
    content: Node | None


@dataclass(frozen=True, slots=True)
class Many:
    """A list or a set: order and repeats do not count."""

    items: tuple[Node, ...]
    braces: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Bracketed items in order: a tuple, or an interval when there are two."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`x = body`, `f(x) = body`, `x in body`."""

    name: str
    body: Node
    text: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of =, <, ... that is neither an assignment nor an interval."""

    parts: tuple[str, ...]
    ops: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Congruence:
    """`name = residue (mod modulus)`."""

    name: str
    residues: tuple[Node, ...]
    modulus: Leaf


@dataclass(frozen=True, slots=True)
class Interval:
    low: Leaf
    high: Leaf
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A union of intervals and points; `name` is the variable of the inequality it came from, or empty."""

    intervals: tuple[Interval, ...]
    points: tuple[Node, ...]
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a named base."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """`a:b:c`, or a clock time."""

    items: tuple[Node, ...]
    text: str


Node = Nothing | Leaf | Word | Choice | Many | Group | Named | Relation | Congruence | Region | Matrix | Based | Ratio


def squeeze(text: str) -> str:
    """The text without blanks that mean nothing, to compare spellings."""
    text = re.sub(r"\\text\{\s*([^{}]*?)\s*\}", lambda m: f"\\text{{{fold(m.group(1))}}}", text)
    return re.sub(r"\s+", "", text)


def fold(word: str) -> str:
    """Words without case; short capital names (`AB`) keep theirs."""
    if re.fullmatch(r"[A-Z]{2,4}", word) and word not in ("YES", "NO", "TRUE", "ODD", "EVEN", "NONE"):
        return word
    return word.casefold()


def split(text: str, separators: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Parts at bracket depth 0, and the separators between them."""
    parts, found, depth, begun, i = [], [], 0, 0, 0
    while i < len(text):
        token = next((s for s in separators if depth == 0 and text.startswith(s, i)), "")
        if token:
            parts.append(text[begun:i])
            found.append(token)
            i = begun = i + len(token)
            continue
        if text[i] == "\\":
            depth += text.startswith(("\\begin{", *OPEN_MACROS), i) - text.startswith(("\\end{", *CLOSE_MACROS), i)
            i += 2
            continue
        depth += (text[i] in OPENING) - (text[i] in CLOSING)
        i += 1
    return [*parts, text[begun:]], found


def trim(text: str) -> str:
    """Without outer blanks, closing punctuation and braces around the whole."""
    while True:
        text = text.strip(" ~")
        if text.endswith((",", ";")) or (text.endswith(".") and len(text) > 1):
            text = text[:-1]
        elif text.startswith("{") and group_end(text, 0) == len(text):
            text = text[1:-1]
        else:
            return text


def balanced(text: str) -> bool:
    """Whether every bracket that closes was opened inside the text."""
    depth = 0
    for ch in text:
        depth += (ch in OPENING) - (ch in CLOSING)
        if depth < 0:
            return False
    return depth == 0
