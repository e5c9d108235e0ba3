"""What a box is made of: its command line, its limits and the code that runs inside."""

from __future__ import annotations

import marshal
import os
import platform
from pathlib import Path
from typing import Any

from gspo.rewards.seccomp import PID_MARK, build_filter

TIERS = ("bubblewrap", "landlock", "unsafe_subprocess")
DISK = 32 << 20
"""Bytes a program may write to files, in all and per file."""
TASKS = 32
"""Threads of a box."""

_MODULES = ("tagged", "frames", "box_calls", "box_guest", "box_child")
# Each module has its own copy of the built-in functions, out of a program's reach by name.
BOOT = (
    "import builtins,marshal,os,sys\n"
    "def take(n):\n    b=b''\n    while len(b)<n:\n        d=os.read(0,n-len(b))\n        d or os._exit(1)\n"
    "        b+=d\n    return b\n"
    "for k,c in marshal.loads(take(int.from_bytes(take(8),'big'))):\n"
    "    m=type(sys)(k);m.__builtins__=dict(vars(builtins));sys.modules[k]=m;exec(c,m.__dict__)\n"
    "sys.modules['box_child'].serve()\n"
)


def readable_paths(python: str) -> list[str]:
    """What a box can read: the interpreter, its standard library and the system's shared libraries."""
    prefix = Path(python).parent.parent
    paths = ["/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache"]
    paths += ["/usr/share/zoneinfo", python, str(prefix / "lib"), str(prefix / "lib64")]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


def bwrap_command(bwrap: str, python: str, as_root: bool) -> list[str]:
    """The bubblewrap command line: every namespace, sized tmpfs, nothing writable but /tmp and /dev/shm.

    Root needs no user namespace and drops its uid inside (a mapped root would be exempt from RLIMIT_NPROC); anybody
    else gets one in which no further user namespace can be made.
    """
    command = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "box"]
    if as_root:
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
    else:
        command += ["--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]
    parents = {str(parent) for path in readable_paths(python) for parent in Path(path).parents}
    for parent in sorted(parents - {"/"}):  # bubblewrap would copy the mode of a directory that only root may enter
        if not os.path.islink(parent):
            command += ["--perms", "0755", "--dir", parent]
    for path in readable_paths(python):
        if os.path.islink(path) and path.count("/") == 1:  # /lib -> usr/lib
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    command += ["--proc", "/proc", "--perms", "0755", "--size", "65536", "--tmpfs", "/dev"]
    for name in ("null", "zero", "full", "random", "urandom"):
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        command += ["--symlink", f"/proc/self/{target}", f"/dev/{name}"]
    command += ["--perms", "1777", "--size", str(DISK // 2), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--perms", "1777", "--size", str(DISK), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    return [*command, "--"]


def code_of_box() -> bytes:
    """The modules that `BOOT` loads, compiled, with their size in front."""
    folder = Path(__file__).parent
    modules = []
    for name in _MODULES:
        path = folder / f"{name}.py"
        modules.append((name, compile(path.read_bytes(), f"<{name}>", "exec", dont_inherit=True)))
    blob = marshal.dumps(modules)
    return len(blob).to_bytes(8, "big") + blob


def _capabilities() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def private_uid() -> int | None:
    """A uid that nobody has, different for each judge, so that limits and signals reach no other box.

    None unless root may give it: capabilities CHOWN, KILL, SETGID and SETUID, and a uid map that holds it.
    """
    if os.getuid() != 0 or ~_capabilities() & (1 << 0 | 1 << 5 | 1 << 6 | 1 << 7):
        return None
    wanted = 0x70000000 + os.getpid()
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    fitting = [uid for uid in (wanted, 65534) if any(first <= uid < first + count for first, _, count in ranges)]
    return fitting[0] if fitting else None


def makes_namespaces(uid: int | None) -> bool:
    """Whether bubblewrap can do without a user namespace: root with CAP_SYS_ADMIN, and a uid to drop to."""
    return uid is not None and bool(_capabilities() & 1 << 21)


def _task_limit(tier: str, own_uid: bool) -> int:
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    if own_uid or (tier == "bubblewrap" and release >= (5, 14)):  # counted for the box alone
        return TASKS
    own = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.getuid():
                    own += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue  # it has ended
    return own + 8 * TASKS


def configuration(tier: str, python: str, scratch: str | None, uid: int | None) -> tuple[dict[str, Any], bytes]:
    """What the keeper is told at its start, and the system-call filter (empty: none)."""
    config: dict[str, Any] = {"uid": uid, "tasks": _task_limit(tier, uid is not None)}
    config |= {"disk": DISK, "pid_mark": PID_MARK, "landlock": None}
    if scratch is None:
        config |= {"scratch": ["/tmp", "/dev/shm"], "watch_disk": False, "own_scratch": False, "keep_search": False}
    else:
        config |= {"scratch": [scratch], "watch_disk": True, "own_scratch": True, "keep_search": uid is not None}
    if tier == "landlock":
        devices = [f"/dev/{name}" for name in ("zero", "full", "random", "urandom")]
        config["landlock"] = [*readable_paths(python), *devices, "/proc/self"]
    return config, b"" if tier == "unsafe_subprocess" else build_filter(own_files=scratch is None)
