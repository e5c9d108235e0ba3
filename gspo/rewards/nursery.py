"""The process behind killable.py: imports one module, warms it up, and forks a worker for every socket it is sent."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MEMORY = 3 << 30
"""Address space of a worker, bytes."""
CPU_SECONDS = 6
"""A worker that computes this long on one request is ended by the kernel, whoever is still there to watch."""


def run(module: str, control_fd: int) -> None:
    """Serve the control socket until it closes: one byte with a socket in, the new worker's pid out."""
    control = socket.socket(fileno=control_fd)
    judge = importlib.import_module(module)
    judge.warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers are reaped by the kernel
    control.sendall(b"ready\n")
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _work(socket.socket(fileno=fds[0]), judge.answer)
            os._exit(0)
        os.close(fds[0])
        control.sendall(f"{pid}\n".encode())


def _die_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(end: socket.socket, answer: Callable[[Any], Any]) -> None:
    """Answer lines of JSON until the socket closes; an exception is an answer `{"error": ...}`, never a verdict."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(3000)
    for line in end.makefile("rb"):
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # reported to the caller, who counts it
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        end.sendall(json.dumps(reply).encode() + b"\n")
