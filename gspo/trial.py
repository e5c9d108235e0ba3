"""The functions that a run names, tried on almost nothing before anything is created: they may be anybody's code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo.binding import bind
from gspo.config import Run
from gspo.data import PromptStream
from gspo.learner import ObjectiveFn
from gspo.types import Reward, RewardFn, Rollout


@contextlib.contextmanager
def tried(node: dict[str, Any], where: str) -> Iterator[None]:
    """Raises ValueError, naming `node._target_`, for whatever the function of `node` raises inside.

    A ValueError is what a function refuses a setting with: its words are enough.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}._target_={node['_target_']}: {error}") from error
    except (Exception, SystemExit) as error:  # anybody's code
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ValueError(f"{where}._target_={node['_target_']}: raised {said} (tried before the run)") from error


def judged_kinds(node: Any) -> frozenset[str] | None:
    """The kinds of prompts that a reward node can judge, as its module says in `KINDS`; None: any.

    A reward around others (its direct arguments) judges what all of them do.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        return None
    home = importlib.import_module(str(node["_target_"]).rpartition(".")[0])
    if hasattr(home, "KINDS"):
        return frozenset(home.KINDS)
    inner = [kinds for value in node.values() if (kinds := judged_kinds(value)) is not None]
    return frozenset.intersection(*inner) if inner else None


def functions(run: Run) -> tuple[ObjectiveFn, Callable[[Tensor], Tensor], RewardFn]:
    """Objective, advantage and reward of a run, bound and tried on two responses of one token.

    Raises ValueError for a combination that a function refuses (say, a clip where there is no ratio to clip).
    """
    algo = run.algo
    objective = bind(algo.objective, "algo.objective", clip_low=run.clip.low, clip_high=run.clip.high)
    advantage = bind(algo.advantage, "algo.advantage")
    with tried(algo.advantage, "algo.advantage"):
        adv = advantage(torch.tensor([[0.0, 1.0]]))[0].float()
    with tried(algo.objective, "algo.objective"):
        objective(torch.zeros(2, 1), torch.zeros(2, 1), adv, torch.ones(2, 1, dtype=torch.bool))
    return objective, advantage, bind(run.reward, "reward")


def try_out(run: Run, stream: PromptStream) -> None:
    """Reward, advantage and objective on two empty responses to the first prompt, which the stream keeps.

    Raises ValueError for a prompt that the reward cannot judge, and for rewards by step where the algorithm takes one
    a response.
    """
    objective, advantage, reward = functions(run)
    state = stream.state()
    prompt = stream.take(1, 0)[0]
    stream.restore(state)
    named = f"reward._target_={run.reward['_target_']}"
    kinds = judged_kinds(run.reward)
    if kinds is not None and prompt.kind not in kinds:
        has = {"math": "an answer", "code": "tests"}
        wanted = " or ".join(has.get(kind, kind) for kind in sorted(kinds)) or "anything"
        raise ValueError(
            f"{named}: {prompt.source} has {has[prompt.kind]}, not {wanted} "
            f"(accepted: reward={prompt.kind} or mixed, or other data)"
        )
    empty = Rollout(np.zeros(1, np.int64), np.ones(1, bool), np.zeros(1, np.float32), "stop", 0)
    with tried(run.reward, "reward"):
        judged = reward(prompt, empty)
    if not isinstance(judged, Reward):
        raise ValueError(f"{named}: returned {type(judged).__name__} (accepted: gspo.types.Reward)")
    steps = judged.steps
    if steps is None:
        return
    try:
        adv = advantage(torch.tensor([[[0.0] * len(steps), [1.0] * len(steps)]]))[0].float()
        objective(torch.zeros(2, 1), torch.zeros(2, 1), adv[:, :1], torch.ones(2, 1, dtype=torch.bool))
    except ValueError as error:
        raise ValueError(f"{named}: rewards come by step, but {error}") from error
