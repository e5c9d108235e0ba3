"""The data that flows through a step. Data only: no behaviour, no framework.

`P` prompts with `G` responses each make `N = P * G` sequences; `B` sequences share a (micro-)batch padded to `T`
target positions; `Lx`, `Ly` are the token counts of one prompt and one response.

Three log-probs, three names: `sampler_logp` is what the rollout engine said, `old_logp` what the trainer says of the
weights that sampled, `logp` what the trainer says of the weights it is changing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Finish = Literal["stop", "length", "abort"]
Verdict = Literal["ok", "wrong", "verifier failed"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of the query set, already tokenised for the model."""

    id: str
    """Unique within its data set; seeds the sampling of its responses."""
    text: str
    """The prompt as the model reads it (chat template applied)."""
    token_ids: tuple[int, ...]
    """`[Lx]`; at most one BOS."""
    reference: Any
    """What the verifier compares with: an answer (str), or tests (list of dicts)."""
    source: str
    """Name of the data set."""
    kind: Literal["math", "code"] = "math"
    """Which verifier judges it when rewards are mixed."""
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else the row carried (level, entry_point, ...)."""


@dataclass(slots=True)
class Rollout:
    """One response, in the engine's own token ids (never re-tokenised text)."""

    token_ids: np.ndarray
    """`[Ly]` int64, the stop token included if one was sampled."""
    trained: np.ndarray
    """`[Ly]` bool: False for tokens the policy did not choose (tool output)."""
    logp: np.ndarray
    """`[Ly]` float32, log-probs of the tokens at the sampling temperature, from the sampler."""
    finish: Finish
    """`stop`: a stop token or stop string; `length`: cut at max_tokens; `abort`: the engine gave up."""
    version: int
    """Version of the weights that sampled it; the trainer's step."""
    text: str = ""
    """Decoded response without special tokens: what the verifier reads."""
    turns: int = 1
    experts: np.ndarray | None = None
    """`[Lx + Ly - 1, layers, k]` int16 expert choices of the engine, where it returns them."""


@dataclass(slots=True)
class Reward:
    """What a verifier says of one response."""

    value: float
    """The number that is optimised; NaN exactly when the verifier failed."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Named parts, `correct` and `format` apart; `correct` in [0, 1]."""
    verdict: Verdict = "ok"
    steps: list[tuple[int, float]] | None = None
    """Rewards by step, in order: (characters of `Rollout.text` up to its end, value); None: one reward in all."""
    path: str = ""
    """How the verdict was reached (`exact`, `math-verify`, `no answer`, ...)."""
    reason: str = ""
    """One line on why, for the sample table."""


@dataclass(slots=True)
class Group:
    """The `G` responses to one prompt, and their rewards."""

    prompt: Prompt
    rollouts: list[Rollout]
    rewards: list[Reward] = field(default_factory=list["Reward"])


class RewardFn(Protocol):
    """A verifier: pure in its inputs, callable from any thread."""

    def __call__(self, prompt: Prompt, rollout: Rollout) -> Reward: ...


@dataclass(slots=True)
class Batch:
    """Sequences as tensors: prompt, then response, padded on the right.

    Position `t` of every `[B, T]` tensor speaks of the prediction of `tokens[:, t + 1]`.
    """

    tokens: Tensor
    """`[B, T + 1]` int64."""
    lengths: Tensor
    """`[B]` int64, real tokens of each row (prompt and response)."""
    mask: Tensor
    """`[B, T]` bool, True where the target is a trained token; |y_i| = mask[i].sum()."""
    sampler_logp: Tensor
    """`[B, T]` float32, 0 off the mask."""
    adv: Tensor
    """`[B]` float32, or `[B, T]` when rewards come by step."""
    group: Tensor
    """`[B]` int64, which prompt of the step a row belongs to (rows of a group stay together in a mini-batch)."""
    row: Tensor
    """`[B]` int64, the row's place in the step's batch: group * G + sample."""
    num_sequences: int
    """`N` of the optimiser step, over all micro-batches and ranks; a global integer known before the first backward."""
    num_tokens: int
    """Trained tokens of the optimiser step, likewise global."""
    old_logp: Tensor | None = None
    """`[B, T]` float32; None until the trainer or the sampler has supplied it."""
    experts: Tensor | None = None
    """`[B, T, layers, k]` int16, recorded routes to replay (-1 where a row has no input), or None."""
