"""Ranks: who computes which micro-batch, sums over all of them, sharded parameters. One device is a world of one.

Every rank holds the whole mini-batch and cuts it into the same micro-batches; rank r computes every size-th of them. So
the parts of the sum are those of a single process, only added in another order. Ranks run the same number of forwards
(FSDP2 gathers parameters in each): a rank with too few repeats its last with weight 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gspo.types import Batch

T = TypeVar("T")
R = TypeVar("R")


WHOLE = 2**24
"""Parameters up to which a model is one unit of FSDP2: 64 MiB in float32, cheaper than a collective for each block."""


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


def spread(work: Callable[[list[T]], list[R]], items: Sequence[T], world: World, *, together: int = 1) -> list[R]:
    """`work(items)` where `work` gives a result for each item; all ranks get all results.

    `together` neighbouring ranks are one worker, which does every n-th item (n workers): its ranks call `work` with the
    same items, and the result of the first of them counts.
    """
    workers, place = world.size // together, world.rank // together
    mine = work(list(items[place::workers]))
    done = gather(mine if world.rank % together == 0 else None, world)[::together]
    return [done[i % workers][i // workers] for i in range(len(items))]


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


def shard(model: nn.Module, world: World, *, precision: str, even_one: bool = False, whole: int = WHOLE) -> nn.Module:
    """FSDP2: every block and the rest sharded over all ranks; float32 masters, compute in `precision`.

    A model of up to `whole` parameters is gathered at once, not block by block.
    Gradients are averaged over ranks, so the loss is scaled by `world.size` (a divide factor of 1 needs PREMUL_SUM,
    which gloo lacks). A world of one is left as it is unless `even_one`.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if world.size == 1 and not even_one:
        return model
    mesh = init_device_mesh(torch.device(world.device).type, (world.size,))
    low = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    large = sum(p.numel() for p in model.parameters()) > whole
    for block in model.model.layers if large else ():  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def full(tensor: Tensor) -> Tensor:
    """A sharded tensor whole again, on every rank (a collective); any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every rank holds, sharded as `like` is; as it is when `like` is whole."""
    if not hasattr(like, "full_tensor"):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    place: Any = like
    return distribute_tensor(tensor.to(like.device), place.device_mesh, place.placements, src_data_rank=None)


def load_first(model: nn.Module, whole: nn.Module | None, world: World) -> None:
    """Give a sharded model that stands on the meta device its memory, and rank 0's parameters and buffers.

    `whole` is the model on the CPU on rank 0, None on the others. Tensors travel one at a time.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model.to_empty(device=world.device)
    weights = {} if whole is None else whole.state_dict()
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    sent = {} if whole is None else dict(whole.named_buffers())
    for name, buffer in model.named_buffers():  # those that no state dict holds too: rotary frequencies
        if name in sent:
            buffer.copy_(sent[name])
        dist.broadcast(buffer, src=0)


def full_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter under its name in transformers' state dict, made whole one at a time."""
    for name, parameter in model.named_parameters():
        yield name, full(parameter.detach())
