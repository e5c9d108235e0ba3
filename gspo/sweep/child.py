"""The process of one job: forked from the sweep's, or a fresh interpreter (`python -m gspo.sweep.child JOB`).

Whatever a job does (raise, exit, be killed) ends this process only. It dies with the sweep's process.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from gspo import forked
from gspo.messages import failure
from gspo.sweep.jobs import Job

CONSOLE, ERROR = "console.txt", "error.txt"


def console(job: Job) -> Path:
    """Where a job prints while it runs; beside its directory, which it creates itself."""
    return job.directory.with_name(f".{job.name}.{CONSOLE}")


def home(job: Job, name: str) -> Path:
    """`name` in the job's directory, or beside it when there is none."""
    return job.directory / name if job.directory.is_dir() else job.directory.with_name(f"{job.name}.{name}")


def work(job: Job, parent: int, device: str | None = None) -> int:
    """Be the process of `job`; its exit code. `device`: the only GPU that it may see.

    A process group of its own: a terminal's Ctrl-C reaches the sweep, which asks each job once.
    """
    os.setpgid(0, 0)
    _die_with(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    _redirect(console(job))
    from gspo import launch

    return launch.launch(job.run, job.plain, job.overrides)


def told(job: Job, error: BaseException) -> int:
    """Write what ended the job where the table looks for it; the exit code."""
    home(job, ERROR).write_text(failure(error), encoding="utf-8")
    traceback.print_exception(error)
    return _code_of(error)


def _code_of(error: BaseException) -> int:
    """The exit code that Python itself would end with; 130 for an interruption, 2 for a refused configuration."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, ValueError) else 1


def _stop(number: int, frame: FrameType | None) -> None:
    """Before and after its steps (which finish first) a job stops at once."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def _redirect(path: Path) -> None:
    """Standard output and error into `path`, line by line, and nothing to read."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, handle in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, handle)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _die_with(parent: int) -> None:
    """Linux kills this process when its parent is gone, so that no job outlives a killed sweep."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    mine: Job = pickle.loads(Path(sys.argv[1]).read_bytes())
    here = (int(sys.argv[2]), (sys.argv[3:] or [None])[0])
    forked.end(lambda: work(mine, *here), lambda error: told(mine, error))
