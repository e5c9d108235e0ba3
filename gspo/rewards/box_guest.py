"""Runs inside a box, in the process forked for one test: lock it down, then run the program.

Three modes. `stdin`: the program as a script. `call`: the program as a module whose functions are called. `test`:
*trusted* test code, whose calls of the solution go out as requests (box_calls.py has the last two).
"""

import atexit
import builtins
import ctypes
import io
import os
import resource
import sys
from struct import pack

import box_calls  # type: ignore[import-not-found]

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 22, 38
_CAP_DAC_READ_SEARCH, _SIGKILL = 1 << 2, 9
_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option, value, pointer=None):
    """prctl(2). Raises OSError."""
    if _LIBC.prctl(option, ctypes.c_ulong(value), pointer or ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise _error(f"prctl({option})")


def _error(what):
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def become(config, head, program, fds):
    """Turn this forked process into the guest; never returns."""
    guest_in, out, err, setup, requests, results = fds
    try:
        for source, fd in ((guest_in, 0), (out, 1), (err, 2)):
            os.dup2(source, fd)
        kept = {setup} if head["mode"] == "stdin" else {setup, requests, results}
        start = 3
        for fd in [*sorted(kept), 256]:
            os.closerange(start, fd)
            start = fd + 1
        _fresh_interpreter()
        confine(config, head)
        os.write(setup, b"ok")
    except BaseException as error:
        os.write(setup, f"{type(error).__name__}: {error}".encode())
        os._exit(70)
    os.close(setup)
    if head["mode"] == "test":
        box_calls.run_test(program, head, requests, results)
        os._exit(0)
    module = _module("__main__" if head["mode"] == "stdin" else "solution")
    _execute(program, module)
    if head["mode"] == "call":
        box_calls.answer_calls(module, requests, results)
    _finish(0)


def _fresh_interpreter():
    for name in ("box_child", "box_guest", "box_calls", "frames", "tagged"):
        sys.modules.pop(name, None)
    streams = []
    for fd, mode, errors in ((0, "r", "surrogateescape"), (1, "w", "surrogateescape"), (2, "w", "backslashreplace")):
        raw = io.FileIO(fd, mode, closefd=False)
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        streams.append(io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=fd == 2))
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv, sys.orig_argv = ["solution.py"], ["python3", "solution.py"]
    for name in ("exit", "quit"):
        setattr(builtins, name, _leave)


def _leave(code=None):
    raise SystemExit(code)


def confine(config, head):
    """Uid, death with the keeper, limits, landlock (in tier 2), then the system-call filter. Raises OSError."""
    if config["uid"] is not None:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        prctl(PR_SET_KEEPCAPS, int(config["keep_search"]))
        os.setresuid(config["uid"], config["uid"], config["uid"])
        if config["keep_search"]:  # the interpreter lies under a directory that only root may enter
            header, bits = pack("=Ii", 0x20080522, 0), pack("=6I", *[_CAP_DAC_READ_SEARCH] * 2, *[0] * 4)
            if _LIBC.capset(header, bits):
                raise _error("capset")
    prctl(PR_SET_PDEATHSIG, _SIGKILL)
    prctl(PR_SET_DUMPABLE, 1)
    seconds = int(-(-head["cpu"] // 1))
    limits = {
        resource.RLIMIT_AS: (head["memory"], head["memory"]),
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (config["disk"], config["disk"]),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (64 << 20, 64 << 20),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    if config["tasks"] is not None:
        limits[resource.RLIMIT_NPROC] = (config["tasks"], config["tasks"])
    for limit, (soft, hard) in limits.items():
        old = resource.getrlimit(limit)[1]
        if old != resource.RLIM_INFINITY:
            soft, hard = min(soft, old), min(hard, old)
        resource.setrlimit(limit, (soft, hard))
    if config["landlock"] is not None:
        _landlock(config["landlock"], config["scratch"])
    if config["filter"]:
        program = config["filter"].replace(pack("=I", config["pid_mark"]), pack("=I", os.getpid()))
        code = ctypes.create_string_buffer(program, len(program))
        fprog = pack("@HP", len(program) // 8, ctypes.addressof(code))
        prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(fprog))


def _landlock(readable, writable):
    """Only `readable` paths can be read and `writable` ones changed; no TCP, signals or abstract sockets to others."""
    abi = _LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if abi < 3:  # before, a file that can be read can be truncated
        raise OSError(38, f"landlock of kernel 6.2 or newer is needed (version 3, not {abi})")
    every = 0x7FFF if abi < 5 else 0xFFFF
    attr = pack("=QQQ", every, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _LIBC.syscall(444, attr, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise _error("landlock_create_ruleset")
    for path, rights in [(p, 0x0D) for p in readable] + [("/dev/null", 0x06)] + [(p, every) for p in writable]:
        if not os.path.exists(path):
            continue
        fd = os.open(path, os.O_PATH)
        if not os.path.isdir(path):
            rights &= 0x07
        if _LIBC.syscall(445, ruleset, 1, pack("=Qi", rights & every, fd), 0):
            raise _error(f"landlock_add_rule({path})")
        os.close(fd)
    if _LIBC.syscall(446, ruleset, 0):
        raise _error("landlock_restrict_self")
    os.close(ruleset)


def _module(name):
    module = type(sys)(name)
    module.__dict__.update(__builtins__=builtins, __file__="solution.py")
    sys.modules[name] = module
    return module


def _execute(program, module):
    """Run the program in the module; exit as the interpreter would if it raises."""
    try:
        exec(compile(program, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        _finish(_exit_code(error.code))
    except BaseException as error:
        if isinstance(error, MemoryError):
            module.__dict__.clear()
        shown = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, shown)
        _finish(1)


def _exit_code(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _finish(code):
    """What the interpreter does at the end: wait for threads, run atexit functions, flush. Never returns."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:
        code = code or 120
    os._exit(code)
