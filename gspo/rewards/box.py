"""Starts a box (one keeper process, see box_child.py) in one of three tiers, and talks to it. Used by code_judge.py."""

from __future__ import annotations

import functools
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from gspo.rewards import frames
from gspo.rewards.box_layout import BOOT, bwrap_command, code_of_box, configuration, makes_namespaces, private_uid

_ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the order of sets is part of a verdict: the same every time


class BoxError(Exception):
    """The box, not the program, went wrong."""


_code = functools.cache(code_of_box)


@dataclass
class Report:
    """How a test's process ended."""

    exit: int
    """Exit code, or minus the signal."""
    reason: str
    """Why the keeper killed it: `wall`, `output`, `disk`, `ended` (no longer needed), or empty."""
    setup: str
    """`ok`, or why it could not be locked down."""
    cpu: float
    """Seconds, user and system."""
    wall: float
    """Seconds."""
    waited: float
    """Seconds it was ready to run but had no core, when killed; NaN where the kernel does not say."""
    dirty: bool
    """It left files behind: the box must not be used again."""
    out: bytes = b""
    err: bytes = b""


def _scratch_directory(uid: int | None) -> str:
    path = None
    try:
        path = tempfile.mkdtemp(prefix="gspo-box-")
        if uid is not None:
            os.chown(path, uid, uid)
    except OSError as error:
        if path is not None:
            os.rmdir(path)
        raise BoxError(f"no directory for the box: {error}") from error
    return path


class Box:
    """One keeper and the processes it forks. `close` leaves nothing behind; the kernel closes it if the judge dies."""

    def __init__(self, tier: str, python: str, bwrap: str | None) -> None:
        self.scratch: str | None = None
        uid = private_uid()
        command = [python, "-s", "-S", "-P", "-c", BOOT]
        if tier == "bubblewrap":
            assert bwrap is not None
            as_root = makes_namespaces(uid)
            uid = uid if as_root else None
            command = bwrap_command(bwrap, python, as_root) + command
        else:
            self.scratch = _scratch_directory(uid)
        config, bpf = configuration(tier, python, self.scratch, uid)
        self.socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_ENVIRONMENT,
                cwd=self.scratch or "/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.socket.close()
            self._remove_scratch()
            raise BoxError(f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            theirs.close()
        try:
            self.socket.sendall(_code())
            frames.send(self.socket.fileno(), config, bpf)
            self._ready()
        except (OSError, BoxError) as error:
            raise BoxError(f"{tier}: {self._last_words() or error}") from error

    def _ready(self) -> None:
        head, _ = self._receive(time.monotonic() + 30)
        if "ready" not in head:
            raise BoxError(f"unexpected message {head}")

    def _receive(self, deadline: float) -> tuple[dict[str, Any], list[bytes]]:
        wait_for(self.socket.fileno(), deadline)
        try:
            message = frames.receive(self.socket.fileno())
        except (OSError, EOFError, ValueError) as error:
            raise BoxError(f"the box broke off: {error}") from error
        if message is None:
            raise BoxError("the box ended by itself")
        return message

    def begin(self, mode: str, program: bytes, stdin: bytes = b"", **head: Any) -> None:
        """Start a test's process; `head` has cpu, wall (seconds), memory, output (bytes)."""
        self.deadline = time.monotonic() + 3 * head["wall"] + 20
        self._send({"op": "run", "mode": mode, **head}, program, stdin)

    def _send(self, head: dict[str, Any], *blobs: bytes) -> None:
        try:
            frames.send(self.socket.fileno(), head, *blobs)
        except OSError as error:
            raise BoxError(f"the box is gone: {error}") from error

    def tell(self, line: bytes) -> None:
        """Send the process one line."""
        self._send({"op": "line"}, line)

    def end(self) -> Report:
        """Kill the process, whatever it still says, and return its report."""
        self._send({"op": "end"})
        while not isinstance(said := self.next(), Report):
            pass
        return said

    def next(self) -> bytes | Report:
        """The next line the process wrote to its result channel, or its report, which is the last."""
        head, blobs = self._receive(self.deadline)
        if "line" in head:
            return blobs[0]
        report = Report(**head["report"], out=blobs[0], err=blobs[1])
        if report.setup != "ok" and not (report.setup == "" and report.reason):  # killed before it was ready: no fault
            raise BoxError(f"the process could not be locked down: {report.setup or report.exit}")
        return report

    def _last_words(self) -> str:
        self.close()
        assert self.process.stderr is not None
        return self.said.decode("utf-8", "replace").strip().replace("\n", "; ")[-500:]

    said = b""

    def close(self) -> None:
        """End every process of the box and remove its files."""
        self.socket.close()
        assert self.process.stderr is not None
        try:
            self.process.wait(2)  # the keeper ends by itself, and bubblewrap reaps it
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.process.stderr.closed:
            self.said = self.process.stderr.read()
            self.process.stderr.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self.scratch is None:
            return
        for folder, inner, _ in os.walk(self.scratch):  # a program may have closed its directories to us
            for name in inner:
                if not os.path.islink(path := os.path.join(folder, name)):
                    os.chmod(path, 0o700)
        shutil.rmtree(self.scratch, ignore_errors=True)


def wait_for(fd: int, deadline: float) -> None:
    """Return when `fd` can be read. Ends this process when its own parent is gone; raises BoxError at the deadline."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(0, 0)  # the judge's own orders: only their end matters here
    parent = os.getppid()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BoxError("no answer from the box in time")
        events = dict(poll.poll(min(left, 1.0) * 1000 + 1))
        if events.get(0, 0) & (select.POLLHUP | select.POLLERR) or os.getppid() != parent:
            sys.exit(0)
        if fd in events:
            return
