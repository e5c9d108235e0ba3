"""Runs inside a box: the keeper, which forks one locked-down process for each test and relays what it says.

The keeper runs no model code and never holds an expected value; the forked process confines itself (box_guest.py)
before it sees the program. `box.py` sends this code over the control socket, which is fd 0 at the start.
"""

import ctypes
import fcntl
import gc
import os
import select
import time

import box_guest  # type: ignore[import-not-found]
import frames  # type: ignore[import-not-found]

_ERR_KEPT, _SIGKILL = 8192, 9


def serve():
    """Answer runs on the control socket until the judge closes it."""
    control = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 100)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    ctypes.CDLL(None).mallopt(-8, 1)  # one arena: a thread then reserves no address space of its own
    box_guest.prctl(box_guest.PR_SET_DUMPABLE, 0)
    box_guest.prctl(box_guest.PR_SET_PDEATHSIG, _SIGKILL)
    box_guest.prctl(box_guest.PR_SET_NO_NEW_PRIVS, 1)
    os.environ.clear()
    first = frames.receive(control)
    if first is None:
        return
    config, (config["filter"],) = first
    gc.freeze()  # forked processes then share the pages
    frames.send(control, {"ready": os.getpid()})
    run = None
    try:
        while (message := frames.receive(control)) is not None:
            head, blobs = message
            for name in head.pop("imports", ()):
                __import__(name)
            if head["op"] == "run":  # an "end" may arrive after the process has ended by itself
                run = Run(control, config, head, *blobs)
                run.relay()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        if run is not None and not run.reaped:  # the judge is gone, in the middle of a run
            os.kill(run.pid, _SIGKILL)
            os.waitpid(run.pid, 0)
    if config["own_scratch"]:
        import shutil  # late: it would be a good part of a box's start

        shutil.rmtree(config["scratch"][0], ignore_errors=True)
    os._exit(0)


class Run:
    """One test's process: its pipes, its limits, and the relay between it and the judge."""

    def __init__(self, control, config, head, program, stdin):
        self.control, self.config, self.head = control, config, head
        self.out, self.err, self.line, self.outbox = bytearray(), b"", b"", bytearray()
        self.owed = 0
        self.out_bytes, self.reason, self.waited, self.writing, self.reaped = 0, "", 0.0, False, False
        guest_in = _file_of(stdin)
        self.out_r, out_w = os.pipe()
        self.err_r, err_w = os.pipe()
        self.setup_r, setup_w = os.pipe()
        requests_r, self.requests_w = os.pipe()
        self.results_r, results_w = os.pipe()
        for fd in (out_w, err_w):
            os.fchmod(fd, 0o666)  # so that /dev/stdout opens under another uid
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            box_guest.become(config, head, program, (guest_in, out_w, err_w, setup_w, requests_r, results_w))
        for fd in (guest_in, out_w, err_w, setup_w, requests_r, results_w):
            os.close(fd)
        for fd in (self.out_r, self.err_r, self.results_r, self.requests_w):
            os.set_blocking(fd, False)
        self.exited = os.pidfd_open(self.pid)
        self.poll = select.poll()

    def relay(self):
        """Run the process to its end, then report how it ended."""
        for fd in (self.out_r, self.err_r, self.results_r, self.exited, self.control):
            self.poll.register(fd, select.POLLIN)
        deadline = self.started + self.head["wall"]
        tick = 0.1 if self.config["watch_disk"] else 60.0
        alive = True
        while alive:
            left = deadline - time.monotonic()
            if left <= 0 and not self.reason:
                left = self._grace()
                deadline += left
                if left < 0.01:
                    self._kill("wall")
            step = min(tick, max(left, 0.01))
            for fd, _ in self.poll.poll(step * 1000 + 1):
                if fd == self.exited:
                    alive = False
                elif fd == self.control:
                    self._from_judge()
                elif fd == self.requests_w:
                    self._write_requests()
                elif not self._from_guest(fd):
                    self.poll.unregister(fd)
            if self.config["watch_disk"] and _bytes_under(self.config["scratch"]) > self.config["disk"]:
                self._kill("disk")
        for fd in (self.out_r, self.err_r, self.results_r):
            while self._from_guest(fd):
                pass
        self._report()

    def _grace(self):
        """Seconds still due to the process, because it was ready to run but had no core; at most twice its limit."""
        self.waited = _waited_for_a_core(self.pid)
        due = min(self.waited, 2 * self.head["wall"]) if self.waited == self.waited else 0.0
        return self.started + self.head["wall"] + due - time.monotonic()

    def _kill(self, reason):
        if not self.reason:
            self.reason, self.waited = reason, _waited_for_a_core(self.pid)
        os.kill(self.pid, _SIGKILL)  # not reaped yet: the pid is still its own

    def _from_guest(self, fd):
        """Take what there is to read; False when there is no more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if fd == self.err_r:
            self.err = (self.err + data)[-_ERR_KEPT:]
        elif fd == self.out_r:
            self.out_bytes += len(data)
            self.out += data[: max(0, self.head["output"] - len(self.out))]
        else:
            *lines, rest = (self.line + data).split(b"\n")
            self.line = bytes(rest)
            for line in lines:
                self.owed -= 1
                if self.owed < 0 and self.head["mode"] == "call":  # more answers than requests
                    self._kill("output")
                    break
                frames.send(self.control, {"line": True}, line)
        if max(self.out_bytes, len(self.line)) > self.head["output"]:
            self._kill("output")
            self.line = b""
        return bool(data)

    def _from_judge(self):
        message = frames.receive(self.control)
        if message is None:
            raise EOFError("the judge closed the control socket")
        head, blobs = message
        if head["op"] == "end":
            self._kill("ended")
        else:
            self.owed += 1
            self.outbox += blobs[0] + b"\n"
            self._write_requests()

    def _write_requests(self):
        """Hand over as much of the waiting requests as the process takes without blocking the keeper."""
        try:
            del self.outbox[: os.write(self.requests_w, self.outbox)]
        except BrokenPipeError:
            self.outbox.clear()
        except BlockingIOError:
            self.writing = False  # full: registered below, written when poll says so
        if self.outbox and not self.writing:
            self.poll.register(self.requests_w, select.POLLOUT)
        elif not self.outbox and self.writing:
            self.poll.unregister(self.requests_w)
        self.writing = bool(self.outbox)

    def _report(self):
        _, status, usage = os.wait4(self.pid, 0)
        self.reaped = True
        setup = os.read(self.setup_r, 4096)
        for fd in (self.out_r, self.err_r, self.setup_r, self.requests_w, self.results_r, self.exited):
            os.close(fd)
        report = {
            "exit": os.waitstatus_to_exitcode(status),
            "reason": self.reason,
            "setup": setup.decode("utf-8", "replace"),
            "cpu": usage.ru_utime + usage.ru_stime,
            "wall": time.monotonic() - self.started,
            "waited": self.waited,
            "dirty": any(_holds_something(path) for path in self.config["scratch"]),
        }
        frames.send(self.control, {"report": report}, bytes(self.out), self.err)


def _file_of(data):
    """A regular file (fstat, mmap and seeking work) at its start."""
    fd = os.memfd_create("stdin")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.fchmod(fd, 0o666)
    return fd


def _waited_for_a_core(pid):
    """Seconds the process's threads were ready to run but did not; NaN where the kernel does not say."""
    total = 0.0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as handle:
                total += int(handle.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return float("nan")
    return total


def _holds_something(path):
    try:
        return bool(os.listdir(path))
    except OSError:  # the program has closed it to us
        return True


def _bytes_under(paths):
    total, todo = 0, list(paths)
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
            total += sum(entry.stat(follow_symlinks=False).st_blocks * 512 + 512 for entry in entries)
        except OSError:
            continue
        todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return total
