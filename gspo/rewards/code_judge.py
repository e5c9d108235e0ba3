"""A judge: a small process outside the box that holds the tests, runs programs in boxes and compares. No torch here.

`sandbox.py` starts it and sends one job at a time on stdin; one verdict a job goes back on stdout. Single-threaded: the
boxes die with this process's main thread.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from typing import Any

from gspo.rewards import frames
from gspo.rewards.box import BoxError, Report
from gspo.rewards.code_asserts import judge_assert
from gspo.rewards.code_rows import tests_problem
from gspo.rewards.code_tests import Boxes, DataError, Job, Outcome, judge_call, judge_stdin

_JUDGES = {"stdin": judge_stdin, "call": judge_call, "assert": judge_assert}


def judge(job: Job, boxes: Boxes) -> dict[str, Any]:
    """Every test, up to the first that does not pass (all of them with `partial`). Raises BoxError, DataError."""
    if why := tests_problem(job.tests):
        raise DataError(why)
    boxes.for_job(job)
    program = job.program.encode("utf-8", "surrogatepass")
    outcomes: list[Outcome] = []
    spent = 0.0
    for test in job.tests:
        if spent > job.budget:
            outcome = Outcome("timeout", f"budget of {job.budget:g} s for the program")
        else:
            outcome = _JUDGES[test["type"]](job, boxes, program, test)
        outcomes.append(outcome)
        spent += outcome.wall
        if outcome.verdict != "pass" and not job.partial:
            break
    bad = next((outcome for outcome in outcomes if outcome.verdict != "pass"), None)
    return {
        "verdict": bad.verdict if bad else "pass",
        "reason": f"test {outcomes.index(bad) + 1}: {bad.reason}" if bad else "",
        "passed": sum(outcome.verdict == "pass" for outcome in outcomes),
        "total": len(job.tests),
        "tests": [asdict(outcome) for outcome in outcomes],
        "starved": any(outcome.starved for outcome in outcomes),
    }


def run_program(job: Job, boxes: Boxes) -> dict[str, Any]:
    """What a program prints when it runs as a script, unjudged: for the self-test. Raises BoxError."""
    boxes.for_job(job)
    limits = {"cpu": job.time_limit, "wall": 3 * job.time_limit, "memory": job.memory, "output": job.output}
    box = boxes.get_solution()
    box.begin("stdin", job.program.encode(), **limits)
    report = box.next()
    assert isinstance(report, Report)
    boxes.after_test(report)
    return {
        "exit": report.exit,
        "out": report.out.decode("utf-8", "replace"),
        "err": report.err.decode("utf-8", "replace"),
    }


def answer(order: dict[str, Any], boxes: Boxes) -> dict[str, Any]:
    """One job, tried again in new boxes if a box (not the program) fails the first time."""
    run = run_program if order.pop("raw", False) else judge
    job = Job(**order)
    for attempt in (1, 2):
        try:
            return run(job, boxes)
        except DataError as error:
            return {"verdict": "infrastructure", "reason": f"data error: {error}"}
        except BoxError as error:
            boxes.close()
            if attempt == 2:
                return {"verdict": "infrastructure", "reason": str(error)}
    raise AssertionError


def main() -> None:
    """Serve jobs until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.dup(1)
    os.dup2(2, 1)
    boxes = Boxes()
    try:
        while (message := frames.receive(0)) is not None:
            verdict = answer(json.loads(message[1][0]), boxes)
            boxes.after_job()
            frames.send(replies, {}, json.dumps(verdict).encode())
    finally:
        boxes.close()
