"""Judges a test that is code: it runs in a second box, without untrusted code, and calls the solution through stubs.

The test's end of a call and the solution's never share a process; this process passes the lines between them. A test
has passed only if the test code's end says so with a nonce that the solution's box never sees.
"""

from __future__ import annotations

import ast
import builtins
import secrets
from typing import Any

from gspo.rewards import tagged
from gspo.rewards.box import Report
from gspo.rewards.code_tests import Boxes, DataError, Job, Outcome, ending, limits_of, shared_imports

_MODULES = frozenset(
    {"sys", "math", "re", "random", "string", "itertools", "functools", "collections", "copy", "heapq"}
)
"""Modules that test code may use without importing them (the solution had imported them when the test was written)."""


def judge_assert(job: Job, boxes: Boxes, program: bytes, test: dict[str, Any]) -> Outcome:
    """A test of trusted code. Raises BoxError; DataError when the code fails before it calls the solution."""
    limits = limits_of(job, test)
    nonce = secrets.token_hex(16)
    trusted, box = boxes.get_trusted(), boxes.get_solution()
    box.begin("call", program, imports=shared_imports(job.program), **limits)
    more = {**limits, "cpu": limits["cpu"] + 5, "wall": limits["wall"] + 5, "output": 4 * limits["output"]}
    names, modules = _names(test)
    head = {"nonce": nonce, "names": names, "modules": modules, "imports": shared_imports(test["code"])}
    trusted.begin("test", test["code"].encode(), **head, **more)
    ended: Report | None = None
    final: dict[str, Any] | None = None
    while isinstance(said := trusted.next(), bytes):
        message: Any = tagged.decode(said, lambda index, name: index)
        if "n" not in message:
            final = message
            break
        box.tell(said)
        answer = box.next()
        if isinstance(answer, Report):
            ended = answer
            break
        trusted.tell(answer)
    trusted_report = said if isinstance(said, Report) else trusted.end()
    report = ended or box.end()
    boxes.after_test(report, trusted_report)
    outcome = ending(report, limits)
    if ended is not None:
        if outcome.verdict == "pass":
            outcome.verdict, outcome.reason = "error", "the program ended before it returned"
    elif report.cpu < limits["cpu"]:
        outcome.verdict, outcome.reason = _judge_final(final, nonce, trusted_report, more)
    return outcome


def _judge_final(final: dict[str, Any] | None, nonce: str, report: Report, limits: dict[str, Any]) -> tuple[str, str]:
    """The verdict by what the test code said at its end (None: it ended without a word)."""
    if final is None:
        end = ending(report, limits)
        return "error" if end.verdict == "pass" else end.verdict, f"test code: {end.reason or 'it gave no verdict'}"
    if final["calls"] == 0:
        raise DataError(f"the test code never called the solution ({final.get('raised', 'it ran through')})")
    if final.get("done") == nonce:
        return "pass", ""
    if "failed" in final:
        return "fail", f"assertion failed, {final['failed']}"
    if final["raised_by_solution"] and final["raised"].startswith("MemoryError"):
        return "memory", f"memory limit of {limits['memory'] >> 20} MB"
    return "error", final["raised"]


def _names(test: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """What names in the test code mean: functions of the solution (name, path there), and modules not imported.

    The solution has no say in it: a function that it calls `abs` or `all` is not the test's. Only where the test code
    uses no other name can the function under test be called like a built-in one.
    """
    tree = ast.parse(test["code"])
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    loaded = dict.fromkeys(node.id for node in nodes)
    called = {
        node.func.id: None for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    modules = [name for name in loaded if name in _MODULES and name not in called]
    names = {name: name for name in loaded if not hasattr(builtins, name) and name not in modules}
    if "fn" in test:
        names |= {"candidate": test["fn"], test["fn"].split(".")[-1]: test["fn"]}
    elif not names:
        names = {name: name for name in list(called)[:1]}
    return names, modules
