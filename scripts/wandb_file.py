"""Reads what an offline W&B run holds, without W&B's own reader."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a 7-byte head, then LevelDB's log format in blocks of 32 KiB.

    https://github.com/google/leveldb/blob/main/doc/log_format.md, with the CRC-32 of zlib over type and data.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, place, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B", data[:7]
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        checksum, length, kind = struct.unpack("<IHB", data[place : place + 7])
        body = data[place + 7 : place + 7 + length]
        assert zlib.crc32(bytes([kind]) + body) == checksum, place
        place += 7 + length
        whole += body
        if kind in (1, 4):  # full, or last
            yield Record.FromString(whole)
            whole = b""


def mirrored(run: Path) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The only W&B directory of a run directory: (its run record, {step: {name: value}}).

    Asserts that there is one directory and that no step comes twice.
    """
    (file,) = run.glob("wandb/*/*.wandb")
    said, table = None, {}
    for one in records(file):
        kind = one.WhichOneof("record_type")
        if kind == "run":
            said = one.run
        elif kind == "history":
            row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in one.history.item}
            assert row["_step"] not in table, f"{file}: step {row['_step']} comes twice"
            table[row["_step"]] = {key: value for key, value in row.items() if not key.startswith("_")}
    assert said is not None, f"{file}: no run record"
    return said, table
