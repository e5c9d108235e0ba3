"""Long-lived processes that answer one request at a time and can be killed at a deadline.

A nursery process imports and warms up once, then forks workers in milliseconds, so that a killed worker costs nothing.
A caller's thread takes a worker, sends one line of JSON and waits for one line. A request still running after `SOFT`
seconds gives up its place, so that others go on; at the deadline its worker is killed. Nothing starts
before the first request. Nursery and workers see end of file when the caller dies (SIGKILL too) and end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOFT = 0.3
"""Seconds after which a request no longer counts as one of the pool's running requests."""
START = 120.0
"""Seconds the nursery may take to import what it needs."""
STARVED = 3
"""Wall seconds for every second of the deadline, on a machine that is busy with other things."""
MOST_SLOW = 8
"""Overrunning requests that may run beside the pool's `size`."""


class WorkerFailure(RuntimeError):
    """A request that got no answer: the deadline passed, or the worker ended."""


def read_line(end: socket.socket, buffer: bytearray, until: float) -> bytes | None:
    """The next line; None when `until` (monotonic seconds) passed. Raises WorkerFailure at end of file."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    while b"\n" not in buffer:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        try:
            chunk = end.recv(65536)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise WorkerFailure("the worker ended")
        buffer += chunk
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return line


@dataclass(eq=False, slots=True)
class Worker:
    pid: int
    handle: int
    """File descriptor of the process, which a reused pid cannot fool."""
    end: socket.socket
    buffer: bytearray = field(default_factory=bytearray)

    def receive(self, until: float) -> Any:
        line = read_line(self.end, self.buffer, until)
        return None if line is None else json.loads(line)

    def cpu_seconds(self) -> float:
        """CPU time it has used so far; infinite when it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return math.inf
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(self.handle, select.POLLIN)
        gone.poll(2000)
        os.close(self.handle)
        self.end.close()


@dataclass(eq=False)
class Nursery:
    """The process that forks workers of `module`, which has `warm()` and `answer(request) -> reply`."""

    module: str
    process: subprocess.Popen[bytes] = field(init=False)
    control: socket.socket = field(init=False)
    buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.control, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        code = (
            f"import sys; sys.path.insert(0, {root!r}); from gspo.rewards.nursery import run; "
            f"run({self.module!r}, {theirs.fileno()})"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        if read_line(self.control, self.buffer, time.monotonic() + START) is None:
            self.close()
            raise WorkerFailure(f"workers did not start within {START:.0f} s")

    def fork(self) -> Worker:
        """A new worker. Raises WorkerFailure when the nursery has ended."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"f"], [theirs.fileno()])
            line = read_line(self.control, self.buffer, time.monotonic() + START)
            if line is None:
                raise WorkerFailure("the nursery does not answer")
            return Worker(int(line), os.pidfd_open(int(line)), ours)
        except (OSError, WorkerFailure) as error:
            ours.close()
            raise WorkerFailure(f"no worker could be forked: {error}") from error
        finally:
            theirs.close()

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


@dataclass(eq=False)
class Pool:
    """`size` requests run at once; overrunning ones beside them."""

    module: str
    size: int
    nursery: Nursery | None = None
    idle: list[Worker] = field(default_factory=list)
    alive: set[Worker] = field(default_factory=set)
    slow: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    places: threading.Semaphore = field(init=False)
    closed: bool = False

    def __post_init__(self) -> None:
        self.places = threading.Semaphore(self.size)

    def start(self) -> None:
        """Start the nursery and one worker, as the first request would."""
        self.give(self.take(), usable=True)

    def take(self) -> Worker:
        with self.lock:
            if self.closed:
                raise WorkerFailure("the pool is closed")
            if self.idle:
                return self.idle.pop()
            if self.nursery is None or self.nursery.process.poll() is not None:
                self.nursery = Nursery(self.module)
            worker = self.nursery.fork()
            self.alive.add(worker)
            return worker

    def give(self, worker: Worker, usable: bool) -> None:
        """Take a worker back, or bury it."""
        with self.lock:
            if usable and len(self.idle) < self.size and not self.closed:
                self.idle.append(worker)
                return
            if worker not in self.alive:
                return  # ended by close()
            self.alive.discard(worker)
        worker.kill()

    def ask(self, request: Any, deadline: float) -> Any:
        """The worker's answer to `request`.

        `deadline`: seconds from when a worker takes it up; one that other programs left less than half of them gets up
        to STARVED times as many. Raises WorkerFailure when it passes or the worker ends.
        """
        line = json.dumps(request).encode() + b"\n"
        self.places.acquire()
        held, usable, worker = True, False, None
        try:
            worker = self.take()
            begun, used = time.monotonic(), worker.cpu_seconds()
            worker.end.sendall(line)
            answer = worker.receive(begun + min(SOFT, deadline))
            lingering = answer is None and self._linger()
            if lingering:
                self.places.release()
                held = False
            try:
                until = begun + deadline
                while answer is None and time.monotonic() < until:
                    answer = worker.receive(until)
                    starved = worker.cpu_seconds() - used < deadline / 2
                    if answer is None and starved and until < begun + STARVED * deadline:
                        until += deadline / 4
            finally:
                with self.lock:
                    self.slow -= lingering
            if answer is None:
                raise WorkerFailure(f"no answer within {deadline:g} s")
            usable = True
            return answer
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerFailure("the worker ended before it read the request") from error
        finally:
            if held:
                self.places.release()
            if worker is not None:
                self.give(worker, usable)

    def _linger(self) -> bool:
        with self.lock:
            may = self.slow < MOST_SLOW
            self.slow += may
            return may

    def close(self) -> None:
        """End the nursery and every worker."""
        with self.lock:
            self.closed = True
            workers, self.idle = list(self.alive), []
            self.alive.clear()
            nursery, self.nursery = self.nursery, None
        for worker in workers:
            worker.kill()
        if nursery is not None:
            nursery.close()


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
    """In a forked child: the parent's workers are not ours; only our copies of their sockets are closed."""
    global _pools_lock
    _pools_lock = threading.Lock()
    for each in _pools.values():
        for worker in each.alive:
            os.close(worker.handle)
            worker.end.close()
        if each.nursery is not None:
            each.nursery.control.close()
            each.nursery.process.returncode = 0
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close)
