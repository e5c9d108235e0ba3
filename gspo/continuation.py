"""May a run continue what its directory holds? Only with the same settings, or ones that change no earlier number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gspo.config import Run
from gspo.tracking import run_dir
from gspo.tracking.record import redact

MAY_CHANGE = (
    "resume",
    "debug",
    "run",
    "tracking",
    "checkpoint",
    "sweep",
    "plan",
    "rollout.check_every",
    "trainer.devices",
    "trainer.activation_checkpointing",
    "trainer.offload",
)
"""Keys (or groups) that may differ between a run and its continuation; with a constant schedule `train.steps` too."""


def run_directory(run: Run, overrides: list[str]) -> Path:
    """`run.dir`, or the run directory that `resume` names.

    Raises ValueError when `resume` names none that exists, or `run.dir` is given as well.
    """
    if run.resume in ("never", "auto"):
        _require_possible("run.dir", run.run.dir)
        return Path(run.run.dir)
    _require_possible("resume", run.resume)
    if not Path(run.resume).is_dir():
        raise ValueError(f"resume={run.resume}: no such run directory (accepted: never, auto, or an existing one)")
    if any(override.startswith("run.dir=") for override in overrides):
        raise ValueError(f"run.dir={run.run.dir}: resume={run.resume} names the directory already; leave one out")
    return Path(run.resume)


def _require_possible(key: str, path: str) -> None:
    """Raise ValueError for a path that no file system takes: an empty one, or one with too long a name."""
    try:
        os.stat(path)
    except FileNotFoundError:
        if not path.strip():
            raise ValueError(f"{key}='{path}': a path is needed") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{key}={path}: {reason} (accepted: a path that can be made)") from error


def is_finished(directory: Path, run: Run, plain: dict[str, Any]) -> bool:
    """Has the run in `directory` done all of `train.steps`?

    Raises ValueError when it may not be continued: `resume=never`, no run there, or another configuration.
    """
    if run.resume == "never":
        raise ValueError(f"run.dir={directory}: exists; choose another run.dir, or resume=auto to continue it")
    status, old = run_dir.status(directory), run_dir.read_config(directory)
    may_change = (*MAY_CHANGE, "train.steps") if run.optim.schedule == "constant" else MAY_CHANGE
    changed = differences(old, redact(plain), may_change)
    if changed:
        raise ValueError(f"{directory}: has another configuration ({shown(changed)}); it is left as it is")
    return status == "finished" and old["train"]["steps"] >= run.train.steps


def require_checkpoint(directory: Path) -> None:
    """Raise ValueError when the run in `directory` has written checkpoints and none is there: it would lose its steps.

    A run that ended before its first one may start over.
    """
    known = run_dir.read_record(directory)
    written = known.get("checkpoint")
    if written is None and all(one.get("status") != "finished" for one in known["sessions"]):
        return
    if not any((directory / "checkpoints").glob("step_*")):
        at = "its last step" if written is None else f"step {written}"
        raise ValueError(
            f"{directory}: wrote a checkpoint at {at} and {directory / 'checkpoints'} holds none; it is left as it is "
            f"(accepted: the checkpoints put back, or another run.dir)"
        )


def shown(changed: list[str], most: int = 8) -> str:
    """The first differences, and how many more there are."""
    more = f"; and {len(changed) - most} more" if len(changed) > most else ""
    return "; ".join(changed[:most]) + more


def differences(old: dict[str, Any], new: dict[str, Any], may_change: tuple[str, ...], prefix: str = "") -> list[str]:
    """`key: old -> new` for every key that differs and may not."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if name in may_change or a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, may_change, f"{name}.")
        else:
            found.append(f"{name}: {a} -> {b}")
    return found


def require_same_data(directory: Path, fingerprints: dict[str, str]) -> None:
    """Raise ValueError when the problems are no longer those that the run in `directory` began with."""
    known = run_dir.read_record(directory).get("data")
    if known is None or known == fingerprints:
        return
    changed = [
        f"{name}: sha256 {known.get(name, 'none')[:12]} -> {fingerprints.get(name, 'none')[:12]}"
        for name in sorted(known.keys() | fingerprints.keys())
        if known.get(name) != fingerprints.get(name)
    ]
    raise ValueError(
        f"{directory}: its data have changed since it began ({'; '.join(changed)}); it is left as it is "
        "(accepted: the data put back, or another run.dir)"
    )
