"""Which runs are compared with which: the swept keys, the arm of each run, and what else differs.

An arm is what the sweep set on purpose: override keys that every run carries with more than one value, the seed aside
(without overrides: the algorithm and its clip range). Any other key of config.yaml, version, commit or data hash
that differs is a finding, unless a swept choice of a configuration group explains it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gspo.report.collect import Run, flatten

NOT_COMPARED = ("seed", "run.", "resume", "debug", "tracking.", "checkpoint.", "sweep.", "hydra.", "plan.")
"""Keys of config.yaml that do not change what is learned."""
RECORDED = ("git.commit", "git.dirty", "versions.", "device", "data")
"""Parts of run.json that comparable runs share."""
EXPLAINS = {
    "algo": ("algo.", "clip."),
    "arm": ("algo.", "clip.", "reward.", "train.routing_replay"),
    "model": ("model.", "data.", "reward.", "optim.lr", "sampling.max_tokens", "train.prompts_per_step",
              "train.group_size", "trainer.micro_batch_tokens"),
}  # fmt: skip
"""What a group's file may set besides its own node."""
FALLBACK = ("algo.name", "clip.low", "clip.high")
FIRST = ("arm", "algo", "algo.name")
MISSING = "(not set)"


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that compared runs disagree on and the sweep does not explain."""

    key: str
    values: dict[str, int]
    """Value -> number of runs."""
    inside: bool
    """True: it differs within an arm; False: only between arms."""


def overrides(run: Run) -> dict[str, str]:
    """The run's overrides as key -> text; `+key=1`, `++key=1` and `key@pkg=1` lose their signs."""
    found: dict[str, str] = {}
    for item in run.record.get("overrides") or []:
        key, equals, value = str(item).partition("=")
        if equals and not key.startswith("~"):
            found[key.lstrip("+").partition("@")[0].replace("/", ".")] = value.strip("'\"")
    return found


def swept_keys(runs: Sequence[Run], by: Sequence[str] = ()) -> list[str]:
    """The keys that make the arms, the algorithm first. Raises ValueError for a key in `by` that no run has."""
    if by:
        for key in by:
            if not any(key in overrides(run) or key in run.config for run in runs):
                raise ValueError(f"--by {key}: no run has this key; for example {sorted(runs[0].config)[:8]}")
        return list(by)
    tables = [overrides(run) for run in runs]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    varied = [key for key in shared if len({table[key] for table in tables}) > 1]
    swept = [key for key in varied if not key.startswith(NOT_COMPARED)]
    if not any(tables):
        swept = [key for key in FALLBACK if len({str(run.config.get(key)) for run in runs}) > 1]
        swept = ["algo.name"] if "algo.name" in swept and _follows(runs, swept) else swept
    return sorted(swept, key=lambda key: (key not in FIRST, key))


def _follows(runs: Sequence[Run], keys: Sequence[str]) -> bool:
    """Does the algorithm's name fix the other keys?"""
    names = {run.config.get("algo.name") for run in runs}
    return len(names) == len({tuple(str(run.config.get(key)) for key in keys) for run in runs})


def value_of(run: Run, key: str) -> Any:
    """What the run has under a swept key: its configuration where the key is one, else its override."""
    return run.config[key] if key in run.config else overrides(run).get(key, MISSING)


def assign(runs: Sequence[Run], swept: Sequence[str]) -> list[str]:
    """Set every run's arm, and return the arms in order (numbers by size)."""
    order: dict[str, tuple[Any, ...]] = {}
    for run in runs:
        values = [(key, value_of(run, key)) for key in swept]
        named = any(key in FIRST for key in swept)
        parts = [] if named else [str(run.config.get("algo.name", "runs"))]
        parts += _labels(values)
        run.arm = ", ".join(parts)
        order[run.arm] = tuple(_natural(value) for _, value in values)
    return sorted(order, key=lambda arm: order[arm])


def _labels(values: Sequence[tuple[str, Any]]) -> list[str]:
    """The parts of an arm's name: the algorithm bare, a clip range as `clip 0.2/0.27`, other keys as `lr=0.001`."""
    table = dict(values)
    whole = {"clip.low", "clip.high"} <= set(table)
    labels: list[str] = []
    for key, value in values:
        if whole and key == "clip.high":
            low, high = table["clip.low"], table["clip.high"]
            labels.append("no clip" if low is None and high is None else f"clip {_text(low)}/{_text(high)}")
        elif not (whole and key == "clip.low"):
            labels.append(str(value) if key in FIRST else f"{_short(key)}={_text(value)}")
    return labels


def _short(key: str) -> str:
    """`optim.lr` loses its group; keys that would be vague without it do not."""
    return key if key.startswith(("clip.", "model", "data")) else key.rpartition(".")[2]


def _text(value: Any) -> str:
    """A value in an arm's name; numbers that only an override knows are shortened too."""
    try:
        return "none" if value in (None, "null") else f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def _natural(value: Any) -> tuple[Any, ...]:
    """A sort key that puts numbers by size, before words; digits inside words count as numbers."""
    try:
        return (0, float(value), "")
    except (TypeError, ValueError):
        words = re.split(r"(\d+)", str(value))
        return (1, 0.0, "".join(w.zfill(12) if w.isdigit() else w for w in words))


def differences(runs: Sequence[Run], swept: Sequence[str]) -> list[Difference]:
    """Everything in which the runs differ besides the seed and what was swept, the worst (inside an arm) first."""
    if not runs:
        return []
    tables = [_comparable(run) for run in runs]
    explained = tuple(prefix for key in swept for prefix in (f"{key}.", *EXPLAINS.get(key, ())))
    if any(key in FALLBACK for key in swept):
        explained += EXPLAINS["algo"]
    found: list[Difference] = []
    for key in sorted(set().union(*tables)):
        values = [str(table.get(key, MISSING)) for table in tables]
        if len(set(values)) == 1 or key in swept or _is_seed(key, runs, values):
            continue
        by_arm: dict[str, set[str]] = {}
        for run, value in zip(runs, values, strict=True):
            by_arm.setdefault(run.arm, set()).add(value)
        inside = any(len(group) > 1 for group in by_arm.values())
        if inside or not key.startswith(explained):
            found.append(Difference(key, {v: values.count(v) for v in sorted(set(values))}, inside))
    return sorted(found, key=lambda d: (not d.inside, d.key))


def _comparable(run: Run) -> Mapping[str, Any]:
    """The configuration and the recorded facts that two compared runs should share."""
    config = {key: value for key, value in run.config.items() if not key.startswith(NOT_COMPARED)}
    return config | {key: value for key, value in flatten(run.record).items() if key.startswith(RECORDED)}


def _is_seed(key: str, runs: Sequence[Run], values: Sequence[str]) -> bool:
    """A key that only repeats the seed, or the recorded hash of data that were generated from it: as many values as
    seeds, one to each (files that were changed between runs do not follow the seeds)."""
    if all(str(run.seed) == value for run, value in zip(runs, values, strict=True)):
        return True
    pairs = {(run.seed, value) for run, value in zip(runs, values, strict=True)}
    one_to_one = len(pairs) == len({run.seed for run in runs}) == len(set(values))
    return one_to_one and key.startswith("data.") and not any(key in run.config for run in runs)
