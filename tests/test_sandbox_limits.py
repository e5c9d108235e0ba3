"""Limits of the sandbox: every program ends in time, for its own reason, and nothing of it is left."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gspo.rewards.code_pool import close
from gspo.rewards.sandbox import choose_tier, judge

ROOT = Path(__file__).parent.parent
LOOPS = {
    "loops": "while True: pass",
    "starts a child, then loops": "import subprocess\nsubprocess.Popen(['sleep', '60'])\nwhile True: pass",
    "starts a child in a new session": (
        "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\nwhile True: pass"
    ),
    "answers and leaves a child with its stdout": (
        "import subprocess\nprint('x', flush=True)\nsubprocess.Popen(['sleep', '60'])"
    ),
    "ignores signals": (
        "import signal\nfor s in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT):\n"
        "    signal.signal(s, signal.SIG_IGN)\n"
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "sleeps": "import time\ntime.sleep(60)",
    "waits for a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
}
BOMBS = {
    "forks": (
        "import os, time\nfor _ in range(500):\n    if os.fork() == 0: time.sleep(30); os._exit(0)\nprint('x')",
        "error",
        "process limit",
    ),
    "threads": (
        "import os, threading, time\ntry:\n"
        "    for n in range(3000): threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "except RuntimeError:\n    print('x' if n < 64 else n, flush=True)\nos._exit(0)",
        "pass",
        "",
    ),
    "memory": (
        "held = []\nfor _ in range(128):\n    held.append(bytearray(64 << 20))\nprint('x')",
        "memory",
        "memory limit of 512 MB",
    ),
    "output": ("while True: print('x' * 10000)", "error", "output over 1048576 bytes"),
    "a file": (
        "with open('big', 'wb') as f:\n    for _ in range(2048): f.write(b'x' * (1 << 20))\nprint('x')",
        "error",
        "file size limit",
    ),
    "a file in /tmp": (
        "with open('/tmp/big', 'wb') as f:\n    for _ in range(2048): f.write(b'x' * (1 << 20))\nprint('x')",
        "error",
        "file size limit",
    ),
    "many files": (
        "for i in range(200):\n    with open(str(i), 'wb') as f: f.write(b'x' * (1 << 20))\nprint('x')",
        "error",
        "file size limit",
    ),
}


def expect(output="x", **more):
    return [{"type": "stdin", "input": "", "output": output, **more}]


def descendants(pid):
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def state(pid):
    """Letter of /proc/PID/stat, or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


@pytest.mark.parametrize("tier", ["bubblewrap", pytest.param("landlock", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOOPS)
def test_ends_in_time_with_nothing_left(name, tier):
    """A time limit that a child, an ignored signal or a thread outlives (1 s, per attempt)."""
    before = set(descendants(os.getpid()))
    verdict = judge(LOOPS[name], expect(wall=1), sandbox=tier)
    assert verdict.verdict in ("timeout", "error"), verdict
    assert verdict.verdict == "timeout" or "child" in name
    assert verdict.tests[0]["wall"] - verdict.tests[0]["waited"] < 1 + 2
    time.sleep(0.3)
    judges = {pid for pid in descendants(os.getpid()) if "code_judge" in Path(f"/proc/{pid}/cmdline").read_text()}
    assert {pid for pid in set(descendants(os.getpid())) - before - judges if state(pid)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_two_hundred_runs_leave_nothing(tier):
    """A process, zombie, descriptor or directory lost per run: all of them show after 200."""
    program = "import os, time\nopen('left', 'w').write('x')\ntry: os.fork()\nexcept OSError: pass\nwhile True: pass"
    close()
    judge(program, expect(wall=0.05), sandbox=tier)

    def count():
        known = descendants(os.getpid())
        return (
            len(known),
            [state(pid) for pid in known].count("Z"),
            len(os.listdir("/proc/self/fd")),
            len(list(Path("/tmp").glob("gspo-box-*"))),
        )

    time.sleep(1)
    before = count()
    for _ in range(200):
        judge(program, expect(wall=0.05), sandbox=tier)
    time.sleep(1)
    assert count() == before


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_fail_for_their_own_reason(name):
    """A bomb that goes off outside its box, or whose verdict does not say what went wrong."""
    program, verdict, reason = BOMBS[name]
    said = judge(program, expect(), memory_mb=512)
    assert said.verdict == verdict, said
    assert reason in said.reason, said
    assert said.seconds < 20


def test_a_flood_of_output_does_not_grow_the_judge():
    """Output collected before it is cut: 64 MiB are the most a judge process may gain."""
    close()
    judge("print('x')", expect(), workers=1)

    def peak():
        return max(
            int(line.split()[1])
            for pid in descendants(os.getpid())
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )

    before = peak()
    for call in ("while True: print('x' * 100000)", "import sys\nwhile True: sys.stderr.write('x' * 100000)"):
        judge(call, expect(wall=1), workers=1)
    flood = (
        "import os\ndef f(x):\n    while True:\n        for fd in range(3, 64):\n"
        "            try: os.write(fd, b'x' * 65536)\n            except OSError: pass"
    )
    said = judge(flood, [{"type": "call", "fn": "f", "args": [1], "output": 1}], workers=1)
    assert said.verdict == "error"
    assert peak() - before < 64 << 10


def test_a_caller_with_a_huge_address_space_can_judge():
    """RLIMIT_AS counted from a trainer that has mapped tens of GiB makes every program fail."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = 40 << 30
    at = libc.mmap(None, size, 0, 0x4022, -1, 0)  # PROT_NONE; MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    assert at not in (None, ctypes.c_void_p(-1).value)
    try:
        close()
        assert judge("print(1)", expect("1")).verdict == "pass"
    finally:
        libc.munmap(at, size)


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_everything_dies_with_the_caller(tier):
    """A killed trainer that leaves judges, boxes and programs running (SIGKILL: no handler gets a say)."""
    code = (
        "import sys, threading\nsys.path.append(sys.argv[1])\nfrom gspo.rewards.sandbox import judge\n"
        "given = 'import time\\ntime.sleep(60)', [{'type': 'stdin', 'input': '', 'output': ''}]\n"
        "for _ in range(2): threading.Thread(target=judge, args=given, kwargs={'sandbox': sys.argv[2]}).start()\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(ROOT), tier])
    deadline = time.monotonic() + 20
    wanted = 8 if tier == "bubblewrap" else 6  # two judges, each with a keeper and a program (and bubblewrap between)
    while len(found := descendants(caller.pid)) < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(found) >= wanted
    time.sleep(0.3)
    found = descendants(caller.pid)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    while (alive := [pid for pid in found if state(pid) not in (None, "Z")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive == []
    time.sleep(0.2)
    assert list(Path("/tmp").glob("gspo-box-*")) == []


def test_a_judge_that_is_killed_is_replaced():
    """One lost judge process that loses the verdict, or is scored as a wrong program."""
    close()
    program = "import time\ntime.sleep(1)\nprint('x')"
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(judge, program, expect(), workers=1, sandbox=choose_tier())
        time.sleep(0.5)
        judges = [pid for pid in descendants(os.getpid()) if "code_judge" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(judges[0], signal.SIGKILL)
        assert coming.result().verdict == "pass"
        assert coming.result().seconds > 1.5


READERS = {
    "input": "n = input(); print(sum(map(int, input().split())))",
    "readline": "import sys\nsys.stdin.readline(); print(sum(map(int, sys.stdin.readline().split())))",
    "read": "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))",
    "iteration": "import sys\nlines = [line for line in sys.stdin]\nprint(sum(map(int, lines[1].split())))",
    "open(0)": "print(sum(map(int, open(0).read().split()[1:])))",
    "buffer": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))",
    "/dev/stdin": "print(sum(map(int, open('/dev/stdin').read().split()[1:])))",
    "os.read": "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split()[1:])))",
    "mmap": "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ).read().split()[1:])))",
    "buffer out": "import sys\nsys.stdout.buffer.write(b'6\\n')",
    "main guard": "def main(): input(); print(sum(map(int, input().split())))\nif __name__ == '__main__': main()",
    "big thread": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def depth(n): return n if n == 0 else depth(n - 1)\n"
        "def main(): depth(50000); input(); print(sum(map(int, input().split())))\n"
        "t = threading.Thread(target=main); t.start()"
    ),
    "sys.exit": "import sys\nprint(6)\nsys.exit(0)",
    "exit": "print(6)\nexit()",
    "quit": "print(6)\nquit()",
    "atexit": "import atexit\natexit.register(print, 6)",
    "reduce": "from functools import reduce\ninput()\nprint(reduce(lambda a, b: a + b, map(int, input().split())))",
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 6\nprint(A().x)\nimport pickle\n"
        "assert pickle.loads(pickle.dumps(A())) == A()"
    ),
    "class in main": "import __main__\nclass A: pass\nassert __main__.A is A and A.__module__ == '__main__'\nprint(6)",
}


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_ways_of_reading_input_and_starting(tier):
    """Input that is no file, code that is no script: a program must get what `python prog.py < input` gives it."""
    given = [{"type": "stdin", "input": "3\n1 2 3", "output": "6"}]
    said = {name: judge(program, given, sandbox=tier) for name, program in READERS.items()}
    assert {name: v.reason for name, v in said.items() if v.verdict != "pass"} == {}


def test_mixed_readers_are_those_of_a_fresh_interpreter(tmp_path):
    """input() reads ahead: what the buffer still holds then, and what tell, seek and a second open give, is what
    `python prog.py < input` gives."""
    program = (
        "import os, sys\nfirst = input()\nprint(first, sys.stdin.buffer.read(), os.lseek(0, 0, 1))\n"
        "os.lseek(0, 0, 0)\nprint(open(0, closefd=False).read(), sys.stdin.readline() == '', sys.argv[1:], __name__)"
    )
    given = "3\n1 2 3"
    (tmp_path / "input").write_text(given)
    with (tmp_path / "input").open() as stdin:
        plain = subprocess.run(
            [sys.executable, "-c", program], stdin=stdin, stdout=subprocess.PIPE, text=True, check=True
        )
    said = judge(program, [{"type": "stdin", "input": given, "output": plain.stdout}])
    assert said.verdict == "pass", said


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("input(); input(); input()", "EOFError"),
        ("print(6); raise SystemExit(3)", "exit code 3"),
        ("print(6); 1 / 0", "ZeroDivisionError"),
        ("import sys; print(6); sys.exit('bad')", "bad"),
        ("import threading; print(6); import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print(6", "SyntaxError"),
        ("print(6)\0", "null bytes"),
        ("import numpy", "ModuleNotFoundError"),
    ],
)
def test_the_right_output_does_not_excuse_a_crash(program, reason):
    """A judge that compares output and forgets the exit code."""
    said = judge(program, [{"type": "stdin", "input": "3\n1 2 3", "output": "6"}])
    assert said.verdict == "error"
    assert reason in said.reason


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_a_program_that_closes_its_directory_is_judged(tier):
    """A keeper that fails on what a program did to its files: the judge's failure would stop a run."""
    program = (
        "import os\nos.mkdir('a', 0o300)\nopen('a/b', 'w').close()\nos.mkdir('c', 0)\n"
        "for path in ('/tmp', '.', '/dev/shm'):\n    try: os.chmod(path, 0)\n    except OSError: pass\nprint('x')"
    )
    given = [*expect(), *expect()]
    assert judge(program, given, sandbox=tier).verdict == "pass"
    assert judge(program, given, sandbox=tier).verdict == "pass"
    assert list(Path("/tmp").glob("gspo-box-*")) == []


def test_landlock_keeps_the_modes_of_files(tmp_path):
    """Landlock does not guard chmod and utime: without the filter a program could open its user's files to all."""
    target = tmp_path / "file"
    target.write_text("kept")
    tmp_path.chmod(0o777)
    target.chmod(0o666)
    before = target.stat()
    program = (
        f"import os\npath = {str(target)!r}\n"
        "for act in (lambda: os.chmod(path, 0), lambda: os.utime(path, (1, 1)), lambda: os.truncate(path, 0),\n"
        "            lambda: os.unlink(path), lambda: open(path), lambda: os.rename(path, 'x'),\n"
        "            lambda: os.link(path, 'x'), lambda: os.open(path, os.O_TRUNC)):\n"
        "    try: act(); print('done')\n    except OSError: pass\nprint('x')"
    )
    assert judge(program, expect(), sandbox="landlock").verdict == "pass"
    after = target.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (before.st_mode, before.st_mtime, 4)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [{"type": "stdin", "inputs": ["1", "2"], "outputs": ["1"]}],
        [{"type": "stdin", "input": "1", "output": None}],
        [{"type": "call", "fn": "f", "args": [1]}],
        [{"type": "call", "fn": "f", "args": "1", "output": 1}],
        [{"type": "assert", "fn": "f", "code": "assert f(1) =="}],
        [{"type": "assert", "fn": "f", "code": "def check(candidate): pass"}],
        [{"type": "assert", "fn": "f", "code": "def check(candidate):\n    assert candidate(1) == 1"}],
        [{"type": "assert", "fn": "f", "code": "assert undefined.x(1)\nassert f(1)"}],
        [{"type": "unit"}],
        ["assert f(1) == 1"],
        [{"type": "stdin", "input": "", "output": "x"}, {}],
    ],
)
def test_bad_tests_are_no_verdict(bad):
    """`all([])` is True: a row without a proper test is the data's fault, neither a pass nor a 0."""
    said = judge("def f(x): return x\nprint('x')", bad)
    assert said.verdict == "infrastructure", said
    assert said.reason.startswith("data error")


def test_partial_credit_counts_every_test():
    """Passed / run instead of passed / all, or crashed tests left out."""
    given = [{"type": "call", "fn": "f", "args": [n], "output": n} for n in range(5)]
    program = "import os\ndef f(x):\n    if x == 1: os._exit(0)\n    if x == 2:\n        while True: pass\n    return x"
    said = judge(program, given, partial=True, time_limit=0.5)
    assert (said.passed, said.total, [t["verdict"] for t in said.tests]) == (
        3,
        5,
        ["pass", "error", "timeout", "pass", "pass"],
    )
    assert judge(program, given, time_limit=0.5).passed == 1


def test_a_tier_is_chosen_once_and_named():
    """A verdict that does not say how well it was protected."""
    assert judge("print('x')", expect()).tier == choose_tier("auto") != "unsafe_subprocess"
