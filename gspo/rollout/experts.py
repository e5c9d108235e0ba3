"""Expert weights, fused as transformers holds them and one by one as checkpoints name them.

transformers keeps the E experts of a layer in two tensors, `experts.gate_up_proj` and `experts.down_proj`; checkpoints,
and the loaders of engines, know `experts.{e}.gate_proj.weight [I, H]`, `up_proj [I, H]` and `down_proj [H, I]`.
The layout depends on the type of model and is looked up, never guessed: with H = 2I the shapes do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TRANSPOSED = {
    "qwen2_moe": False,
    "qwen3_moe": False,
    "olmoe": False,
    "glm4_moe": False,
    "deepseek_v3": False,
    "llama4_text": True,
}
"""False: gate_up_proj [E, 2I, H], down_proj [E, H, I]; True: [E, H, 2I], [E, I, H]. Gate comes before up in both."""
GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"


def is_fused(name: str) -> bool:
    """Whether `name` is one of transformers' fused expert tensors."""
    return name.endswith((GATE_UP, DOWN))


def _transposed(model_type: str) -> bool:
    if model_type not in TRANSPOSED:
        raise ValueError(f"model_type={model_type}: expert layout unknown, known are {sorted(TRANSPOSED)}")
    return TRANSPOSED[model_type]


def unfuse(name: str, tensor: Tensor, model_type: str) -> Iterator[tuple[str, Tensor]]:
    """Views of a fused tensor by expert: `...experts.{e}.gate_proj.weight`, `up_proj`, `down_proj`.

    Raises ValueError for a model type whose layout is unknown.
    """
    assert is_fused(name), name
    tensor = tensor.transpose(1, 2) if _transposed(model_type) else tensor
    prefix = name.rpartition(".")[0]
    for expert, slab in enumerate(tensor):
        if name.endswith(GATE_UP):
            gate, up = slab.chunk(2, dim=0)
            yield f"{prefix}.{expert}.gate_proj.weight", gate
            yield f"{prefix}.{expert}.up_proj.weight", up
        else:
            yield f"{prefix}.{expert}.down_proj.weight", slab


def fuse(pairs: Iterable[tuple[str, Tensor]], model_type: str) -> dict[str, Tensor]:
    """The inverse of `unfuse`, bit-equal: fused tensors by name.

    Raises ValueError when an expert is missing.
    """
    import torch

    parts: dict[str, dict[tuple[int, str], Tensor]] = {}
    for name, tensor in pairs:
        prefix, expert, projection, _ = name.rsplit(".", 3)
        parts.setdefault(prefix, {})[int(expert), projection] = tensor
    fused: dict[str, Tensor] = {}
    for prefix, found in parts.items():
        experts = range(1 + max(expert for expert, _ in found))
        for name, projections in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            wanted: list[list[Any]] = [[found.get((expert, p)) for p in projections] for expert in experts]
            absent = [expert for expert, row in zip(experts, wanted, strict=True) if any(x is None for x in row)]
            if len(absent) == len(experts):
                continue
            if absent:
                raise ValueError(f"{prefix}.{absent[0]}: no {' or '.join(projections)}")
            tensor = torch.stack([torch.cat(row, dim=0) for row in wanted])
            fused[f"{prefix}.{name}"] = tensor.transpose(1, 2).contiguous() if _transposed(model_type) else tensor
    return fused
