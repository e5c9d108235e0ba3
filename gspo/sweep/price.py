"""What a sweep will need: the price of one job of each arm, by the plan of a single run, times the number of jobs."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import open_dict

from gspo.config import to_plain
from gspo.plan import gib, plan
from gspo.preflight import Finding
from gspo.sweep.expand import expand


@dataclass(frozen=True, slots=True)
class Arm:
    """Jobs that differ in their seed only."""

    name: str
    jobs: int
    steps: int
    flops: float
    """Of one job."""
    seconds: float
    """Of one job, estimated."""
    memory: int
    """Bytes of one device at the fullest moment."""


@dataclass(frozen=True, slots=True)
class Price:
    name: str
    """The sweep's."""
    arms: list[Arm]
    at_once: int
    findings: list[Finding]


def price(arguments: Sequence[str]) -> Price | None:
    """The price of the sweep that a command line stands for; None when it stands for none.

    The seed changes no price: each arm is planned once. Raises Hydra's errors, and ValueError as `plan` does.
    """
    sweep = expand("train", arguments, drop=("seed",))
    if sweep is None:
        return None
    arms, findings = [], []
    for config in sweep.configs:
        name = config.hydra.job.override_dirname or "one arm"
        with open_dict(config):
            del config["hydra"]
        plain: dict[str, Any] = to_plain(config)
        found = plan(plain)
        findings += found.findings
        steps, numbers = plain["train"]["steps"], found.numbers
        memory = max(value for key, value in numbers.items() if key.startswith("memory/at "))
        costs = (steps * numbers["flops/total"], steps * numbers["seconds/total"], int(memory))
        arms.append(Arm(name, sweep.repeats, steps, *costs))
    return Price(sweep.name, arms, sweep.at_once, findings)


def render(found: Price, width: int = 160) -> str:
    """The price as plain text: a row an arm, the sum below, then the findings, each once."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False)
    table = Table(title=f"the sweep {found.name}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    for name in ("jobs", "steps each", "memory each", "FLOPs each", "time each", "FLOPs", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in found.arms:
        each = (f"{arm.steps:,}", gib(arm.memory), f"{arm.flops:.3e}", hours(arm.seconds))
        table.add_row(arm.name, str(arm.jobs), *each, f"{arm.jobs * arm.flops:.3e}", hours(arm.jobs * arm.seconds))
    jobs = sum(arm.jobs for arm in found.arms)
    flops, seconds = (sum(a.jobs * x for a, x in zip(found.arms, xs, strict=True)) for xs in _columns(found.arms))
    table.add_row("= in all", str(jobs), "", "", "", "", f"{flops:.3e}", hours(seconds))
    console.print(table)
    console.print(
        f"\none after another; {found.at_once} at a time (sweep.workers): {hours(seconds / found.at_once)} at best"
    )
    console.print(
        "without rewards, weight sync, evaluation and each job's start; `gspo-plan` of a single arm shows the sums"
    )
    for text, count in Counter(f"{f.level}: {f.text}" for f in found.findings).items():
        console.print(f"{text} ({count} of {len(found.arms)} arms)", soft_wrap=True)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _columns(arms: Sequence[Arm]) -> tuple[list[float], list[float]]:
    return [arm.flops for arm in arms], [arm.seconds for arm in arms]


def hours(seconds: float) -> str:
    """Seconds for people: hours, minutes under two hours, seconds under two minutes."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
