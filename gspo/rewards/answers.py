"""Where the answer of a response is: thinking cut off, code fences skipped, the last balanced box alone.

Text in, text out; nothing here compares or judges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[^\n]*$", re.MULTILINE)
NAMED = re.compile(
    r"####|(?:final\s+answer|answer|result|solution)s?\b[^.\n$\\]{0,60}?(?:\bis\b|\bare\b|:|=)(?:\s*\*\*)?\s*:?",
    re.IGNORECASE,
)
MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$])\$(?!\$)(.+?)(?<!\\)\$(?:\s*(?:\\?%|percent\b|pct\b))?|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
NUMBER = re.compile(
    r"(?<![A-Za-z\d.,])\$?[-+]?(?:\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?(?!\d)|\d+[.,]\d+|\d+|\.\d+)(?:/\d+)?"
    r"(?:\s*(?:\\?%|percent\b|pct\b|€|m²))?(?![A-Za-z\d])"
)
COPULA = re.compile(r"(?<!\w)(?:is|are|equals?|be|:)\s+(?=[^$]*(?:\$[^$]*\$[^$]*)*$)")
TAIL = re.compile(r"<\|[^|]*\|>.*$|I hope it is correct\.?.*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer's text, and how it was found."""

    text: str | None
    """None: the response gives no answer."""
    how: Literal["box", "lenient", "none"]
    boxed: bool
    """True where the last balanced box outside code and thinking holds something: the `format` part."""
    why: str = ""
    """One line where there is no answer."""


def without_thinking(text: str, opened: bool = False) -> str:
    """What follows the last `</think>`; with a thought never closed, what stands before it.

    `opened`: the prompt itself ended in `<think>`, so that the response begins inside a thought.
    """
    start, closed = text.rfind("<think>"), text.rfind("</think>")
    if closed >= 0:
        text = text[closed + len("</think>") :]
        start = text.find("<think>")
        return text if start < 0 else text[:start]
    return "" if opened else text[:start] if (start := text.find("<think>")) >= 0 else text


def without_code(text: str) -> str:
    """The text with fenced code blocks removed; a fence never closed runs to the end."""
    kept, position = [], 0
    while opening := FENCE.search(text, position):
        kept.append(text[position : opening.start()])
        mark = opening.group(1)
        closing = re.compile(rf"^[ \t]{{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        if end is None:
            return "".join(kept)
        position = end.end()
    return "".join([*kept, text[position:]])


def group_end(text: str, start: int) -> int:
    """Index just past the `}` that closes the `{` at `start`, or -1; escaped braces do not count."""
    depth, i = 0, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return -1


def last_box(text: str) -> str | None:
    """What the last balanced, outermost `\\boxed{...}` or `\\fbox{...}` holds; None without one."""
    found, position = None, 0
    while box := BOX.search(text, position):
        end = group_end(text, box.end()) if text.startswith("{", box.end()) else -1
        if end < 0:
            position = box.end()
        else:
            found, position = text[box.end() + 1 : end - 1], end
    return found


def _last_value(text: str) -> str | None:
    """The last formula of a text, or its last number outside formulas, whichever stands later."""
    formulas = list(MATH.finditer(text))
    rest = list(text)
    for m in formulas:
        rest[m.start() : m.end()] = " " * (m.end() - m.start())
    numbers = list(NUMBER.finditer("".join(rest)))
    if formulas and not (numbers and numbers[-1].start() > formulas[-1].start()):
        return formulas[-1].group(0)
    return numbers[-1].group(0) if numbers else None


def lenient_answer(text: str) -> str | None:
    """The answer of a response without a box: what it names as its answer, else its last formula or number."""
    loose = list(re.finditer(r"\\boxed\s+(\S+)", text))
    if loose:
        return loose[-1].group(1).rstrip(".$")
    text = TAIL.sub("", text).strip()
    named = list(NAMED.finditer(text))
    line = text[named[-1].end() :].strip().split("\n\n")[0] if named else text
    line = line.strip("*_\"'` ").removesuffix(".").strip("*_\"'` ")
    copulas = list(COPULA.finditer(line))
    if copulas and (end := line[copulas[-1].end() :].strip()) and not re.search(r"\.\s", end):
        line = end
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", re.sub(r"\\text\{[^}]*\}|\$[^$]*\$", "", line))
    if (
        line
        and len(line) <= 200
        and "\n" not in line
        and not [w for w in words if w.lower() not in ("and", "or", "percent", "pct")]
    ):
        return line
    if named and line and len(words) <= 3 and len(line) <= 40 and not re.search(r"\d|\$", line):
        return line
    return _last_value(line) or _last_value(text)


def find_answer(response: str, *, truncated: bool = False, lenient: bool = False, opened: bool = False) -> Found:
    """The answer of a response: the last balanced box outside thinking and code, and nothing else unless `lenient`."""
    if truncated:
        return Found(None, "none", False, "truncated")
    text = without_code(without_thinking(response, opened))
    box = last_box(text)
    if box is not None:
        if box.strip():
            return Found(box, "box", True)
        return Found(None, "none", False, "the last box is empty")
    if lenient:
        loose = lenient_answer(text)
        if loose and loose.strip():
            return Found(loose, "lenient", False)
    return Found(None, "none", False, "no balanced \\boxed{} outside thinking and code")
