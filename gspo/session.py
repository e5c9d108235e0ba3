"""One session of a run in this process, which may be one rank of several: make, train, say how it ended."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gspo import checkpoint, continuation, memory, parallel, plan, shape
from gspo import parts as made
from gspo.config import Run
from gspo.devices import Where, here
from gspo.formula import algebra
from gspo.material import Ready, RunFailed, material, readiness
from gspo.messages import memory_explained
from gspo.parallel import World
from gspo.parts import Parts
from gspo.preflight import Finding
from gspo.signals import handled, stop_at_once
from gspo.tracking import run_dir
from gspo.tracking.display import say
from gspo.tracking.run_dir import Interrupted, RunDir
from gspo.tracking.summary import summarize
from gspo.tracking.wandb_mirror import Mirror
from gspo.train import train

log = logging.getLogger(__name__)


def session(run: Run, plain: dict[str, Any], overrides: list[str], ready: Ready) -> int:
    """Train; the exit code: 0, or that of the signal which interrupted the run.

    Raises ValueError before anything is created, RunFailed afterwards.
    """
    world = parallel.join()
    read = material(run)
    facts = {
        "objective": algebra(run.algo.objective, read.objective.keywords),
        "seed": run.seed,
        "overrides": overrides,
        "findings": [finding.text for finding in ready.findings],
        "reward": readiness(run.reward) | (readiness(read.benchmark.reward) if read.benchmark else {}),
        "device": made.device_name(),
        "ranks": world.size,
        "data": read.fingerprints(),
    }
    if ready.continued:
        continuation.require_same_data(ready.directory, facts["data"])
    record = open_record(ready, plain, facts) if world.first else None
    try:
        with ExitStack() as stack:
            mirror = None
            if record:
                stack.enter_context(record)
                announce(plain, ready.findings)
                say(f"objective: {facts['objective']}")
                mirror = stack.enter_context(Mirror(record, run.tracking, name=run.run.name))
            stack.enter_context(memory_explained())
            stack.enter_context(handled(stop_at_once))
            parts = made.assemble(
                run, read.model_dir, read.stream, read.tokenizer, mirror, world, offload=offloads(plain, world)
            )
            parts.held_out = read.held_out
            try:
                first = resume(parts, ready.directory, record, plain, facts) if ready.continued else 0
                train(run, parts, ready.directory, record, first_step=first)
                parallel.gather(None, world)  # an engine that closes may take the process group with it
            finally:
                parts.engine.close()
    except Interrupted as error:
        if world.first:
            print(f"gspo-train: interrupted: {error}; resume={ready.directory} continues", file=sys.stderr)
        return 130 if "SIGINT" in str(error) else 143
    except KeyboardInterrupt as error:
        if world.first:
            print(f"gspo-train: stopped at once; resume={ready.directory} continues", file=sys.stderr)
        return 143 if "SIGTERM" in str(error) else 130
    except (RuntimeError, ValueError, OSError, SystemExit) as error:
        if run.debug:
            traceback.print_exc()
        raise RunFailed(f"{type(error).__name__}: {error}") from error
    if world.first:
        summarize(ready.directory)
    return 0


def offloads(plain: dict[str, Any], world: World) -> bool:
    """trainer.offload as it is for these ranks; `auto` is false for a model or a device that is not known."""
    device, _ = here()
    known = shape.find(plain["model"])
    if device is None or known is None:
        return plain["trainer"]["offload"] is True
    return memory.offloads(plain, known, Where(device, world.size))


def announce(plain: dict[str, Any], findings: list[Finding]) -> None:
    """Print what `gspo-plan` prints; only the findings for a model whose shape is not known."""
    if shape.find(plain["model"]) is not None:
        say(plan.render(plan.plan(plain)))
        return
    for finding in findings:
        say(f"{finding.level}: {finding.text}")


def open_record(ready: Ready, plain: dict[str, Any], facts: dict[str, Any]) -> RunDir:
    """The run directory, made or opened. Raises ValueError where that is not possible."""
    try:
        return (
            run_dir.open_existing(ready.directory) if ready.continued else run_dir.create(ready.directory, plain, facts)
        )
    except OSError as error:
        raise ValueError(f"run.dir={ready.directory}: {error}") from error


def resume(parts: Parts, directory: Path, record: RunDir | None, plain: dict[str, Any], facts: dict[str, Any]) -> int:
    """Load the newest sound checkpoint, cut what the run wrote after it and delete what a killed save left beside it.

    A run without a checkpoint starts over. config.yaml and run.json say what the continuation is run with. All ranks
    take the checkpoint that rank 0 found.
    """
    world: World = parts.learner.world
    path = parallel.from_first(checkpoint.latest(directory / "checkpoints") if world.first else None, world)
    first = parts.restore(path) if path else 0
    if record:
        if path is None and record.last_step >= 0:
            said = f"{directory}: no checkpoint was written, though step {record.last_step} ended; it starts over"
            log.warning(said)
            print(f"warning: {said}", file=sys.stderr)
        record.truncate(first)
        stored, newest = directory / "checkpoints", plain["checkpoint"]["keep_last"]
        checkpoint.keep(stored, first, newest, checkpoint.best(directory))
        record.configure(plain)
        record.record["sessions"][-1]["from_step"] = first
        record.update(from_step=first, **facts)
    return first
