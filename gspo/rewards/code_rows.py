"""What is wrong with the tests of a row, before any program is run."""

from __future__ import annotations

import ast
from typing import Any

FIELDS = {"stdin": {"input": str, "output": str}, "call": {"fn": str, "args": list}, "assert": {"code": str}}
"""Kinds of tests, and the fields each must have."""


def tests_problem(tests: Any) -> str | None:
    """One line on the first test that cannot be used; None when all can."""
    if not isinstance(tests, list) or not tests:
        return "no tests"
    return next((why for index, test in enumerate(tests) if (why := _test_problem(test, f"test {index + 1}"))), None)


def _test_problem(test: Any, where: str) -> str | None:
    kind = test.get("type") if isinstance(test, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        return f"{where}: type={kind!r}, accepted: {', '.join(FIELDS)}"
    for key, cls in FIELDS[kind].items():
        if not isinstance(test.get(key), cls):
            return f"{where} ({kind}): {key} is {type(test.get(key)).__name__}, not {cls.__name__}"
    if kind == "call" and "output" not in test:
        return f"{where} (call): no output"
    if kind == "assert":
        try:
            tree = ast.parse(test["code"])
        except (SyntaxError, ValueError, RecursionError) as error:
            return f"{where} (assert): {error}"
        if not any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree)):
            return f"{where} (assert): the code asserts nothing"
    return None
