"""Long-lived processes that answer one request at a time and can be killed at a deadline.

A caller's thread takes a worker, sends one line of JSON, waits for one line. A request that is still running after
`SOFT` seconds gives up its place, so that others go on with a warm spare; at the deadline its worker is killed.
Workers hold no state of the caller, see end of file when it dies (SIGKILL too), and start on the first request.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOFT = 0.3
"""Seconds after which a request no longer counts as one of the pool's running requests."""
START = 60.0
"""Seconds a worker may take to import what it needs."""
MOST_SLOW = 6
"""Workers beyond the pool's size that may serve overrunning requests at once."""


class WorkerFailure(RuntimeError):
    """A request that got no answer: the deadline passed, or the worker ended."""


@dataclass(eq=False, slots=True)
class Worker:
    process: subprocess.Popen[bytes]
    pid: int
    """Of the process that started it: a forked child must not use it."""
    ready: bool = False
    buffer: bytes = b""

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def receive(self, until: float) -> Any:
        """The next line as JSON; None when `until` (monotonic seconds) passed. Raises WorkerFailure at end of file."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            poll = select.poll()
            poll.register(fd, select.POLLIN | select.POLLHUP)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            chunk = os.read(fd, 65536)
            if not chunk:
                raise WorkerFailure(f"the worker ended (status {self.kill()})")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def kill(self) -> int | None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # unsent bytes for a worker that is gone
                    continue
        return self.process.wait()


@dataclass(eq=False)
class Pool:
    """`size` requests run at once; one spare is kept warm behind them."""

    module: str
    """Module whose `serve()` the workers run."""
    size: int
    idle: list[Worker] = field(default_factory=list)
    alive: set[Worker] = field(default_factory=set)
    slow: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    places: threading.Semaphore = field(init=False)
    closed: bool = False

    def __post_init__(self) -> None:
        self.places = threading.Semaphore(self.size)

    def start(self) -> Worker:
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from {self.module} import serve; serve()"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        worker = Worker(process, os.getpid())
        self.alive.add(worker)
        return worker

    def take(self) -> Worker:
        """A worker, the warmest first; another is started behind it when none is left."""
        with self.lock:
            if self.closed:
                raise WorkerFailure("the pool is closed")
            self.idle.sort(key=lambda w: w.ready)
            worker = self.idle.pop() if self.idle else self.start()
            if not self.idle and len(self.alive) < self.size + 1 + self.slow:
                self.idle.append(self.start())
            return worker

    def give(self, worker: Worker, usable: bool) -> None:
        """Take a worker back, or bury it."""
        with self.lock:
            surplus = len(self.idle) > self.size
            if usable and not surplus and not self.closed:
                self.idle.append(worker)
                return
            self.alive.discard(worker)
        worker.kill()

    def ask(self, request: Any, deadline: float) -> Any:
        """The worker's answer to `request`.

        `deadline`: seconds from when a worker takes it up. Raises WorkerFailure when it passes.
        """
        line = json.dumps(request).encode() + b"\n"
        self.places.acquire()
        held, usable = True, False
        worker = None
        try:
            worker = self.take()
            if not worker.ready:
                worker.ready = worker.receive(time.monotonic() + START) is not None
                if not worker.ready:
                    raise WorkerFailure(f"a worker did not start within {START:.0f} s")
            begun = time.monotonic()
            worker.send(line)
            answer = worker.receive(begun + min(SOFT, deadline))
            if answer is None:
                with self.lock:
                    may_linger = self.slow < MOST_SLOW
                    self.slow += may_linger
                try:
                    if may_linger:
                        self.places.release()
                        held = False
                    answer = worker.receive(begun + deadline)
                finally:
                    with self.lock:
                        self.slow -= may_linger
            if answer is None:
                raise WorkerFailure(f"no answer within {deadline:g} s")
            usable = True
            return answer
        except BrokenPipeError as error:
            raise WorkerFailure("the worker ended before it read the request") from error
        finally:
            if held:
                self.places.release()
            if worker is not None:
                self.give(worker, usable)

    def close(self) -> None:
        """End every worker."""
        with self.lock:
            self.closed = True
            workers, self.idle = list(self.alive), []
            self.alive.clear()
        for worker in workers:
            worker.kill()


_pools: dict[tuple[str, int], Pool] = {}
_pools_lock = threading.Lock()


def pool(module: str, size: int) -> Pool:
    """The process-wide pool of `size` workers for `module`, made on first use."""
    with _pools_lock:
        if (module, size) not in _pools:
            _pools[module, size] = Pool(module, size)
        return _pools[module, size]


def close() -> None:
    """End all workers of all pools; the next request starts fresh ones."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for each in pools:
        each.close()


def _forget() -> None:
    """In a forked child: the parent's workers are not ours; close our copies of their pipes."""
    global _pools_lock
    _pools_lock = threading.Lock()
    for each in _pools.values():
        for worker in each.alive:
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    os.close(pipe.fileno())
            worker.process.returncode = 0
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close)
