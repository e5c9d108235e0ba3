"""The reference engine: transformers, one batch, one random number per sampled token.

Sample g of a prompt draws all its uniforms from its own generator before decoding starts, and each token is where the
cumulative distribution passes its uniform. So a sample does not depend on its neighbours, but for the rounding of
batched matrix products (about 1e-7 of a probability).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.config import RolloutSettings, SamplingSettings
from gspo.rollout import request_seed
from gspo.rollout.contract import check_prompts, check_settings, checked, engine_dtype, make_rollout, stop_ids
from gspo.types import Finish, Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor

COMPACT = 8
"""Finished rows leave the batch when they are 1/8 of it."""


def check(settings: RolloutSettings, device: str) -> None:
    """Raise ValueError for settings that this engine would ignore."""
    for name in ("tensor_parallel", "memory_fraction", "kv_cache_gb"):
        if getattr(settings, name) != getattr(RolloutSettings, name):
            raise ValueError(f"rollout.{name}={getattr(settings, name)}: has no effect with the hf engine on {device}")


@dataclass(slots=True)
class _Row:
    """A response in the making."""

    prompt: Prompt
    room: int
    """Tokens it may still grow to: max_tokens, or what the context leaves."""
    token_ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    finish: Finish | None = None


class HfEngine:
    """Engine protocol on a transformers model of its own."""

    prefix_block = 1
    ranks = 1

    def __init__(
        self,
        model_dir: Path,
        tokenizer: Any,
        settings: RolloutSettings,
        sampling: SamplingSettings,
        *,
        precision: str,
        context: int,
        seed: int,
        max_batch: int,
        device: str,
    ) -> None:
        """Load `model_dir`. `max_batch`: sequences decoded at once. `seed` is not used: every request brings its own.

        Raises ValueError for settings outside the contract (`check_settings`).
        """
        check_settings(settings, sampling, context=context, device=device)
        check(settings, device)
        self._tokenizer, self._sampling, self._context = tokenizer, sampling, context
        self._max_batch, self._device, self._version = max_batch, device, 0
        self._stop_ids = stop_ids(model_dir, tokenizer)
        self._model = _load(model_dir, engine_dtype(settings, precision), device)
        self._shapes, self._tied = weight_shapes(self._model)

    def generate(self, prompts: Sequence[Prompt], group_size: int, *, seed: int, step: int) -> list[list[Rollout]]:
        """`[P][G]` responses; see `Engine.generate`."""
        import torch

        check_prompts(prompts, group_size, self._context)
        at_once = max(1, self._max_batch // group_size)
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
        groups: list[list[Rollout]] = [[] for _ in prompts]
        with torch.inference_mode():
            for start in range(0, len(prompts), at_once):
                places = by_length[start : start + at_once]
                rows = self._decode([prompts[i] for i in places], group_size, seed, step)
                for place, index in enumerate(places):
                    groups[index] = [self._rollout(row) for row in rows[place * group_size : (place + 1) * group_size]]
        return groups

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Copy every weight; see `Engine.update_weights`."""
        import torch

        assert self._model is not None, "update_weights after close"
        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in checked(weights, self._shapes, self._tied):
                own[name].copy_(tensor)
        self._version = version

    def sleep(self) -> None:
        """See `Engine.sleep`: this engine keeps its memory."""

    def close(self) -> None:
        """Free the model."""
        self._model = None

    def _rollout(self, row: _Row) -> Rollout:
        assert row.finish is not None
        return make_rollout(
            row.token_ids,
            row.logp,
            finish=row.finish,
            version=self._version,
            prompt=row.prompt,
            tokenizer=self._tokenizer,
        )

    def _decode(self, prompts: list[Prompt], group_size: int, seed: int, step: int) -> list[_Row]:
        """Prefill each prompt once, repeat its cache G times, decode all rows together; rows in order `[P * G]`."""
        import torch
        from transformers import DynamicCache

        lengths = torch.tensor([len(p.token_ids) for p in prompts], device=self._device)
        width = int(lengths.max())
        tokens = torch.zeros(len(prompts), width, dtype=torch.long, device=self._device)
        for i, prompt in enumerate(prompts):
            tokens[i, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask = torch.arange(width, device=self._device) >= width - lengths[:, None]  # [P, width], left padding
        cache = DynamicCache()
        logits = self._forward(tokens, mask, (mask.long().cumsum(1) - 1).clamp(min=0), cache)

        rows = [_Row(p, min(self._sampling.max_tokens, self._context - len(p.token_ids))) for p in prompts]
        rows = [_Row(row.prompt, row.room) for row in rows for _ in range(group_size)]
        uniforms = self._uniforms(rows, group_size, seed, step)  # [N, max_tokens]
        cache.batch_repeat_interleave(group_size)
        logits, mask = logits.repeat_interleave(group_size, 0), mask.repeat_interleave(group_size, 0)
        position = lengths.repeat_interleave(group_size)  # [N], of the token about to be sampled
        live = list(range(len(rows)))  # which row each line of the batch is
        for turn in range(max(row.room for row in rows)):
            ids, logp = sample(logits, self._sampling.temperature, uniforms[:, turn])
            self._append([rows[i] for i in live], ids.tolist(), logp.tolist())
            kept = [line for line, i in enumerate(live) if rows[i].finish is None]
            if not kept:
                break
            if (len(live) - len(kept)) * COMPACT >= len(live):
                lines = torch.tensor(kept, device=self._device)
                cache.batch_select_indices(lines)
                live = [live[line] for line in kept]
                ids, mask, position, uniforms = ids[lines], mask[lines], position[lines], uniforms[lines]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            logits = self._forward(ids[:, None], mask, position[:, None], cache)
            position = position + 1
        return rows

    def _forward(self, tokens: Tensor, mask: Tensor, position: Tensor, cache: Any) -> Tensor:
        """Logits `[B, V]` after the last token of each row; the cache grows."""
        assert self._model is not None, "generate after close"
        return self._model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def _uniforms(self, rows: list[_Row], group_size: int, seed: int, step: int) -> Tensor:
        """`[N, max_tokens]` float64 in [0, 1): row i from a generator of its own, seeded `request_seed + g`."""
        import torch

        drawn = torch.empty(len(rows), self._sampling.max_tokens, dtype=torch.float64)
        for i, row in enumerate(rows):
            generator = torch.Generator().manual_seed(request_seed(seed, step, row.prompt.id) + i % group_size)
            drawn[i].uniform_(generator=generator)
        return drawn.to(self._device)

    def _append(self, rows: list[_Row], ids: list[int], logp: list[float]) -> None:
        """Give each unfinished row its token, and its finish reason if that was the last."""
        for row, token, value in zip(rows, ids, logp, strict=True):
            if row.finish is not None:
                continue
            row.token_ids.append(token)
            row.logp.append(value)
            if token in self._stop_ids or (self._sampling.stop and self._stopped(row)):
                row.finish = "stop"
            elif len(row.token_ids) >= row.room:
                row.finish = "length"

    def _stopped(self, row: _Row) -> bool:
        text = self._tokenizer.decode(row.token_ids, skip_special_tokens=True)
        return any(stop in text for stop in self._sampling.stop)


def sample(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids `[B]` and their log-probs `[B]` float32, log_softmax(logits / T) at the sampled ids.

    logits `[B, V]`; uniform `[B]` float64 in [0, 1). The token is the first whose cumulative probability exceeds it.
    """
    import torch

    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    cumulative = logp.double().exp().cumsum(-1)
    ids = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    ids = ids.clamp(max=logits.shape[-1] - 1)
    return ids[:, 0], logp.gather(-1, ids)[:, 0]


def weight_shapes(model: Any) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Shapes by name in transformers' state dict, and the names that are tied to another one (a tied head)."""
    shapes: dict[str, tuple[int, ...]] = {}
    tied: set[str] = set()
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) == name:
            shapes[name] = tuple(tensor.shape)
        else:
            tied.add(name)
    return shapes, frozenset(tied)


def empty_model(model_dir: Path) -> Any:
    """The model of `model_dir` without its weights (meta device)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _load(model_dir: Path, dtype: str, device: str) -> Any:
    """The model in eval mode, without a progress bar."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
    )
    if bar:
        logging.enable_progress_bar()
    return model.to(device).eval()  # pyright: ignore
