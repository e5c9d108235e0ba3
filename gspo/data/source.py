"""What a data set is: numbered rows, finite or endless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Row:
    """One problem, before a tokenizer has seen it."""

    id: str
    prompt: str
    """What the user says; the chat template, if any, comes later."""
    reference: Any
    """What the verifier compares with: an answer (str), or tests (list of dicts)."""
    kind: Literal["math", "code"] = "math"
    meta: dict[str, Any] = field(default_factory=dict)
    turns: tuple[tuple[str, str], ...] = ()
    """What was said before: (user, assistant), examples of how to answer."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows by number: `row(i)` is a pure function of i (and of the seed that the source was made with)."""

    name: str
    row: Callable[[int], Row]
    size: int | None = None
    """Rows; None: endless."""
    where: str = ""
    """File or hub id, for error messages."""
    drop_long: bool = False
    """True: prompts longer than the limit are left out; False: they are refused."""
