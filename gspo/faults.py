"""Numbers that are not finite are told, counted and never saved."""

from __future__ import annotations

import logging
from typing import Any

from gspo import parallel
from gspo.learner import Update
from gspo.parts import Parts
from gspo.types import Batch, Group

log = logging.getLogger(__name__)


class TrainingStopped(RuntimeError):
    """The run cannot go on; the message says why."""


def note_skipped(
    parts: Parts, number: int, updates: list[Update], minibatches: list[Batch], groups: list[Group], most: int
) -> dict[str, Any]:
    """Count the updates of step `number` that were skipped, log them, and ask for the run's end after `most` in a row.

    Returns `optim/skipped_updates` of the step's row, if there are any: mini-batch, loss and gradient norm (as text:
    JSON has no NaN) and the ids of its prompts.
    """
    found = []
    for k, (update, minibatch) in enumerate(zip(updates, minibatches, strict=True)):
        parts.skipped = parts.skipped + 1 if update.skipped else 0
        if not update.skipped:
            continue
        prompts = [groups[i].prompt.id for i in minibatch.group.unique().tolist()]
        said = f"loss {update.loss}, gradient norm {update.grad_norm}, prompts {', '.join(prompts)}"
        log.warning("step %d, update %d: not finite, skipped: %s", number, k, said)
        found.append({"minibatch": k, "loss": str(update.loss), "grad_norm": str(update.grad_norm), "prompts": prompts})
        if parts.skipped >= most and not parts.stop:
            parts.stop = f"{parts.skipped} updates in a row were skipped, the last at step {number} ({said})"
    return {"optim/skipped_updates": found} if found else {}


def require_finite(parts: Parts, number: int) -> None:
    """Raise TrainingStopped for a weight that is not finite: no checkpoint is written of it, the earlier ones stay."""
    weights = parts.learner.model.named_parameters()
    broken = [name for name, weight in weights if not parallel.full(weight.isfinite().all())]
    if broken:
        raise TrainingStopped(f"non-finite weights after step {number}: {broken[0]} and {len(broken) - 1} more")
