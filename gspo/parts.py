"""What a run is made of, put together from its settings; and what of it a checkpoint keeps."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gspo import checkpoint, parallel, policy, pretrained, shards
from gspo.binding import target
from gspo.compute import Ledger
from gspo.config import Run
from gspo.data import PromptStream, open_source
from gspo.devices import here, keep_memory
from gspo.evaluate import Benchmark
from gspo.formula import level
from gspo.learner import Learner, ObjectiveFn
from gspo.parallel import World
from gspo.restart import Restarting
from gspo.rollout import Engine
from gspo.rollout.workers import Workers
from gspo.sequences import EPS_GRID
from gspo.shape import known
from gspo.state import capture_rng, flatten_optimizer, restore_rng, seed_all, unflatten_optimizer
from gspo.tracking.wandb_mirror import Mirror
from gspo.trial import functions
from gspo.types import Batch, Group, RewardFn


@dataclass
class Parts:
    """The moving parts of a run."""

    stream: PromptStream
    engine: Engine
    learner: Learner
    reward: RewardFn
    advantage: Callable[[Tensor], Tensor]
    objective: ObjectiveFn
    ledger: Ledger
    mirror: Mirror | None
    """None on ranks that do not write."""
    sequence_metadata: dict[str, str]
    """Key-value metadata of sequences/: the eps grid, and the clip with its level."""
    skipped: int = 0
    """Updates skipped in a row."""
    stop: str = ""
    """Why the run has to end after this step, if it has."""
    tokenizer: Any = field(default=None, repr=False)
    held_out: Benchmark | None = None
    """What is evaluated on during training, if anything."""

    def count(
        self,
        groups: list[Group],
        minibatches: list[Batch],
        probes: list[tuple[Batch, int]],
        seconds: dict[str, float],
    ) -> None:
        """Enter a step into the ledger. `probes`: batches that a forward was spent on to measure something, each with
        the positions that went through the head."""
        prompts = [len(group.prompt.token_ids) for group in groups]
        responses = [[len(rollout.token_ids) for rollout in group.rollouts] for group in groups]
        block = self.engine.prefix_block
        self.ledger.add_rollout(prompts, responses, seconds["rollout"], shared_prefix=True, block=block)
        self.ledger.add_seconds(seconds["reward"] + seconds["sync"])
        learner = self.learner
        passes = minibatches[1:] if learner.old_logp == "trainer" or learner.routing_replay == "old" else []
        passes += [m for m in minibatches if m.experts is None] if learner.aux_loss_coef else []
        lengths = [n for m in passes for n in (m.lengths - 1).tolist()]
        heads = sum(m.num_tokens for m in passes)
        self.ledger.add_forward("old_logp", lengths, heads, seconds["old_logp"])
        lengths = [n for probe, _ in probes for n in (probe.lengths - 1).tolist()]
        self.ledger.add_forward("probe", lengths, sum(heads for _, heads in probes), seconds["probe"])
        lengths = [n for m in minibatches for n in (m.lengths - 1).tolist()]
        heads = sum(m.num_tokens for m in minibatches)
        self.ledger.add_update(
            lengths, heads, seconds["update"], recompute_blocks=learner.recomputes, recompute_head=True
        )

    def save(self, run: Path, step: int, keep_last: int | None) -> Path:
        """Write checkpoints/step_NNNNNN of a run directory: everything that the next step depends on.

        The newest `keep_last` stay, and the best by eval.jsonl. Ranks call it together.
        """
        directory = run / "checkpoints"
        sharded = self.learner.world.size > 1
        tensors = {} if sharded else {"model": dict(self.learner.model.named_parameters())}
        optimizer, structure = ({}, None) if sharded else flatten_optimizer(self.learner.optimizer.state_dict())
        rng, rng_state = capture_rng()
        state = {
            "step": step,
            "updates": self.learner.updates,
            "skipped": self.skipped,
            "stream": self.stream.state(),
            "ledger": self.ledger.state(),
            "optimizer": structure,
            "rng": rng_state,
        }
        keep: dict[str, Any] = {"state": state, "keep_last": keep_last, "protect": checkpoint.best(run)}
        if sharded:
            return shards.save(directory, step, self.learner, tensors={"rng": rng}, **keep)
        tensors |= {"optimizer": optimizer, "rng": rng}
        return checkpoint.save(directory, step, tensors=tensors, **keep)

    def restore(self, path: Path) -> int:
        """Continue from a checkpoint, whatever the number of ranks that wrote it; returns the next step."""
        tensors, state = checkpoint.load(path)
        if shards.are_in(path):
            shards.read(path, self.learner)
        else:
            self.learner.load(tensors["model"], unflatten_optimizer(tensors["optimizer"], state["optimizer"]))
        self.learner.updates, self.skipped = state["updates"], state["skipped"]
        self.stream.restore(state["stream"])
        self.ledger.restore(state["ledger"])
        restore_rng(tensors["rng"], state["rng"])
        return state["step"]


def open_stream(run: Run, directory: Path) -> tuple[PromptStream, Any]:
    """The query set as the model's prompts, and the tokenizer; every prompt of a finite set is checked.

    Raises ValueError for a set without prompts, and for a prompt that leaves no room for `sampling.max_tokens`.
    """
    tokenizer = pretrained.load_tokenizer(directory)
    room = run.model.context - run.sampling.max_tokens
    source = open_source(run.data, seed=run.seed)
    stream = PromptStream(source, tokenizer, run.model, seed=run.seed, max_prompt_tokens=room)
    stream.measure(run.train.prompts_per_step)
    return stream, tokenizer


def device_name() -> str:
    """What the trainer computes on, for run.json: the GPU's name, or the processor's architecture."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu ({platform.machine()})"


def model_on(run: Run, directory: Path, world: World, precision: str) -> Any:
    """The policy on this rank's device, sharded where there are several; only rank 0 ever reads the whole of it."""
    kernel, several = run.model.experts_implementation, world.size > 1
    whole: Any = None
    if world.first or not several:
        device = "cpu" if several else str(world.device)
        whole = policy.load(directory, experts_implementation=kernel, trust_remote_code=False, device=device)
    model: Any = policy.empty(directory, experts_implementation=kernel) if several else whole
    asked, cuda = run.trainer.activation_checkpointing, torch.device(world.device).type == "cuda"
    if several and cuda if asked is None else asked:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if several:
        model = parallel.shard(model, world, precision=precision)
        parallel.load_first(model, whole, world)
    return model


def engine_of(run: Run, directory: Path, tokenizer: Any, *, precision: str, device: str) -> Callable[[], Engine]:
    """What starts the rollout engine of a rank, as often as it is called."""
    start = functools.partial(
        target({"_target_": run.rollout._target_}, "rollout"),
        directory,
        tokenizer,
        run.rollout,
        run.sampling,
        precision=precision,
        context=run.model.context,
        seed=run.seed,
        max_batch=-(-run.train.prompts_per_step // run.rollout.workers) * run.train.group_size,
        device=device,
    )
    if run.rollout.workers == 1:
        return start
    return functools.partial(Workers, start, run.rollout.workers, functools.partial(settle, run.trainer.threads))


def settle(threads: int) -> None:
    """Torch's threads and memory in a new process."""
    torch.set_num_threads(threads)
    keep_memory()


def assemble(
    run: Run,
    directory: Path,
    stream: PromptStream,
    tokenizer: Any,
    mirror: Mirror | None,
    world: World,
    *,
    offload: bool,
) -> Parts:
    """Start the engine, load the model, make the learner. `mirror` is None on ranks that do not write; `offload`:
    AdamW's moments wait in host memory while the engine generates."""
    settle(run.trainer.threads)
    seed_all(run.seed)
    device = torch.device(world.device).type
    auto = "bfloat16" if device == "cuda" else "float32"
    precision = auto if run.trainer.precision == "auto" else run.trainer.precision
    objective, advantage, reward = functions(run)
    engine = Restarting(engine_of(run, directory, tokenizer, precision=precision, device=device), world)
    engine.sleep()
    model = model_on(run, directory, world, precision)
    packed = device == "cuda" and precision == "bfloat16"  # what torch's variable-length attention is made for
    if packed:
        policy.use_varlen(model)
    learner = Learner(
        model,
        run.optim,
        run.clip,
        precision=precision,
        temperature=run.sampling.temperature,
        old_logp=run.train.old_logp,
        routing_replay=run.train.routing_replay,
        micro_batch_tokens=run.trainer.micro_batch_tokens,
        total_updates=run.train.steps * run.train.minibatches,
        aux_loss_coef=run.train.aux_loss_coef,
        packed=packed,
        offload=offload,
        world=world,
    )
    engine.weights = learner.weights
    clip = {"low": run.clip.low, "high": run.clip.high, "level": level(run.algo.objective)}
    return Parts(
        stream=stream,
        engine=engine,
        learner=learner,
        reward=reward,
        advantage=advantage,
        objective=objective,
        ledger=Ledger(known(model.config.to_dict()), peak_flops(precision), world.size),
        mirror=mirror,
        sequence_metadata={"eps_grid": json.dumps(EPS_GRID), "clip": json.dumps(clip)},
        tokenizer=tokenizer,
    )


def peak_flops(precision: str) -> float | None:
    """Stated matmul peak of this computer's accelerator at `precision`, FLOP/s; None where it is not in the table."""
    device, _ = here()
    return None if device is None or not device.cuda else device.peak(precision)
