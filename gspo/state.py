"""What a checkpoint remembers besides weights: nested state as tensors and JSON, and every library's generator."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)


def flatten_optimizer(value: Any) -> tuple[dict[str, Tensor], Any]:
    """Any nesting of dict, list, tuple, tensor and JSON scalar as (named tensors, JSON that names them).

    `value` is `optimizer.state_dict()`: its integer keys, tuples, 0-d step tensors and floats come back as they were.
    Raises TypeError for anything else.
    """
    tensors: dict[str, Tensor] = {}

    def encode(item: Any, name: str) -> Any:
        if isinstance(item, Tensor):
            tensors[name] = item
            return {"tensor": name}
        if isinstance(item, dict):
            return {"dict": [[key, encode(child, f"{name}.{key}")] for key, child in item.items()]}
        if isinstance(item, list | tuple):
            kind = "list" if isinstance(item, list) else "tuple"
            return {kind: [encode(child, f"{name}.{i}") for i, child in enumerate(item)]}
        if item is None or type(item) in (bool, int, float, str):
            return item
        raise TypeError(f"{name}: a {type(item).__name__} cannot be stored in a checkpoint")

    return tensors, encode(value, "optimizer")


def unflatten_optimizer(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """The inverse of `flatten_optimizer`, to the bit."""
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, inner),) = skeleton.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: unflatten_optimizer(tensors, child) for key, child in inner}
    items = [unflatten_optimizer(tensors, child) for child in inner]
    return items if kind == "list" else tuple(items)


def seed_all(seed: int) -> None:
    """Seed the generators of Python, numpy (the global one) and torch, for functions of the user's own that draw."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global one)
    torch.manual_seed(seed)


def capture_rng() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The generators of Python, numpy (the global one), torch, and every CUDA device in use: tensors and JSON."""
    version, words, gauss = random.getstate()
    numpy: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002 (the global one)
    assert (version, numpy["bit_generator"]) == (3, "MT19937")
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.tensor(numpy["state"]["key"].tolist(), dtype=torch.int64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda_{i}": one for i, one in enumerate(torch.cuda.get_rng_state_all())}
    return tensors, {
        "python_gauss": gauss,
        "numpy": [int(numpy["state"]["pos"]), int(numpy["has_gauss"]), float(numpy["gauss"])],
    }


def restore_rng(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Set every generator to what `capture_rng` saw. A device that is not here is warned of."""
    random.setstate((3, tuple(tensors["python"].tolist()), state["python_gauss"]))
    keys = np.array(tensors["numpy"].tolist(), dtype=np.uint32)
    np.random.set_state(("MT19937", keys, *state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(tensors["torch"])
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for name, one in tensors.items():
        if name.startswith("cuda_"):
            index = int(name.removeprefix("cuda_"))
            if index < here:
                torch.cuda.set_rng_state(one, index)
            else:
                log.warning("the checkpoint has the generator of CUDA device %d, which is not here", index)
