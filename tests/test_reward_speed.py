"""What judging costs: copies of a program are judged once, and the rates that the benchmarks measure."""

import functools
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gspo.rewards.code import code_reward, grade_row
from gspo.rewards.score import score
from gspo.types import Group, Prompt, Reward, Rollout

BENCH = Path(__file__).parents[1] / "scripts" / "bench.py"
COIN = "import os\ndef f(x):\n    return os.urandom(1)[0] % 2  # {}\n"
"""A program that is right half of the time: two verdicts of it differ as often."""


def rollout(text):
    return Rollout(np.zeros(1, np.int64), np.ones(1, bool), np.zeros(1, np.float32), "stop", 0, text)


def calls(argument):
    return [{"type": "call", "fn": "f", "args": [argument], "output": 1}]


def test_copies_of_a_program_are_judged_once():
    """Sixteen copies of a coin toss in different words have one verdict (2^-15 by chance); sixteen that differ in a
    comment, and sixteen with other tests or limits, do not. Catches a verdict for every copy, and a verdict that
    forgets what it was of."""
    prompt = Prompt("p", "", (1,), calls(1), "test", "code")
    same = [rollout(f"Attempt {i}:\n```\n{COIN.format('once')}```") for i in range(16)]
    other = [rollout(f"```\n{COIN.format(i)}```") for i in range(16)]
    copies, different = score([Group(prompt, same), Group(prompt, other)], code_reward)
    assert len({reward.value for reward in copies.rewards}) == 1
    assert {reward.value for reward in different.rewards} == {0.0, 1.0}
    program = COIN.format("rows")
    by_tests = [grade_row({"id": i, "program": program, "tests": calls(i)})["reward"] for i in range(16)]
    by_limit = [
        grade_row({"id": i, "program": program, "tests": calls(99)}, memory_mb=300 + i)["reward"] for i in range(16)
    ]
    assert set(by_tests) == set(by_limit) == {0.0, 1.0}


def test_a_failure_of_the_judge_is_not_remembered():
    """No tests at all is the row's fault each time; with tests the same program is judged."""
    row = {"id": 1, "program": "def f(x):\n    return 1\n", "tests": []}
    assert [grade_row(row)["verdict"] for _ in range(2)] == ["infrastructure"] * 2
    assert grade_row(row | {"tests": calls(1)})["verdict"] == "pass"


def test_a_fork_in_the_middle_of_a_verdict():
    """A child forked while another thread starts its first box, or judges, judges the same program itself; catches
    locks that stay held, and verdicts that nobody will bring any more."""
    code = (
        "import os, sys, threading, time\nfrom gspo.rewards.code import grade_row\n"
        "row = {'id': 1, 'program': 'import time\\ndef f(x):\\n    time.sleep(1)\\n    return 1',"
        " 'tests': [{'type': 'call', 'fn': 'f', 'args': [1], 'output': 1}]}\n"
        "threads = [threading.Thread(target=grade_row, args=(row,)) for _ in range(3)]\n"
        "[thread.start() for thread in threads]\ntime.sleep(float(sys.argv[1]))\n"
        "child = os.fork()\nverdict = grade_row(row)['verdict']\n"
        "if child == 0: os._exit(verdict != 'pass')\nprint(verdict, os.waitpid(child, 0)[1])"
    )
    for moment in ("0.02", "0.8"):
        done = subprocess.run([sys.executable, "-c", code, moment], capture_output=True, text=True, timeout=100)
        assert done.stdout == "pass 0\n", done.stderr


def test_copies_of_a_response_are_judged_apart():
    """Two groups of four with two threads: no two responses of a group are under way at once, and rewards come back
    to their own rollouts. Catches copies that wait for each other while the second worker is idle."""
    busy, together, lock = set(), [], threading.Lock()

    def reward(prompt, rollout, *, workers):
        with lock:
            together.append(prompt.id in busy)
            busy.add(prompt.id)
        barrier.wait(10)
        with lock:
            busy.discard(prompt.id)
        barrier.wait(10)
        return Reward(float(rollout.text))

    barrier = threading.Barrier(2)
    groups = [Group(Prompt(i, "", (1,), "", "test"), [rollout(f"{i}{g}") for g in range(4)]) for i in ("1", "2")]
    found = score(groups, functools.partial(reward, workers=1))
    assert [[r.value for r in group.rewards] for group in found] == [[10, 11, 12, 13], [20, 21, 22, 23]]
    assert not any(together)


@pytest.mark.parametrize(
    ("arguments", "column", "least"),
    [
        (["math", "--answers", "1600"], "answers per core second", (2000, 200)),
        (["sandbox", "--tests", "10", "--seconds", "2"], "cpu ms per test", (1000 / 75,)),
    ],
)
def test_the_promised_rates(arguments, column, least):
    """2,000 plain and 200 mixed answers a second and core; 150 tests a second on two cores for programs of 10 tests.

    By CPU time, with twice the promised cost allowed on cores that others use too.
    """
    done = subprocess.run([sys.executable, BENCH, *arguments, "--json"], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row, bound in zip(rows, least, strict=True):
        assert row[column] <= 2 * bound if "ms" in column else row[column] >= bound / 2
