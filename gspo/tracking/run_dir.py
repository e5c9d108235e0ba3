"""The run directory: config.yaml, run.json, metrics.jsonl, eval.jsonl, samples/, eval_samples/, sequences/, log.txt.

It is the interface of a run. A step is one row and is numbered from 0; a row of eval.jsonl at step s, and the samples
that it sums up in eval_samples/, speak of the weights after s steps and are written before step s is trained. Sample
and sequence files carry their step in six digits.
A row counts from its newline on, all else is written beside and renamed: a reader never takes half of anything.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml

from gspo.tracking import files, record

log = logging.getLogger(__name__)

Status = Literal["running", "finished", "failed", "interrupted", "lost"]


class Interrupted(RuntimeError):
    """A signal asked the run to stop, and it did after a whole step; run.json says interrupted."""


@dataclass(slots=True)
class RunDir:
    """An open run directory, locked for this process. Use as a context manager, or call `finish`."""

    path: Path
    record: dict[str, Any]
    """What run.json holds."""
    lock: int
    handler: logging.Handler
    """Writes log.txt."""
    last_step: int = -1
    """Step of the last row of metrics.jsonl."""
    unflushed: set[Path] = field(default_factory=set)
    """Files written since `sync`."""

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Append a step's row to metrics.jsonl; `row["step"]` grows by one or more from row to row."""
        assert row["step"] > self.last_step, (row["step"], self.last_step)
        self._append("metrics.jsonl", row)
        self.last_step = row["step"]

    def eval(self, row: Mapping[str, Any], samples: Sequence[Mapping[str, Any]] = ()) -> None:
        """Append a row to eval.jsonl; `row["step"]` counts the steps trained so far.

        `samples`, a record each, go to eval_samples/step_NNNNNN.jsonl before the row, which vouches for them.
        """
        assert isinstance(row["step"], int), row["step"]
        if samples:
            lines = b"".join(files.to_line(sample) for sample in samples)
            self._write(f"eval_samples/step_{row['step']:06d}.jsonl", lines)
        self._append("eval.jsonl", row)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write samples/step_NNNNNN.jsonl."""
        self._write(f"samples/step_{step:06d}.jsonl", b"".join(files.to_line(row) for row in rows))

    def sequences(self, step: int, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
        """Write sequences/step_NNNNNN.parquet.

        A column is a list, or an array or tensor `[rows]`, whose dtype is kept; `[rows, k]` or a list of arrays makes a
        list column. `metadata` goes into the schema. Raises OSError with path and free space.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        def column(values: Any) -> pa.Array:
            values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
            return pa.array(list(values) if getattr(values, "ndim", 1) > 1 else values)

        table = pa.table({name: column(values) for name, values in columns.items()})
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(dict(metadata or {})), sink)
        self._write(f"sequences/step_{step:06d}.parquet", sink.getvalue().to_pybytes())

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        files.append(self.path / name, files.to_line(row))
        self.unflushed.add(self.path / name)

    def _write(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        files.replace(self.path / name, data, flush=False)
        self.unflushed.add(self.path / name)

    def sync(self) -> None:
        """Flush what was written since the last call to the disk; call before a checkpoint, so that none is newer than
        its rows."""
        for path in self.unflushed:
            files.flush_file(path)
        for folder in {path.parent for path in self.unflushed}:
            files.flush_file(folder)
        self.unflushed.clear()

    def truncate(self, next_step: int) -> None:
        """Cut every row and file of step >= `next_step`, and half-written ends: what a resumed run will write again.

        `next_step` is the checkpoint's number (steps trained). Warns when the last row is not the one before it.
        """
        for name in ("metrics.jsonl", "eval.jsonl"):
            size, step = files.end_before(self.path / name, next_step)
            if (self.path / name).exists():
                os.truncate(self.path / name, size)
            if name == "metrics.jsonl" and step != next_step - 1:
                log.warning("%s: the last row before step %d is step %d", self.path / name, next_step, step)
        self.last_step = next_step - 1
        for folder in ("samples", "eval_samples", "sequences"):
            for path in (self.path / folder).glob("*"):
                number = path.stem.removeprefix("step_")
                if path.name.startswith(".") or (number.isdigit() and int(number) >= next_step):
                    path.unlink()

    def update(self, **changes: Any) -> None:
        """Change fields of run.json (device, data hashes, preflight findings, ...)."""
        self.record |= record.redact(changes)
        files.replace(self.path / "run.json", _dump(self.record))

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write config.yaml anew: the settings of a continuation (secrets redacted)."""
        text = yaml.safe_dump(record.redact(dict(config)), sort_keys=False, allow_unicode=True)
        files.replace(self.path / "config.yaml", text.encode())

    def finish(self, status: Status = "finished", reason: str = "") -> None:
        """Write how the run ended, close log.txt and give the lock back; the first call counts.

        On a full disk run.json is rewritten in place, so that the status is true even then.
        """
        if self.lock < 0 or os.getpid() != self.record["pid"]:  # over, or a forked child that leaves the block
            return
        ended = {"status": status, "reason": record.redact(" ".join(reason.split())), "ended": record.moment()}
        self.record["sessions"][-1] |= ended
        try:
            self.sync()
            self.update(**ended)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            files.overwrite(self.path / "run.json", _dump(self.record))
        finally:
            logging.getLogger().removeHandler(self.handler)
            self.handler.close()
            record.drop_lock(self.lock)
            self.lock = -1

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)  # what signals raise; sys.exit is a failure
        try:
            self.finish("interrupted" if stopped else "failed", f"{type(error).__name__}: {error}".rstrip(": "))
        except OSError as more:  # the run will be found lost; what stopped it is the error to be seen
            log.error("run.json keeps its old status: %s", more)


def require_room(path: Path, key: str = "run.dir") -> None:
    """Raise ValueError when no directory can be made at `path`, the value of `key`: what is there of its parents takes
    none."""
    parent = next(one for one in path.absolute().parents if one.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".gspo-", dir=parent))
    except OSError as error:
        raise ValueError(f"{key}={path}: {parent}: {error.strerror} (accepted: a path that can be made)") from error


def create(path: Path, config: Mapping[str, Any], run_record: Mapping[str, Any]) -> RunDir:
    """Make a run directory with config.yaml and run.json, all at once, and lock it.

    `config` is the resolved configuration as a plain dict; `run_record` holds what only the caller knows (objective,
    seed, overrides, data hashes, device, preflight findings). Raises ValueError when `path` exists; it is not touched.
    """
    if path.exists() or path.is_symlink():
        raise ValueError(f"run directory {path} exists; choose another run.dir, or resume=auto to continue it")
    session = _session(0)
    whole = {"status": "running", "reason": "", "wandb_id": record.new_id(), **run_record}
    whole |= {"versions": record.versions(), "git": record.git(), **session, "ended": None, "sessions": [session]}
    whole = record.redact(whole)
    text = yaml.safe_dump(record.redact(dict(config)), sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.mkdir()
    lock = record.take_lock(beside)
    try:
        files.replace(beside / "config.yaml", text.encode())
        files.replace(beside / "run.json", _dump(whole))
        beside.rename(path)
    except OSError as error:
        record.drop_lock(lock)
        shutil.rmtree(beside, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise ValueError(f"run directory {path} exists; another process has just made it") from error
        raise
    return RunDir(path, whole, lock, _log_to(path))


def open_existing(path: Path, *, next_step: int = 0) -> RunDir:
    """Lock a run directory that exists, to continue it from `next_step`; cut its rows with `truncate`.

    run.json keeps the earlier sessions; one that ended without a word is marked lost. Raises ValueError when there is
    no run in `path` or a live process holds it.
    """
    read_record(path)
    lock = record.take_lock(path)
    try:
        known = read_record(path)
        if known["status"] == "running":
            known["sessions"][-1] |= {"status": "lost", "reason": "the process is gone"}
        session = _session(next_step)
        known |= {**session, "started": known["started"], "status": "running", "reason": "", "ended": None}
        known["sessions"].append(session)
        files.replace(path / "run.json", _dump(known))
        _, last = files.end_before(path / "metrics.jsonl", sys.maxsize)
        return RunDir(path, known, lock, _log_to(path), last)
    except BaseException:
        record.drop_lock(lock)
        raise


def read_record(path: Path) -> dict[str, Any]:
    """run.json as a dict. Raises ValueError when `path` holds no run."""
    try:
        found = json.loads((path / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a run directory: run.json: {error}") from error
    if not isinstance(found, dict) or not {"status", "sessions", "wandb_id"} <= found.keys():
        raise ValueError(f"{path} is not a run directory: run.json has no status, sessions and wandb_id")
    return found


def status(path: Path) -> Status:
    """What run.json says; `lost` when it says running and no live process holds the directory."""
    said = read_record(path)["status"]
    return "lost" if said == "running" and not record.is_locked(path) else said


def bury(path: Path, reason: str, status: Status = "failed") -> None:
    """Write into run.json how a run ended, and of what, when its processes died before they could."""
    known = read_record(path)
    ended = {"status": status, "reason": record.redact(" ".join(reason.split())), "ended": record.moment()}
    known["sessions"][-1] |= ended
    files.replace(path / "run.json", _dump(known | ended))


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml as a plain dict. Raises ValueError when `path` holds none."""
    try:
        found = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} is not a run directory: config.yaml: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: config.yaml cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a run directory: config.yaml holds no settings")
    return found


def _session(next_step: int) -> dict[str, Any]:
    return {"started": record.moment(), "host": platform.node(), "pid": os.getpid(), "from_step": next_step}


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _log_to(path: Path) -> logging.Handler:
    """Send the root logger's records (INFO and up of this package, WARNING and up of others) to log.txt."""
    handler = logging.FileHandler(path / "log.txt", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("gspo").setLevel(logging.INFO)
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "gspo":  # Hydra disables what existed before its own start
            logging.getLogger(name).disabled = False
    logging.getLogger().addHandler(handler)
    return handler
