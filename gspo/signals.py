"""SIGTERM and SIGINT: obeyed at once, or noted so that what runs can be finished."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

REPEAT = 1.0
"""Seconds in which signals count as one: `timeout` sends two, and a terminal and a launcher one each."""


@contextmanager
def handled(handle: Callable[[int], None]) -> Iterator[None]:
    """`handle(number)` takes SIGTERM and SIGINT inside the block."""

    def call(number: int, frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, call) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_at_once(number: int) -> None:
    """Raise KeyboardInterrupt with the signal's name."""
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def noted(heard: Callable[[int, int], None] = lambda number, count: None) -> Iterator[list[int]]:
    """The numbers of the signals that came inside the block; at each, `heard(number, how many there are)`."""
    numbers: list[int] = []
    last = -REPEAT

    def note(number: int) -> None:
        nonlocal last
        if time.monotonic() - last >= REPEAT:
            last = time.monotonic()
            numbers.append(number)
            heard(number, len(numbers))

    with handled(note):
        yield numbers
