"""The jobs of a sweep, some at a time, each in a child of this process, which never starts a thread.

This process imports what jobs need (torch, transformers, vLLM) and forks: a job has its engine in seconds, in memory of
its own, and cannot see what another did. Only the jobs' processes do work.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gspo import forked, signals
from gspo.devices import here
from gspo.messages import one_line
from gspo.sweep import child
from gspo.sweep.jobs import Job, Verdict

State = Literal["waiting", "running", "finished", "skipped", "failed", "interrupted"]
POLL = 0.1
"""Seconds between looks at the children."""


@dataclass(slots=True)
class Row:
    """A job and what has become of it."""

    job: Job
    state: State = "waiting"
    reason: str = ""
    """Why it failed, in a line."""
    started: float = 0.0
    seconds: float = 0.0
    """Wall time in this sweep, so far."""
    pid: int = 0
    slot: int = 0
    """Which of the places for running jobs it has."""


def preload(jobs: Sequence[Job]) -> None:
    """Import what the jobs will need; nothing here may start a thread (pyarrow would)."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's library would start threads
    import gspo.session  # noqa: F401

    if any(job.run.rollout._target_ == "gspo.rollout.vllm_local.VllmEngine" for job in jobs):
        from gspo.rollout.vllm_local import available

        if reason := available():
            print(f"rollout: vLLM is not available ({reason}); transformers generates instead", file=sys.stderr)
    from matplotlib import figure  # noqa: F401
    from matplotlib.backends import backend_agg  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    gc.collect()
    gc.freeze()  # a job's collections leave out what was imported here, and its memory stays shared
    atexit.register(gc.unfreeze)  # what is never collected is reported as leaked, after the table


def run(jobs: Sequence[Job], verdicts: Sequence[Verdict], at_once: int) -> tuple[list[Row], int]:
    """Run what is not finished, `at_once` jobs at a time; the rows in order, and the sweep's exit code.

    0: all finished; 1: some did not; 130 or 143: a signal asked the sweep to end. Then no job is started any more, the
    running ones finish their step, and a second signal stops them at once.
    """
    from gspo.sweep.table import Table

    rows = [Row(job, "skipped" if v.finished else "waiting") for job, v in zip(jobs, verdicts, strict=True)]
    for job in jobs:
        job.directory.parent.mkdir(parents=True, exist_ok=True)
    with signals.noted() as asked, Table(rows) as table:
        told = 0
        while True:
            running = [row for row in rows if row.state == "running"]
            waiting = [row for row in rows if row.state == "waiting"]
            if not running and (asked or not waiting):
                break
            for row in waiting[: 0 if asked else at_once - len(running)]:
                _start(row, {other.slot for other in rows if other.state == "running"}, at_once)
            if told < len(asked):
                told = len(asked)
                for row in running:
                    os.kill(row.pid, signal.SIGTERM)
            for row in running:
                _look(row, bool(asked))
            table.update()
            time.sleep(POLL)
    if asked:
        return rows, 130 if asked[0] == signal.SIGINT else 143
    return rows, int(any(row.state not in ("finished", "skipped") for row in rows))


def _start(row: Row, taken: set[int], at_once: int) -> None:
    """Start a job's process; a fresh interpreter where a fork would copy a process with threads."""
    row.slot = next(slot for slot in range(at_once) if slot not in taken)
    row.state, row.started = "running", time.monotonic()
    device, parent = _device(row, at_once), os.getpid()
    child.home(row.job, child.ERROR).unlink(missing_ok=True)
    if threads() == 1:
        job = row.job
        row.pid = forked.start(lambda: child.work(job, parent, device), lambda error: child.told(job, error))
        return
    print(f"{row.job.name}: in a fresh interpreter, since this process has threads", file=sys.stderr)
    path = row.job.directory.with_name(f".{row.job.name}.job")
    path.write_bytes(pickle.dumps(row.job))
    words = [sys.executable, "-m", "gspo.sweep.child", str(path), str(parent), *([device] if device else [])]
    row.pid = os.posix_spawn(sys.executable, words, os.environ)


def threads() -> int:
    """Threads of this process, as Linux counts them; elsewhere more than one, since nobody can tell."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 2


def _device(row: Row, at_once: int) -> str | None:
    """The GPU of a job that shares the machine with others; None: all of them."""
    device, count = here()
    if at_once == 1 or count == 1 or (device is not None and not device.cuda) or (row.job.run.trainer.devices or 1) > 1:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return visible[row.slot % count]


def _look(row: Row, asked: bool) -> None:
    """See whether a running job has ended, and how."""
    row.seconds = time.monotonic() - row.started
    pid, status = os.waitpid(row.pid, os.WNOHANG)
    if not pid:
        return
    code = os.waitstatus_to_exitcode(status)
    row.state, row.reason = _ended(row.job, code, asked)
    _bury(row)
    row.job.directory.with_name(f".{row.job.name}.job").unlink(missing_ok=True)
    printed, error = child.console(row.job), child.home(row.job, child.ERROR)
    if row.state == "failed" and not error.exists():
        error.write_text(f"{row.reason}\n\n{_last(printed)}", encoding="utf-8")
    if printed.exists():
        printed.replace(child.home(row.job, child.CONSOLE))


def _bury(row: Row) -> None:
    """A job that was killed could not say so in its run.json."""
    from gspo.tracking import run_dir

    directory = row.job.directory
    if (directory / "run.json").exists() and run_dir.status(directory) == "lost":
        how = "interrupted" if row.state == "interrupted" else "failed"
        run_dir.bury(directory, row.reason, how)


def _ended(job: Job, code: int, asked: bool) -> tuple[State, str]:
    """The state of a job whose process ended with `code` (negative: a signal), and the reason of a failure."""
    from gspo.tracking import run_dir

    try:
        status = run_dir.status(job.directory)
    except ValueError:
        status = "failed"  # there is no run directory
    if code == 0 and status == "finished":
        return "finished", ""
    if code in (130, 143) or (asked and code == -signal.SIGTERM):
        return "interrupted", "the same command continues it"
    error = child.home(job, child.ERROR)
    if error.exists():
        return "failed", error.read_text(encoding="utf-8").partition("\n")[0]
    if code < 0:
        more = " (what the system does when memory runs out)" if code == -signal.SIGKILL else ""
        return "failed", f"killed by {signal.Signals(-code).name}{more}"
    return "failed", f"ended with exit code {code} before its last step"


def _last(path: os.PathLike[str]) -> str:
    """The end of what a job printed."""
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return "".join(file.readlines()[-40:])
    except OSError as error:
        return one_line(error)
