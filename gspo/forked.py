"""A forked child that cannot outlive its work: whatever the work raises, the child ends there, with an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def start(work: Callable[[], int], told: Callable[[BaseException], int]) -> int:
    """Run `work` in a forked child; its process id. The child ends as `end` says."""
    _flush()
    child = os.fork()
    if child == 0:
        end(work, told)
    return child


def end(work: Callable[[], int], told: Callable[[BaseException], int]) -> NoReturn:
    """End this process, without its exit handlers, with the code of `work`, or that of `told` for what it raised."""
    code = 1
    try:
        try:
            code = work()
        finally:
            if error := sys.exception():
                code = told(error)
    finally:
        _flush()
        os._exit(code)


def wait(child: int) -> int:
    """The exit code of a child; that of the signal that killed it, negated."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _flush() -> None:
    """A reader that is gone is not this process's error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
