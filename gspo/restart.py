"""A rollout engine that is started anew, once, when it breaks: the step is redone with the same seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from torch import Tensor

from gspo.messages import is_out_of_memory
from gspo.parallel import World, gather
from gspo.rollout import Engine
from gspo.state import capture_rng, restore_rng
from gspo.types import Prompt, Rollout

log = logging.getLogger(__name__)

BROKEN = (RuntimeError, OSError, EOFError)
"""What a broken engine or a dead worker of it raises. Memory that ran out is not among it: it would run out again; nor
is ValueError, by which engines refuse prompts, weights and log-probs that are no numbers."""

T = TypeVar("T")


class EngineFailed(RuntimeError):
    """The engine broke, and broke again after it was started anew."""


class Restarting:
    """Engine protocol around `start()`, which makes the engine; ranks call it together.

    A request that fails is repeated once on a new engine with the weights it should have: every request brings its own
    seeds, so the responses are those that the first engine owed. After the next whole request it may fail again.
    """

    def __init__(self, start: Callable[[], Engine], world: World):
        self._start, self._world, self._version = start, world, 0
        self._engine = start()
        self.prefix_block, self.ranks = self._engine.prefix_block, self._engine.ranks
        self.weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None
        """What a new engine is given: the trainer's weights. None: it keeps those it starts with."""

    def generate(self, prompts: Sequence[Prompt], group_size: int, *, seed: int, step: int) -> list[list[Rollout]]:
        """See `Engine.generate`. Raises EngineFailed at the second failure, on every rank."""
        done, reason = _tried(lambda: self._engine.generate(prompts, group_size, seed=seed, step=step))
        if self._failed(reason, f"in step {step}"):
            self._renew(anew=reason is not None)
            done, again = _tried(lambda: self._engine.generate(prompts, group_size, seed=seed, step=step))
            self._give_up(reason, again)
        assert done is not None
        return done

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """See `Engine.update_weights`. Raises EngineFailed at the second failure, on every rank."""
        self._version, rest = version, iter(weights)
        _, reason = _tried(lambda: self._engine.update_weights(rest, version=version))
        for _ in rest:  # the other ranks wait for this one's part of every weight
            pass
        if self._failed(reason, f"taking the weights of version {version}"):
            self._renew(anew=reason is not None)

    def sleep(self) -> None:
        """See `Engine.sleep`. An engine that cannot is left awake: its next request tells whether it works."""
        _, reason = _tried(self._engine.sleep)
        if reason:
            log.warning("the rollout engine stays awake (%s)", reason)

    def close(self) -> None:
        """See `Engine.close`."""
        _, reason = _tried(self._engine.close)
        if reason:
            log.warning("the rollout engine did not end as it should (%s)", reason)

    def _failed(self, reason: str | None, when: str) -> bool:
        """Did the engine of any rank fail? Says so."""
        reasons = [one for one in gather(reason, self._world) if one]
        if reasons:
            log.warning("the rollout engine failed %s (%s); it is started anew, once", when, reasons[0])
        return bool(reasons)

    def _renew(self, *, anew: bool) -> None:
        """Another engine where `anew`, with the weights of the trainer; the generators of this process stay."""
        problem = None
        if anew:
            self.close()
            tensors, state = capture_rng()
            engine, problem = _tried(self._start)
            restore_rng(tensors, state)
            self._engine = engine or self._engine
        self._give_up(None, problem)
        if self.weights is not None:
            weights = iter(self.weights())
            _, problem = _tried(lambda: self._engine.update_weights(weights, version=self._version))
            for _ in weights:
                pass
            self._give_up(None, problem)

    def _give_up(self, first: str | None, second: str | None) -> None:
        """Raise EngineFailed when the new engine of any rank failed."""
        reasons = [one for one in gather(second, self._world) if one]
        if reasons:
            before = f"{first}; and again after it was started anew: " if first else "after it was started anew: "
            raise EngineFailed(f"the rollout engine failed: {before}{reasons[0]}")


def _tried(work: Callable[[], T]) -> tuple[T | None, str | None]:
    """The result of `work`, or why the engine that did it is broken."""
    try:
        return work(), None
    except BROKEN as error:
        if is_out_of_memory(error):
            raise
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:500]
