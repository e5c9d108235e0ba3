"""Judge processes (code_judge.py), started when first needed, shared by all threads of this process."""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from gspo.rewards import frames

_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _lock._at_fork_reinit())  # pyright: ignore  (a thread may hold it)
_pools: dict[tuple[int, int], Judges] = {}


class _Judge:
    """One judge process; not shared between threads."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        boot = f"import sys; sys.path.append({root!r}); from gspo.rewards.code_judge import main; main()"
        self.process = subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-S", "-c", boot],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={}, cwd="/", start_new_session=True,
        )  # fmt: skip

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Raises OSError, EOFError, ValueError when the process is broken."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        frames.send(self.process.stdin.fileno(), {}, json.dumps(job).encode())
        message = frames.receive(self.process.stdout.fileno())
        if message is None:
            raise EOFError("the judge process ended")
        return json.loads(message[1][0])

    def close(self) -> None:
        """End the process and, with it, its boxes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _attempt(held: _Judge | None, job: dict[str, Any]) -> tuple[_Judge | None, dict[str, Any]]:
    """The judge to keep (a new one if `held` was None or broke) and the verdict."""
    reason = ""
    for _ in range(2):
        try:
            held = held or _Judge()
            return held, held.run(job)
        except (OSError, EOFError, ValueError) as error:
            reason = f"judge process: {error}"
            if held is not None:
                held.close()
            held = None
    return None, {"verdict": "infrastructure", "reason": reason}


class Judges:
    """As many judge processes as `workers`, started when first needed, each used by one thread at a time."""

    def __init__(self, workers: int) -> None:
        self.free: queue.LifoQueue[_Judge | None] = queue.LifoQueue()
        self.alone = threading.Lock()
        self.workers = workers
        for _ in range(workers):
            self.free.put(None)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job's verdict; a judge process that breaks is replaced and the job tried once more."""
        held = self.free.get()
        try:
            held, said = _attempt(held, job)
            return said
        finally:
            self.free.put(held)

    def run_alone(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job's verdict while no other job runs."""
        with self.alone:
            taken = [self.free.get() for _ in range(self.workers)]
            try:
                place = next((place for place, held in enumerate(taken) if held is not None), 0)
                taken[place], said = _attempt(taken[place], job)
                return said
            finally:
                for held in sorted(taken, key=lambda held: held is not None):  # the started ones are taken first
                    self.free.put(held)

    def close(self) -> None:
        """End the processes that no thread is using."""
        while not self.free.empty():
            held = self.free.get_nowait()
            if held is not None:
                held.close()


def judges_of(workers: int) -> Judges:
    """This process's judges, at most `workers` at work at once. Raises ValueError for fewer than one."""
    if workers < 1:
        raise ValueError(f"reward.workers={workers}: at least 1")
    with _lock:  # a forked copy of this process must not use its parent's pipes
        return _pools.setdefault((os.getpid(), workers), Judges(workers))


@atexit.register
def close() -> None:
    """End every judge process of this process."""
    with _lock:
        for key in [key for key in _pools if key[0] == os.getpid()]:
            _pools.pop(key).close()
