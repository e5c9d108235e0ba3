"""The system-call filter of a box: a classic BPF program, built outside and installed inside (seccomp(2)).

An allow list: computing, files, threads, pipes and stream socket pairs. No new process or program, no socket that
leads anywhere, no ptrace, memfd, io_uring, keyring, namespace or mount; signals only to the process itself.
What is not listed answers EPERM, and ENOSYS where libc has a fall-back.
"""

from __future__ import annotations

import platform
import struct

PID_MARK = 0x7E57AB1E
"""Stands for the filtered process's own pid, which is known only after the fork; see `with_pid`."""

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name, number on x86_64, number on aarch64 (- where it does not exist)
_PLAIN = """
read 0 63;write 1 64;open 2 -;close 3 57;stat 4 -;fstat 5 80;lstat 6 -;poll 7 -;lseek 8 62;mmap 9 222;
mprotect 10 226;munmap 11 215;brk 12 214;rt_sigaction 13 134;rt_sigprocmask 14 135;rt_sigreturn 15 139;
pread64 17 67;pwrite64 18 68;readv 19 65;writev 20 66;access 21 -;pipe 22 -;select 23 -;sched_yield 24 124;
mremap 25 216;msync 26 227;mincore 27 232;madvise 28 233;dup 32 23;dup2 33 -;pause 34 -;nanosleep 35 101;
getitimer 36 102;alarm 37 -;setitimer 38 103;getpid 39 172;sendfile 40 71;recvfrom 45 207;sendmsg 46 211;
recvmsg 47 212;shutdown 48 210;getsockname 51 204;getpeername 52 205;setsockopt 54 208;getsockopt 55 209;
exit 60 93;uname 63 160;flock 73 32;fsync 74 82;fdatasync 75 83;truncate 76 45;ftruncate 77 46;getdents 78 -;
getcwd 79 17;chdir 80 49;fchdir 81 50;rename 82 -;mkdir 83 -;rmdir 84 -;creat 85 -;link 86 -;unlink 87 -;
symlink 88 -;readlink 89 -;chmod 90 -;fchmod 91 52;umask 95 166;gettimeofday 96 169;getrlimit 97 163;
getrusage 98 165;sysinfo 99 179;times 100 153;getuid 102 174;getgid 104 176;geteuid 107 175;getegid 108 177;
getppid 110 173;getpgrp 111 -;getsid 124 156;getgroups 115 158;getresuid 118 148;getresgid 120 150;
getpgid 121 155;rt_sigpending 127 136;rt_sigtimedwait 128 137;rt_sigsuspend 130 133;sigaltstack 131 132;
utime 132 -;statfs 137 43;fstatfs 138 44;getpriority 140 141;sched_getparam 143 121;sched_getscheduler 145 120;
sched_get_priority_max 146 125;sched_get_priority_min 147 126;arch_prctl 158 -;setrlimit 160 164;gettid 186 178;
readahead 187 213;time 201 -;futex 202 98;sched_getaffinity 204 123;epoll_create 213 -;getdents64 217 61;
set_tid_address 218 96;restart_syscall 219 128;fadvise64 221 223;clock_gettime 228 113;clock_getres 229 114;
clock_nanosleep 230 115;exit_group 231 94;epoll_wait 232 -;epoll_ctl 233 21;utimes 235 -;openat 257 56;
mkdirat 258 34;newfstatat 262 79;unlinkat 263 35;renameat 264 38;linkat 265 37;symlinkat 266 36;
readlinkat 267 78;fchmodat 268 53;faccessat 269 48;pselect6 270 72;ppoll 271 73;set_robust_list 273 99;
get_robust_list 274 100;utimensat 280 88;epoll_pwait 281 22;signalfd 282 -;timerfd_create 283 85;eventfd 284 -;
fallocate 285 47;timerfd_settime 286 86;timerfd_gettime 287 87;signalfd4 289 74;eventfd2 290 19;
epoll_create1 291 20;dup3 292 24;pipe2 293 59;preadv 295 69;pwritev 296 70;getcpu 309 168;renameat2 316 276;
getrandom 318 278;membarrier 324 283;copy_file_range 326 285;preadv2 327 286;pwritev2 328 287;statx 332 291;
rseq 334 293;close_range 436 436;faccessat2 439 439;epoll_pwait2 441 441;futex_waitv 449 449
"""
_SPECIAL = """
ioctl 16 29;socketpair 53 199;sendto 44 206;clone 56 220;fork 57 -;vfork 58 -;kill 62 129;fcntl 72 25;
prctl 157 167;tgkill 234 131;prlimit64 302 261;clone3 435 435;openat2 437 437;wait4 61 260
"""

_UNGUARDED = frozenset({"chmod", "fchmod", "fchmodat", "utime", "utimes", "utimensat"})

_EPERM, _EAGAIN, _ECHILD, _ENOSYS = 1, 11, 10, 38
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_LOAD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06

_THREAD, _NAMESPACES = 0x00010000, 0x7E020080
_PRCTL = (15, 16, 3, 23, 39, 0x53564D41)  # set and get name, get dumpable, capbset read, no_new_privs; name a mapping
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # isatty, window size, FIONREAD, FIONBIO, close-on-exec
_FCNTL_DENIED = (8, 10, 15, 1024, 1026, 1033)  # owners of signals, leases, notifications, seals


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = [entry.split() for entry in table.replace("\n", "").split(";")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _ins(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k & 0xFFFFFFFF)


def _errno(number: int) -> bytes:
    return _ins(_RET, 0x00050000 | number)


def _arg(index: int, high: bool = False) -> bytes:
    return _ins(_LOAD, 16 + 8 * index + (4 if high else 0))


def _arg_in(index: int, values: tuple[int, ...], *, deny: bool = False) -> bytes:
    """Allow (or, with `deny`, refuse) a call whose argument is one of the values; the other way round otherwise."""
    hit, miss = (_errno(_EPERM), _ins(_RET, _ALLOW)) if deny else (_ins(_RET, _ALLOW), _errno(_EPERM))
    return _arg(index) + b"".join(_ins(_JEQ, value, 0, 1) + hit for value in values) + miss


def _masked(index: int, mask: int, value: int, otherwise: int) -> bytes:
    """Allow when `argument & mask == value` (low 32 bits), else answer with the error number."""
    return _arg(index) + _ins(_AND, mask) + _ins(_JEQ, value, 0, 1) + _ins(_RET, _ALLOW) + _errno(otherwise)


def _special(name: str) -> bytes:
    if name == "clone":
        return _masked(0, _THREAD | _NAMESPACES, _THREAD, _EAGAIN)
    if name in ("fork", "vfork"):
        return _errno(_EAGAIN)
    if name in ("clone3", "openat2"):
        return _errno(_ENOSYS)
    if name == "wait4":
        return _errno(_ECHILD)
    if name in ("kill", "tgkill"):
        return _arg_in(0, (PID_MARK,))
    if name == "prlimit64":
        return _arg_in(0, (0, PID_MARK))
    if name == "prctl":
        return _arg_in(0, _PRCTL)
    if name == "ioctl":
        return _arg_in(1, _IOCTL)
    if name == "fcntl":
        return _arg_in(1, _FCNTL_DENIED, deny=True)
    if name == "socketpair":  # AF_UNIX, SOCK_STREAM: cannot name a peer elsewhere
        return _arg(0) + _ins(_JEQ, 1, 1, 0) + _errno(_EPERM) + _masked(1, 0xF, 1, _EPERM)
    assert name == "sendto"  # without an address
    no = _errno(_EPERM)
    return _arg(4) + _ins(_JEQ, 0, 1, 0) + no + _arg(4, high=True) + _ins(_JEQ, 0, 1, 0) + no + _ins(_RET, _ALLOW)


def build_filter(machine: str | None = None, *, own_files: bool = True) -> bytes:
    """The BPF program (8 bytes an instruction), with `PID_MARK` where the process's own pid belongs.

    Without `own_files` (no mount namespace) modes and times of files cannot be changed: landlock does not guard them.
    Raises ValueError on a machine that is neither x86_64 nor aarch64.
    """
    machine = machine or platform.machine()
    if machine not in _ARCH:
        raise ValueError(f"no system-call filter for {machine!r} (there is one for {', '.join(_ARCH)})")
    column = 1 if machine == "x86_64" else 2
    parts = [_ins(_LOAD, 4), _ins(_JEQ, _ARCH[machine], 1, 0), _ins(_RET, _KILL), _ins(_LOAD, 0)]
    if machine == "x86_64":  # the x32 numbers
        parts += [_ins(_JGE, 0x40000000, 0, 1), _errno(_EPERM)]
    for name, number in _numbers(_PLAIN, column).items():
        if name in _UNGUARDED and not own_files:
            continue
        parts += [_ins(_JEQ, number, 0, 1), _ins(_RET, _ALLOW)]
    for name, number in _numbers(_SPECIAL, column).items():
        body = _special(name)
        parts += [_ins(_JEQ, number, 0, len(body) // 8), body]
    newest = max(_numbers(_PLAIN + ";" + _SPECIAL, column).values())
    parts += [_ins(_JGE, newest + 1, 0, 1), _errno(_ENOSYS), _errno(_EPERM)]
    return b"".join(parts)
