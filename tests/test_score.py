"""Scoring in threads, workers that can be killed, `gspo-grade` on files, and the other rewards."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gspo.grade import grade, judge_of
from gspo.rewards import killable
from gspo.rewards.format import format_reward
from gspo.rewards.length import soft_overlong, with_length_penalty
from gspo.rewards.math import close, math_reward, verify
from gspo.rewards.mixed import mixed_reward
from gspo.rewards.score import VerifierFailures, score
from gspo.types import Group, Prompt, Reward, Rollout

ROOT = Path(__file__).parents[1]
HANG = {"gold": "1", "answer": r"9^{9^{9^{9}}}"}
"""A request that keeps a worker busy for ever; `verify` never sends one."""

MATH = judge_of({"_target_": "gspo.rewards.math.math_reward", "lenient": False, "workers": 2})


def rollout(text: str, finish="stop", tokens: int = 1) -> Rollout:
    return Rollout(np.zeros(tokens, np.int64), np.ones(tokens, bool), np.zeros(tokens, np.float32), finish, 0, text)


def prompt(name: str, gold: str, kind="math") -> Prompt:
    return Prompt(name, "q", (1,), gold, "t", kind)


def symbolic() -> killable.Pool:
    return killable.pool("gspo.rewards.symbolic", 2)


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds (a zombie has ended)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_rewards_come_back_in_order():
    """Responses judged by several threads, the early ones slowest, keep their places: a shuffled reward is noise."""

    def slow(prompt: Prompt, rollout: Rollout, *, workers: int = 4) -> Reward:
        time.sleep(0.002 * (8 - len(rollout.token_ids)))
        return math_reward(prompt, rollout)

    answers = [rollout(f"\\boxed{{{i % 3}}}", tokens=i) for i in range(8)]
    groups = [Group(prompt(f"p{g}", str(g % 3)), answers) for g in range(16)]
    scored = score(groups, functools.partial(slow, workers=4))
    assert scored is groups
    for g, group in enumerate(groups):
        assert [r.value for r in group.rewards] == [float(i % 3 == g % 3) for i in range(8)]


def test_verifier_failures_stop_the_batch():
    """Over 1 % without a verdict stops the run and names them; at 1 % the rewards are NaN, never 0."""
    good = [rollout(r"\boxed{1}") for _ in range(99)]
    one = [Group(prompt("good", "1"), good), Group(prompt("bad", "see solution"), [rollout(r"\boxed{1}")])]
    assert math.isnan(score(one, math_reward)[1].rewards[0].value)
    two = [Group(prompt("good", "1"), good), Group(prompt("bad", ""), [rollout("")] * 2)]
    with pytest.raises(VerifierFailures, match=r"2 of 101 .*bad: the gold answer ''"):
        score(two, math_reward)


def test_exception_of_a_verifier_is_not_a_zero():
    """A verifier that raises has failed: NaN and a reason, and the batch stops."""

    def broken(prompt: Prompt, rollout: Rollout) -> Reward:
        raise KeyError("tests")

    with pytest.raises(VerifierFailures, match=r"1 of 1 .*KeyError: 'tests'"):
        score([Group(prompt("p", "1"), [rollout("")])], broken)
    assert math.isnan(score([Group(prompt("p", "1"), [rollout("")])], broken, max_failed=1.0)[0].rewards[0].value)


def test_hanging_requests_hold_nobody_up():
    """Four requests that never end are killed at their deadline; others asked meanwhile are answered before that."""
    pool = symbolic()
    pool.start()
    ended: list[float] = []

    def hang() -> None:
        begun = time.monotonic()
        with pytest.raises(killable.WorkerFailure, match="no answer within 3 s"):
            pool.ask(HANG, 3.0)
        ended.append(time.monotonic() - begun)

    threads = [threading.Thread(target=hang) for _ in range(4)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for i in range(4):
        assert pool.ask({"gold": f"x+{i}", "answer": f"{i}+x"}, 3.0) == {"equal": True}
    waited = time.monotonic() - begun
    for thread in threads:
        thread.join()
    assert len(ended) == 4
    assert waited < max(ended), "others waited for the hanging ones"
    assert max(ended) < 3.0 * killable.STARVED + 2.0
    assert len(pool.alive) <= 2


def test_killed_worker_is_replaced():
    """A worker that dies (out of memory, say) costs its own request at most."""
    pool = symbolic()
    pool.start()
    for worker in list(pool.alive):
        os.kill(worker.pid, signal.SIGKILL)
        assert gone(worker.pid)
    answers = []
    for _ in range(4):
        try:
            answers.append(pool.ask({"gold": "x", "answer": "x"}, 3.0))
        except killable.WorkerFailure:
            continue
    assert answers[-2:] == [{"equal": True}] * 2


def test_workers_die_with_a_killed_parent():
    """SIGKILL of the trainer leaves no worker behind, a computing one included."""
    code = f"""
import os, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from gspo.rewards import killable
from gspo.rewards.math import verify
assert verify("x^2", r"\\boxed{{x\\cdot x}}").verdict == "ok"
pool = killable.pool("gspo.rewards.symbolic", 2)
threading.Thread(target=lambda: pool.ask({HANG!r}, 60.0), daemon=True).start()
time.sleep(0.5)
print(pool.nursery.process.pid, *(w.pid for w in pool.alive), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 2, done.stderr
    assert all(map(gone, pids))


def test_fork_of_the_parent_and_close():
    """A forked child judges with workers of its own and leaves the parent's alone; close() ends them all."""
    assert verify("x^2", r"\boxed{x\cdot x}").verdict == "ok"
    pool = symbolic()
    pids = [worker.pid for worker in pool.alive]
    child = os.fork()
    if child == 0:
        right = verify("x^2+1", r"\boxed{1+x\cdot x}").verdict == "ok"
        close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert verify("x^3", r"\boxed{x\cdot x^2}").verdict == "ok"
    assert pids
    assert any(worker.pid in pids for worker in pool.alive)
    close()
    assert all(map(gone, pids))
    assert verify("x^4", r"\boxed{x\cdot x^3}").verdict == "ok", "a new pool starts by itself"


def test_plain_numbers_need_no_worker_and_no_sympy():
    """Exact answers are judged without starting a process and without importing sympy or torch."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from gspo.rewards import killable, score, mixed, length, format
from gspo.rewards.math import verify
assert verify("1/2", r"\\boxed{{0.5}}").verdict == "ok"
assert not killable._pools
print([name for name in ("torch", "sympy", "math_verify", "latex2sympy2_extended") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def write(path: Path, lines: list) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_grade_writes_one_verdict_a_row(tmp_path):
    """Rows keep their order and ids; the exit code is 1 only for the judge's own failures."""
    good = [
        {"id": "a", "gold": "1", "response": r"\boxed{1}"},
        {"id": 2, "gold": "1", "response": r"\boxed{2}"},
        {"id": "c", "gold": "1", "response": r"\boxed{1}", "finish": "length"},
    ]
    said = io.StringIO()
    assert grade(*MATH, write(tmp_path / "in.jsonl", good), tmp_path / "out.jsonl", stream=said) == 0
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(r["id"], r["verdict"], r["reward"], r["path"]) for r in out] == [
        ("a", "ok", 1.0, "exact"),
        (2, "wrong", 0.0, "exact"),
        ("c", "wrong", 0.0, "truncated"),
    ]
    assert "graded 3 of 3" in said.getvalue()
    for gold in ("", r"nonsense \frac{"):
        bad = write(tmp_path / "bad.jsonl", [*good, {"id": "d", "gold": gold, "response": r"\boxed{1}"}])
        assert grade(*MATH, bad, tmp_path / "out2.jsonl", stream=said) == 1
        last = json.loads((tmp_path / "out2.jsonl").read_text().splitlines()[-1])
        assert (last["verdict"], last["reward"]) == ("verifier_failed", None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"id": 1, "gold": ', "not JSON"),
        ("[1]", "a JSON object is expected"),
        ({"gold": "1", "response": ""}, "id=None"),
        ({"id": 1, "response": ""}, "gold=None must be text"),
        ({"id": 1, "gold": "1", "response": 5}, "response=5 must be text"),
        ({"id": 1, "gold": "1", "response": "", "finish": "eos"}, "finish='eos' must be stop, length or abort"),
        ({"id": 0, "gold": "1", "response": ""}, "id=0 stands twice"),
    ],
)
def test_grade_names_the_line_of_a_bad_row(tmp_path, line, why):
    """An input that does not fit is refused with file and line before anything is judged, and no output is left."""
    path = write(tmp_path / "in.jsonl", [{"id": 0, "gold": "1", "response": ""}, line])
    with pytest.raises(ValueError, match=rf"in\.jsonl:2: {why}"):
        grade(*MATH, path, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_soft_overlong_penalty():
    """DAPO's equation 13 with L_max 20480 and a buffer of 4096: 0, a line, -1."""
    values = [soft_overlong(n, max_tokens=20480, buffer=4096) for n in (0, 16384, 18432, 20480, 30000)]
    assert values == [0.0, 0.0, -0.5, -1.0, -1.0]
    with pytest.raises(ValueError, match="buffer=0"):
        soft_overlong(1, max_tokens=10, buffer=0)


def test_length_penalty_is_a_part_of_its_own():
    """The penalty moves the value and not `correct`, so that the reported accuracy stays one."""
    judged = with_length_penalty(
        prompt("p", "1"), rollout(r"\boxed{1}", tokens=75), reward=math_reward, max_tokens=100, buffer=50, weight=0.5
    )
    assert (judged.value, judged.parts) == (0.75, {"correct": 1.0, "format": 1.0, "overlong": -0.5})


def test_mixed_reward_goes_by_kind():
    """A code prompt never reaches the mathematics verifier."""
    kinds = {"math": math_reward, "code": format_reward}
    assert mixed_reward(prompt("p", "1"), rollout(r"\boxed{2}"), kinds=kinds).value == 0.0
    assert mixed_reward(prompt("p", "1", "code"), rollout(r"\boxed{2}"), kinds=kinds).value == 1.0
    with pytest.raises(ValueError, match=r"kind=code: the mixed reward knows \['math'\]"):
        mixed_reward(prompt("p", "1", "code"), rollout(""), kinds={"math": math_reward})


@pytest.mark.parametrize(
    ("text", "value"), [(r"\boxed{2}", 1.0), (r"\boxed{}", 0.0), ("2", 0.0), ("```\n\\boxed{2}\n```", 0.0)]
)
def test_format_reward(text, value):
    """A box that holds something, outside code, earns it whatever it says; truncated responses do not."""
    assert format_reward(prompt("p", "1"), rollout(text)).value == value
    assert format_reward(prompt("p", "1"), rollout(text, "length")).value == 0.0
