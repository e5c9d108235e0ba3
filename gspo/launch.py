"""From a typed `Run` to a finished run directory: check, create or continue, train, say how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from gspo import continuation, data, evaluate, forked, preflight, pretrained, ranks
from gspo.binding import bind
from gspo.config import Run
from gspo.material import Ready, RunFailed, use_what_is_installed
from gspo.messages import failure
from gspo.rewards.score import check_workers
from gspo.tracking import run_dir, wandb_mirror


def launch(run: Run, plain: dict[str, Any], overrides: list[str]) -> int:
    """Train as `run` says; returns the exit code: 0, or 1 for a failure at run time (said in one line on stderr).

    Raises ValueError for whatever is wrong before anything is created.
    """
    ready = check(run, plain, overrides)
    if ready.finished:
        print(f"{ready.directory}: finished earlier, skipped")
        return 0
    from gspo.session import session  # torch

    size = ranks.to_start(run.trainer.devices)
    try:
        if size == 1:
            return session(run, plain, overrides, ready)
        return ranks.run(size, session, run, plain, overrides, ready)
    except ranks.Stopped as error:
        return 128 + error.number
    except ranks.RankFailed as error:
        if error.kind == "ValueError":
            raise ValueError(str(error)) from error
        if ready.directory.exists():
            run_dir.bury(ready.directory, str(error))
        reason = error
    except RunFailed as error:
        reason = error
    print(f"gspo-train: {reason} (run directory {ready.directory})", file=sys.stderr)
    if ready.directory.is_dir():
        (ready.directory / "error.txt").write_text(failure(reason.__cause__ or reason), encoding="utf-8")
    return 1


def check(run: Run, plain: dict[str, Any], overrides: list[str]) -> Ready:
    """All that can be said against a run without torch.

    Raises ValueError for it; a rollout engine that is not installed is replaced in `run` and `plain`.
    """
    findings = preflight.check(plain)
    ranks.to_start(run.trainer.devices)
    pretrained.check(run.model.path)
    data.check(run.data)
    check_workers(bind(run.reward, "reward"), "reward")
    evaluate.settings_of(run.eval, run.reward)
    wandb_mirror.check(run.tracking.wandb)
    directory = continuation.run_directory(run, overrides)
    use_what_is_installed(run, plain)
    continued = directory.exists()
    finished = continued and continuation.is_finished(directory, run, plain)
    if continued and not finished:
        continuation.require_checkpoint(directory)
    elif not continued:
        run_dir.require_room(directory)
    return Ready(directory, continued, finished, findings)


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child, so that nothing of a job outlives it; returns its exit code."""

    def told(error: BaseException) -> int:
        if isinstance(error, ValueError):
            print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
            return 2
        print(failure(error), file=sys.stderr)
        return 1

    code = forked.wait(forked.start(work, told))
    return 1 if code < 0 else code
