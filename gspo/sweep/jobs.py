"""What a job of a sweep is, and everything that can be said against one before the first starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

from gspo import forked
from gspo.config import Run, to_plain, to_run
from gspo.messages import one_line
from gspo.sweep.expand import Sweep


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    name: str
    """Its directory's name."""
    run: Run
    plain: dict[str, Any]
    overrides: list[str]

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.run.run.dir)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks say of a job."""

    error: str = ""
    """Why it cannot run."""
    finished: bool = False
    """Its directory holds all of its steps already."""
    warnings: tuple[str, ...] = ()


def job_name(overrides: str) -> str:
    """A job's directory name from its overrides: safe characters, 120 at most, unique by a hash when shortened."""
    name = re.sub(r"[^A-Za-z0-9.,_=+-]+", "_", overrides) or "job"
    if name == overrides and len(name) <= 120 and name.strip("."):
        return name
    return f"{name[:110]}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"


def place(config: Any, hydra: Any) -> tuple[str, list[str]]:
    """Give a composed job its name and directory; returns the name and its overrides.

    Raises ValueError for settings that cannot hold for many runs at once.
    """
    name, overrides = job_name(hydra.job.override_dirname), list(hydra.overrides.task)
    if config.resume not in ("never", "auto"):
        raise ValueError(f"resume={config.resume}: one directory for every job; never and auto are accepted")
    for key in ("run.dir", "run.name"):
        if any(override.startswith(f"{key}=") for override in overrides):
            raise ValueError(f"{key}: jobs are named by their overrides; sweep.name=NAME says where they are")
    config.run.name = name
    config.run.dir = f"{hydra.sweep.dir}/{name}"
    config.resume = "auto"
    config.tracking.group = config.tracking.group or config.sweep.name
    return name, overrides


def jobs_of(sweep: Sweep) -> list[Job]:
    """The jobs of a sweep, typed.

    Raises ValueError naming every job that is not a complete configuration, or that is there twice.
    """
    jobs: list[Job] = []
    errors: list[tuple[str, str]] = []
    for config in sweep.configs:
        hydra = config.hydra
        name = job_name(hydra.job.override_dirname)
        try:
            name, overrides = place(config, hydra)
            with open_dict(config):
                del config["hydra"]
            job = Job(name, to_run(config), to_plain(config), overrides)
        except (ValueError, OmegaConfBaseException) as error:
            errors.append((name, one_line(error)))
            continue
        if any(other.name == name for other in jobs):
            errors.append((name, "the sweep has this job twice"))
        jobs.append(job)
    _refuse(errors, len(sweep.configs))
    return jobs


def check(jobs: Sequence[Job]) -> list[Verdict]:
    """What a run checks before it creates anything, for every job, in a child that leaves nothing behind.

    Raises ValueError with all errors, each once with its jobs, on one line.
    """
    reader, writer = os.pipe()

    def say() -> int:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            for job in jobs:
                pickle.dump(_verdict(job), pipe)
                pipe.flush()  # should the next one end this process, it is known which
        return 0

    child = forked.start(say, lambda error: 1)
    os.close(writer)
    verdicts: list[Verdict] = []
    with os.fdopen(reader, "rb") as pipe, contextlib.suppress(EOFError):
        while len(verdicts) < len(jobs):
            verdicts.append(pickle.load(pipe))
    code = forked.wait(child)
    if len(verdicts) < len(jobs):
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        verdicts.append(Verdict(f"its check ended this process ({how})"))
    _refuse([(job.name, v.error) for job, v in zip(jobs, verdicts, strict=False) if v.error], len(jobs))
    return verdicts


def _verdict(job: Job) -> Verdict:
    from gspo import continuation, launch
    from gspo.formula import algebra
    from gspo.material import material, readiness
    from gspo.tracking import run_dir

    try:
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            ready = launch.check(job.run, job.plain, job.overrides)
        if ready.finished:
            return Verdict(finished=True)
        if ready.continued and run_dir.status(ready.directory) == "running":
            return Verdict(f"{ready.directory}: in use by a live process")
        read = material(job.run)
        algebra(job.run.algo.objective, read.objective.keywords)
        readiness(job.run.reward)
        if ready.continued:
            continuation.require_same_data(ready.directory, read.fingerprints())
    except ValueError as error:
        return Verdict(one_line(error))
    except (Exception, SystemExit) as error:  # one job's, whoever's mistake it is
        return Verdict(f"{type(error).__name__}: {one_line(error)}")
    return Verdict(warnings=tuple(finding.text for finding in ready.findings))


def _refuse(errors: Sequence[tuple[str, str]], count: int) -> None:
    """Raise ValueError when there are errors (job, text): each text once, with the first jobs it is about."""
    if not errors:
        return
    about: dict[str, list[str]] = defaultdict(list)
    for name, text in errors:
        about[text].append(name)
    lines = [
        f"{text} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
        for text, names in about.items()
    ]
    raise ValueError(f"{len(errors)} of {count} jobs refused, none started: {'; '.join(lines)}")
