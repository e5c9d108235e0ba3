"""The jobs of a sweep on a terminal: a live table; elsewhere a line when one starts or ends. It only looks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from gspo.tracking.display import lead_nowhere

if TYPE_CHECKING:
    from gspo.sweep.runner import Row

TAIL = 1 << 16
"""Bytes from the end of metrics.jsonl that hold its last row."""


class Table:
    """Name, state, step, reward and time of every job; `update` draws it when it is due.

    Without a terminal: a line at every change, and every `interval` seconds where the running jobs are. A reader that
    goes away ends the table, not the sweep. No thread is started.
    """

    def __init__(self, rows: Sequence[Row], *, stream: TextIO | None = None, interval: float = 60.0) -> None:
        self.rows, self.interval = rows, interval
        self.stream = sys.stdout if stream is None else stream
        self.live = self.stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
        self.said: list[str] = [row.state if row.state == "waiting" else "" for row in rows]
        self.drawn = self.reported = time.monotonic()
        self.view: Any = None
        self.silent = False

    def __enter__(self) -> Table:
        if self.live:
            from rich.live import Live

            self.view = Live(
                console=_console(self.stream), auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self.view.start()
        self.update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.view is not None:
            self.view.update("", refresh=True)
            self.view.stop()
        self._guard(self._final)

    def update(self) -> None:
        """Show what has changed."""
        if not self.silent:
            self._guard(self._draw if self.view is not None else self._lines)

    def _draw(self) -> None:
        if time.monotonic() - self.drawn >= 0.5:
            self.drawn = time.monotonic()
            room = shutil.get_terminal_size().lines - 5
            shown = list(self.rows)
            if len(shown) > room:  # what is over, and what has not begun, in numbers only
                shown = [row for row in shown if row.state in ("running", "failed")][-room:]
            self.view.update(render(shown, counts(self.rows)), refresh=True)

    def _lines(self) -> None:
        due = time.monotonic() - self.reported >= self.interval
        for number, row in enumerate(self.rows):
            if row.state != self.said[number] or (due and row.state == "running"):
                self.said[number] = row.state
                step, reward = progress(row.job.directory)
                words = [f"job {number + 1}/{len(self.rows)} {row.job.name}: {row.state}"]
                if step or row.state not in ("running", "waiting"):
                    words.append(f"step {step}/{row.job.run.train.steps}  reward {reward}  {clock(row.seconds)}")
                print("  ".join([*words, *([row.reason] if row.reason else [])]), file=self.stream, flush=True)
        if due:
            self.reported = time.monotonic()

    def _final(self) -> None:
        _console(self.stream).print(render(self.rows, counts(self.rows)))

    def _guard(self, show: Any) -> None:
        """Run `show`; when the reader is gone, stop showing."""
        try:
            show()
        except OSError:
            self.silent = True
            lead_nowhere(self.stream)


def _console(stream: TextIO) -> Any:
    from rich.console import Console

    return Console(file=stream, width=None if stream.isatty() else 160, highlight=False, markup=False)


def render(rows: Sequence[Row], title: str) -> Any:
    """A rich table of the jobs; a failed one says why."""
    from rich.table import Table as Rich

    table = Rich(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("job", overflow="fold")
    table.add_column("state")
    for name in ("step", "reward", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        step, reward = progress(row.job.directory)
        done = f"{step}/{row.job.run.train.steps}"
        table.add_row(row.job.name, row.state, done, reward, clock(row.seconds), row.reason)
    return table


def counts(rows: Sequence[Row]) -> str:
    """`3 finished, 1 failed` ... in a fixed order."""
    found = Counter(row.state for row in rows)
    words = {"skipped": "finished earlier", "waiting": "not started"}
    order = ("running", "finished", "skipped", "failed", "interrupted", "waiting")
    return f"{len(rows)} jobs: " + ", ".join(f"{found[s]} {words.get(s, s)}" for s in order if found[s])


def progress(directory: Path) -> tuple[int, str]:
    """Steps done and the last mean reward, from the end of metrics.jsonl; 0 and `-` before the first row."""
    try:
        with open(directory / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    except OSError:
        return 0, "-"
    if not whole:
        return 0, "-"
    row = json.loads(whole)
    reward = row.get("reward/mean")
    return row["step"] + 1, "-" if reward is None else f"{reward:.3f}"


def clock(seconds: float) -> str:
    """h:mm:ss, or `-` for none."""
    if not seconds:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
