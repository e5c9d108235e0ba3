"""Ranks: who computes which micro-batch, sums over all of them, sharded parameters. One device is a world of one.

Every rank holds the whole mini-batch and cuts it into the same micro-batches; rank r computes every size-th of them. So
the parts of the sum are those of a single process, only added in another order. Ranks run the same number of forwards
(FSDP2 gathers parameters in each): a rank with too few repeats its last with weight 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gspo.types import Batch


@dataclass(frozen=True, slots=True)
class World:
    """This process among the ranks of a run."""

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"

    @property
    def first(self) -> bool:
        """Does this rank write the record?"""
        return self.rank == 0


def join() -> World:
    """Join the process group that the environment describes (torchrun's variables); a world of one without it.

    gloo on the CPU; nccl, with gloo for objects on the host, on CUDA. Call it before any engine is started.
    """
    cuda = torch.cuda.is_available()
    if "WORLD_SIZE" not in os.environ:
        return World(device="cuda" if cuda else "cpu")
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def deal(parts: Sequence[Batch], world: World) -> list[tuple[Batch, float]]:
    """This rank's micro-batches, each with its weight: 1, or 0 for one that only keeps the ranks in step."""
    rounds = -(-len(parts) // world.size)
    mine = list(parts[world.rank :: world.size])
    spare = mine[-1] if mine else parts[0]
    return [(part, 1.0) for part in mine] + [(spare, 0.0)] * (rounds - len(mine))


def gather(value: Any, world: World) -> list[Any]:
    """`value` of every rank, in the order of ranks."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def total(value: float, world: World) -> float:
    """The sum of `value` over ranks, in the order of ranks."""
    return float(sum(gather(value, world)))


def from_first(value: Any, world: World) -> Any:
    """Rank 0's `value`, on every rank."""
    if world.size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def sum_tensor(tensor: Tensor, world: World) -> Tensor:
    """The elementwise sum over ranks, in place."""
    if world.size > 1:
        dist.all_reduce(tensor)
    return tensor


def shard(model: nn.Module, world: World, *, precision: str, checkpoint_activations: bool) -> nn.Module:
    """FSDP2: every block and the rest sharded over all ranks; float32 masters, compute in `precision`.

    Gradients are averaged over ranks, so the loss is scaled by `world.size` (a divide factor of 1 needs PREMUL_SUM,
    which gloo lacks).
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if checkpoint_activations:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    if world.size == 1:
        return model
    mesh = init_device_mesh(torch.device(world.device).type, (world.size,))
    low = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for block in model.model.layers:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def full(tensor: Tensor) -> Tensor:
    """A sharded tensor whole again, on every rank (a collective); any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


def full_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter under its name in transformers' state dict, made whole one at a time."""
    for name, parameter in model.named_parameters():
        yield name, full(parameter.detach())
