"""Whether two answers are the same, node by node; leaves that are no plain numbers go to `symbolic`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gspo.rewards.nodes import (
    Based,
    Choice,
    Congruence,
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
    fold,
    squeeze,
)
from gspo.rewards.regions import match, merge, region_of
from gspo.rewards.relations import is_constant
from gspo.rewards.structure import read
from gspo.rewards.units import NONE, conversion

CLOCK = re.compile(r"\d{1,2}:[0-5]\d")
MOST_ITEMS = 100


@dataclass(slots=True)
class Comparer:
    """Compares nodes; `symbolic(gold, answer)` judges two LaTeX expressions and may raise."""

    symbolic: Callable[[str, str], bool]

    def same(self, gold: Node, answer: Node) -> bool:
        """Whether `answer` is `gold`: the first kind in this order that either of them is decides how."""
        if isinstance(gold, Nothing) or isinstance(answer, Nothing):
            return False
        for kind, judge in (
            (Choice, self.choices),
            (Congruence, self.congruences),
            (Named, self.named),
            (Region, self.regions),
            (Relation, self.relations),
            (Many, self.lists),
            (Matrix, self.matrices),
            (Group, self.groups),
            (Ratio, self.ratios),
            (Based, based),
            (Word, words),
        ):
            if isinstance(gold, kind) or isinstance(answer, kind):
                return judge(gold, answer)
        return self.leaves(gold, answer)

    def choices(self, gold: Node, answer: Node) -> bool:
        """A letter is right with or without its content; another letter is wrong whatever stands behind it."""
        right, given = letter(gold), letter(answer)
        inside, beside = (node.content if isinstance(node, Choice) else None for node in (gold, answer))
        if right and given:
            return right == given and (inside is None or beside is None or self.same(inside, beside))
        if right:
            return inside is not None and self.same(inside, answer)
        return beside is not None and self.same(gold, beside)

    def congruences(self, gold: Node, answer: Node) -> bool:
        """The same name and modulus, and residues that differ by multiples of it."""
        if isinstance(gold, Congruence) and isinstance(answer, Congruence):
            if gold.name != answer.name or not self.leaves(gold.modulus, answer.modulus):
                return False
            return match(gold.residues, answer.residues, lambda g, a: self.same(g, a) or divides(gold.modulus, g, a))
        if isinstance(gold, Congruence) and len(gold.residues) == 1:
            return self.same(gold.residues[0], answer)
        return False

    def named(self, gold: Node, answer: Node) -> bool:
        """A name may be left out; two different names are two different answers, unless both are the same curve."""
        if isinstance(gold, Named) and isinstance(answer, Named):
            if gold.name == answer.name or "," in gold.name or "," in answer.name:
                return self.same(gold.body, answer.body)
            return not is_assignment(gold) and not is_assignment(answer) and self.symbolic(gold.text, answer.text)
        node, other = (gold, answer) if isinstance(gold, Named) else (answer, gold)
        assert isinstance(node, Named)
        if isinstance(other, Relation):
            return other.ops == ("=",) and not is_assignment(node) and self.symbolic(text_of(gold), text_of(answer))
        if isinstance(other, Region) and other.name and other.name != node.name:
            return False
        return self.same(node.body, other) if node is gold else self.same(other, node.body)

    def regions(self, gold: Node, answer: Node) -> bool:
        """The same part of the line, whichever way it is written."""
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            texts = [node.text for node in (gold, answer) if isinstance(node, Relation | Region)]
            single = all(len(re.findall(r"<|>|\\le |\\ge |\\ne ", text)) == 1 for text in texts)
            return single and len(texts) == 2 and self.symbolic(texts[0], texts[1])
        right, given = region_of(gold), region_of(answer)
        if right is None or given is None or (right.name and given.name and right.name != given.name):
            return False
        a, b = merge(right), merge(given)
        return match(a.intervals, b.intervals, self.intervals) and match(a.points, b.points, self.same)

    def intervals(self, gold: Interval, answer: Interval) -> bool:
        closed = (gold.low_closed, gold.high_closed) == (answer.low_closed, answer.high_closed)
        return closed and self.leaves(gold.low, answer.low) and self.leaves(gold.high, answer.high)

    def relations(self, gold: Node, answer: Node) -> bool:
        """Equivalent equations or inequalities; for a gold value, a chain of equalities that ends in it."""
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            if (gold.parts, gold.ops) == (answer.parts, answer.ops):
                return True
            single = len(gold.ops) == len(answer.ops) == 1 and "\\c" not in gold.ops[0] + answer.ops[0]
            return single and self.symbolic(gold.text, answer.text)
        if isinstance(answer, Relation) and isinstance(gold, Leaf) and set(answer.ops) == {"="}:
            last = read(answer.parts[-1])
            return isinstance(last, Leaf) and last.value != 0 and self.same(gold, last)
        return False

    def lists(self, gold: Node, answer: Node) -> bool:
        """Lists and sets ignore order and repeats; a tuple takes a bare list in its own order, never a set."""
        if isinstance(gold, Group) or isinstance(answer, Group):
            many, group = (gold, answer) if isinstance(gold, Many) else (answer, gold)
            if not isinstance(many, Many) or not isinstance(group, Group) or many.braces:
                return False
            named = sorted((item for item in many.items if isinstance(item, Named)), key=lambda item: item.name)
            apart = len({item.name for item in named}) == len(many.items) > 1
            items = tuple(item.body for item in named) if apart else many.items
            return self.in_order(items, group.items) if many is gold else self.in_order(group.items, items)
        if isinstance(answer, Many) and not isinstance(gold, Many):
            return answer.braces and len(answer.items) == 1 and self.same(gold, answer.items[0])
        assert isinstance(gold, Many)
        given = answer.items if isinstance(answer, Many) else close_list(answer) or (answer,)
        return len(gold.items) <= MOST_ITEMS >= len(given) and match(gold.items, given, self.same)

    def in_order(self, right: Sequence[Node], given: Sequence[Node]) -> bool:
        return len(right) == len(given) and all(self.same(r, g) for r, g in zip(right, given, strict=True))

    def matrices(self, gold: Node, answer: Node) -> bool:
        """Entry by entry; sums and products of matrices are worked out; one row or column equals a tuple."""
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            rows = zip(gold.rows, answer.rows, strict=False)
            return len(gold.rows) == len(answer.rows) and all(self.in_order(r, g) for r, g in rows)
        matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        assert isinstance(matrix, Matrix)
        if isinstance(other, Leaf):
            return "\\begin" in other.text and self.symbolic(text_of(gold), text_of(answer))
        if isinstance(other, Group) and other.closing == ")":
            cells = tuple(cell for row in matrix.rows for cell in row)
            line = len(matrix.rows) in (1, len(cells))
            return line and (self.in_order(cells, other.items) if matrix is gold else self.in_order(other.items, cells))
        return False

    def groups(self, gold: Node, answer: Node) -> bool:
        """Tuples in order; the brackets of two items say open or closed and must agree."""
        if not (isinstance(gold, Group) and isinstance(answer, Group)):
            return False
        agree = (gold.opening, gold.closing) == (answer.opening, answer.closing)
        return (agree or len(gold.items) > 2) and self.in_order(gold.items, answer.items)

    def ratios(self, gold: Node, answer: Node) -> bool:
        """Proportional ratios, or the fraction; clock times only as they stand."""
        ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
        assert isinstance(ratio, Ratio)
        terms = [item.value if isinstance(item, Leaf) else None for item in ratio.items]
        if isinstance(other, Ratio):
            if self.in_order(ratio.items, other.items):
                return True
            others = [item.value if isinstance(item, Leaf) else None for item in other.items]
            if CLOCK.fullmatch(ratio.text) or CLOCK.fullmatch(other.text) or len(terms) != len(others):
                return False
            first, second = terms[0], others[0]
            if not all(terms) or not all(others) or not first or not second:
                return False
            return all(a * second == b * first for a, b in zip(terms, others, strict=True) if a and b)
        if isinstance(other, Leaf) and other.value is not None and len(terms) == 2 and terms[0] and terms[1]:
            return other.value == terms[0] / terms[1] and ("/" in other.text or "\\frac" in other.text)
        return False

    def leaves(self, gold: Node, answer: Node) -> bool:
        """Numbers by value, expressions by `symbolic`; units may be missing, but not contradict."""
        if not (isinstance(gold, Leaf) and isinstance(answer, Leaf)) or gold.undefined or answer.undefined:
            return False
        factor = conversion(gold.unit, answer.unit)
        mixed = (gold.percent and answer.unit != NONE) or (answer.percent and gold.unit != NONE)
        if factor is None or mixed:
            return False
        if gold.value is not None and answer.value is not None:
            return numbers(gold, answer, factor)
        if squeeze(gold.text) == squeeze(answer.text):
            return factor == 1
        if gold.big or answer.big:
            return False
        right, given = gold.text, answer.text
        if factor != 1:
            given = f"\\frac{{{factor.numerator}}}{{{factor.denominator}}}\\cdot ({given})"
        if self.symbolic(right, given):
            return True
        if gold.percent != answer.percent:
            right, given = (f"\\frac{{{leaf.text}}}{{100}}" if leaf.percent else leaf.text for leaf in (gold, answer))
            return self.symbolic(right, given)
        return False


def text_of(node: Node) -> str:
    """The LaTeX of a node that keeps it."""
    assert isinstance(node, Leaf | Named | Relation | Matrix)
    return node.text


def letter(node: Node) -> str | None:
    """The choice letter a node can stand for."""
    if isinstance(node, Choice):
        return node.letter
    return node.text if isinstance(node, Leaf) and re.fullmatch(r"[A-J]", node.text) else None


def is_assignment(node: Named) -> bool:
    """Whether what the name equals holds no variable: a value, and not the equation of a curve."""
    return is_constant(node.text.rpartition("=")[2])


def close_list(node: Node) -> tuple[Node, ...] | None:
    """`100,200` read as two numbers, where the gold is a list."""
    if isinstance(node, Leaf) and re.fullmatch(r"-?\d{1,3}(?:,[1-9]\d{2})+", node.text):
        return tuple(read(part) for part in node.text.split(","))
    return None


def numbers(gold: Leaf, answer: Leaf, factor: Fraction) -> bool:
    """Plain numbers by value. `50%` is 0.5, and 50 where the other lacks the sign (for a gold without it, above 1)."""
    assert gold.value is not None
    assert answer.value is not None
    right, given = gold.value, answer.value * factor
    if gold.percent == answer.percent:
        return right == given
    if gold.percent:
        return given in (right, right / 100)
    return right == given / 100 or (right == given and abs(right) > 1)


def based(gold: Node, answer: Node) -> bool:
    """Numbers in a base: by value when both name theirs; a gold's base may be left out, its digits may not change.

    For a gold without a base only base ten is right: any other states another number, or an answer not asked for.
    """
    if isinstance(gold, Based) and isinstance(answer, Based):
        return int(gold.digits, gold.base) == int(answer.digits, answer.base)
    node, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
    assert isinstance(node, Based)
    if isinstance(other, Leaf) and other.unit != NONE:
        return False
    if node is answer and node.base != 10:
        return False
    return isinstance(other, Leaf | Word) and other.text.lower().lstrip("0") == node.digits


def words(gold: Node, answer: Node) -> bool:
    """Texts by their letters and digits, case aside."""

    def plain(node: Node) -> str:
        text = node.text if isinstance(node, Word | Leaf) else ""
        return re.sub(r"[^\w]+", " ", fold(re.sub(r"\\text\{([^}]*)\}", r"\1", text))).strip()

    return bool(plain(gold)) and plain(gold) == plain(answer)


def divides(modulus: Leaf, a: Node, b: Node) -> bool:
    """Whether integers a and b differ by a multiple of the modulus."""
    if not (isinstance(a, Leaf) and isinstance(b, Leaf)) or a.value is None or b.value is None or not modulus.value:
        return False
    return (a.value - b.value) % modulus.value == 0 and a.value.denominator == 1
