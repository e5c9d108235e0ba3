"""Checkpoints of several ranks: each writes its shards with torch.distributed.checkpoint, any number of ranks reads
them.

Only tensors go in, so the shards hold no pickled objects; the index that torch writes beside them, `.metadata`, is a
pickle and is read only when its SHA-256 is the manifest's (`checkpoint.load` or `checkpoint.damage` checks it first).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gspo import checkpoint, parallel
from gspo.learner import Learner

INDEX = ".metadata"
MODEL = "model."
"""What the names of weights begin with in the shards."""


def are_in(path: Path) -> bool:
    """Was this checkpoint, a sound one, written by several ranks?"""
    return INDEX in checkpoint.sealed(path)


def save(
    directory: Path,
    step: int,
    learner: Learner,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    **keep: Any,
) -> Path:
    """`checkpoint.save` by all ranks at once: rank 0 makes and seals the directory, every rank writes its shards.

    `tensors`, `state` and `keep` are rank 0's. Raises OSError as `checkpoint.save` does.
    """
    world, begun = learner.world, []

    def fill(path: Path) -> None:
        begun.append(path)
        _write(parallel.from_first(path, world), learner)

    if world.first:
        checkpoint.save(directory, step, tensors=tensors, state=state, fill=fill, **keep)
        if not begun:  # a sound checkpoint of this step stands: there is nothing for the others to do
            parallel.from_first(None, world)
    elif (path := parallel.from_first(None, world)) is not None:
        _write(path, learner)
    return directory / f"step_{step:06d}"


def read(path: Path, learner: Learner) -> None:
    """Fill weights and moments of a learner, on any number of ranks, from a checkpoint that `checkpoint.load` took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about a process without a group
        state_dict_loader.load(_tensors(learner), checkpoint_id=path, no_dist=learner.world.size == 1)


def weights(path: Path) -> dict[str, Tensor]:
    """The whole weights by name, on the CPU, of a checkpoint that `checkpoint.damage` found sound."""
    index = FileSystemReader(path).read_metadata().state_dict_metadata
    whole: dict[str, Any] = {
        name: torch.empty(said.size, dtype=said.properties.dtype)
        for name, said in index.items()
        if name.startswith(MODEL) and isinstance(said, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about a process without a group
        state_dict_loader.load(whole, checkpoint_id=path, no_dist=True)
    return {name.removeprefix(MODEL): tensor for name, tensor in whole.items()}


def _write(path: Path, learner: Learner) -> None:
    state_dict_saver.save(_tensors(learner), checkpoint_id=path)


def _tensors(learner: Learner) -> dict[str, Any]:
    """Weights and AdamW's moments by name; moments that no update has made yet are zeros, as AdamW starts from."""
    found = {}
    for name, parameter in learner.model.named_parameters():
        found[f"{MODEL}{name}"] = parameter.detach()
        state = learner.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        found |= {f"optimizer.{name}.{key}": value for key, value in state.items()}
    return found
