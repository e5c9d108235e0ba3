"""What an objective is, quoted from its own docstring; the source is read, not run (objectives import torch).

A docstring has a line that starts with `J =`, and one that starts with `Unclipped:` where leaving the clip out changes
the line. So the formula that a run reports is the one written beside the code.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any


def formula(node: Any) -> str | None:
    """The `J =` line in the docstring of the function that a `_target_` names; None: not found."""
    return next((line for line in _docstring(node) if line.startswith("J =")), None)


def algebra(node: dict[str, Any], keywords: dict[str, Any]) -> str:
    """One line of algebra of what is optimised: the `J =` line, or `Unclipped:` when neither side is clipped.

    `keywords` are those bound to the objective: clip_low, clip_high, and any that the line names in braces. Raises
    ValueError for an objective whose docstring lacks the line: a run must be able to say what it optimises.
    """
    clipped = formula(node)
    if clipped is None:
        raise ValueError(
            f"algo.objective._target_={node.get('_target_')}: its docstring needs a line that starts with 'J ='"
        )
    low, high = keywords.get("clip_low"), keywords.get("clip_high")
    unclipped = next((line[10:].strip() for line in _docstring(node) if line.startswith("Unclipped:")), clipped)
    line = unclipped if low is None and high is None else clipped
    for name, value in keywords.items():
        line = line.replace("{" + name + "}", str(value))
    named = {"eL": low, "eR": high}
    sides = [f"{side} = {'open' if eps is None else eps}" for side, eps in named.items() if side in line]
    return "; ".join([line, *sides])


def clipped_ratio(line: str) -> str | None:
    """The ratio that the clip tests in a `J =` line, in clip(r, b(r) or min(r, 1: s_i, s_it or w_it; None: no clip."""
    found = re.search(r"(?:\bclip\(|\bb\(|\bmin\()\s*(s_it|s_i|w_it)\s*(?:,\s*1|\))", line)
    return found.group(1) if found else None


def level(node: Any) -> str:
    """`sequence` or `token`: of which ratio the clip range speaks."""
    return "sequence" if (clipped_ratio(formula(node) or "") or "").startswith("s_i") else "token"


def _docstring(node: Any) -> list[str]:
    module, _, name = str((node or {}).get("_target_")).rpartition(".")
    try:
        spec = importlib.util.find_spec(module) if module else None
        origin = (spec.origin if spec else None) or ""
        body = ast.parse(Path(origin).read_text(encoding="utf-8")).body if origin.endswith(".py") else []
    except (Exception, SystemExit):  # anybody's module: what is wrong with it is said where it is bound
        return []
    for item in body:
        if isinstance(item, ast.FunctionDef) and item.name == name:
            return [line.strip() for line in (ast.get_docstring(item) or "").splitlines()]
    return []
