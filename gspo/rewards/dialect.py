"""What the computer algebra's grammar reads too loosely, said so that it cannot: decimals, degrees, primes."""

from __future__ import annotations

import re

from gspo.rewards.numeric import GREEK_NAMES

SUBSCRIPT = r"(?:_\{([A-Za-z0-9,]*)\}|_([A-Za-z0-9]))?"
PRIMED = re.compile(rf"([A-Za-z]|\\(?:{GREEK_NAMES}) ?){SUBSCRIPT}('+){SUBSCRIPT}")


def primes(text: str) -> str | None:
    """`x'` and `f''(x)` as names of their own; None where a prime stands behind anything but a name."""
    if "'" not in text:
        return text
    text = re.sub(r"(?<=[A-Za-z0-9})']) +(?=')", "", text)
    named = PRIMED.sub(lambda m: f"{m[1].strip()}_{{{m[2] or m[3] or m[5] or m[6] or ''}Q{len(m[4])}}}", text)
    return None if "'" in named else named


def plain_latex(text: str) -> str:
    """Decimals as fractions, mixed numbers as sums, degrees in radians, joining words as commas."""
    text = re.sub(
        r"(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}",
        lambda m: f"({m[1]}+\\frac{{{m[2]}}}{{{m[3]}}})" if int(m[2]) < int(m[3]) else m[0],
        text,
    )
    text = re.sub(
        r"(\d+)\.(\d*)|(?<!\d)\.(\d+)",
        lambda m: f"\\frac{{{(m[1] or '0') + (m[2] or m[3] or '')}}}{{1{'0' * len(m[2] or m[3] or '')}}}",
        text,
    )
    text = re.sub(r"(\d+|\([^()]*\))\s*\^\\circ", r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = re.sub(r"(\d+|[A-Za-z])!\s*\^", r"(\1!)^", text)
    return re.sub(r"\\text\{(?:and|or)\}", ",", text)
