"""Equations and inequalities: which are assignments, which are regions of the line, which stay relations."""

from __future__ import annotations

import re
from collections.abc import Callable

from gspo.rewards import regions
from gspo.rewards.nodes import (
    Congruence,
    Group,
    Interval,
    Leaf,
    Many,
    Named,
    Node,
    Nothing,
    Region,
    Relation,
    squeeze,
    trim,
)

Read = Callable[[str], Node]
FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne"}
TEXT = re.compile(r"\\text\{([^{}]*)\}")
NAMELESS = re.compile(
    r"_(?:\{[^{}]*\}|\w)|'|\^\\circ|\\(?:angle|triangle|overline|overrightarrow|frac|mathbb|alpha|beta|gamma|delta|epsilon|theta|"
    r"lambda|mu|nu|rho|sigma|tau|omega|phi|psi|Delta|Omega)(?![A-Za-z])"
)
CONGRUENCE = re.compile(
    r"(.*?)\\equiv (.*?),?\s*(?:\(|\\)?\s*\\(?:pmod|bmod|mod|text\{mod\})\s*(?:\{(.*)\}|(\w+))\s*\)?", re.DOTALL
)


def is_name(text: str) -> bool:
    """A single thing that can be given a value: `x`, `x_{1}`, `f(x)`, `|AB|`, `(p,q)`, `\\angle A`, `S_{1}:S_{2}`."""
    text = TEXT.sub(lambda m: "T" if re.fullmatch(r"[A-Z]+", m.group(1)) else m.group(1), text)
    bare = re.sub(r"(?<=[A-Za-z])\([-+A-Za-z0-9,. ]*\)", "", NAMELESS.sub(" ", text))
    return bool(re.search(r"[A-Za-z]", text)) and bool(re.fullmatch(r"[A-Za-z(){},:|\s]*", bare))


def is_constant(text: str) -> bool:
    """No variable in it: digits, operators, pi, e, i and roots only."""
    bare = re.sub(r"\\text\{[^{}]*\}|\\[A-Za-z]+|(?<![A-Za-z])[ei](?![A-Za-z])", "", text)
    number = re.search(r"\d|\\pi|\\infty|(?<![A-Za-z])[ei](?![A-Za-z])", text)
    return bool(number) and not re.search(r"[A-Za-z]", bare)


def relation(parts: list[str], ops: list[str], text: str, read: Read) -> Node:
    """The node of a chain `parts[0] ops[0] parts[1] ...`."""
    parts = [trim(part) for part in parts]
    if not all(parts):
        return Nothing("a relation with an empty side")
    if "\\approx" in ops:
        first = ops.index("\\approx")
        if first > 0 or is_constant(parts[0]):
            parts, ops = parts[: first + 1], ops[:first]
        else:
            ops = ["=" if op == "\\approx" else op for op in ops]
        if not ops:
            return read(parts[0])
    if ops == ["\\in"]:
        body = read(parts[1])
        single = isinstance(body, Group) and "," not in parts[0]
        return Named(squeeze(parts[0]), (single and regions.region_of(body)) or body, text)
    if all(op == "=" for op in ops):
        return _equation(parts, text, read)
    return _inequality(parts, ops, text, read) or Relation(tuple(map(squeeze, parts)), tuple(ops), text)


def _equation(parts: list[str], text: str, read: Read) -> Node:
    leaves = [leaf for leaf in map(read, parts) if isinstance(leaf, Leaf)]
    values = [leaf.value / 100 if leaf.percent else leaf.value for leaf in leaves if leaf.value is not None]
    if any(value != values[0] for value in values[1:]):
        return Nothing("a chain of equalities that contradicts itself")
    if len(parts) == 2 and is_constant(parts[0]) and is_name(parts[1]) and not is_name(parts[0]):
        parts = parts[::-1]
    if is_name(parts[0]) and not is_constant(parts[0]):
        return Named(squeeze(parts[0]), read(parts[-1]), text)
    if len(values) == len(parts):
        return read(parts[-1])
    return Relation(tuple(map(squeeze, parts)), ("=",) * (len(parts) - 1), text)


def _inequality(parts: list[str], ops: list[str], text: str, read: Read) -> Region | None:
    """`a < x <= b`, `x >= a`, `a > x`, `x != a` for constants a, b and one name x."""
    if not all(op in FLIPPED for op in ops):
        return None
    if len(parts) == 2 and is_name(parts[1]) and is_constant(parts[0]):
        parts, ops = parts[::-1], [FLIPPED[ops[0]]]
    if len(parts) == 2 and is_name(parts[0]):
        name = squeeze(parts[0])
        bound = read(parts[1]) if is_constant(parts[1]) else None
        if ops[0] == "\\ne" and bound:
            items = bound.items if isinstance(bound, Many) else (bound,)
            return regions.without([item for item in items if isinstance(item, Leaf)], name, text)
        edge = regions.end(bound) if bound else None
        if edge is None:
            return None
        closed = ops[0] in ("\\le", "\\ge")
        below = ops[0] in ("<", "\\le")
        piece = Interval(regions.LOW, edge, False, closed) if below else Interval(edge, regions.HIGH, closed, False)
        return Region((piece,), (), name, text)
    if len(parts) == 3 and is_name(parts[1]) and is_constant(parts[0]) and is_constant(parts[2]):
        if all(op in (">", "\\ge") for op in ops):
            parts, ops = parts[::-1], [FLIPPED[op] for op in reversed(ops)]
        low, high = regions.end(read(parts[0])), regions.end(read(parts[2]))
        if low and high and all(op in ("<", "\\le") for op in ops):
            return Region((Interval(low, high, ops[0] == "\\le", ops[1] == "\\le"),), (), squeeze(parts[1]), text)
    return None


def congruence(text: str, read: Read) -> Congruence | None:
    """`n \\equiv 1 \\pmod 5`; None for any other text."""
    found = CONGRUENCE.fullmatch(text) if "\\equiv" in text else None
    if not found or "\\equiv" in found.group(2):
        return None
    residues, modulus = read(found.group(2)), read(found.group(3) or found.group(4))
    items = residues.items if isinstance(residues, Many) else (residues,)
    return Congruence(squeeze(found.group(1)), tuple(items), modulus) if isinstance(modulus, Leaf) else None
