"""Judges one test of a program: a script's output or a call's result (code_asserts.py has the third kind).

The expected value stays in this process; what comes out of the solution's box is a claim, decoded to plain values and
compared here.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gspo.rewards import tagged
from gspo.rewards.box import Box, BoxError, Report
from gspo.rewards.box_layout import DISK
from gspo.rewards.code_compare import same_output, same_value


class DataError(Exception):
    """The tests, not the program, are wrong."""


@dataclass
class Outcome:
    """One test's verdict."""

    verdict: str
    reason: str = ""
    cpu: float = 0.0
    wall: float = 0.0
    waited: float = 0.0
    """Seconds of `wall` without a core, if it was killed; the wall limit is put off by as much, up to twice itself."""
    starved: bool = False
    """A wall time-out of a process that had waited for a core for longer than was made up for: worth another try."""


@dataclass
class Job:
    """A program, its tests and its limits."""

    program: str
    tests: list[dict[str, Any]]
    sandbox: str
    python: str
    bwrap: str | None
    time_limit: float
    memory: int
    output: int
    budget: float
    partial: bool


class Boxes:
    """The box of the program at hand and the box of trusted test code, each started when first needed."""

    def __init__(self) -> None:
        self.solution: Box | None = None
        self.trusted: Box | None = None
        self.kind: tuple[str, str, str | None] | None = None

    def for_job(self, job: Job) -> None:
        """A new program gets a new box; trusted code keeps its own."""
        self._close_solution()
        if self.kind != (job.sandbox, job.python, job.bwrap):
            self.close()
            self.kind = (job.sandbox, job.python, job.bwrap)

    def get_solution(self) -> Box:
        assert self.kind is not None
        self.solution = self.solution or Box(*self.kind)
        return self.solution

    def get_trusted(self) -> Box:
        assert self.kind is not None
        self.trusted = self.trusted or Box(*self.kind)
        return self.trusted

    def _close_solution(self) -> None:
        if self.solution is not None:
            self.solution.close()
        self.solution = None

    def after_job(self) -> None:
        """Nothing of a program outlives its verdict."""
        self._close_solution()

    def after_test(self, report: Report, trusted: Report | None = None) -> None:
        """Throw a box away when the test left files in it."""
        if report.dirty:
            self._close_solution()
        if trusted is not None and trusted.dirty:
            self._close_trusted()

    def close(self) -> None:
        """End both boxes."""
        self._close_solution()
        self._close_trusted()

    def _close_trusted(self) -> None:
        if self.trusted is not None:
            self.trusted.close()
        self.trusted = None


def limits_of(job: Job, test: dict[str, Any]) -> dict[str, Any]:
    wall = float(test.get("wall") or 3 * job.time_limit)
    return {"cpu": min(job.time_limit, wall), "wall": wall, "memory": job.memory, "output": job.output}


def ending(report: Report, limits: dict[str, Any]) -> Outcome:
    """The verdict of a process by the way it ended; `pass` means only that it ended by itself with code 0."""
    error = report.err.decode("utf-8", "replace").strip().split("\n")[-1][:300]
    verdict, reason, starved = "error", error or f"exit code {report.exit}", False
    if report.reason == "wall":
        verdict, reason = "timeout", f"wall limit of {limits['wall']:g} s"
        starved = not report.waited < 2 * limits["wall"]  # or not known
    elif report.reason == "output":
        reason = f"output over {limits['output']} bytes"
    elif report.reason == "disk":
        reason = f"file size limit of {DISK >> 20} MB"
    elif report.cpu >= limits["cpu"] or report.exit == -signal.SIGXCPU:
        verdict, reason = "timeout", f"CPU limit of {limits['cpu']:g} s"
    elif error.startswith("MemoryError") and report.exit:
        verdict, reason = "memory", f"memory limit of {limits['memory'] >> 20} MB"
    elif report.exit < 0:
        reason = f"killed by signal {-report.exit}"
    elif report.exit == 0:
        verdict, reason = "pass", ""
    elif error.startswith("BlockingIOError"):
        reason = f"process limit ({error})"
    elif error.startswith(("OSError: [Errno 27]", "OSError: [Errno 28]")):
        reason = f"file size limit ({error})"
    return Outcome(verdict, reason, report.cpu, report.wall, report.waited, starved)


_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_SHARED = frozenset({
    "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string",
    "textwrap", "threading", "typing",
})  # fmt: skip
"""Modules that the keeper imports for all tests of a program that names them: importing them has no effect but time."""


def shared_imports(code: str) -> list[str]:
    """Modules that `code` seems to import and that its processes may share."""
    return sorted(_SHARED.intersection(_IMPORT.findall(code)))


def judge_stdin(job: Job, boxes: Boxes, program: bytes, test: dict[str, Any]) -> Outcome:
    limits = limits_of(job, test)
    box = boxes.get_solution()
    box.begin(
        "stdin",
        program,
        test["input"].encode("utf-8", "surrogateescape"),
        imports=shared_imports(job.program),
        **limits,
    )
    report = box.next()
    if not isinstance(report, Report):
        raise BoxError("a script has no result channel")
    boxes.after_test(report)
    outcome = ending(report, limits)
    if outcome.verdict == "pass":
        printed = report.out.decode("utf-8", "surrogateescape")
        if not same_output(test["output"], printed, test.get("tolerance")):
            outcome.verdict, outcome.reason = "fail", f"printed {printed[:100]!r}, not {test['output'][:100]!r}"
    return outcome


def judge_call(job: Job, boxes: Boxes, program: bytes, test: dict[str, Any]) -> Outcome:
    limits = limits_of(job, test)
    box = boxes.get_solution()
    box.begin("call", program, imports=shared_imports(job.program), **limits)
    request = {"n": 1, "op": "call", "of": None, "name": test["fn"], "args": test["args"], "kw": test.get("kwargs", {})}
    box.tell(tagged.encode({**request, "objects": False}).encode())
    said = box.next()
    report = said if isinstance(said, Report) else box.end()
    boxes.after_test(report)
    outcome = ending(report, limits)
    if isinstance(said, Report):
        if outcome.verdict == "pass":
            outcome.verdict, outcome.reason = "error", "the program ended before it returned"
        return outcome
    if report.cpu >= limits["cpu"]:
        return outcome
    try:
        with _at_most(2.0):
            answer = tagged.decode(said)
            return _compare_call(answer, test, outcome, limits)
    except (ValueError, TimeoutError) as error:
        outcome.verdict, outcome.reason = "error", f"no proper result: {error}"
        return outcome


def _compare_call(answer: Any, test: dict[str, Any], outcome: Outcome, limits: dict[str, Any]) -> Outcome:
    if not isinstance(answer, dict) or answer.get("n") != 1:
        raise ValueError("not an answer to the call")
    if "v" in answer:
        good = same_value(test["output"], answer["v"], exact=bool(test.get("exact")))
        outcome.verdict = "pass" if good else "fail"
        outcome.reason = "" if good else f"returned {_short(answer['v'])}, not {_short(test['output'])}"
    else:
        outcome.verdict, outcome.reason = _raised(answer.get("x"), limits)
    return outcome


def _raised(what: Any, limits: dict[str, Any]) -> tuple[str, str]:
    name, text = (str(part) for part in what) if isinstance(what, list) and len(what) == 2 else ("?", "")
    if name == "MemoryError":
        return "memory", f"memory limit of {limits['memory'] >> 20} MB"
    return "error", f"{name}: {text}"[:300]


def _short(value: Any) -> str:
    try:
        return repr(value)[:100]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"the result takes over {seconds:g} s to read")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
