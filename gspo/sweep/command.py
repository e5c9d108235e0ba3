"""A multirun from its command line to its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gspo.sweep.expand import expand
from gspo.sweep.jobs import Job, check, jobs_of


def run(arguments: Sequence[str], other_launcher: Callable[[], None]) -> int | None:
    """Run the sweep that `arguments` stand for; None when they stand for none.

    0: every job has finished; 1: some have not; 130 or 143: interrupted. Jobs for another launcher (Slurm, Ray) are
    checked here and started by `other_launcher`, Hydra's own way. Raises ValueError, or Hydra's errors, for what is
    wrong with any job, before anything is created.
    """
    sweep = expand("train", arguments)
    if sweep is None:
        return None
    jobs = jobs_of(sweep)
    if sweep.at_once < 1:
        raise ValueError(f"sweep.workers={sweep.at_once}: too small (accepted: 1 or more)")
    if not sweep.local:
        check(jobs)
        other_launcher()
        return outcome(jobs)
    from gspo.sweep import runner

    runner.preload(jobs)
    verdicts = check(jobs)
    print(f"{len(jobs)} jobs in {sweep.directory}, {sweep.at_once} at a time", flush=True)
    for text, count in Counter(text for verdict in verdicts for text in verdict.warnings).items():
        print(f"warning: {text} ({count} of {len(jobs)} jobs)")
    _, code = runner.run(jobs, verdicts, sweep.at_once)
    if code > 1:
        print("interrupted; the same command continues the sweep")
    elif code == 0:
        print(f"gspo-report {sweep.directory} draws figures and tables")
    return code


def outcome(jobs: Sequence[Job]) -> int:
    """What run directories say of jobs that another launcher ran: 0 when all have finished, else 1; prints the others.

    A launcher that only submits (Slurm without waiting) leaves them to be looked at later.
    """
    from gspo.tracking import run_dir

    left = []
    for job in jobs:
        status = run_dir.status(job.directory) if (job.directory / "run.json").exists() else "not there"
        if status != "finished":
            left.append(f"{job.name}: {status}")
    print(f"{len(jobs) - len(left)} of {len(jobs)} jobs finished")
    for line in left:
        print(line)
    return int(bool(left))
