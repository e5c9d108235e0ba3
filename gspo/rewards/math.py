"""The mathematics reward: is the answer of a response the gold answer?

Think part and code cut off, the last balanced box alone, normalised, compared exactly; what is no plain number,
choice or text is compared by math-verify's grammar in a killable process. Policy where people differ:

* no box, no answer (`lenient=True` searches further); a truncated response has no answer;
* a list or an "or" of guesses is wrong unless the gold is a list or set; sets ignore order and repeats, tuples do not;
* exact golds need exact answers: a rounded decimal is wrong, an exact expression of equal value is right;
* an unevaluated integral, sum, limit, ... that the gold does not hold is wrong, and so is a contradiction (`41=42`);
* an unevaluated operation in the gold stands for its value, where that can be worked out within the deadline;
* the base of a number may be left out where the gold names it (its digits are compared, not its value: `2516` for
  `2516_8`, not `1358`), and may not be named where the gold has none;
* `50\\%` is right for gold 50 and for gold 0.5; units may be left out, but not contradict.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gspo.rewards import killable
from gspo.rewards.answers import find_answer, last_box
from gspo.rewards.compare import Comparer
from gspo.rewards.dialect import plain_latex, primes
from gspo.rewards.guards import too_big
from gspo.rewards.nodes import Leaf, Many, Node, Nothing, balanced, squeeze
from gspo.rewards.normalise import PLAIN, normalise
from gspo.rewards.numeric import clearly_different
from gspo.rewards.structure import read
from gspo.types import Prompt, Reward, Rollout, Verdict

KINDS = ("math",)
"""Kinds of prompts that are judged here."""
DEADLINE = 3.0
"""Seconds in workers for one answer, all its parts together."""
_OPERATIONS = r"i{0,3}int|oint|sum|prod|lim|limsup|liminf|partial|gcd|lcm|max|min|sup|inf|det|[bp]?mod|nabla|Pr"
UNEVALUATED = re.compile(
    rf"\\(?:{_OPERATIONS})(?![A-Za-z])|\\frac\{{d\}}\{{d|\\text\{{(?:gcd|lcm|max|min|mod|integral|sum|limit|derivative)\}}"
)
"""Operations that a final answer has carried out."""
WRAPPED = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{[^}]*\}")
WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
REFUSED = re.compile(
    r"(?:[Ss]ee|[Rr]efer to|[Cc]f\.?|(?:[Tt]he )?[Pp]roof|[Oo]mitted|[Tt]o be)\b[^\d=]*|[Ss]olution|[Nn]/?[Aa]|NaN|"
    r"None|null|[Uu]nknown|TB[DA]|[Aa]nswers?(?: (?:may )?var(?:y|ies))?|[-?._*\s]*"
)
"""Whole golds that stand for a missing answer."""

BROKEN = re.compile(
    r"\\(?:frac|binom)\{(?:\s*\}|[^{}]*\}\{\s*\})|\\sqrt(?:\[[^\]]*\])?\{\s*\}|(?<!\^)(?<!\^\{)(?:[-+/=^_]|\\(?:cdot|times|div|pm|cup)\s?)$"
)
"""Formulas cut short: an empty argument, an operator at the end."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `verify` says of one response."""

    verdict: Verdict
    path: str
    """exact, math-verify, no answer, truncated, size guard, unevaluated, gold refused, verifier failed."""
    reason: str
    answer: str | None = None
    """The text that was judged."""
    boxed: bool = False


class _Failed(RuntimeError):
    """The judge could not judge."""


@lru_cache(maxsize=4096)
def _gold(gold: str) -> tuple[str, Node]:
    text = normalise(gold)
    return text, read(text)


def check_gold(gold: Any) -> str | None:
    """Why a row with this gold answer must be refused; None when it can be judged.

    A look at the text, no computer algebra: a formula that is well formed and still beyond the grammar is not caught.
    It counts as a text, and so does a word: another answer than the same text is wrong, never a failure.
    """
    return _refused(gold) if isinstance(gold, str) else f"the gold answer {gold!r} is no text"


@lru_cache(maxsize=4096)
def _refused(gold: str) -> str | None:
    if PLAIN.fullmatch(gold):
        return None
    bare = gold.strip().strip("$").strip()
    if REFUSED.fullmatch(bare):
        return f"the gold answer {gold!r} is no answer"
    if not balanced(re.sub(r"\\\\|\\[{}]|[^{}]", "", gold)):
        return f"the gold answer {gold[:60]!r} cannot be read: its braces do not balance"
    text, node = _gold(gold)
    if broken := BROKEN.search(text):
        return f"the gold answer {gold[:60]!r} cannot be read: {broken.group(0).strip()!r} lacks an operand"
    if isinstance(node, Leaf) and node.value is None and not node.big and (reason := too_big(text)):
        return f"the gold answer {gold[:60]!r} is too big: {reason}"
    if isinstance(node, Nothing):
        return f"the gold answer {gold!r} cannot be read: {node.why}"
    if isinstance(node, Leaf) and node.undefined:
        return f"the gold answer {gold!r} divides by zero"
    if last_box(gold) is None and len(WORDS.findall(WRAPPED.sub("", gold))) > 8:
        return f"the gold answer {gold[:80]!r} is prose"
    return None


def _symbolic(used: list[str], workers: int) -> Any:
    """`(gold, answer) -> equal` through the workers, with one deadline for all its calls."""
    left = DEADLINE

    def equal(gold: str, answer: str) -> bool:
        nonlocal left
        if reason := too_big(answer):
            used.append(f"size guard: {reason}")
            return False
        if reason := too_big(gold):
            raise _Failed(f"the gold answer is too big: {reason}")
        if left <= 0:
            raise _Failed(f"no answer within {DEADLINE:g} s")
        right, given = primes(gold), primes(answer)
        if right is None or given is None:
            used.append("not read as mathematics")
            return False
        if clearly_different(right, given):
            return False
        request = {"gold": plain_latex(right), "answer": plain_latex(given)}
        used.append("math-verify")
        begun = time.monotonic()
        try:
            reply = killable.pool("gspo.rewards.symbolic", workers).ask(request, min(left, DEADLINE))
        except killable.WorkerFailure as error:
            raise _Failed(str(error)) from error
        finally:
            left -= time.monotonic() - begun
        if "error" in reply:
            raise _Failed(reply["error"])
        if "gold_error" in reply or "answer_error" in reply:
            used.append("not read as mathematics")
            return False
        return bool(reply["equal"])

    return equal


def _judge(gold: str, answer: str, workers: int) -> tuple[bool, str, str]:
    """(right, path, reason)."""
    gold_text, right = _gold(gold)
    given_text = normalise(answer)
    if squeeze(given_text) == squeeze(gold_text):
        return True, "exact", "the same text"
    extra = {m.group(0) for m in UNEVALUATED.finditer(given_text)} - {
        m.group(0) for m in UNEVALUATED.finditer(gold_text)
    }
    if extra:
        return False, "unevaluated", f"an unevaluated {min(extra)}"
    if len(given_text) > 4000 or (reason := too_big(given_text)):
        return False, "size guard", reason if len(given_text) <= 4000 else "the answer is too long"
    given = read(given_text)
    if isinstance(given, Nothing):
        return False, "exact", given.why
    comma = re.fullmatch(r"(-?\d+),(\d+)", squeeze(given_text))
    if comma and isinstance(given, Many) and isinstance(right, Leaf) and "." in right.text:
        given = read(f"{comma[1]}.{comma[2]}")
    used: list[str] = []
    same = Comparer(_symbolic(used, workers)).same(right, given)
    guard = next((u for u in used if u.startswith("size guard")), None)
    if guard and not same:
        return False, "size guard", guard.partition(": ")[2]
    path = "math-verify" if used else "exact"
    return same, path, "equal" if same else f"{answer.strip()[:60]!r} is not {gold.strip()[:60]!r}"


def verify(
    gold: str, response: str, *, truncated: bool = False, lenient: bool = False, workers: int = 2, opened: bool = False
) -> Judgement:
    """Judge a response against the gold answer, which may carry `$`, a box, or neither.

    `opened`: the prompt ended inside a think part. Never raises for any text; a failure of the judge is a verdict.
    """
    refused = check_gold(gold)
    if refused:
        return Judgement("verifier failed", "gold refused", refused)
    found = find_answer(response, truncated=truncated, lenient=lenient, opened=opened)
    if found.text is None:
        return Judgement("wrong", "truncated" if truncated else "no answer", found.why, None, found.boxed)
    try:
        right, path, reason = _judge(gold, found.text, workers)
    except _Failed as error:
        return Judgement("verifier failed", "verifier failed", str(error), found.text, found.boxed)
    except Exception as error:  # any other failure is the judge's own: counted, never a 0
        return Judgement(
            "verifier failed", "verifier failed", f"{type(error).__name__}: {error}"[:300], found.text, found.boxed
        )
    return Judgement("ok" if right else "wrong", path, reason, found.text, found.boxed)


def math_reward(
    prompt: Prompt, rollout: Rollout, *, lenient: bool = False, workers: int = 2, format_weight: float = 0.0
) -> Reward:
    """1 for the right answer, 0 for a wrong or missing one, plus `format_weight` for a balanced box.

    NaN where the verifier failed; `workers` processes judge what needs computer algebra.
    """
    judged = verify(
        str(prompt.reference),
        rollout.text,
        truncated=rollout.finish != "stop",
        lenient=lenient,
        workers=workers,
        opened=prompt.text.rstrip().endswith("<think>"),
    )
    if judged.verdict == "verifier failed":
        nan = float("nan")
        return Reward(
            nan, {"correct": nan, "format": float(judged.boxed)}, judged.verdict, path=judged.path, reason=judged.reason
        )
    parts = {"correct": float(judged.verdict == "ok"), "format": float(judged.boxed)}
    value = parts["correct"] + format_weight * parts["format"]
    return Reward(value, parts, judged.verdict, path=judged.path, reason=judged.reason)


def close() -> None:
    """End every worker process."""
    killable.close()


def row_problem(row: dict[str, Any]) -> str | None:
    """What is wrong with an input row of `gspo-grade reward=math`; None when nothing is."""
    for key in ("gold", "response"):
        if not isinstance(row.get(key), str):
            return f"{key}={row.get(key)!r} must be text"
    if row.get("finish", "stop") not in ("stop", "length", "abort"):
        return f"finish={row['finish']!r} must be stop, length or abort"
    return None


def grade_row(
    row: dict[str, Any], *, lenient: bool = False, workers: int = 2, format_weight: float = 0.0
) -> dict[str, Any]:
    """One row of `gspo-grade`: `id, gold, response` (and `finish`) to `id, verdict, reward, reason, path`."""
    truncated = row.get("finish", "stop") != "stop"
    judged = verify(row["gold"], row["response"], truncated=truncated, lenient=lenient, workers=workers)
    reward = float(judged.verdict == "ok") + format_weight * judged.boxed
    verdict = judged.verdict.replace(" ", "_")
    failed = judged.verdict == "verifier failed"
    return {
        "id": row["id"],
        "verdict": verdict,
        "reward": None if failed else reward,
        "reason": judged.reason,
        "path": judged.path,
    }
