"""Read a normalised answer: number, word, choice, list, tuple, interval, relation, matrix. Text in, node out.

Leaves keep their LaTeX; only plain arithmetic is worked out here.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gspo.rewards import choices, regions, relations
from gspo.rewards.nodes import (
    Based,
    Group,
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
    balanced,
    fold,
    split,
    squeeze,
    trim,
)
from gspo.rewards.normalise import PLAIN
from gspo.rewards.rational import NotRational, TooBig, rational
from gspo.rewards.units import NONE, read_unit

TEXT = r"\\text\{[^{}]*\}"
NO_UNIT = (
    "and|or|nor|either|neither|not|if|else|otherwise|unless|when|where|while|but|also|maybe|perhaps|possibly|possible|"
    "alternatively|then|than|to|versus|vs|is|are|was|were|be|because|since|plus|minus|one|two|three|four|five|six|seven|"
    "eight|nine|ten|eleven|twelve|mod"
)
"""Words that say more than what is counted: a second guess, a condition, another number."""
UNIT_TEXT = (
    rf"\\text\{{(?!(?i:[^{{}}]*\b(?:{NO_UNIT})\b))\s*\(?(?:\^\\circ\s*)?"
    r"[^\W\d_](?:[^\W\d_]|[ .'/-]|\^?-?[234]\b)*\)?\s*\}"
)
"""A name of what is counted or measured: `cm^2`, `square feet`, `miles per hour`, `(units)`."""
LETTER_UNIT = r"\s(?:m|s|g|h|L|J|N|W|V)(?:\^\{[23]\})?(?:/(?:s|h|m)(?:\^\{2\})?)?"
UNIT_TAIL = re.compile(
    rf"(?P<body>.*?[\d)\]}}a-zA-Z!|.])\s*(?P<unit>(?:(?:{UNIT_TEXT}|\^\\circ\s*[FC]?)\s*(?:\^\{{-?\d\}})?\s*(?:/|\\cdot)?\s*)+"
    rf"|(?<=[\d}} ]){LETTER_UNIT}|(?<=\d)m\^\{{[23]\}})",
    re.DOTALL,
)
MONEY = r"dollars?|euros?|pounds?|yen|cents?|USD|US dollars?|Rs\.?|EUR"
CURRENCY = re.compile(rf"(?P<sign>[-+]?)\s*\\text\{{(?P<unit>{MONEY})\}}\s*(?P<body>[-+\d.(\\].*)", re.DOTALL)
PERCENT = re.compile(
    r"(?P<body>.*?)\s*(?:\\?%|\\text\{\s*(?:percents?|percentages?|pct|per cent|%)\s*\})\s*", re.DOTALL
)
MATRICES = r"[pbBvV]?matrix|smallmatrix|array|cases|aligned|align\*?|gathered"
ENVIRONMENT = re.compile(rf"[\[(|]?\s*\\begin\{{({MATRICES})\}}(.*)\\end\{{\1\}}\s*[\])|.]?", re.DOTALL)
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "eight": 8, "ten": 10, "sixteen": 16}
BASED = re.compile(
    rf"(?:\\text\{{)?([0-9A-Fa-f]+)\}}?\s*_\s*\{{?\s*(?:\\text\{{)?(\d{{1,2}}|{'|'.join(BASES)})\}}?\s*\}}?"
)
RELATIONS = ("\\le ", "\\ge ", "\\ne ", "\\approx ", "\\equiv ", "\\in ", "\\subset ", "<", ">", "=")
COMPARISONS = ("<", ">", "\\le ", "\\ge ", "\\ne ")
THOUSANDS = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")
REALS = re.compile(r"\\mathbb\{R\}|\\text\{(?:all |any |every )?(?:the )?reals?(?: numbers?)?\}", re.IGNORECASE)
NO_SOLUTION = r"\\text\{(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?\}|\\text\{empty set\}"
EMPTY = re.compile(rf"\\emptyset|\\\{{\s*\\\}}|{NO_SOLUTION}", re.IGNORECASE)
PAIRS = (("\\{", "\\}"), ("\\langle", "\\rangle"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))


def read(text: str) -> Node:
    """The node of a normalised answer."""
    if PLAIN.fullmatch(text):
        return Leaf(text, Fraction(text))
    text = trim(re.sub(r"^\s*\\(?:approx|Rightarrow)\s", "", text))
    if not text:
        return Nothing("the answer is empty")
    if found := relations.congruence(text, read) or _environment(text):
        return found
    if REALS.fullmatch(text):
        return Region((regions.LINE,), (), "", text)
    if EMPTY.fullmatch(text):
        return Region((), (), "", text)
    if found := choices.choice(text, read):
        return found
    word = re.fullmatch(rf"(?:{TEXT}[\s'\".!-]*)+", text)
    if word and not re.search(r"\\text\{(?:and|or)\}", text):
        words = " ".join(fold(w) for w in re.findall(r"\\text\{([^{}]*)\}", text))
        return Word(" ".join(words.split()).strip(" .'\"!"))
    return _many(text)


def _compares(text: str) -> bool:
    return any(op in COMPARISONS for op in split(text, RELATIONS)[1])


def _many(text: str) -> Node:
    """A list, split at commas, semicolons and the words `and`, `or`; or what stands alone."""
    alternatives = split(text, ("\\text{or}",))[0]
    if len(alternatives) > 1 and (any(map(_compares, alternatives)) or "\\infty" in text):
        return regions.union([read(part) for part in alternatives], text)
    if THOUSANDS.fullmatch(text):
        return leaf(text)
    separators = ("\\text{or}", "\\text{and}", ";", "\\\\", "&", ",")
    if ";" in split(text, (";",))[1]:
        separators = separators[:4]
    elif len(alternatives) > 1 and all("=" in part and "," in split(part, (",",))[1] for part in alternatives):
        separators = separators[:1]
    closed_up = _without_thousands(text)
    if "," not in split(closed_up, (",",))[1] or re.search(r",\s", text):
        text = closed_up  # thousands stand closer together than items do
    parts = [part for part in split(text, separators)[0] if trim(part)]
    if len(parts) < 2:
        return _single(trim(parts[0])) if parts else Nothing("the answer is empty")
    items = _spread([read(part) if separators[-1] == "," else _row(read(part)) for part in parts])
    bare = [
        item
        for item in items
        if not (isinstance(item, Named) and item.body == Region((regions.LINE,), (), "", "\\mathbb{R}"))
    ]
    if len(bare) == 1 < len(items) and isinstance(bare[0], Region):
        return bare[0]
    return regions.conditions(bare, text) or Many(tuple(items), braces=False)


def _without_thousands(text: str) -> str:
    """`1,000, 2,000` as `1000, 2000`; commas inside brackets stay."""
    first, *rest = split(text, (",",))[0]
    out = [first]
    for part in rest:
        if re.search(r"(?<![\d.\x02])\d{1,3}(?:\x02\d{3})*$", out[-1]) and re.match(r"\d{3}(?!\d)", part):
            out[-1] += "\x02" + part
        else:
            out.append(part)
    return ",".join(out).replace("\x02", "")


def _row(node: Node) -> Node:
    """`p=5,q=2` inside a list of such: one tuple, in the order of the names."""
    if not isinstance(node, Many) or node.braces:
        return node
    named = sorted((item for item in node.items if isinstance(item, Named)), key=lambda item: item.name)
    return Group("(", ")", tuple(n.body for n in named) if len(named) == len(node.items) else node.items)


def _spread(items: list[Node]) -> list[Node]:
    """Items of an inner list (from a plus-minus) belong to the outer one."""
    return [
        inner for item in items for inner in (item.items if isinstance(item, Many) and not item.braces else (item,))
    ]


def _single(text: str) -> Node:
    if "\\pm" in text or "\\mp" in text:
        head, ops = split(text, ("=",))
        name = f"{head[0]}=" if ops and relations.is_name(head[0]) else ""
        rest = text[len(name) :]
        plus = rest.replace("\\pm", "+").replace("\\mp", "-")
        minus = rest.replace("\\pm", "-").replace("\\mp", "+")
        return Many(tuple(_spread([read(name + plus), read(name + minus)])), braces=False)
    parts, ops = split(text, RELATIONS)
    if ops:
        return relations.relation(parts, [op.strip() for op in ops], text, read)
    if re.search(r"\\cup|\\setminus|\\cap|^\\mathbb\{R\}\s*-", text):
        return _set_algebra(text)
    french = re.fullmatch(r"([\[\]])([^\[\]]*)([\[\]])", text)
    if french and (french.group(1) == "]" or french.group(3) == "["):
        ends = split(french.group(2), (",", ";"))[0]
        opening, closing = "(" if french.group(1) == "]" else "[", ")" if french.group(3) == "[" else "]"
        return Group(opening, closing, tuple(map(read, ends)))
    if bracketed := _bracketed(text):
        return bracketed
    if based := BASED.fullmatch(text):
        base = BASES.get(based.group(2)) or int(based.group(2))
        if 2 <= base <= 36 and all(int(digit, 36) < base for digit in based.group(1)):
            return Based(based.group(1).lower().lstrip("0") or "0", base)
    sides = split(text, (":",))[0]
    if len(sides) > 1 and all(map(trim, sides)):
        return Ratio(tuple(map(leaf, sides)), squeeze(text))
    return leaf(text)


def _bracketed(text: str) -> Node | None:
    """A whole text in one pair of brackets: set, tuple, interval, or the thing itself in parentheses."""
    for opening, closing in PAIRS:
        inside = text[len(opening) : -len(closing)]
        if not (text.startswith(opening) and text.endswith(closing)) or not balanced(inside):
            continue
        parts, found = split(inside, (",", ";"))
        if opening == "\\{":
            condition = re.split(r"\||:", inside, maxsplit=1)
            if len(condition) == 2 and _compares(condition[1]):
                return read(condition[1])
            return Many(tuple(_spread([read(part) for part in parts if trim(part)])), braces=True)
        if found:
            opening, closing = ("(", ")") if opening == "\\langle" else (opening, closing)
            return Group(opening, closing, tuple(map(read, parts)))
        if opening == "(" and closing == ")":
            return read(inside)
    return None


def _environment(text: str) -> Node | None:
    """A matrix, or the lines of `cases` and `aligned` as a list."""
    found = ENVIRONMENT.fullmatch(text)
    if not found or f"\\begin{{{found.group(1)}" in found.group(2) or found.group(1) in ("vmatrix", "Vmatrix"):
        return None
    kind, inner = found.groups()
    inner = re.sub(r"^\s*\{[^}]*\}", "", inner) if kind == "array" else inner
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr", inner.replace("\\hline", "")) if row.strip()]
    if "matrix" in kind or kind == "array":
        return Matrix(tuple(tuple(read(cell) for cell in split(row, ("&",))[0]) for row in rows), text)
    items = [read(row.replace("&", " ")) for row in rows]
    return items[0] if len(items) == 1 else Many(tuple(_spread(items)), braces=False)


def _set_algebra(text: str) -> Node:
    """Unions, and the real line less some points; any other combination stays text."""
    unions, found = split(text, ("\\cup",))
    if found:
        return regions.union([read(part) for part in unions], text)
    sides = split(text, ("\\setminus", "-"))[0]
    if len(sides) == 2 and REALS.fullmatch(trim(sides[0])):
        removed = read(sides[1])
        points = [p for p in (removed.items if isinstance(removed, Many) else (removed,)) if isinstance(p, Leaf)]
        if region := regions.without(points, "", text):
            return region
    return Relation((squeeze(text),), ("\\cup",), text)


def leaf(text: str) -> Leaf:
    """A number or an expression, its unit and percent sign taken off."""
    text, unit, percent = trim(text), NONE, False
    if money := CURRENCY.fullmatch(text):
        unit, text = read_unit(money.group("unit")), trim(money.group("sign") + money.group("body"))
    tail = UNIT_TAIL.fullmatch(text)
    if hundredth := PERCENT.fullmatch(text):
        percent, text = True, trim(hundredth.group("body"))
    elif tail and not ("circ" in tail.group("unit") and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text)):
        if unit == NONE:
            unit = read_unit(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", tail.group("unit").replace("\\cdot", " ")))
        text = trim(tail.group("body"))
    plain = text.replace(",", "") if THOUSANDS.fullmatch(text) else text
    try:
        return Leaf(text, rational(plain), unit, percent)
    except TooBig as error:
        return Leaf(text, None, unit, percent, big=str(error))
    except NotRational as error:
        return Leaf(text, None, unit, percent, undefined="division by zero" in str(error))
