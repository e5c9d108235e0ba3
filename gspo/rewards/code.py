"""The reward of a program: which block of a response is graded, and what its tests say of it.

Graded is the last Python block outside the thinking part that defines the entry point; for a task without one, the last
that reads standard input. If no block does, the last Python block. So a usage example after the solution does not
replace it, and a corrected version does. A block is Python if it is fenced (backticks or tildes) without a language or
as python; a fence that is never closed (a truncated response) is no block. Training and evaluation use this one rule.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from gspo.rewards.answers import without_thinking
from gspo.rewards.code_blocks import defines, reads_input
from gspo.rewards.code_once import judge_once
from gspo.rewards.code_rows import tests_problem
from gspo.rewards.sandbox import MEMORY_MB, TIME_LIMIT, CodeVerdict, InfrastructureError, choose_tier, self_test
from gspo.types import Prompt, Reward, Rollout

KINDS = ("code",)
"""Kinds of prompts that are judged here."""
_OPEN = re.compile(r"^[ \t]*(?:(`{3,})[ \t]*([^`\n]*)|(~{3,})[ \t]*([^\n]*))$", re.MULTILINE)
_PYTHON = frozenset({"", "python", "python3", "py", "py3", "cpython", "pypy", "pypy3", "python2", "sage"})


def extract_program(response: str, entry_point: str | None = None, *, opened: bool = False) -> str | None:
    """The block that is graded, by the rule above; None: no code.

    `entry_point` may be dotted (`Solution.f`: the class counts); `opened`: the prompt ended inside a thinking part.
    """
    blocks = _blocks(without_thinking(response.replace("\r\n", "\n"), opened))
    wanted = entry_point.split(".")[0] if entry_point else None
    for block in reversed(blocks):
        if defines(block, wanted) if wanted else reads_input(block):
            return block
    return blocks[-1] if blocks else None


def _blocks(text: str) -> list[str]:
    """Contents of the closed Python fences, in order."""
    found, position = [], 0
    while opening := _OPEN.search(text, position):
        mark, language = opening.group(1) or opening.group(3), opening.group(2) or opening.group(4) or ""
        closing = re.compile(rf"^[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        if end is None:
            break
        word = language.strip().strip("{}.").split(" ")[0].split(",")[0].lower()
        body = textwrap.dedent(text[opening.end() + 1 : end.start()])
        if word in _PYTHON and body.strip():
            found.append(body)
        position = end.end()
    return found


def _entry_point(tests: Any, meta: dict[str, Any]) -> str | None:
    names = [test.get("fn") for test in tests if isinstance(test, dict)] if isinstance(tests, list) else []
    return meta.get("entry_point") or next((name for name in names if isinstance(name, str)), None)


def _with_entry_point(tests: Any, name: str | None) -> Any:
    if name is None or not isinstance(tests, list):
        return tests
    return [{"fn": name, **test} if isinstance(test, dict) and test.get("type") != "stdin" else test for test in tests]


def _no_code(response: str, truncated: bool, tests: Any) -> CodeVerdict:
    """A fail, unless the row's tests could not have judged any program."""
    if why := tests_problem(tests):
        return CodeVerdict("infrastructure", f"data error: {why}")
    return CodeVerdict("fail", "truncated: no code" if truncated else f"no code in {len(response)} characters")


def code_reward(
    prompt: Prompt,
    rollout: Rollout,
    *,
    sandbox: str = "auto",
    workers: int = 2,
    time_limit: float = TIME_LIMIT,
    memory_mb: int = MEMORY_MB,
    partial: bool = False,
) -> Reward:
    """1 if the program passes every test of `prompt.reference`, else 0 (`partial`: passed / all tests).

    A truncated response has no code. Part `format`: a program was found. A judge that fails gives NaN and the verdict
    `verifier failed`. Identical programs are judged once. Callable from any thread; `workers` programs at most run at
    once.
    Raises InfrastructureError when no sandbox works here.
    """
    tests = prompt.reference
    entry = _entry_point(tests, prompt.meta)
    truncated = rollout.finish == "length"
    opened = prompt.text.rstrip().endswith("<think>")
    program = None if truncated else extract_program(rollout.text, entry, opened=opened)
    if program is None:
        verdict = _no_code(rollout.text, truncated, _with_entry_point(tests, entry))
        value = _value(verdict, partial)
        said = "wrong" if value == 0 else "verifier failed"
        return Reward(value, {"correct": value, "format": 0.0}, said, path="no code", reason=verdict.reason)
    verdict = judge_once(
        program, _with_entry_point(tests, entry), sandbox=sandbox, workers=workers, time_limit=time_limit,
        memory_mb=memory_mb, partial=partial,
    )  # fmt: skip
    path = f"{verdict.tier}: {verdict.verdict}"
    value = _value(verdict, partial)
    right = "ok" if verdict.verdict == "pass" else "verifier failed" if value != value else "wrong"
    return Reward(value, {"correct": value, "format": 1.0}, right, path=path, reason=verdict.reason)


def _value(verdict: CodeVerdict, partial: bool) -> float:
    if verdict.verdict == "infrastructure":
        return float("nan")
    if partial and verdict.total:
        return verdict.passed / verdict.total
    return float(verdict.verdict == "pass")


def ready(node: dict[str, Any]) -> dict[str, Any]:
    """The sandbox that `reward.sandbox` gives here and its self-test, for run.json.

    Raises ValueError, with the fix, when none works here or the self-test finds a hole.
    """
    asked = node.get("sandbox", "auto")
    try:
        found = self_test(choose_tier(asked))
    except InfrastructureError as error:
        raise ValueError(f"reward.sandbox={asked}: {error}") from error
    if not found["works"]:
        raise ValueError(f"reward.sandbox={asked}: the self-test of {found['tier']} failed: {found['reason']}")
    return {"sandbox": found}


def row_problem(row: dict[str, Any]) -> str | None:
    """What is wrong with an input row of `gspo-grade reward=code`; None when nothing is."""
    if not isinstance(row.get("tests"), list):
        return f"tests={row.get('tests')!r} must be a list"
    given = [key for key in ("program", "response") if isinstance(row.get(key), str)]
    if len(given) != 1:
        return "one of program and response must be text, and only one"
    if row.get("finish", "stop") not in ("stop", "length", "abort"):
        return f"finish={row['finish']!r} must be stop, length or abort"
    return None


def grade_row(
    row: dict[str, Any],
    *,
    sandbox: str = "auto",
    workers: int = 2,
    time_limit: float = TIME_LIMIT,
    memory_mb: int = MEMORY_MB,
    partial: bool = False,
) -> dict[str, Any]:
    """`id`, `verdict` (of the sandbox), `reward` (None if the judge failed), `reason` and `path` of one row.

    The row has `program`, or `response` (with `finish`, `entry_point` optional), and `tests`.
    """
    entry = _entry_point(row["tests"], row)
    program, truncated = row.get("program"), row.get("finish") == "length"
    if program is None and not truncated:
        program = extract_program(row["response"], entry)
    if program is None:
        verdict = _no_code(row["response"], truncated, _with_entry_point(row["tests"], entry))
        path = "no code"
    else:
        verdict = judge_once(
            program, _with_entry_point(row["tests"], entry), sandbox=sandbox, workers=workers, time_limit=time_limit,
            memory_mb=memory_mb, partial=partial,
        )  # fmt: skip
        path = verdict.tier
    value = _value(verdict, partial)
    reward = None if value != value else value
    return {"id": row["id"], "verdict": verdict.verdict, "reward": reward, "reason": verdict.reason, "path": path}
