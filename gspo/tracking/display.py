"""Progress of a run: a live bar on a terminal, plain lines elsewhere. It only looks: no number depends on it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

log = logging.getLogger(__name__)

_SHOWN = (("reward", "reward/mean"), ("clip", "clip/token_binding"), ("tok/s", "perf/tokens_per_s"))


def say(text: str) -> None:
    """Print to stdout; a reader that goes away (`| head`) ends the output, not what prints it."""
    try:
        print(text, flush=True)
    except OSError:
        lead_nowhere(sys.stdout)


def lead_nowhere(stream: TextIO) -> None:
    """From here on what is written to `stream` is dropped: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Display:
    """Step, reward, share of clipped tokens, tokens/s and time left; `update` takes a row of metrics.jsonl.

    On a terminal a rich progress bar; elsewhere (a pipe, a file, TERM=dumb) the first step, the last one and a line
    at most every `interval` seconds. A reader that goes away (`| head`, a closed session) ends the display, not the
    run.
    """

    def __init__(
        self, total_steps: int, start_step: int = 0, *, stream: TextIO | None = None, interval: float = 1.0
    ) -> None:
        self.total, self.done, self.interval = total_steps, start_step, interval
        self.stream = sys.stdout if stream is None else stream
        self.live = self.stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
        self.ends: deque[float] = deque(maxlen=21)
        self.printed = float("-inf")
        self.bar: Any = None
        self.silent = False

    def __enter__(self) -> Display:
        self.ends.append(time.monotonic())
        if self.live:
            self._guard(self._start_bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self._guard(self.bar.stop)

    def update(self, row: Mapping[str, Any]) -> None:
        """Show the step that `row` reports; keys that it lacks are shown as `-`."""
        self.done = int(row["step"]) + 1
        self.ends.append(time.monotonic())
        if not self.silent:
            self._guard(lambda: self._show(row))

    def seconds_left(self) -> float:
        """Mean time of the last 20 steps times the steps to come."""
        if len(self.ends) < 2:
            return float("nan")
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1) * (self.total - self.done)

    def _show(self, row: Mapping[str, Any]) -> None:
        words = "  ".join(f"{name} {_number(row.get(key))}" for name, key in _SHOWN)
        if self.bar is not None:
            self.bar.update(0, completed=self.done, numbers=words, left=_clock(self.seconds_left()))
            return
        if self.printed == float("-inf") or self.done == self.total or self.ends[-1] - self.printed >= self.interval:
            self.printed = self.ends[-1]
            print(f"step {self.done}/{self.total}  {words}  left {_clock(self.seconds_left())}", file=self.stream)
            self.stream.flush()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=20))
        columns += (TextColumn("{task.fields[numbers]}"), TextColumn("left {task.fields[left]}"))
        console = Console(file=self.stream, force_terminal=True)
        self.bar = Progress(*columns, console=console, refresh_per_second=4)
        self.bar.add_task("", total=self.total, completed=self.done, numbers="", left="-")
        self.bar.start()

    def _guard(self, show: Any) -> None:
        """Run `show`; when the reader is gone, stop showing and say so in the log."""
        try:
            show()
        except OSError as error:
            self.silent = True
            log.warning("progress display stopped: %s", error)
            if self.stream is sys.stdout:  # else whatever prints next fails
                lead_nowhere(self.stream)


def _number(value: Any) -> str:
    """Four significant digits, or `-`."""
    return "-" if value is None else f"{value:.4g}"


def _clock(seconds: float) -> str:
    """h:mm:ss, or `-` when not known."""
    if seconds != seconds:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
