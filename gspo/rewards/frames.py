"""Messages between a judge and a box's keeper: a length, a JSON head, then binary blobs whose sizes the head names."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gspo.rewards import tagged
else:
    try:
        import tagged  # inside a box
    except ImportError:
        from gspo.rewards import tagged

MAX_HEAD = 1 << 20
MAX_BLOB = 256 << 20


def send(fd: int, head: dict[str, Any], *blobs: bytes) -> None:
    """Write one message; blocks until it is all written. Raises OSError (BrokenPipeError) when the peer is gone."""
    text = tagged.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    for part in (len(text).to_bytes(4, "big") + text, *blobs):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]


def receive(fd: int) -> tuple[dict[str, Any], list[bytes]] | None:
    """`(head, blobs)` of the next message, or None at a clean end.

    Raises EOFError when the peer closes in mid-message, ValueError for a malformed one.
    """
    first = os.read(fd, 4)
    if not first:
        return None
    first += _exactly(fd, 4 - len(first))
    size = int.from_bytes(first, "big")
    if size > MAX_HEAD:
        raise ValueError(f"message head of {size} bytes")
    head = tagged.loads(_exactly(fd, size))
    sizes = head.pop("blobs")
    if sum(sizes) > MAX_BLOB:
        raise ValueError(f"message of {sum(sizes)} bytes")
    return head, [_exactly(fd, size) for size in sizes]


def _exactly(fd: int, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = os.read(fd, min(missing, 1 << 20))
        if not part:
            raise EOFError(f"the peer closed with {missing} of {size} bytes missing")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
