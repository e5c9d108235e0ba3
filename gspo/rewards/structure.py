"""The shape of an answer: number, word, choice, list, tuple, interval, relation, matrix. Text in (normalised), node out.

Leaves keep their LaTeX; only plain arithmetic is worked out here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gspo.rewards.answers import group_end
from gspo.rewards.rational import NotRational, TooBig, rational
from gspo.rewards.units import NONE, Unit, read_unit

OPEN, CLOSE = "([{", ")]}"
TEXT = r"\\text\{[^{}]*\}"
UNIT_TAIL = re.compile(
    rf"^(?P<body>.*?[\d)\]}}a-zA-Z!|.])\s*(?P<unit>(?:(?:{TEXT}|\^\\circ\s*[FC]?)\s*(?:\^\{{-?\d\}})?\s*(?:/|\\cdot)?\s*)+"
    r"|(?<=[\d} ])\s(?:m|s|g|h|L|J|N|W|V)(?:\^\{[23]\})?(?:/(?:s|h|m)(?:\^\{2\})?)?|(?<=\d)m\^\{[23]\})$",
    re.DOTALL,
)
CURRENCY = re.compile(
    r"^(?P<sign>[-+]?)\s*\\text\{(?P<unit>dollar|euro|pound|yen|cent|USD|US dollar|Rs\.?|EUR)\}\s*(?P<body>[-+\d.(\\].*)$",
    re.DOTALL,
)
PERCENT = re.compile(
    r"^(?P<body>.*?)\s*(?:\\?%|\\text\{\s*(?:percent|percents|percentage|percentages|pct|per cent|%)\s*\})\s*$",
    re.DOTALL,
)
CHOICE = re.compile(
    r"^(?:\\text\{\s*(?:option|choice|answer)?\s*\(?(?P<a>[A-J])[).:]?\s*\}|\\text\{(?:option|choice|answer)\}\s*\(?(?P<b>[A-J])\)?|"
    r"\((?P<c>[A-J])\)|(?P<d>[A-J])(?=\s*[).:](?!\d)))\s*[).:]?\s*(?P<content>.*)$",
    re.DOTALL,
)
ENVIRONMENT = re.compile(
    r"^[\[(|]?\s*\\begin\{([pbvBV]?matrix|smallmatrix|array|cases|aligned|align\*?|gathered)\}(.*)\\end\{\1\}\s*[\])|.]?$",
    re.DOTALL,
)
BASED = re.compile(
    r"^(?:\\text\{)?([0-9A-Fa-f]+)\}?\s*_\s*(?:\{?\s*(?:\\text\{)?(\d{1,2}|two|three|eight|ten|sixteen)\}?\s*\}?)$"
)
RELATIONS = ("\\le ", "\\ge ", "\\ne ", "\\approx ", "\\equiv ", "\\in ", "\\subset", "<", ">", "=")
THOUSANDS = re.compile(r"^([-+]?)(\d{1,3}(?:,\d{3})+)(\.\d+)?$")
EVERYTHING = re.compile(r"^(?:\\mathbb\{R\}|\\text\{(?:all |any |every )?(?:the )?reals?(?: numbers?)?\})$", re.I)
EMPTY = re.compile(
    r"^(?:\\emptyset|\\\{\s*\\\}|\\text\{(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?\}|\\text\{empty set\})$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No answer at all."""

    why: str


@dataclass(frozen=True, slots=True)
class Leaf:
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
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Based:
    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Ratio:
    items: tuple[Node, ...]
    text: str


Node = Nothing | Leaf | Word | Choice | Many | Group | Named | Relation | Region | Matrix | Based | Ratio
LOW, HIGH = Leaf("-\\infty"), Leaf("\\infty")


def squeeze(text: str) -> str:
    """The text without blanks that mean nothing, to compare spellings."""
    return re.sub(
        r"\s+", "", re.sub(r"\\text\{\s*([^{}]*?)\s*\}", lambda m: "\\text{" + m.group(1).casefold() + "}", text)
    )


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
        if text.startswith("\\begin{", i):
            depth += 1
        elif text.startswith("\\end{", i):
            depth -= 1
        if text[i] == "\\":
            depth += text.startswith(("\\{", "\\langle", "\\lfloor", "\\lceil"), i)
            depth -= text.startswith(("\\}", "\\rangle", "\\rfloor", "\\rceil"), i)
            i += 2
            continue
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        i += 1
    return [*parts, text[begun:]], found


def trim(text: str) -> str:
    """Without outer blanks, closing punctuation and braces around the whole."""
    while True:
        text = text.strip().strip("~").strip()
        if text.endswith((",", ";")) or (text.endswith(".") and len(text) > 1):
            text = text[:-1]
        elif text.startswith("{") and group_end(text, 0) == len(text):
            text = text[1:-1]
        else:
            return text


def read(text: str) -> Node:
    """The node of a normalised answer."""
    text = trim(text)
    if not text:
        return Nothing("the answer is empty")
    if matrix := _environment(text):
        return matrix
    if EVERYTHING.match(text):
        return Region((Interval(LOW, HIGH, False, False),), (), "", text)
    if EMPTY.match(text):
        return Region((), (), "", text)
    choice = CHOICE.match(text)
    if choice:
        letter = next(letter for letter in choice.group("a", "b", "c", "d") if letter)
        content = trim(choice.group("content"))
        return Choice(letter, read(content) if content else None)
    word = re.fullmatch(rf"(?:{TEXT}[\s'\".!-]*)+", text)
    if word and not re.search(r"\\text\{(?:and|or)\}", text):
        return Word(" ".join(re.sub(r"\\text\{([^{}]*)\}", r"\1 ", text).split()).strip(" .'\"!").casefold())
    return _many(text)


def _many(text: str) -> Node:
    alternatives, _ = split(text, ("\\text{or}",))
    if len(alternatives) > 1 and any(_inequality(part) for part in alternatives):
        return _union([read(part) for part in alternatives], text)
    both, _ = split(text, ("\\text{and}",))
    if len(both) == 2 and all(_inequality(part) for part in both):
        return _intersection(read(both[0]), read(both[1]), text)
    if THOUSANDS.match(text):
        return _leaf(text)
    separators = ("\\text{or}", "\\text{and}", ";", "\\\\", "&", ",")
    if ";" in text and len(split(text, (";",))[0]) > 1:
        separators = ("\\text{or}", "\\text{and}", ";", "\\\\")
    elif len(alternatives) > 1 and all(len(split(part, (",",))[0]) > 1 and "=" in part for part in alternatives):
        separators = ("\\text{or}",)
    if ", " in text or "\\text{" in text:  # thousands stand closer together than items do
        text = (
            re.sub(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m.group(0).replace(",", ""), text)
            if re.search(r",\s", text)
            else text
        )
    parts = [part for part in split(text, separators)[0] if trim(part)]
    if len(parts) < 2:
        return _single(trim(parts[0])) if parts else Nothing("the answer is empty")
    items = [_assignments(part) if separators[-1] != "," else read(part) for part in parts]
    return Many(tuple(_spread(items)), braces=False)


def _assignments(part: str) -> Node:
    """`p=5,q=2` inside a list of such: one tuple, in the order of the names."""
    node = read(part)
    if isinstance(node, Many) and not node.braces:
        items = node.items
        if all(isinstance(item, Named) for item in items):
            items = tuple(item.body for item in sorted(items, key=lambda n: n.name))  # type: ignore[union-attr]
        return Group("(", ")", items)
    return node


def _spread(items: list[Node]) -> list[Node]:
    """Items of an inner list (from a plus-minus) belong to the outer one."""
    return [
        inner for item in items for inner in (item.items if isinstance(item, Many) and not item.braces else (item,))
    ]


def _single(text: str) -> Node:
    if "\\pm" in text or "\\mp" in text:
        head, ops = split(text, ("=",))
        name = f"{head[0]}=" if ops and _is_name(head[0]) else ""
        rest = text[len(name) :]
        plus = rest.replace("\\pm", "+").replace("\\mp", "-")
        minus = rest.replace("\\pm", "-").replace("\\mp", "+")
        return Many(tuple(_spread([read(f"{name}{plus}"), read(f"{name}{minus}")])), braces=False)
    parts, ops = split(text, RELATIONS)
    if ops:
        return _relation(parts, [op.strip() for op in ops], text)
    if any(token in text for token in ("\\cup", "\\setminus", "\\cap")) or re.match(r"\\mathbb\{R\}\s*-", text):
        return _set_algebra(text)
    french = re.fullmatch(r"([\[\]])(.*)([\[\]])", text, re.DOTALL)
    if french and (french.group(1) == "]" or french.group(3) == "["):
        ends = re.split(r"[,;]", french.group(2))
        if len(ends) == 2:
            return Group(
                "(" if french.group(1) == "]" else "[", ")" if french.group(3) == "[" else "]", tuple(map(read, ends))
            )
    if bracketed := _bracketed(text):
        return bracketed
    based = BASED.match(text)
    if based:
        names = {"two": 2, "three": 3, "eight": 8, "ten": 10, "sixteen": 16}
        base = names.get(based.group(2)) or int(based.group(2))
        if 2 <= base <= 36 and all(int(d, 36) < base for d in based.group(1)):
            return Based(based.group(1).lower().lstrip("0") or "0", base)
    sides, _ = split(text, (":",))
    if len(sides) > 1 and all(map(trim, sides)):
        return Ratio(tuple(map(_leaf, sides)), squeeze(text))
    return _leaf(text)


def _bracketed(text: str) -> Node | None:
    """A whole text in one pair of brackets: set, tuple, interval, or the thing itself in parentheses."""
    pairs = (("\\{", "\\}"), ("\\langle", "\\rangle"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))
    for opening, closing in pairs:
        if not (text.startswith(opening) and text.endswith(closing)):
            continue
        inside = text[len(opening) : -len(closing)]
        parts, found = split(text, ("\x00",))
        if not _balanced(inside):
            continue
        parts, found = split(inside, (",", ";"))
        if opening == "\\{":
            condition = re.split(r"\||:|\\mid", inside, maxsplit=1)
            if len(condition) == 2 and _inequality(condition[1]):
                return read(condition[1])
            return Many(tuple(_spread([read(part) for part in parts if trim(part)])), braces=True)
        if found:
            return Group(
                "(" if opening == "\\langle" else opening,
                ")" if closing == "\\rangle" else closing,
                tuple(map(read, parts)),
            )
        if opening == "(" and closing == ")":
            return read(inside)
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for ch in text:
        depth += (ch in OPEN) - (ch in CLOSE)
        if depth < 0:
            return False
    return depth == 0


def _environment(text: str) -> Node | None:
    found = ENVIRONMENT.match(text)
    if not found or "\\begin" in found.group(2):
        return None
    kind, inner = found.groups()
    if kind == "array":
        inner = re.sub(r"^\s*\{[^}]*\}", "", inner)
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr", inner.replace("\\hline", "")) if row.strip()]
    if "matrix" in kind or kind == "array":
        if kind in ("vmatrix", "Vmatrix"):
            return None
        return Matrix(tuple(tuple(read(cell) for cell in split(row, ("&",))[0]) for row in rows))
    items = [read(row.replace("&", " ")) for row in rows]
    return items[0] if len(items) == 1 else Many(tuple(_spread(items)), braces=False)


def _inequality(text: str) -> bool:
    return any(op in ("<", ">", "\\le ", "\\ge ", "\\ne ") for op in split(text, RELATIONS)[1])


def _is_name(text: str) -> bool:
    """A single thing that can be given a value: `x`, `x_{1}`, `f(x)`, `|AB|`, `(p,q)`, `\\angle A`, `S_{1}:S_{2}`."""
    bare = re.sub(
        r"_(?:\{[^{}]*\}|\w)|\\(?:angle|triangle|overline|frac|mathbb|text|alpha|beta|gamma|delta|theta|lambda|mu|sigma|omega|phi|Delta|circ)|'",
        "",
        text,
    )
    bare = re.sub(r"(?<=[A-Za-z])\([-+A-Za-z0-9,. ]*\)", "", bare)
    return (
        bool(re.search(r"[A-Za-z\\]", text))
        and bool(re.fullmatch(r"[A-Za-z(){},:|\s^]*", bare))
        and not re.search(r"\^(?!\\circ)", text)
    )


def _constant(text: str) -> bool:
    """No variable in it: digits, operators, pi, e, i and roots only."""
    bare = re.sub(TEXT + r"|\\[A-Za-z]+|(?<![A-Za-z])[ei](?![A-Za-z])", "", text)
    return bool(re.search(r"\d|\\pi|\\infty|(?<![A-Za-z])[ei](?![A-Za-z])", text)) and not re.search(r"[A-Za-z]", bare)


def _relation(parts: list[str], ops: list[str], text: str) -> Node:
    parts = [trim(part) for part in parts]
    if not all(parts):
        return Nothing("a relation with an empty side")
    if "\\approx" in ops:
        first = ops.index("\\approx")
        if first > 0 or _constant(parts[0]):
            parts, ops = parts[: first + 1], ops[:first]
        else:
            ops = ["=" if op == "\\approx" else op for op in ops]
        if not ops:
            return read(parts[0])
    if ops == ["\\in"]:
        body = read(parts[1])
        if isinstance(body, Group) and len(body.items) == 2 and _is_name(parts[0]) and "," not in parts[0]:
            body = region_of(body) or body
        return Named(squeeze(parts[0]), body, text)
    if all(op == "=" for op in ops):
        return _equation(parts, text)
    region = _inequality_region(parts, ops, text)
    return region or Relation(tuple(map(squeeze, parts)), tuple(ops), text)


def _equation(parts: list[str], text: str) -> Node:
    values = [leaf.value for leaf in map(read, parts) if isinstance(leaf, Leaf) and leaf.value is not None]
    if any(value != values[0] for value in values[1:]):
        return Nothing("a chain of equalities that contradicts itself")
    if all(map(_constant, parts)):
        return Relation(tuple(map(squeeze, parts)), ("=",) * (len(parts) - 1), text)
    if _is_name(parts[0]):
        return Named(squeeze(parts[0]), read(parts[-1]), text)
    if len(parts) == 2 and _is_name(parts[1]) and _constant(parts[0]):
        return Named(squeeze(parts[1]), read(parts[0]), text)
    return Relation(tuple(map(squeeze, parts)), ("=",) * (len(parts) - 1), text)


def _end(text: str) -> Leaf | None:
    node = read(text)
    if isinstance(node, Leaf):
        return (
            Leaf("\\infty")
            if squeeze(node.text) in ("+\\infty", "\\infty")
            else LOW
            if squeeze(node.text) == "-\\infty"
            else node
        )
    return None


def _inequality_region(parts: list[str], ops: list[str], text: str) -> Region | None:
    """`a < x <= b`, `x >= a`, `a > x`, `x != a` for a constant a and one name x."""
    flipped = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne"}
    if not all(op in flipped for op in ops):
        return None
    if len(parts) == 2 and _is_name(parts[1]) and _constant(parts[0]):
        parts, ops = parts[::-1], [flipped[ops[0]]]
    if len(parts) == 2 and _is_name(parts[0]):
        if ops[0] == "\\ne":
            points = read(parts[1])
            ends = [p for p in (points.items if isinstance(points, Many) else (points,)) if isinstance(p, Leaf)]
            return _without((Interval(LOW, HIGH, False, False),), ends, squeeze(parts[0]), text)
        end = _end(parts[1]) if _constant(parts[1]) else None
        if end is None:
            return None
        closed = ops[0] in ("\\le", "\\ge")
        piece = Interval(LOW, end, False, closed) if ops[0] in ("<", "\\le") else Interval(end, HIGH, closed, False)
        return Region((piece,), (), squeeze(parts[0]), text)
    if len(parts) == 3 and _is_name(parts[1]) and _constant(parts[0]) and _constant(parts[2]):
        if all(op in (">", "\\ge") for op in ops):
            parts, ops = parts[::-1], [flipped[op] for op in reversed(ops)]
        if all(op in ("<", "\\le") for op in ops):
            low, high = _end(parts[0]), _end(parts[2])
            if low and high:
                piece = Interval(low, high, ops[0] == "\\le", ops[1] == "\\le")
                return Region((piece,), (), squeeze(parts[1]), text)
    return None


def region_of(node: Node) -> Region | None:
    """A pair of brackets, a set or a number as a region of the line."""
    if isinstance(node, Region):
        return node
    if isinstance(node, Named) and not isinstance(node.body, Leaf | Word):
        inner = region_of(node.body)
        return inner and Region(inner.intervals, inner.points, node.name, node.text)
    if isinstance(node, Group) and len(node.items) == 2 and node.opening in ("(", "[") and node.closing in (")", "]"):
        ends = [_end(item.text) if isinstance(item, Leaf) else None for item in node.items]
        if ends[0] and ends[1]:
            return Region((Interval(ends[0], ends[1], node.opening == "[", node.closing == "]"),), (), "", "")
    if isinstance(node, Many) and node.braces:
        return Region((), node.items, "", "")
    if isinstance(node, Named):
        return Region((), (node.body,), node.name, node.text)
    return Region((), (node,), "", "") if isinstance(node, Leaf) else None


def _union(nodes: list[Node], text: str) -> Node:
    regions = [region_of(node) for node in nodes]
    if any(region is None for region in regions):
        return Relation((squeeze(text),), ("\\cup",), text)
    names = {region.name for region in regions if region and region.name}
    if len(names) > 1:
        return Relation((squeeze(text),), ("\\cup",), text)
    intervals = [piece for region in regions if region for piece in region.intervals]
    points = [point for region in regions if region for point in region.points]
    return Region(tuple(intervals), tuple(points), names.pop() if names else "", text)


def _intersection(a: Node, b: Node, text: str) -> Node:
    """`x > 1 and x < 5`: two half-lines of one name."""
    if (
        isinstance(a, Region)
        and isinstance(b, Region)
        and len(a.intervals) == len(b.intervals) == 1
        and a.name == b.name
    ):
        x, y = a.intervals[0], b.intervals[0]
        if x.low == LOW and y.high == HIGH:
            x, y = y, x
        if x.high == HIGH and y.low == LOW:
            return Region((Interval(x.low, y.high, x.low_closed, y.high_closed),), (), a.name, text)
    return Relation((squeeze(text),), ("\\cap",), text)


def _without(intervals: tuple[Interval, ...], points: list[Leaf], name: str, text: str) -> Region | None:
    """The real line less some rational points."""
    if intervals != (Interval(LOW, HIGH, False, False),) or not points:
        return None
    if len(points) > 1 and any(p.value is None for p in points):
        return None
    ends = sorted(points, key=lambda p: p.value or 0)
    edges = [LOW, *ends, HIGH]
    return Region(tuple(Interval(a, b, False, False) for a, b in zip(edges, edges[1:], strict=False)), (), name, text)


def _set_algebra(text: str) -> Node:
    unions, found = split(text, ("\\cup",))
    if found:
        return _union([read(part) for part in unions], text)
    sides, found = split(text, ("\\setminus", "-"))
    if len(sides) == 2 and EVERYTHING.match(trim(sides[0])):
        removed = read(sides[1])
        ends = [p for p in (removed.items if isinstance(removed, Many) else (removed,)) if isinstance(p, Leaf)]
        region = _without((Interval(LOW, HIGH, False, False),), ends, "", text)
        if region:
            return region
    return Relation((squeeze(text),), ("\\cup",), text)


def _leaf(text: str) -> Leaf:
    """A number or an expression, its unit and percent sign taken off."""
    text, unit, percent = trim(text), NONE, False
    if money := CURRENCY.match(text):
        unit, text = read_unit(money.group("unit")), trim(money.group("sign") + money.group("body"))
    if hundredth := PERCENT.match(text):
        percent, text = True, trim(hundredth.group("body"))
    elif (tail := UNIT_TAIL.match(text)) and unit == NONE:
        words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", tail.group("unit").replace("\\cdot", " "))
        unit, text = read_unit(words), trim(tail.group("body"))
    elif tail:
        text = trim(tail.group("body"))
    digits = THOUSANDS.match(text)
    plain = text.replace(",", "") if digits else text
    try:
        return Leaf(text, rational(plain), unit, percent)
    except TooBig as error:
        return Leaf(text, None, unit, percent, big=str(error))
    except NotRational as error:
        return Leaf(text, None, unit, percent, undefined="division by zero" in str(error))
