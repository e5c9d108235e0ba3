"""What is optimised, in one line of algebra: quoted from the objective's own docstring, with its numbers filled in."""

from collections.abc import Callable
from typing import Any


def algebra(objective: Callable[..., Any], keywords: dict[str, Any]) -> str:
    """The objective's line that starts with `J =`, or with `Unclipped:` when neither side is clipped.

    `keywords` are the bound ones (clip_low, clip_high, and any named in braces in the line). Raises ValueError for an
    objective whose docstring lacks the line: a run must be able to say what it optimises.
    """
    lines = [line.strip() for line in (objective.__doc__ or "").splitlines()]
    low, high = keywords.get("clip_low"), keywords.get("clip_high")
    clipped = next((line for line in lines if line.startswith("J =")), None)
    unclipped = next((line.removeprefix("Unclipped:").strip() for line in lines if line.startswith("Unclipped:")), None)
    if clipped is None:
        raise ValueError(f"{objective.__name__}: its docstring needs a line that starts with 'J =' to say what it is")
    line = unclipped if low is None and high is None and unclipped else clipped
    for name, value in keywords.items():
        line = line.replace("{" + name + "}", str(value))
    sides = [f"{side} = {'open' if eps is None else eps}" for side, eps in (("eL", low), ("eR", high)) if side in line]
    return "; ".join([line, *sides])


def level(objective: Callable[..., Any]) -> str:
    """`sequence` or `token`: which ratio the clip tests, read from the `J =` line (s_i or s_it, or w_it, inside it)."""
    line = next((x for x in (objective.__doc__ or "").splitlines() if x.strip().startswith("J =")), "")
    tested = line.partition("clip(")[2] or line.partition("b(")[2] or line
    return "sequence" if tested.strip().startswith("s_i") else "token"
