"""A training step by phase, on fixed work, alone or in turns with other trainers on the same work.

The work: 64 prompts such as `37+85=?` times 8 responses of up to 64 tokens, 4 mini-batches, a random Qwen3-MoE of the
size of `qwen3_moe_tiny` (1.8 M parameters, 16 experts of which 4 are active), the share of digits as the reward.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gspo.types import Prompt, Reward, Rollout

Row = dict[str, Any]
PHASES = ("rollout", "reward", "old_logp", "update", "sync")


def digit_share(prompt: Prompt, rollout: Rollout) -> Reward:
    """The share of digits in the response: a reward that costs nothing and differs within a group."""
    share = sum(c.isdigit() for c in rollout.text) / max(1, len(rollout.text))
    return Reward(share, {"correct": share}, "ok")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=5, help="a round; the first warms up and does not count")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of all arms in turn")
    parser.add_argument(
        "--arm", action="append", default=[], metavar="OVERRIDES", help="gspo once more with these overrides"
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="COMMAND",
        help="another trainer on the same work, which prints `wall SECONDS` once a step",
    )


def step(options: argparse.Namespace) -> list[Row]:
    """Median seconds a step and by phase of each arm, and the median over rounds of its ratio to the last `--against`.

    `overhead` is the share of the step outside generation, log-probs and updates: rewards, weight sync, records.
    """
    arms = ["", *options.arm]
    with tempfile.TemporaryDirectory(prefix="gspo-bench-") as folder:
        work = Path(folder)
        write_work(work, prompts=64)
        found: dict[str, list[list[Row]]] = {name: [] for name in (*arms, *options.against)}
        for number in range(options.rounds):
            for arm in arms:
                found[arm].append(ours(work, shlex.split(arm), options.steps, f"{arms.index(arm)}-{number}"))
            for command in options.against:
                found[command].append(others(command))
    yardstick = [median(rounds, "step") for rounds in found[options.against[-1]]] if options.against else None
    rows = []
    for name, rounds in found.items():
        kept = [row for steps in rounds for row in steps]
        row: Row = {"arm": f"gspo {name}".strip() if name in arms else Path(shlex.split(name)[1]).name}
        row["step s"] = round(median(kept, "step"), 2)
        row |= {phase: round(median(kept, phase), 3) if phase in kept[0] else "" for phase in PHASES}
        row["overhead"] = f"{overhead(kept):.1%}" if "rollout" in kept[0] else ""
        if yardstick:
            pairs = zip(rounds, yardstick, strict=True)
            row["time ratio"] = round(statistics.median(median(one, "step") / base for one, base in pairs), 3)
        rows.append(row)
    return rows


def write_work(work: Path, *, prompts: int) -> None:
    """The random model and the prompts, in `work`."""
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from gspo.config import conf_dir
    from gspo.pretrained import character_tokenizer

    logging.disable_progress_bar()
    torch.manual_seed(0)
    tokenizer: Any = character_tokenizer()
    settings: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "model" / "qwen3_moe_tiny.yaml"))
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings["model"]["init"], **ids))
    for name, value in ids.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(work / "model")
    tokenizer.save_pretrained(work / "model")
    draw = random.Random(0)
    lines = [f"{draw.randint(10, 99)}+{draw.randint(10, 99)}=?" for _ in range(8 * prompts)]
    rows = [{"id": str(i), "prompt": line, "answer": str(i)} for i, line in enumerate(lines)]
    (work / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours(work: Path, overrides: list[str], steps: int, name: str) -> list[Row]:
    """Seconds by phase of each step but the first, from the metrics of a `gspo-train` in a process of its own."""
    command = [
        Path(sys.executable).parent / "gspo-train", f"model.path={work / 'model'}", "data=files",
        f"data.path={work / 'prompts.jsonl'}", "data.template='{prompt}'",
        "reward=format", "reward._target_=bench_step.digit_share",
        "model.context=256", "sampling.max_tokens=64", "train.prompts_per_step=64", "train.group_size=8",
        "train.minibatches=4", f"train.steps={steps}", "optim.lr=1e-3", "tracking=jsonl", f"run.dir={work / name}",
        *overrides,
    ]  # fmt: skip
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gspo-train {' '.join(overrides)}: exit code {done.returncode}: {done.stderr.strip()}")
    rows = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return [{phase: row[f"time/{phase}_s"] for phase in ("step", *PHASES)} for row in rows[1:]]


def others(command: str) -> list[Row]:
    """Seconds of each step but the first, from what another trainer prints."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    walls = [float(wall) for wall in re.findall(r"\bwall ([\d.]+)", done.stdout)]
    if done.returncode or len(walls) < 2:
        raise SystemExit(f"{command}: exit code {done.returncode}, {len(walls)} steps: {done.stderr.strip()[-500:]}")
    return [{"step": wall} for wall in walls[1:]]


def median(rows: list[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def overhead(rows: list[Row]) -> float:
    """Median share of a step that is neither generation, nor log-probs, nor update."""
    return statistics.median(1 - (row["rollout"] + row["old_logp"] + row["update"]) / row["step"] for row in rows)
