"""How often a model answers a row right when it samples: transformers' generate, digits compared exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gspo.data import Row

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


def last_box(text: str) -> str | None:
    """The digits in the last `\\boxed{...}` of a response; None without one."""
    found = re.findall(r"\\boxed\{(-?\d+)\}", text)
    return found[-1] if found else None


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    *,
    group_size: int,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> PassRate:
    """Sample `group_size` responses to each row in one batch; right: ended by EOS, last box equal to the reference.

    torch's generator is left as it was.
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
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    ended = [tokenizer.eos_token_id in response for response in responses]
    right = [
        end and last_box(text) == rows[i // group_size].reference
        for i, (end, text) in enumerate(zip(ended, texts, strict=True))
    ]
    groups = [right[i : i + group_size] for i in range(0, len(right), group_size)]
    terms: dict[str, list[bool]] = {}
    for row, group in zip(rows, groups, strict=True):
        terms.setdefault(str(row.meta.get("terms", "?")), []).extend(group)
    return PassRate(
        mean=sum(right) / len(right),
        mixed=sum(0 < sum(group) < group_size for group in groups) / len(groups),
        by_terms={key: round(sum(hits) / len(hits), 3) for key, hits in sorted(terms.items())},
    )
