"""Identical programs with the same tests and limits are judged once: a trained policy repeats itself within a group.

A verdict is kept until `KEPT` newer ones have come; one that speaks of the judge (`infrastructure`) is not. So a
program whose output differs from run to run has one verdict, not one a copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from gspo.rewards.sandbox import CodeVerdict, judge

KEPT = 4096
"""Verdicts that are remembered, the latest."""

_lock = threading.Lock()
_verdicts: OrderedDict[bytes, Future[CodeVerdict]] = OrderedDict()


def judge_once(program: str, tests: list[dict[str, Any]], **settings: Any) -> CodeVerdict:
    """`judge`, or the verdict of an identical job before or at this moment; callable from any thread.

    Raises what `judge` raises, in every thread that waited for it.
    """
    job = json.dumps([program, tests, settings], sort_keys=True, default=repr)
    key = hashlib.sha256(job.encode()).digest()
    with _lock:
        found = _verdicts.get(key)
        if found is None:
            ours = _verdicts[key] = Future[CodeVerdict]()
            if len(_verdicts) > KEPT:
                _verdicts.popitem(last=False)
        else:
            _verdicts.move_to_end(key)
    if found is not None:
        return found.result()
    try:
        verdict = judge(program, tests, **settings)
    except BaseException as error:
        _forget(key)
        ours.set_exception(error)
        raise
    if verdict.verdict == "infrastructure":
        _forget(key)
    ours.set_result(verdict)
    return verdict


def _forget(key: bytes) -> None:
    with _lock:
        _verdicts.pop(key, None)


def _after_fork() -> None:
    """In a forked child no thread is left that would finish what was under way."""
    _lock._at_fork_reinit()  # pyright: ignore
    _verdicts.clear()


os.register_at_fork(after_in_child=_after_fork)
