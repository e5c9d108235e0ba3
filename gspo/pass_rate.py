"""How often a model answers a row right when it samples: transformers' generate, judged by a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gspo.data import Row
from gspo.rewards.score import score
from gspo.types import Group, Prompt, RewardFn, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PassRate:
    """Right answers of G samples to each of P rows."""

    mean: float
    """Share of right answers, of P * G."""
    mixed: float
    """Share of the P groups with right and wrong answers."""
    by_terms: dict[str, float]
    """Share of right answers by `meta["terms"]`."""


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    *,
    reward: RewardFn,
    group_size: int,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> PassRate:
    """Sample `group_size` responses to each row in one batch; right: `reward` gives the verdict ok.

    torch's generator is left as it was. Raises VerifierFailures when the judge fails on over 1 % of them.
    """
    prompts = [tokenizer.encode(row.prompt) for row in rows for _ in range(group_size)]
    longest = max(map(len, prompts))
    pad: Any = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    attention = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        out: Any = model.generate(  # pyright: ignore
            input_ids=ids,
            attention_mask=attention,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=pad,
        )
    responses = out[:, longest:].tolist()
    rollouts = [_rollout(tokenizer, response) for response in responses]
    judged = [
        Group(_prompt(row, prompts[i * group_size]), rollouts[i * group_size : (i + 1) * group_size])
        for i, row in enumerate(rows)
    ]
    right = [one.verdict == "ok" for group in score(judged, reward) for one in group.rewards]
    groups = [right[i : i + group_size] for i in range(0, len(right), group_size)]
    terms: dict[str, list[bool]] = {}
    for row, group in zip(rows, groups, strict=True):
        terms.setdefault(str(row.meta.get("terms", "?")), []).extend(group)
    return PassRate(
        mean=sum(right) / len(right),
        mixed=sum(0 < sum(group) < group_size for group in groups) / len(groups),
        by_terms={key: round(sum(hits) / len(hits), 3) for key, hits in sorted(terms.items())},
    )


def _prompt(row: Row, token_ids: list[int]) -> Prompt:
    return Prompt(row.id, row.prompt, tuple(token_ids), row.reference, "cold start", row.kind, row.meta)


def _rollout(tokenizer: PreTrainedTokenizerBase, response: list[int]) -> Rollout:
    """A sampled row of token ids, up to its EOS; without one it was cut off."""
    eos = tokenizer.eos_token_id
    ended = eos in response
    ids = np.array(response[: response.index(eos) + 1] if ended else response, dtype=np.int64)
    text = tokenizer.decode(ids.tolist(), skip_special_tokens=True)
    assert isinstance(text, str)
    logp = np.zeros(len(ids), np.float32)  # not asked for
    return Rollout(ids, np.ones(len(ids), bool), logp, "stop" if ended else "length", 0, text)
