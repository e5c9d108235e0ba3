"""Whole or absent: atomic files, lines that count from their newline on, and errors that name path and space.

A row is appended by one write call, but a kernel may show a reader the first pages of it before the last: readers take
lines up to the last newline, as `lines` does.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def to_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON in the order of `row`; floats by repr, so that they read back to the bit.

    Scalars and arrays of numpy and torch become Python's. JSON has no NaN or infinity: such a value becomes null, and
    a last key `nonfinite` says which it was, in the shape of the row: `{"optim/grad_norm": "inf", "parts": {"format":
    "nan"}}` (in a list, the key is the index).
    """
    plain, marks = _split(row)
    if marks:
        plain["nonfinite"] = marks
    # A lone surrogate, which a decoder may emit, is written as its JSON escape.
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """The inverse of `to_line`: non-finite values are floats again."""
    row = json.loads(line)
    return _join(row, row.pop("nonfinite", {}))


def _split(value: Any) -> tuple[Any, Any]:
    """`value` in JSON's own types with null for what is not finite, and what the nulls stand for."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None, str(value)
    if isinstance(value, Mapping):
        pairs = {str(key): _split(item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, {key: mark for key, (_, mark) in pairs.items() if mark}
    if isinstance(value, list | tuple):
        items = [_split(item) for item in value]
        return [item for item, _ in items], {str(i): mark for i, (_, mark) in enumerate(items) if mark}
    return value, None


def _join(value: Any, marks: Any) -> Any:
    """The inverse of `_split`."""
    if isinstance(marks, str):
        return float(marks)
    for key, mark in marks.items():
        place = int(key) if isinstance(value, list) else key
        value[place] = _join(value[place], mark)
    return value


def lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a JSONL file and what they say; a last line without its end (the writer died) is left out.

    Raises ValueError, naming the line, when a whole line is not JSON. A file that does not exist has no lines.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = from_line(line)
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}") from error
            yield line, row


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file, as `lines`."""
    for _, row in lines(path):
        yield row


def end_before(path: Path, next_step: int) -> tuple[int, int]:
    """Size of a JSONL file in step order without its rows of step >= `next_step` and a half-written end, and the step
    of the row it ends with then (-1: none). Reads from the end."""
    if not path.exists() or path.stat().st_size == 0:
        return 0, -1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = data.rfind(b"\n") + 1
        while end:
            start = data.rfind(b"\n", 0, end - 1) + 1
            try:
                step = from_line(data[start:end])["step"]
            except ValueError as error:
                raise ValueError(f"{path} at byte {start}: {error}") from error
            if step < next_step:
                return end, step
            end = start
    return 0, -1


def append(path: Path, data: bytes) -> None:
    """Append `data` by one write call; after a short write (disk full) the file is cut back to what it was.

    Raises OSError with the path and the free space.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(handle).st_size
            if os.write(handle, data) != len(data):
                os.ftruncate(handle, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
    except OSError as error:
        raise no_room(path, error) from error


def replace(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Write `path` whole: beside it, flushed, then renamed over it; on failure the old file stands and no litter.

    `flush=False` leaves it to `flush_file` later that the file survives a power cut.

    Raises OSError with the path and the free space.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if flush:
            flush_file(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise no_room(path, error) from error


def overwrite(path: Path, data: bytes) -> None:
    """Change a small file in place: the last resort on a full disk, since it needs no new block."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def flush_file(path: Path) -> None:
    """Flush a file, or a directory's entries, to the disk, so that it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def no_room(path: Path, error: BaseException) -> OSError:
    """The error of a failed write as one line with the path and the space left on its file system."""
    standing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(standing).free
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return OSError(number, f"cannot write {path}: {said} ({free / 1e6:.1f} MB free on its file system)")
