"""An objective's formula, read from its source without running it (objectives import torch)."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any


def formula(node: Any) -> str | None:
    """The `J =` line in the docstring of the function that a `_target_` names, read from its source; None: not found.

    The source is parsed, not run, because objectives import torch.
    """
    module, _, name = str((node or {}).get("_target_")).rpartition(".")
    try:
        spec = importlib.util.find_spec(module) if module else None
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    for item in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(item, ast.FunctionDef) and item.name == name:
            lines = [line.strip() for line in (ast.get_docstring(item) or "").splitlines()]
            return next((line for line in lines if line.startswith("J =")), None)
    return None


def clipped_ratio(line: str) -> str | None:
    """The ratio that the clip tests in a `J =` line, in clip(r, b(r) or min(r, 1: s_i, s_it or w_it; None: no clip."""
    found = re.search(r"(?:\bclip\(|\bb\(|\bmin\()\s*(s_it|s_i|w_it)\s*(?:,\s*1|\))", line)
    return found.group(1) if found else None
