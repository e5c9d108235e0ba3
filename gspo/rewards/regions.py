"""Regions of the real line: unions of intervals and points, from brackets, sets and inequalities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gspo.rewards.nodes import Group, Interval, Leaf, Many, Named, Node, Region, Relation, Word, squeeze

LOW, HIGH = Leaf("-\\infty"), Leaf("\\infty")
LINE = Interval(LOW, HIGH, False, False)
FAR = Fraction(10**400)
"""Stands for infinity where ends are put in order."""


def end(node: Node) -> Leaf | None:
    """An interval's end: infinity in one spelling, or the leaf itself."""
    if not isinstance(node, Leaf):
        return None
    plain = squeeze(node.text)
    return LOW if plain == "-\\infty" else HIGH if plain in ("\\infty", "+\\infty") else node


def place(leaf: Leaf) -> Fraction | None:
    """Where an end lies; None when it is no rational number."""
    return -FAR if leaf == LOW else FAR if leaf == HIGH else leaf.value


def region_of(node: Node) -> Region | None:
    """Brackets, a set, a number or an assignment as a region of the line; None for anything else."""
    if isinstance(node, Region):
        return node
    if isinstance(node, Named):
        inner = None if isinstance(node.body, Word) else region_of(node.body)
        return inner and Region(inner.intervals, inner.points, node.name, node.text)
    if isinstance(node, Group) and len(node.items) == 2:
        low, high = map(end, node.items)
        if low and high and node.opening in "([" and node.closing in ")]":
            return Region((Interval(low, high, node.opening == "[", node.closing == "]"),), ())
    if isinstance(node, Many) and node.braces:
        return Region((), node.items)
    return Region((), (node,)) if isinstance(node, Leaf) else None


def union(nodes: Sequence[Node], text: str) -> Node:
    """One region from several; a Relation where some part is none, or the parts speak of different names."""
    regions = [region for region in map(region_of, nodes) if region]
    names = {region.name for region in regions if region.name}
    if len(regions) < len(nodes) or len(names) > 1:
        return Relation((squeeze(text),), ("\\cup",), text)
    intervals = tuple(piece for region in regions for piece in region.intervals)
    points = tuple(point for region in regions for point in region.points)
    return Region(intervals, points, names.pop() if names else "", text)


def conditions(nodes: Sequence[Node], text: str) -> Region | None:
    """`x > 1, x < 5`: inequalities of one name together; half-lines that do not meet (`x < 1, x > 5`) are a union."""
    regions = [node for node in nodes if isinstance(node, Region)]
    names = {region.name for region in regions}
    if len(regions) < 2 or len(regions) < len(nodes) or len(names) != 1 or any(r.points for r in regions):
        return None
    name = names.pop()
    if all(len(r.intervals) == 2 for r in regions):
        return without([i.low for r in regions for i in r.intervals if i.low != LOW], name, text)
    if len(regions) != 2 or any(len(r.intervals) != 1 for r in regions):
        return None
    first, second = (r.intervals[0] for r in regions)
    if first.low == LOW and second.high == HIGH:
        first, second = second, first
    if not (first.high == HIGH and second.low == LOW):
        return None
    low, high = place(first.low), place(second.high)
    if low is not None and high is not None and low > high:
        return Region((second, first), (), name, text)
    return Region((Interval(first.low, second.high, first.low_closed, second.high_closed),), (), name, text)


def without(points: Sequence[Leaf], name: str, text: str) -> Region | None:
    """The real line less some points; None when their order is not known."""
    if not points or (len(points) > 1 and any(p.value is None for p in points)):
        return None
    edges = [LOW, *sorted(points, key=lambda p: p.value or Fraction(0)), HIGH]
    pieces = tuple(Interval(a, b, False, False) for a, b in itertools.pairwise(edges))
    return Region(pieces, (), name, text)


def merge(region: Region) -> Region:
    """Touching intervals with rational ends joined, points inside or at their ends taken in."""
    pieces = [*region.intervals, *(Interval(p, p, True, True) for p in region.points if isinstance(p, Leaf))]
    known = [(low, high, p) for p in pieces if None not in ((low := place(p.low)), (high := place(p.high)))]
    if len(known) < len(region.intervals) + len(region.points):
        return region
    known = [k for k in known if k[0] < k[1] or (k[0] == k[1] and k[2].low_closed and k[2].high_closed)]  # type: ignore[operator]
    joined: list[tuple[Any, Any, Interval]] = []
    for low, high, piece in sorted(known, key=lambda k: (k[0], not k[2].low_closed)):  # type: ignore[arg-type]
        if joined:
            start, stop, last = joined[-1]
            if low < stop or (low == stop and (piece.low_closed or last.high_closed)):  # type: ignore[operator]
                if (high, piece.high_closed) > (stop, last.high_closed):
                    whole = Interval(last.low, piece.high, last.low_closed, piece.high_closed)
                    joined[-1] = (start, high, whole)
                continue
        joined.append((low, high, piece))
    intervals = tuple(piece for low, high, piece in joined if low != high)
    return Region(intervals, tuple(piece.low for low, high, piece in joined if low == high), region.name, region.text)


def match(right: Sequence[Any], given: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Every member of each has an equal in the other."""
    return all(any(same(r, g) for g in given) for r in right) and all(any(same(r, g) for r in right) for g in given)
