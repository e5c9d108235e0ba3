"""The reward of a benchmark's program: `code_reward`, after the code that the task itself brings.

`meta["prelude"]` stands before the program: imports that the task's own runner makes, or HumanEval's prompt with its
helper functions. With `meta["completion"]` the prelude ends inside the function, and a response that does not define
the entry point is taken as the rest of its body, as base models write it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace

from gspo.rewards.answers import without_thinking
from gspo.rewards.code import code_reward, extract_program
from gspo.rewards.sandbox import MEMORY_MB, TIME_LIMIT
from gspo.types import Prompt, Reward, Rollout

_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_BODY_ENDS = re.compile(r"\n(?=[^\s)\]}])")
"""A line that is not indented ends the body (Chen et al. 2021 stop at class, def, #, if and print)."""


def program_reward(
    prompt: Prompt,
    rollout: Rollout,
    *,
    sandbox: str = "auto",
    workers: int = 2,
    time_limit: float = TIME_LIMIT,
    memory_mb: int = MEMORY_MB,
) -> Reward:
    """1 if the program, after its prelude, passes every test, else 0; otherwise as `code_reward`."""
    opened = prompt.text.rstrip().endswith("<think>")
    program = None if rollout.finish == "length" else whole_program(prompt, rollout.text, opened=opened)
    if program is not None:
        rollout, prompt = replace(rollout, text=_fenced(program)), replace(prompt, text="")
    return code_reward(prompt, rollout, sandbox=sandbox, workers=workers, time_limit=time_limit, memory_mb=memory_mb)


def whole_program(prompt: Prompt, response: str, *, opened: bool = False) -> str | None:
    """Prelude and what the response adds to it; None: no code."""
    entry, prelude = prompt.meta.get("entry_point"), prompt.meta.get("prelude", "")
    block = extract_program(response, entry, opened=opened)
    if not prompt.meta.get("completion"):
        return None if block is None else _joined(prelude, block)
    text = without_thinking(response.replace("\r\n", "\n"), opened)
    for code in (block, text):
        if code is not None and re.search(rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{entry}\b", code, re.MULTILINE):
            return _joined(prelude, code)
    body = text if block is None else "\n" + textwrap.indent(textwrap.dedent(block), "    ")
    body = _BODY_ENDS.split(body, maxsplit=1)[0]
    return _joined(prelude, body, gap="") if body.strip() else None


def _joined(prelude: str, code: str, gap: str = "\n\n") -> str:
    """The two as one program; `from __future__` lines of the second move to its head, where Python wants them."""
    future = "".join(line.rstrip("\n") + "\n" for line in _FUTURE.findall(code))
    return future + prelude + (gap if prelude else "") + _FUTURE.sub("", code)


def _fenced(program: str) -> str:
    """The program as the one block of a response, in a fence longer than any in it."""
    longest = max(map(len, re.findall(r"`+", program)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{program}\n{fence}\n"
