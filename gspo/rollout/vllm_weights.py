"""Trainer weights into a live vLLM 0.32: exact copies on the CPU, vLLM's own reload on GPUs.

Written for vLLM 0.32. Names that vLLM does not promise to keep are looked up by `_private`, which says so in one line
when one is gone.

On the CPU vLLM repacks every linear layer when it loads, and its own reload neither undoes that nor refreshes a tied
head: log-probs come out wrong by 0.1 to 1.0 without a word. So `unpacked_linears` keeps linear layers as plain torch
weights, `plan` finds where each weight of transformers' state dict lives in the engine, and experts go through the
engine's own packing again, whatever instruction set it chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gspo.rollout.experts import is_fused, unfuse

if TYPE_CHECKING:
    from torch import Tensor, nn

VERSION = "0.32"
STACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""vLLM's merged linear layers -> the layers of transformers that are stacked in them, by rows."""

Copy = Callable[["Tensor"], Any]
Plan = dict[str, Copy]
"""Name in transformers' state dict -> what writes that tensor into the engine."""


def _private(root: Any, path: str) -> Any:
    """`root.path`, where the path is vLLM's own business. Raises ValueError when it is not there."""
    found = root
    for name in path.split("."):
        if not hasattr(found, name):
            import vllm

            where = getattr(root, "__name__", type(root).__name__)
            raise ValueError(
                f"vllm {vllm.__version__}: {where} has no {path}; the weight sync is written for vllm {VERSION}"
            )
        found = getattr(found, name)
    return found


@contextmanager
def unpacked_linears() -> Iterator[None]:
    """While an engine is loading on the CPU: its 2-D linear layers and embeddings stay plain torch weights."""
    import torch
    import vllm.model_executor.layers.utils as layers

    name = "dispatch_cpu_unquantized_gemm"
    pack = _private(layers, name)

    def keep(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            pack(layer, remove_weight)

    setattr(layers, name, keep)
    try:
        yield
    finally:
        setattr(layers, name, pack)


def live_model(llm: Any) -> nn.Module:
    """The engine's own torch module (an engine in this process on one device)."""
    return llm.apply_model(lambda model: model)[0]


def plan(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    """Where each weight goes in the engine's CPU `model`; `shapes` are transformers' by name, tied names left out.

    Raises ValueError when the two do not cover each other exactly: every row of every engine parameter has one source
    (rows that pad the vocabulary have none and are never read), every name one destination.
    """
    steps: Plan = {}
    for name, weight in model.named_parameters():
        layer, _, leaf = name.rpartition(".")
        parent, _, last = layer.rpartition(".")
        if last == "routed_experts":
            if leaf == "w13_weight":
                steps |= _experts(model.get_submodule(layer), parent, shapes)
            elif leaf != "w2_weight":
                raise ValueError(f"engine weight {name}: experts with {leaf} are not supported")
        elif last in STACKED and name not in shapes:
            sizes = _private(model.get_submodule(layer), "output_sizes")
            names = [f"{parent}.{part}.{leaf}" for part in STACKED[last]]
            steps |= _rows(name, weight, names, sizes, shapes)
        else:
            padded = hasattr(model.get_submodule(layer), "num_embeddings_padded")
            size = shapes.get(name, (0,))[0] if padded else len(weight)
            steps |= _rows(name, weight[:size], [name], [size], shapes)
    unknown = sorted(set(shapes) - set(steps))
    if unknown:
        raise ValueError(f"weight {unknown[0]} {list(shapes[unknown[0]])}: no place for it in the engine")
    return steps


def _rows(
    name: str, weight: Tensor, sources: list[str], sizes: list[int], shapes: Mapping[str, tuple[int, ...]]
) -> Plan:
    """Copies of `sources` into consecutive rows of `weight`, which they fill."""
    if sum(sizes) != len(weight):
        raise ValueError(f"engine weight {name} has {len(weight)} rows, its parts {sizes}")
    steps: Plan = {}
    for source, rows in zip(sources, weight.detach().split(sizes), strict=True):
        if shapes.get(source) != tuple(rows.shape):
            raise ValueError(f"engine weight {name} takes {source} {list(rows.shape)}, not {shapes.get(source)}")
        steps[source] = rows.copy_
    return steps


def _experts(layer: nn.Module, parent: str, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    """Copies of a layer's fused experts: both tensors are packed together once the second has come."""
    config = _private(layer, "moe_config")
    experts, hidden = _private(config, "num_local_experts"), _private(config, "hidden_dim")
    inner = _private(config, "intermediate_size_per_partition")
    kernel = _private(layer, "quant_method.moe_kernel.fused_experts")
    pack = _private(kernel, "process_weights_after_loading")
    expected = {f"{parent}.gate_up_proj": (experts, 2 * inner, hidden), f"{parent}.down_proj": (experts, hidden, inner)}
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            raise ValueError(f"engine experts take {name} {list(shape)}, the policy has {shapes.get(name)}")
    names = dict(zip(expected, ("w13_weight", "w2_weight"), strict=True))
    came: dict[str, Tensor] = {}

    def take(name: str, tensor: Tensor) -> None:
        import torch

        came[names[name]] = tensor
        if len(came) < 2:
            return
        scratch = torch.nn.Module()
        scratch.moe_config, scratch.activation = config, _private(layer, "activation")
        for leaf, fused in came.items():
            live = getattr(layer, leaf)
            copy = fused.detach().to(device=live.device, dtype=live.dtype, copy=True).contiguous()
            scratch.register_parameter(leaf, torch.nn.Parameter(copy, requires_grad=False))
        came.clear()
        pack(scratch)
        for leaf in names.values():
            live, packed = getattr(layer, leaf), getattr(scratch, leaf)
            if live.shape != packed.shape:  # copy_ would broadcast
                raise ValueError(f"{parent}.{leaf}: vLLM packs {list(packed.shape)}, the engine has {list(live.shape)}")
            live.detach().copy_(packed)

    return {name: lambda tensor, name=name: take(name, tensor) for name in expected}


def push(steps: Plan, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write weights that `contract.checked` has let through into the engine, in place."""
    import torch

    with torch.no_grad():
        for name, tensor in weights:
            steps[name](tensor)


def reload(llm: Any, weights: Iterable[tuple[str, Tensor]], *, model_type: str, in_process: bool) -> None:
    """GPUs: vLLM's own `reload_weights`, with the names of checkpoints (experts one by one).

    An engine in this process takes the tensors as they are; workers in other processes read them from a directory in
    memory (/dev/shm where there is one), each its own shard.
    """

    def by_checkpoint_name() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if is_fused(name):
                yield from unfuse(name, tensor.detach(), model_type)
            else:
                yield name, tensor.detach()

    if in_process:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": by_checkpoint_name()})
    else:
        _reload_from_directory(llm, by_checkpoint_name())


def _reload_from_directory(llm: Any, weights: Iterator[tuple[str, Tensor]], shard_bytes: int = 2**31) -> None:
    import tempfile
    from pathlib import Path

    from safetensors.torch import save_file

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="gspo-weights-", dir=memory if memory.is_dir() else None) as folder:
        shard: dict[str, Tensor] = {}
        count = size = 0

        def write() -> None:
            save_file(shard, Path(folder) / f"model-{count:05d}.safetensors")

        for name, tensor in weights:
            if size and size + tensor.nbytes > shard_bytes:
                write()
                shard, count, size = {}, count + 1, 0
            shard[name] = tensor.cpu().contiguous()
            size += tensor.nbytes
        write()
        llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
