"""What the cold start learns from: rows by level, and their solutions as padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gspo.data import Row, Source, open_source
from gspo.sft_config import SftConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chains(config: SftConfig, *, seed: int, **changes: Any) -> Source:
    """The data setting's chains, with some of its keywords changed."""
    data = {key: value for key, value in config.data.items() if key != "stages"}
    return open_source(data | changes, seed=seed)[0].source


def level_sources(config: SftConfig, level: int, seed: int) -> tuple[Source, Source]:
    """What a level's batches are drawn from, half and half: its own length, and any up to it.

    After the longest both are the data setting itself, with slips.
    """
    if level > config.data["max_terms"]:
        slips = chains(config, seed=seed, slip_rate=config.sft.slip_rate)
        return slips, slips
    own = chains(config, seed=seed, min_terms=level, max_terms=level)
    return own, chains(config, seed=seed, min_terms=2, max_terms=level)


def micro_batches(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], budget: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows by length in parts of at most `budget` padded tokens: (their numbers, inputs [b, T], targets [b, T]).

    A target is -100 in the prompt and in the padding, which is on the right, where causal attention never looks.
    """
    prompts = [tokenizer.encode(row.prompt) for row in rows]
    solutions = [[*tokenizer.encode(row.meta["solution"], add_special_tokens=False), _eos(tokenizer)] for row in rows]
    whole = [prompt + solution for prompt, solution in zip(prompts, solutions, strict=True)]
    order = sorted(range(len(rows)), key=lambda i: -len(whole[i]))
    while order:
        width = len(whole[order[0]])
        part, order = order[: max(budget // width, 1)], order[max(budget // width, 1) :]
        inputs = torch.zeros(len(part), width - 1, dtype=torch.int64)
        targets = torch.full((len(part), width - 1), -100)
        for place, i in enumerate(part):
            start, end = len(prompts[i]) - 1, len(whole[i]) - 1
            inputs[place, :end] = torch.tensor(whole[i][:-1])
            targets[place, start:end] = torch.tensor(solutions[i])
        yield part, inputs, targets


def _eos(tokenizer: PreTrainedTokenizerBase) -> int:
    assert isinstance(tokenizer.eos_token_id, int)
    return tokenizer.eos_token_id
