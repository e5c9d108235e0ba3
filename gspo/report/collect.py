"""Run directories as plain tables. Reads files only; a run that cannot be compared is kept with the reason why."""

from __future__ import annotations

import fcntl
import json
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

COLUMNS = ("step", "reward/", "clip/", "response/", "ratio/", "policy/", "mismatch/", "moe/", "optim/", "compute/",
           "time/", "perf/", "data/query_set")  # fmt: skip
"""Beginnings of the columns of metrics.jsonl that reports use; break-downs by mini-batch and length are left out."""


@dataclass(slots=True, eq=False)
class Run:
    """One run directory."""

    name: str
    """Its path under the report's directory."""
    path: Path
    status: str
    """As in run.json; `lost`: it says running and no process holds it; `unreadable`: a file is damaged."""
    reason: str = ""
    seed: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    """config.yaml, flattened to dotted keys."""
    record: dict[str, Any] = field(default_factory=dict)
    """run.json."""
    metrics: dict[str, Column] = field(default_factory=dict)
    """Columns of metrics.jsonl `[steps]`, NaN where a row lacks the key; `step` grows."""
    evals: list[dict[str, Any]] = field(default_factory=list)
    """Rows of eval.jsonl; a row at step s speaks of the weights after s steps."""
    arm: str = ""
    """Set by `arms.assign`."""

    def column(self, name: str) -> Column:
        """A column of the metrics, all NaN when the run never logged it."""
        return self.metrics.get(name, np.full(len(self.metrics.get("step", ())), math.nan))

    def sequence_files(self) -> list[Path]:
        """sequences/*.parquet in order of their step."""
        return sorted((self.path / "sequences").glob("step_*.parquet"))


def collect(root: Path) -> list[Run]:
    """Every run below `root` (or `root` itself), in order of their names. Raises ValueError when there is none."""
    if not root.is_dir():
        raise ValueError(f"no such directory: {root}")
    runs = [read_run(path, root) for path in find_runs(root)]
    if not runs:
        raise ValueError(f"no run directory (one with run.json) below {root}")
    return runs


def find_runs(root: Path) -> list[Path]:
    """Directories below `root` that hold run.json; hidden ones and the inside of a run are not searched."""
    found: list[Path] = []
    for folder, below, files in os.walk(root):
        if "run.json" in files:
            found.append(Path(folder))
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]
    return sorted(found)


def read_run(path: Path, root: Path) -> Run:
    """One run directory; a damaged file makes its status `unreadable` and the reason names it."""
    run = Run(path.name if path == root else path.relative_to(root).as_posix(), path, "unreadable")
    try:
        run.record = json.loads((path / "run.json").read_bytes())
        run.config = flatten(_yaml((path / "config.yaml").read_bytes()))
        seed = run.config.get("seed", run.record.get("seed"))
        run.seed = seed if isinstance(seed, int) else None
        run.metrics = read_metrics(path / "metrics.jsonl")
        run.evals = list(json_rows(path / "eval.jsonl"))
    except (OSError, ValueError) as error:
        run.reason = str(error).replace(str(path), path.name)
        return run
    run.status, run.reason = str(run.record.get("status", "unreadable")), str(run.record.get("reason") or "")
    if run.status == "running" and not _held(path):
        run.status, run.reason = "lost", "the process is gone"
    return run


def read_metrics(path: Path) -> dict[str, Column]:
    """The columns of metrics.jsonl; of two rows with one step the later one counts."""
    columns: dict[str, array[float]] = {}
    known: dict[str, bool] = {}
    count = 0
    for row in json_rows(path):
        for key, value in row.items():
            if key not in known:
                known[key] = key.startswith(COLUMNS) and "/mb" not in key and "/len_" not in key
            if not known[key] or not isinstance(value, int | float):
                continue
            column = columns.setdefault(key, array("d"))
            if len(column) < count:
                column.extend([math.nan] * (count - len(column)))
            column.append(value)
        count += 1
    for column in columns.values():
        column.extend([math.nan] * (count - len(column)))
    out = {key: np.frombuffer(column, dtype=np.float64) for key, column in columns.items()}
    step = out.get("step", np.zeros(0))
    if np.isnan(step).any() or (count and not len(step)):
        raise ValueError(f"{path}: a row has no step")
    if (np.diff(step) <= 0).any():
        _, backward = np.unique(step[::-1], return_index=True)
        keep = count - 1 - backward
        out = {key: column[keep] for key, column in out.items()}
    return out


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file, none when it does not exist; a half-written last line is left out.

    `nonfinite` names the values that JSON cannot hold. Raises ValueError, naming the line, for any other damage.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                row.update({key: float(value) for key, value in row.pop("nonfinite", {}).items()})
            except (ValueError, AttributeError) as error:
                raise ValueError(f"{path} line {number}: {error}") from error
            yield row


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested dict as dotted keys; lists stay values."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree} if prefix else {}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _yaml(text: bytes) -> Any:
    """Parse YAML with the C parser where PyYAML has it."""
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"config.yaml: {' '.join(str(error).split())}") from error


def _held(path: Path) -> bool:
    """Does a live process hold the run's lock?"""
    try:
        handle = os.open(path / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
