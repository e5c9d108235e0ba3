"""Letters of a multiple choice: one letter with its content, a list of letters, or several guesses."""

from __future__ import annotations

import re
from collections.abc import Callable

from gspo.rewards.nodes import Choice, Leaf, Many, Node, Nothing, split, trim

CHOICE = re.compile(
    r"\\text\{\s*(?:(?:option|choice|answer)\s*)?(?:\((?P<a>[A-J])\)|(?P<b>[A-J])[).:])\s*(?P<words>[^{}]*)\}[).:]?(?P<after>.*)"
    r"|(?:\((?P<c>[A-J])\)|(?P<d>[A-J])\s*[).:](?!\d))\s*(?P<content>.*)"
    r"|\\text\{\s*(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*)?(?P<e>[A-J])\s*\}|\\text\{(?:[Oo]ption|[Cc]hoice)\}\s*\(?(?P<f>[A-J])\)?",
    re.DOTALL,
)
MARKED = re.compile(r"(?<![A-Za-z0-9\\_^(|'])(?:\([A-J]\)|[A-J]\s*[).:](?![\d)]))")
"""A letter written as a choice is; `f(A)`, `(A,B)` and `{A}` are none."""
ALONE = re.compile(r"(?:\\text\{\s*)?[A-HJ]\s*\}?")
"""A letter and nothing else; `I` may be a number."""
JOINTS = ("\\text{or}", "\\text{and}", ";", "/", "&", ",")
LETTERS = re.compile(r"\\text\{(\s*\(?[A-J]\)?(?:\s*,\s*\(?[A-J]\)?)+\s*)\}")


def choice(text: str, read: Callable[[str], Node]) -> Node | None:
    """A letter with what stands behind it; letters side by side are a list, any other mixture no answer; else None."""
    if letters := LETTERS.fullmatch(text):
        return read(letters.group(1))
    found = CHOICE.fullmatch(text)
    if not found:
        return None
    letter = next(x for x in found.group("a", "b", "c", "d", "e", "f") if x)
    words = trim(found.group("words") or "")
    content = (f"\\text{{{words}}}" if re.search(r"[A-Za-z]", words) else words) + (
        found.group("after") or found.group("content") or ""
    )
    parts = split(content, JOINTS)[0]
    joined = len(parts) > 1 and not trim(parts[0])
    if MARKED.search(content) or joined or any(ALONE.fullmatch(trim(part)) for part in parts):
        return _several(text, read)
    return Choice(letter, read(content) if trim(content) else None)


def _several(text: str, read: Callable[[str], Node]) -> Node:
    parts = [part for part in split(text, JOINTS)[0] if trim(part)]
    items = [read(trim(part)) for part in parts] if len(parts) > 1 else []
    if items and all(isinstance(item, Choice) or (isinstance(item, Leaf) and len(item.text) == 1) for item in items):
        return Many(tuple(items), braces=False)
    return Nothing("several choices at once")
