"""The loop: one step on one screen.

Left out on purpose: a reference model and its KL (the paper has none), replay of old rollouts, asynchronous sampling.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gspo import metrics, sequences, signals
from gspo.batch import make_batch, reward_tensor, split
from gspo.config import Run
from gspo.evaluate import evaluate, require_judged
from gspo.faults import TrainingStopped, note_skipped, require_finite
from gspo.learner import Learner, Update
from gspo.parallel import gather, spread
from gspo.parts import Parts
from gspo.rewards.score import score
from gspo.rollout import agreement
from gspo.rollout.contract import engine_dtype
from gspo.routing_meter import expert_change, expert_load, load_imbalance
from gspo.tracking.display import Display
from gspo.tracking.run_dir import Interrupted, RunDir
from gspo.tracking.samples import sample_rows
from gspo.types import Batch, Group

log = logging.getLogger(__name__)


def train(run: Run, parts: Parts, directory: Path, record: RunDir | None, *, first_step: int = 0) -> None:
    """Steps `first_step` to `run.train.steps`, each a row of metrics.jsonl; checkpoints on the way and at the end.

    `record` is the open run directory on rank 0 and None on the others, which do the same without writing. Raises
    TrainingStopped after `train.max_skipped` skipped updates in a row, Interrupted on SIGTERM or SIGINT,
    WeightsOutOfSync when engine and trainer disagree, VerifierFailures when the judge fails too often.
    """
    parts.engine.update_weights(parts.learner.weights(), version=first_step)
    world = parts.learner.world
    shown = Display(run.train.steps, first_step) if record else nullcontext()
    with signals.noted(_finish_the_step) as asked, shown as display:
        for number in range(first_step, run.train.steps):
            if run.eval.every and number % run.eval.every == 0:
                held_out(run, parts, record, number)
            row = step(run, parts, record, number, check=number == first_step)
            if display:
                display.update(row)
            signalled = max(gather(asked[0] if asked else 0, world))  # ranks hear a signal at different moments
            last = bool(parts.stop) or number + 1 == run.train.steps or bool(signalled)
            if last or (run.checkpoint.every and (number + 1) % run.checkpoint.every == 0):
                require_finite(parts, number)
                if record:
                    record.sync()
                parts.save(directory, number + 1, run.checkpoint.keep_last)
                if record:
                    record.update(checkpoint=number + 1)
            if parts.stop:
                raise TrainingStopped(parts.stop)
            if signalled and number + 1 < run.train.steps:
                raise Interrupted(f"{signal.Signals(signalled).name} after step {number}")
        if run.eval.every:
            held_out(run, parts, record, run.train.steps)


def step(run: Run, parts: Parts, record: RunDir | None, number: int, *, check: bool) -> dict[str, Any]:
    """Roll out, judge, update, hand the weights back; returns the step's row of metrics.jsonl.

    `check` asks for the comparison of engine and trainer at a step that is not due for it; the row is the same.
    """
    engine, learner, world = parts.engine, parts.learner, parts.learner.world
    due = number % run.rollout.check_every == 0
    clock = Clock()

    prompts = parts.stream.take(run.train.prompts_per_step, number)  # [P]
    sampled = spread(
        lambda some: engine.generate(some, run.train.group_size, seed=run.seed, step=number),
        prompts,
        world,
        together=engine.ranks,
    )  # [P][G]
    engine.sleep()
    groups = [Group(prompt, rollouts) for prompt, rollouts in zip(prompts, sampled, strict=True)]
    clock.lap("rollout")

    groups = spread(lambda some: score(some, parts.reward), groups, world)
    clock.lap("reward")

    adv = parts.advantage(reward_tensor(groups))  # [P, G], Eq. 6; [P, G, S] by step
    batch = make_batch(groups, adv, tokenizer=parts.tokenizer, mask_truncated=run.train.mask_truncated)
    minibatches = learner.with_old_logp(split(batch, run.train.minibatches, seed=minibatch_seed(run.seed, number)))
    clock.lap("old_logp")
    spent = []
    if check or due:
        spent = require_agreement(learner, minibatches, engine_dtype(run.rollout, learner.precision))
    probe = learner.probe(minibatches[0]) if due else None
    routes = [learner.routes(probe)] if probe else []
    clock.lap("probe")

    updates = []
    for k, minibatch in enumerate(minibatches):  # off-policy from the second one on
        updates.append(learner.update(minibatch, parts.objective, on_policy=k == 0))
        clock.lap("update")
        routes += [learner.routes(probe)] if probe else []
        clock.lap("probe")
    skipped = note_skipped(parts, number, updates, minibatches, groups, run.train.max_skipped)
    moved = routing_metrics(routes, learner.num_experts) if probe else {}

    learner.make_room()
    engine.update_weights(learner.weights(), version=number + 1)
    clock.lap("sync")

    rows = sequences.join(sequences.of_groups(groups), [update.rows for update in updates])
    row = {"step": number} | metrics.from_rows(rows) | update_metrics(updates) | skipped | moved
    probes = [(m, m.num_tokens) for m in spent]
    probes += [(probe, len(probe.lengths))] * (len(routes) * world.size) if probe else []
    parts.count(groups, minibatches, probes if due else [], clock.seconds)
    row |= parts.ledger.row() | clock.row()
    if record and parts.mirror:
        record.sequences(number, {"step": np.full(len(rows["row"]), number)} | rows, parts.sequence_metadata)
        record.samples(number, sample_rows(groups, run.tracking.samples))
        record.metrics(row)
        parts.mirror.log(row)
    return row


def held_out(run: Run, parts: Parts, record: RunDir | None, number: int) -> None:
    """Evaluate the weights after `number` steps: a row and its samples; what training does next stays the same.

    The weights are sent once more afterwards, so that no prompt of the evaluation stays in an engine's cache. Raises
    VerifierFailures when the judge fails too often.
    """
    assert parts.held_out is not None
    begun, prompts, k = time.perf_counter(), parts.held_out.prompts, parts.held_out.k
    row, samples = evaluate(parts.engine, parts.held_out, seed=run.seed, step=number, world=parts.learner.world)
    parts.engine.update_weights(parts.learner.weights(), version=number)
    lengths = [[sample["length"] for sample in samples[i * k : i * k + k]] for i in range(len(prompts))]
    sizes = [len(prompt.token_ids) for prompt in prompts]
    block = parts.engine.prefix_block
    parts.ledger.add_rollout(sizes, lengths, time.perf_counter() - begun, shared_prefix=True, block=block, phase="eval")
    if record and parts.mirror:
        record.eval(row, samples)
        parts.mirror.log(row)
    require_judged(row)


def require_agreement(learner: Learner, minibatches: list[Batch], engine: str) -> list[Batch]:
    """Engine and trainer must say the same of the weights that sampled, before anything is learnt from them.

    Uses the trainer's old log-probs of the last mini-batch where there are any, else spends a forward on the first,
    and returns what it spent a forward on. The bounds are those of the coarser precision, the trainer's or `engine`,
    the engine's.
    """
    seen, trainer, spent = minibatches[-1], minibatches[-1].old_logp, []
    if learner.old_logp == "sampler" or trainer is None:
        seen, trainer = minibatches[0], learner.logp(minibatches[0])
        spent = [seen]
    precision = "bfloat16" if "bfloat16" in (engine, learner.precision) else "float32"
    if not trainer[seen.mask].isfinite().all():
        log.warning("log-probs of the trainer are not finite: nothing to compare the engine with, updates are skipped")
    elif seen.mask.any():
        found = agreement.check(seen.sampler_logp[seen.mask], trainer[seen.mask], precision=precision)
        log.info("engine and trainer agree on %s", found)
        agreement.require(found, precision)
    return spent


def update_metrics(updates: list[Update]) -> dict[str, float]:
    """`optim/*` of a step: means over its updates, and each update's own value under /mb0 ..."""
    row = {
        "optim/loss": float(np.mean([update.loss for update in updates])),
        "optim/grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "optim/lr": updates[-1].lr,
        "optim/skipped": sum(update.skipped for update in updates),
    }
    uneven = [update.aux_loss for update in updates if update.aux_loss is not None]
    if uneven:
        row["moe/aux_loss"] = float(np.mean(uneven))
    for k, update in enumerate(updates):
        row |= {f"optim/loss/mb{k}": update.loss, f"optim/grad_norm/mb{k}": update.grad_norm}
    return row


def routing_metrics(routes: list[Tensor], num_experts: int) -> dict[str, float]:
    """`moe/*` from the routes of a probe under the weights that sampled and after each of a step's updates:
    assignments that all updates moved, overall and by layer, that each moved, that differ between the weights that
    sampled and those the last mini-batch meets; and how uneven the load is in the end."""
    change = expert_change(routes[0], routes[-1])
    uneven = load_imbalance(expert_load(routes[-1], num_experts))
    row = {"moe/expert_change": change.overall, "moe/load_max_mean": uneven.mean().item()}
    row |= {"moe/expert_change_num": change.moved, "moe/expert_change_den": change.assignments}
    row["moe/expert_change_rollout"] = expert_change(routes[0], routes[-2]).overall
    row |= {f"moe/expert_change/mb{k}": expert_change(*pair).overall for k, pair in enumerate(pairwise(routes))}
    return row | {f"moe/expert_change/layer{i}": share for i, share in enumerate(change.by_layer)}


def minibatch_seed(seed: int, number: int) -> int:
    """Seed of the order in which a step's groups are dealt out; apart from the sampling seeds of the same step."""
    return int.from_bytes(hashlib.sha256(f"minibatches/{seed}/{number}".encode()).digest()[:7], "big")


class Clock:
    """Wall seconds of a step by phase."""

    def __init__(self):
        self.start = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Everything since the last lap was `phase`, which may have had laps before."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now

    def row(self) -> dict[str, float]:
        """`time/<phase>_s`, and `time/step_s` up to this moment."""
        times = {f"time/{phase}_s": s for phase, s in self.seconds.items()}
        return times | {"time/step_s": time.perf_counter() - self.start}


def _finish_the_step(number: int, count: int) -> None:
    """A first signal lets the step end; a second one stops at once."""
    if count > 1:
        signals.stop_at_once(number)
    log.warning("%s: finishing the step; once more stops at once", signal.Signals(number).name)
