"""W&B as a mirror of metrics.jsonl and eval.jsonl: derived from them, never read back, and never in the run's way.

A W&B process that is killed keeps few or no rows. So the mirror, when it opens, throws the run's local W&B directory
away and fills it again from the two files under the run's id (some hundred rows a second): each step is there
once, whatever happened before. An online run keeps what it was sent, and is sent what it lacks.

When W&B fails, one warning says so, the run goes on, and a refill is tried once at the end. What could not be mirrored
is in metrics.jsonl, and `refill` does it later. `online` without a key is refused by `check`; `online` with a key but
without a network becomes `offline` with one warning that names the `wandb sync` command.
"""

from __future__ import annotations

import heapq
import logging
import netrc
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from gspo.tracking import files, record
from gspo.tracking.run_dir import RunDir, read_config, read_record

log = logging.getLogger(__name__)

MODES = ("disabled", "offline", "online")

# Nothing of the machine, its console, its code or its git goes into the mirror. Seconds: how long it may hold a run up.
_QUIET = {
    "silent": True,
    "console": "off",
    "symlink": False,
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "init_timeout": 20.0,
    "finish_timeout": 60.0,
    "x_transaction_log_flush_interval": 1.0,
}


class Settings(Protocol):
    """The part of the tracking settings that W&B needs."""

    wandb: str
    project: str
    group: str | None


def check(mode: str) -> None:
    """Refuse, before anything is loaded, a mode that cannot work. Imports nothing and asks nobody.

    Raises ValueError for an unknown mode, and for `online` without a key (WANDB_API_KEY, WANDB_IDENTITY_TOKEN_FILE or
    ~/.netrc).
    """
    if mode not in MODES:
        raise ValueError(f"tracking.wandb={mode}: one of {', '.join(MODES)}")
    if mode == "online" and not _has_key():
        raise ValueError(
            "tracking.wandb=online: no W&B key; set WANDB_API_KEY or run `wandb login`, or choose offline or disabled"
        )


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        known = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
    except (OSError, netrc.NetrcParseError):
        return False
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc
    return any(host == server if server else "wandb" in host or "coreweave" in host for host in known.hosts)


class Mirror:
    """The W&B run of a run directory; a context manager, used by rank 0 only.

    It opens at the first row that is logged, so that `RunDir.truncate` comes first in a resumed run.
    """

    def __init__(self, directory: RunDir | Path, settings: Settings, *, name: str) -> None:
        check(settings.wandb)
        self.path = directory if isinstance(directory, Path) else directory.path
        self.mode = settings.wandb
        self.project, self.group, self.name = record.redact([settings.project, settings.group, name])
        self.run: Any = None
        self.pid = os.getpid()
        self.opened = self.mode == "disabled"
        self.failed = ""
        """Why it stopped, if it did."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Mirror a row that was just appended to metrics.jsonl, or to eval.jsonl before the metrics of its step.

        Numbers only, under the same names.
        """
        if not self.opened:
            self._open()  # the files hold `row`
        elif self.run is not None:
            try:
                self.run.log(_numbers(files.from_line(files.to_line(row))), step=int(row["step"]))
            except _failures() as error:
                self._stop(error)

    def finish(self, exit_code: int = 0) -> None:
        """End the W&B run and its service; after a failure, refill once. A run without a row leaves no W&B run."""
        if os.getpid() != self.pid:  # a forked child that leaves the block
            return
        if self.failed or (not self.opened and next(merged(self.path), None)):
            self._open()
        if self.run is not None:
            try:
                self.run.finish(exit_code=exit_code)
                _teardown()  # the service writes the last rows after `finish` has returned
            except _failures() as error:
                self._stop(error)
        self.run = None

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.finish(0 if error is None else 1)

    def _open(self) -> None:
        """Throw the local W&B directory away, start the run under its id and log the rows that the files hold."""
        self.opened, self.failed = True, ""
        try:
            folder = self.path / "wandb"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                self.run = self._init()
            except _unreachable() as error:
                if self.mode != "online":
                    raise
                said = " ".join(str(error).split())
                log.warning("W&B cannot be reached (%s); offline instead; later: wandb sync %s/offline-*", said, folder)
                self.mode = "offline"
                _teardown()  # the service holds on to the id
                shutil.rmtree(folder, ignore_errors=True)
                self.run = self._init()
            first = self.run.step if self.mode == "online" else 0
            for row in merged(self.path):
                if row["step"] >= first:
                    self.run.log(_numbers(row), step=row["step"])
        except _failures() as error:
            self._stop(error)

    def _init(self) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline is offline
        import wandb

        known = wandb.Settings.model_fields
        quiet = wandb.Settings(**{key: value for key, value in _QUIET.items() if key in known})
        wandb.setup(quiet)  # before init, which else tells on stderr where it found a key
        return wandb.init(
            mode=self.mode,  # type: ignore[arg-type]
            dir=self.path,
            id=read_record(self.path)["wandb_id"],
            resume="allow" if self.mode == "online" else None,
            project=self.project,
            group=self.group,
            name=self.name,
            config=read_config(self.path),
            reinit="create_new",
            settings=quiet,
        )

    def _stop(self, error: BaseException) -> None:
        """Let W&B go and say so; its service is started afresh by whoever needs it next."""
        self.run, self.failed = None, " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("the W&B mirror stopped (%s); the run goes on, and metrics.jsonl has every row", self.failed)
        try:
            _teardown()
        except _failures() as more:
            log.info("W&B teardown: %s", more)


def refill(path: Path) -> bool:
    """Mirror a run that is over (or lost) from its files; True when it worked. Raises ValueError while it is alive."""
    config = read_config(path)
    lock = record.take_lock(path)
    try:
        settings = cast(Settings, SimpleNamespace(**config["tracking"]))
        with Mirror(path, settings, name=config["run"]["name"]) as mirror:
            pass
        return not mirror.failed
    finally:
        record.drop_lock(lock)


def merged(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of eval.jsonl and metrics.jsonl by step, the evaluation first: the order in which they were written."""
    evals, metrics = files.rows(path / "eval.jsonl"), files.rows(path / "metrics.jsonl")
    return heapq.merge(evals, metrics, key=lambda row: row["step"])


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if isinstance(value, int | float) and key != "step"}


def _teardown() -> None:
    import wandb

    wandb.teardown()


def _unreachable() -> tuple[type[Exception], ...]:
    from wandb.errors import CommError

    return (CommError, TimeoutError)


def _failures() -> tuple[type[Exception], ...]:
    """What wandb raises when it, its service or the disk fails; a mistake of ours is not among them."""
    from wandb.errors import Error
    from wandb.sdk.mailbox import mailbox, mailbox_handle

    own = [thing for module in (mailbox, mailbox_handle) for thing in vars(module).values() if isinstance(thing, type)]
    return (Error, OSError, TimeoutError, *(thing for thing in own if issubclass(thing, Exception)))
