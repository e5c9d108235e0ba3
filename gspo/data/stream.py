"""From a query set to prompts as the model reads them: seeded order, stages, exact resumption.

A finite set is dealt out in one seeded permutation per epoch; an endless one in the order of its numbers. Each stage of
a query set that changes keeps its own position, so that coming back to a stage continues it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.binding import bind, target
from gspo.config import ModelSettings
from gspo.data.source import Row, Source
from gspo.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Stage:
    """The query set from one step on."""

    step: int
    source: Source


def open_source(data: dict[str, Any], *, seed: int) -> list[Stage]:
    """The query set that a `data` node describes; more than one stage when it has `stages`.

    `data.stages` is a list of {step, keyword overrides}: from that step on the function is called with them instead. A
    stage with its own `_target_` starts from that function's defaults. Files are read and every row is checked here.
    Raises ValueError naming what is wrong: key and value, or file, line and field.
    """
    base = {key: value for key, value in data.items() if key != "stages"}
    stages = [Stage(0, _call(base, "data", seed))]
    changes = data.get("stages") or []
    if not isinstance(changes, list):
        raise ValueError(f"data.stages={changes}: a list is needed, as in [{{step: 50, max_terms: 9}}]")
    for number, change in enumerate(changes):
        where = f"data.stages[{number}]"
        if not isinstance(change, dict):
            raise ValueError(
                f"{where}={change}: a mapping of step and overrides is needed, as in {{step: 50, max_terms: 9}}"
            )
        step = change.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step <= stages[-1].step:
            raise ValueError(f"{where}.step={step}: a whole number above {stages[-1].step} is needed (steps must rise)")
        overrides = {key: value for key, value in change.items() if key != "step"}
        node = overrides if "_target_" in overrides else base | overrides
        stages.append(Stage(step, _call(node, where, seed)))
    return stages


def _call(node: dict[str, Any], where: str, seed: int) -> Source:
    """The node's source; the seed goes to functions that generate."""
    takes_seed = "seed" in inspect.signature(target(node, where)).parameters
    source = bind(node, where, **({"seed": seed} if takes_seed else {}))()
    if not isinstance(source, Source):
        raise ValueError(f"{where}._target_={node.get('_target_')}: gives {type(source).__name__}, not a Source")
    return source


def check(data: dict[str, Any]) -> None:
    """Raise ValueError for whatever is wrong with a `data` node that can be seen without a tokenizer. No torch.

    Local files are read whole; data that only the hub has is not fetched.
    """
    open_source(data, seed=0)


class PromptStream:
    """The prompts of a query set, in an order that depends on the seed and on nothing else."""

    def __init__(
        self,
        stages: Sequence[Stage],
        tokenizer: PreTrainedTokenizerBase,
        model: ModelSettings,
        *,
        seed: int,
        max_prompt_tokens: int,
    ):
        """Every prompt of a finite set is tokenised and measured at once.

        Raises ValueError for a prompt longer than `max_prompt_tokens` (unless its source drops such), for a set without
        prompts, and for `chat_template` with a tokenizer that has none.
        """
        if model.chat_template and not tokenizer.chat_template:
            raise ValueError(f"model.chat_template=true: the tokenizer of {model.path} has none; false is accepted")
        self._tokenizer, self._model, self._limit, self._seed = tokenizer, model, max_prompt_tokens, seed
        self._stages = list(stages)
        self._kept = [self._fitting(stage.source) for stage in self._stages]
        self._positions = [0] * len(self._stages)
        self._order: dict[int, tuple[int, list[int]]] = {}

    def stage(self, step: int) -> int:
        """Which stage of the query set a step draws from."""
        return max(number for number, stage in enumerate(self._stages) if stage.step <= step)

    def take(self, n: int, step: int) -> list[Prompt]:
        """The next `n` prompts of the stage that `step` belongs to.

        Ids are unique in the list: a problem that comes twice, because an epoch ends inside it, is `ID~2` then.
        """
        number = self.stage(step)
        first = self._positions[number]
        rows = [self._row(number, position) for position in range(first, first + n)]
        self._positions[number] += n
        seen: dict[str, int] = {}
        prompts = []
        for row in rows:
            seen[row.id] = seen.get(row.id, 0) + 1
            if seen[row.id] > 1:
                row = replace(row, id=f"{row.id}~{seen[row.id]}")
            prompts.append(self._prompt(row, self._stages[number].source))
        return prompts

    def fingerprints(self) -> dict[str, str]:
        """sha256 of each stage's set: of its file, else of its first 64 problems and answers."""
        return {f"{stage.source.name} from step {stage.step}": _sha256(stage.source) for stage in self._stages}

    def measure(self, n: int) -> None:
        """Raise ValueError when one of the first `n` prompts of an endless set is too long."""
        for stage in self._stages:
            if stage.source.size is None:
                for index in range(n):
                    self._prompt(stage.source.row(index), stage.source)

    def state(self) -> dict[str, Any]:
        """JSON that `restore` continues from: positions, and what they are positions in."""
        return {"seed": self._seed, "positions": list(self._positions), "sets": self._sets()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises ValueError when seed or query set are others."""
        for key, here in (("seed", self._seed), ("sets", self._sets())):
            if state.get(key) != here:
                raise ValueError(f"data: the position saved was for {key} {state.get(key)}, this stream has {here}")
        self._positions = list(state["positions"])

    def _sets(self) -> list[list[Any]]:
        kept = [None if rows is None else len(rows) for rows in self._kept]
        return [[s.step, s.source.name, size] for s, size in zip(self._stages, kept, strict=True)]

    def _row(self, number: int, position: int) -> Row:
        """Row at a position of a stage: position // size is the epoch, and each epoch has its own permutation."""
        source, kept = self._stages[number].source, self._kept[number]
        if kept is None:
            return source.row(position)
        epoch, place = divmod(position, len(kept))
        if self._order.get(number, (None,))[0] != epoch:
            order = list(kept)
            random.Random(f"epoch/{self._seed}/{number}/{epoch}").shuffle(order)
            self._order[number] = epoch, order
        return source.row(self._order[number][1][place])

    def _fitting(self, source: Source) -> list[int] | None:
        """Numbers of the rows whose prompts fit; None for an endless source."""
        if source.size is None:
            return None
        lengths = [len(self._render(source.row(i))[1]) for i in range(source.size)]
        long = [i for i, length in enumerate(lengths) if length > self._limit]
        if long and not source.drop_long:
            row = source.row(max(long, key=lengths.__getitem__))
            raise ValueError(
                f"{source.where or source.name}: {len(long)} of {source.size} prompts have over {self._limit} tokens "
                f"(longest: {row.id} with {max(lengths)}); raise model.context, lower sampling.max_tokens, or set "
                "data.drop_long=true to leave them out"
            )
        kept = [i for i, length in enumerate(lengths) if length <= self._limit]
        if not kept:
            raise ValueError(f"{source.where or source.name}: no prompt of at most {self._limit} tokens is left")
        return kept

    def _prompt(self, row: Row, source: Source) -> Prompt:
        text, ids = self._render(row)
        if len(ids) > self._limit:
            raise ValueError(f"{source.where or source.name}: {row.id} has {len(ids)} tokens, {self._limit} fit")
        return Prompt(row.id, text, tuple(ids), row.reference, source.name, row.kind, row.meta)

    def _render(self, row: Row) -> tuple[str, list[int]]:
        """The prompt as the model reads it, and its token ids: tokenised once, with one BOS at most.

        What a chat template renders is whole: the tokenizer adds nothing to it. Plain text gets the tokenizer's own
        BOS, if it has the habit of adding one.
        """
        if self._model.chat_template:
            thinking: Any = {} if self._model.thinking is None else {"enable_thinking": self._model.thinking}
            said = [turn for user, assistant in row.turns for turn in (("user", user), ("assistant", assistant))]
            messages = [{"role": role, "content": content} for role, content in (*said, ("user", row.prompt))]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **thinking)
            assert isinstance(text, str)
            return text, self._tokenizer.encode(text, add_special_tokens=False)
        text = "".join(f"{user}\n{assistant}\n\n" for user, assistant in row.turns) + row.prompt
        ids = self._tokenizer.encode(text)
        bos = self._tokenizer.bos_token_id
        doubled = bos is not None and ids[:2] == [bos, bos]
        return text, ids[1:] if doubled else ids


def _sha256(source: Source) -> str:
    if Path(source.where).is_file():
        return hashlib.sha256(Path(source.where).read_bytes()).hexdigest()
    rows = [source.row(i) for i in range(min(source.size or 64, 64))]
    return hashlib.sha256(json.dumps([[row.prompt, row.reference] for row in rows]).encode()).hexdigest()
