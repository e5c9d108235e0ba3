"""Whether two answers are the same, node by node; leaves that are no plain numbers go to `symbolic`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from gspo.rewards.structure import (
    Based,
    Choice,
    Group,
    Interval,
    Leaf,
    Many,
    Matrix,
    Named,
    Node,
    Nothing,
    Ratio,
    Region,
    Relation,
    Word,
    read,
    region_of,
    squeeze,
)
from gspo.rewards.units import conversion

Symbolic = Callable[[str, str], bool]
"""(gold, answer) as LaTeX -> equal; raises what the caller counts as a verifier failure."""


@dataclass(slots=True)
class Comparer:
    symbolic: Symbolic

    def same(self, gold: Node, answer: Node) -> bool:
        """Whether `answer` is `gold`."""
        if isinstance(gold, Nothing) or isinstance(answer, Nothing):
            return False
        if isinstance(gold, Choice) or isinstance(answer, Choice):
            return self.choices(gold, answer)
        if isinstance(gold, Named) or isinstance(answer, Named):
            return self.named(gold, answer)
        if isinstance(gold, Region) or isinstance(answer, Region):
            return self.regions(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self.relations(gold, answer)
        if isinstance(gold, Many) or isinstance(answer, Many):
            return self.lists(gold, answer)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self.matrices(gold, answer)
        if isinstance(gold, Group) or isinstance(answer, Group):
            return self.groups(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self.ratios(gold, answer)
        if isinstance(gold, Based) or isinstance(answer, Based):
            return based(gold, answer)
        if isinstance(gold, Word) or isinstance(answer, Word):
            return words(gold, answer)
        return self.leaves(gold, answer)

    def choices(self, gold: Node, answer: Node) -> bool:
        def letter(node: Node) -> str | None:
            if isinstance(node, Choice):
                return node.letter
            text = node.text.strip("()") if isinstance(node, Leaf | Word) else ""
            return (
                text.upper()
                if re.fullmatch(r"[A-J]", text.upper()) and (isinstance(node, Word) or text.isupper())
                else None
            )

        right, given = letter(gold), letter(answer)
        if right and given:
            if right != given:
                return False
            if isinstance(gold, Choice) and isinstance(answer, Choice) and gold.content and answer.content:
                return self.same(gold.content, answer.content)
            return True
        if right:
            return isinstance(gold, Choice) and gold.content is not None and self.same(gold.content, answer)
        return isinstance(answer, Choice) and answer.content is not None and self.same(gold, answer.content)

    def named(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Named) and isinstance(answer, Named):
            if gold.name == answer.name or "," in gold.name or "," in answer.name:
                return self.same(gold.body, answer.body)
            if constant_body(gold) or constant_body(answer):
                return False
            return self.symbolic(gold.text, answer.text)
        if isinstance(gold, Named):
            if isinstance(answer, Relation):
                return not constant_body(gold) and self.symbolic(gold.text, answer.text)
            if isinstance(answer, Region) and answer.name and answer.name != gold.name:
                return False
            return self.same(gold.body, answer)
        assert isinstance(answer, Named)
        if isinstance(gold, Relation):
            return gold.ops == ("=",) and not constant_body(answer) and self.symbolic(gold.text, answer.text)
        if isinstance(gold, Region) and gold.name and answer.name != gold.name:
            return False
        return self.same(gold, answer.body)

    def relations(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            if (gold.parts, gold.ops) == (answer.parts, answer.ops):
                return True
            if len(gold.ops) != 1 or len(answer.ops) != 1 or "\\c" in gold.ops[0] + answer.ops[0]:
                return False
            return self.symbolic(gold.text, answer.text)
        if isinstance(answer, Relation) and isinstance(gold, Leaf) and set(answer.ops) == {"="}:
            last = read(answer.parts[-1])
            letters = any(re.search(r"[A-Za-z]", part) for part in answer.parts[:-1])
            return letters and isinstance(last, Leaf) and last.value != 0 and self.same(gold, last)
        return False

    def lists(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Group) and isinstance(answer, Many):
            if answer.braces:
                return False
            items = answer.items
            if all(isinstance(item, Named) for item in items) and len({i.name for i in items}) == len(items):  # type: ignore[union-attr]
                items = tuple(i.body for i in sorted(items, key=lambda i: i.name))  # type: ignore[union-attr]
            return self.in_order(gold.items, items)
        if isinstance(gold, Many) and isinstance(answer, Group):
            if gold.braces:
                return False
            names = [item.name for item in gold.items if isinstance(item, Named)]
            if names and len(names) == len(gold.items) and len(set(names)) == len(names):
                return self.in_order(tuple(i.body for i in sorted(gold.items, key=lambda i: i.name)), answer.items)  # type: ignore[union-attr]
            return answer.closing in (")", "]") and self.in_order(gold.items, answer.items)
        if isinstance(gold, Many):
            right = gold.items
            given = answer.items if isinstance(answer, Many) else self.as_list(answer) or (answer,)
        else:
            assert isinstance(answer, Many)
            if not answer.braces or len(answer.items) != 1:
                return False
            return self.same(gold, answer.items[0])
        if len(right) > 200 or len(given) > 200:
            return False
        return all(any(self.same(r, g) for g in given) for r in right) and all(
            any(self.same(r, g) for r in right) for g in given
        )

    def as_list(self, node: Node) -> tuple[Node, ...] | None:
        """`100,200` read as two numbers, where the gold is a list."""
        if isinstance(node, Leaf) and re.fullmatch(r"-?\d{1,3}(?:,[1-9]\d{2})+", node.text):
            return tuple(read(part) for part in node.text.split(","))
        return None

    def in_order(self, right: tuple[Node, ...], given: tuple[Node, ...]) -> bool:
        return len(right) == len(given) and all(self.same(r, g) for r, g in zip(right, given, strict=True))

    def groups(self, gold: Node, answer: Node) -> bool:
        if not (isinstance(gold, Group) and isinstance(answer, Group)):
            return False
        brackets = (gold.opening, gold.closing) == (answer.opening, answer.closing)
        return (brackets or len(gold.items) > 2) and self.in_order(gold.items, answer.items)

    def matrices(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            return len(gold.rows) == len(answer.rows) and all(
                self.in_order(r, g) for r, g in zip(gold.rows, answer.rows, strict=True)
            )
        matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        assert isinstance(matrix, Matrix)
        if isinstance(other, Group) and other.closing == ")":
            cells = tuple(cell for row in matrix.rows for cell in row)
            if len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows):
                return self.in_order(cells, other.items) if matrix is gold else self.in_order(other.items, cells)
        return False

    def ratios(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            if len(gold.items) != len(answer.items):
                return False
            if self.in_order(gold.items, answer.items):
                return True
            clock = re.compile(r"\d{1,2}:[0-5]\d")
            if clock.fullmatch(gold.text) or clock.fullmatch(answer.text):
                return False
            values = [[item.value for item in ratio.items if isinstance(item, Leaf)] for ratio in (gold, answer)]
            right, given = ([v for v in side if v] for side in values)
            if len(right) != len(gold.items) or len(given) != len(gold.items):
                return False
            return all(r * given[0] == g * right[0] for r, g in zip(right, given, strict=True))
        ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
        assert isinstance(ratio, Ratio)
        if isinstance(other, Leaf) and other.value is not None and len(ratio.items) == 2:
            top, bottom = (item.value if isinstance(item, Leaf) else None for item in ratio.items)
            return (
                "/" in other.text + "/" * other.text.count("\\frac")
                and top is not None
                and bool(bottom)
                and top / bottom == other.value
            )  # type: ignore[operator]
        return False

    def regions(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            texts = [node.text for node in (gold, answer) if isinstance(node, Relation | Region)]
            one = all(len(re.findall(r"<|>|\\le |\\ge |\\ne ", text)) == 1 for text in texts)
            return one and len(texts) == 2 and self.symbolic(texts[0], texts[1])
        right, given = region_of(gold), region_of(answer)
        if right is None or given is None:
            return False
        if not (right.intervals or given.intervals) and isinstance(gold, Leaf) != isinstance(answer, Leaf):
            return False
        if right.name and given.name and right.name != given.name:
            return False
        a, b = merge(right), merge(given)
        pieces = match(a.intervals, b.intervals, self.intervals)
        return pieces and match(a.points, b.points, self.same)

    def intervals(self, gold: Interval, answer: Interval) -> bool:
        closed = (gold.low_closed, gold.high_closed) == (answer.low_closed, answer.high_closed)
        return closed and self.leaves(gold.low, answer.low) and self.leaves(gold.high, answer.high)

    def leaves(self, gold: Node, answer: Node) -> bool:
        if not (isinstance(gold, Leaf) and isinstance(answer, Leaf)):
            return False
        if gold.undefined or answer.undefined:
            return False
        factor = conversion(gold.unit, answer.unit)
        if factor is None:
            return False
        if gold.value is not None and answer.value is not None:
            return numbers(gold, answer, factor)
        if squeeze(gold.text) == squeeze(answer.text):
            return gold.percent == answer.percent and factor == 1
        if gold.big or answer.big:
            return False
        right, given = (f"\\frac{{{leaf.text}}}{{100}}" if leaf.percent else leaf.text for leaf in (gold, answer))
        if factor != 1:
            given = f"\\frac{{{factor.numerator}}}{{{factor.denominator}}}\\cdot ({given})"
        if self.symbolic(right, given):
            return True
        return gold.percent != answer.percent and self.symbolic(gold.text, answer.text)


def constant_body(node: Named) -> bool:
    """Whether what the name equals holds no variable, so that it is an assignment and not the equation of a curve."""
    body = node.text.rpartition("=")[2]
    return not re.search(
        r"(?<![\\A-Za-z{])[A-Za-df-hj-z](?![A-Za-z])", re.sub(r"\\[A-Za-z]+|\\text\{[^}]*\}", " ", body)
    )


def numbers(gold: Leaf, answer: Leaf, factor: Fraction) -> bool:
    """Plain numbers: `50%` is 50 for a gold without the sign, and 0.5; a decimal comma is read where the gold has a point."""
    assert gold.value is not None and answer.value is not None
    right, given = gold.value, answer.value * factor
    if gold.percent == answer.percent:
        return right == given
    if gold.percent:
        return given in (right, right / 100)
    return right == given / 100 or (right == given and abs(right) > 1)


def based(gold: Node, answer: Node) -> bool:
    """Numbers in a base: by value when both name theirs, by digits when one does not."""
    if isinstance(gold, Based) and isinstance(answer, Based):
        return int(gold.digits, gold.base) == int(answer.digits, answer.base)
    with_base, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
    assert isinstance(with_base, Based)
    return isinstance(other, Leaf | Word) and other.text.lower().lstrip("0") == with_base.digits


def words(gold: Node, answer: Node) -> bool:
    def letters(node: Node) -> str:
        text = node.text if isinstance(node, Word | Leaf) else ""
        return re.sub(r"[^\w]+", " ", re.sub(r"\\text\{([^}]*)\}", r"\1", text)).strip()

    if isinstance(gold, Word) and isinstance(answer, Word):
        return bool(letters(gold)) and letters(gold) == letters(answer)
    word, leaf = (gold, answer) if isinstance(gold, Word) else (answer, gold)
    return isinstance(leaf, Leaf) and bool(letters(word)) and letters(word) == letters(leaf).casefold()


def match(right: tuple, given: tuple, same: Callable[..., bool]) -> bool:
    """Every member of each has an equal in the other."""
    return all(any(same(r, g) for g in given) for r in right) and all(any(same(r, g) for r in right) for g in given)


def merge(region: Region) -> Region:
    """Touching intervals with rational ends joined, points inside or at their ends taken in."""
    infinite = {"-\\infty": Fraction(-(10**400)), "\\infty": Fraction(10**400)}

    def place(leaf: Leaf) -> Fraction | None:
        return infinite.get(squeeze(leaf.text), leaf.value)

    spans = [(place(i.low), place(i.high), i) for i in region.intervals]
    points = [(p.value if isinstance(p, Leaf) else None, p) for p in region.points]
    if any(low is None or high is None for low, high, _ in spans) or any(value is None for value, _ in points):
        return region
    spans = [s for s in spans if s[0] < s[1] or (s[0] == s[1] and s[2].low_closed and s[2].high_closed)]  # type: ignore[operator]
    spans += [(v, v, Interval(p, p, True, True)) for v, p in points]  # type: ignore[arg-type]
    spans.sort(key=lambda s: (s[0], not s[2].low_closed))  # type: ignore[arg-type,return-value]
    joined: list[Interval] = []
    for _, _, piece in spans:
        last = joined[-1] if joined else None
        low, end = place(piece.low), place(last.high) if last else None
        if last and (low < end or (low == end and (piece.low_closed or last.high_closed))):  # type: ignore[operator]
            if (place(piece.high), piece.high_closed) > (end, last.high_closed):  # type: ignore[operator]
                joined[-1] = Interval(last.low, piece.high, last.low_closed, piece.high_closed)
        else:
            joined.append(piece)
    single = tuple(i.low for i in joined if place(i.low) == place(i.high))
    return Region(tuple(i for i in joined if place(i.low) != place(i.high)), single, region.name, region.text)
