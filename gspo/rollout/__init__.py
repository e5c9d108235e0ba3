"""Rollout engines: whatever can sample responses with log-probs and take new weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from gspo.types import Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor


class Engine(Protocol):
    """Two verbs, and rest. `hf.py` is the specification; the others must agree with it."""

    prefix_block: int
    """A group's prompt is run once, in whole blocks of this many tokens, and what is left of it once a response."""

    ranks: int
    """Neighbouring ranks that are one engine: they are given the same prompts."""

    def generate(self, prompts: Sequence[Prompt], group_size: int, *, seed: int, step: int) -> list[list[Rollout]]:
        """`group_size` responses to each prompt at the engine's sampling settings: `[P][G]`.

        Sample g of a prompt is drawn with `request_seed(seed, step, prompt.id) + g`, whatever else is in the batch.
        """
        ...

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Take every weight of the policy (names and layouts of transformers' state dict) and drop stale caches.

        A weight that is missing or unknown raises ValueError (a tied head may be left out).
        """
        ...

    def sleep(self) -> None:
        """Leave a GPU's memory to the trainer until the next `update_weights`; nothing on the CPU."""
        ...

    def close(self) -> None:
        """Free the engine's processes and memory."""
        ...


def request_seed(seed: int, step: int, prompt_id: str) -> int:
    """A 63-bit seed hashed from (seed, step, prompt id); the low 16 bits are clear so that `+ g` cannot overflow."""
    digest = hashlib.sha256(f"{seed}/{step}/{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 & ~0xFFFF
