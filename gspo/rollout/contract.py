"""What every engine checks and produces: refused settings and prompts, stop tokens, checked weights, `Rollout`s."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo.config import RolloutSettings, SamplingSettings
from gspo.types import Finish, Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor

PRECISIONS = ("float32", "bfloat16")
MIN_TEMPERATURE = 0.01
"""Below it vLLM samples at 0.01 instead, with a warning: another policy than the one asked for."""
MAX_GROUP = 2**16
"""`request_seed` leaves the low 16 bits free."""


def check_settings(settings: RolloutSettings, sampling: SamplingSettings, *, context: int, device: str) -> None:
    """Refuse what would sample another policy than the one trained, and settings without effect.

    Raises ValueError, one line.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: one of cpu, cuda")
    if sampling.top_p != 1:
        raise ValueError(f"sampling.top_p={sampling.top_p}: must be 1, a truncated sampler is not the policy trained")
    if sampling.top_k != -1:
        raise ValueError(f"sampling.top_k={sampling.top_k}: must be -1 (off), likewise a truncated sampler")
    if not sampling.temperature >= MIN_TEMPERATURE:
        raise ValueError(f"sampling.temperature={sampling.temperature}: must be at least {MIN_TEMPERATURE}")
    if sampling.max_tokens < 1:
        raise ValueError(f"sampling.max_tokens={sampling.max_tokens}: must be at least 1")
    if not all(sampling.stop):
        raise ValueError(f"sampling.stop={list(sampling.stop)}: an empty stop string stops everything")
    if context < 2:
        raise ValueError(f"model.context={context}: must hold a prompt token and a response token at least")
    if settings.workers < 1 or (device == "cuda" and settings.workers != 1):
        raise ValueError(f"rollout.workers={settings.workers}: must be 1 on GPUs, at least 1 on the CPU")
    if settings.tensor_parallel < 1 or (device == "cpu" and settings.tensor_parallel != 1):
        raise ValueError(
            f"rollout.tensor_parallel={settings.tensor_parallel}: must be 1 on the CPU, at least 1 on GPUs"
        )
    if device == "cpu" and settings.memory_fraction != RolloutSettings.memory_fraction:
        raise ValueError(f"rollout.memory_fraction={settings.memory_fraction}: has no effect on the CPU, leave it out")
    if device == "cuda" and settings.kv_cache_gb != RolloutSettings.kv_cache_gb:
        raise ValueError(f"rollout.kv_cache_gb={settings.kv_cache_gb}: has no effect on a GPU, use memory_fraction")


def engine_dtype(settings: RolloutSettings, precision: str) -> str:
    """`float32` or `bfloat16`: `rollout.dtype`, where `auto` is the trainer's precision."""
    dtype = precision if settings.dtype == "auto" else settings.dtype
    if dtype not in PRECISIONS:
        raise ValueError(f"rollout.dtype={settings.dtype}, precision={precision}: one of {PRECISIONS} (or dtype=auto)")
    return dtype


def check_prompts(prompts: Sequence[Prompt], group_size: int, context: int) -> None:
    """Raises ValueError for an empty prompt, one that leaves no room for a response, or an impossible group size."""
    if not 1 <= group_size <= MAX_GROUP:
        raise ValueError(f"group_size={group_size}: 1 to {MAX_GROUP}")
    for prompt in prompts:
        if not prompt.token_ids:
            raise ValueError(f"prompt {prompt.id!r} has no tokens")
        if len(prompt.token_ids) > context - 1:
            raise ValueError(
                f"prompt {prompt.id!r} has {len(prompt.token_ids)} tokens: at most model.context - 1 = {context - 1}"
            )


def stop_ids(model_dir: Path, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a response: the tokenizer's EOS and those of the model's generation_config.json, sorted.

    Raises ValueError when there is none: nothing would ever stop.
    """
    found = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    path = Path(model_dir) / "generation_config.json"
    if path.is_file():
        listed = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        found |= set(listed) if isinstance(listed, list) else set() if listed is None else {listed}
    if not found:
        raise ValueError(f"{model_dir}: neither the tokenizer nor generation_config.json names an EOS token")
    return tuple(sorted(found))


def make_rollout(
    token_ids: Sequence[int],
    logp: Sequence[float | None],
    *,
    finish: Finish,
    version: int,
    prompt: Prompt,
    tokenizer: Any,
) -> Rollout:
    """One response as a `Rollout`; text without special tokens.

    Raises ValueError, with prompt id and position, for a log-prob that is None, NaN or infinite.
    """
    for position, value in enumerate(logp):
        if value is None or not np.isfinite(value):
            raise ValueError(
                f"prompt {prompt.id!r}: log-prob {value} at position {position} of the response "
                f"(token {token_ids[position]}): the engine's logits are broken"
            )
    ids = np.asarray(token_ids, dtype=np.int64)
    return Rollout(
        token_ids=ids,
        trained=np.ones(len(ids), dtype=bool),
        logp=np.asarray(logp, dtype=np.float32),
        finish=finish,
        version=version,
        text=tokenizer.decode(list(token_ids), skip_special_tokens=True),
    )


def checked(
    weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]], tied: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """The weights that the engine must take, each once; names in `tied` follow another weight and are passed over.

    Raises ValueError for a weight that is unknown, sent twice or of another shape, and at the end for missing ones.
    """
    seen: set[str] = set()
    for name, tensor in weights:
        if name in seen:
            raise ValueError(f"weight {name} was sent twice")
        seen.add(name)
        if name in tied:
            continue
        if name not in shapes:
            raise ValueError(f"weight {name} {list(tensor.shape)} is unknown to the engine")
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise ValueError(f"weight {name} has shape {list(tensor.shape)}, the engine holds {list(shapes[name])}")
        yield name, tensor
    missing = sorted(set(shapes) - seen - set(tied))
    if missing:
        raise ValueError(f"{len(missing)} weights were not sent ({missing[0]}, ...): the engine would keep old ones")
