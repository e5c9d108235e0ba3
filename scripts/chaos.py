"""Kills a tiny run again and again with SIGKILL, resumes it each time, and compares it with a run left alone.

    .venv/bin/python scripts/chaos.py --kills 10 [--rollout hf|vllm] [--seed 0] [--out DIR] [OVERRIDE ...]

A kill falls at a random moment of the whole attempt, or a short random time after the attempt enters one of PHASES for
the n-th time. Attempts are children forked from a process that has imported torch, so that one costs a second; each
runs the `gspo-train` command itself. A run is killed up to five times and then finished; then the rows of metrics.jsonl
and eval.jsonl, sequences/, samples of both, the final weights, optimiser and generators must equal, to the bit and
times aside, those of the run left alone, and the W&B directory must hold each row once under the run's first id.
Exit code 0 when they do.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from wandb_file import mirrored

STEPS = 8
TIMES = ("time/", "perf/", "compute/device_seconds")
PHASES = {
    "start": ("material.py", "material", 1),
    "restore": ("parts.py", "Parts.restore", 1),
    "cut": ("run_dir.py", "RunDir.truncate", 1),
    "evaluate": ("train.py", "held_out", 4),
    "generate": ("train.py", "step", 6),
    "reward": ("score.py", "score", 6),
    "update": ("learner.py", "Learner.update", 24),
    "sync": ("learner.py", "Learner.weights", 9),
    "sequences": ("run_dir.py", "RunDir.sequences", 6),
    "row": ("run_dir.py", "RunDir.metrics", 6),
    "mirror": ("wandb_mirror.py", "Mirror.log", 9),
    "save": ("checkpoint.py", "save", 3),
    "flush": ("files.py", "flush_file", 40),
    "delete": ("checkpoint.py", "keep", 3),
    "end": ("run_dir.py", "RunDir.finish", 1),
}
"""Name -> end of the file's name and qualified name of the function that opens the phase, and up to which of the times
that an attempt enters it a kill may fall."""


def settings(rollout: str, tasks: Path) -> list[str]:
    """Overrides of a run of seconds: warm-up and schedule, replayed routes, a query set that changes to a finite one of
    5 problems (so that epochs end inside steps), an evaluation and a checkpoint every 2 steps."""
    stages = f"[{{step: 3, _target_: gspo.data.files, path: {tasks}, template: '{{prompt}}', kind: math}}]"
    return [
        f"rollout={rollout}", f"train.steps={STEPS}", "train.prompts_per_step=4", "train.group_size=4",
        "train.routing_replay=old", "data.max_terms=5", f"+data.stages={stages}",
        "trainer.micro_batch_tokens=400", "optim.schedule=cosine", "optim.warmup_steps=3", "checkpoint.every=2",
        "eval.every=2", "eval.benchmark=arithmetic", "eval.problems=4", "eval.k=2", "tracking=wandb_offline",
    ]  # fmt: skip


def attempt(command: list[str], log: Path, phase: str | None, nth: int, wait: float) -> int | None:
    """Run `gspo-train` in a forked child and kill it; its exit code, or None when it was killed.

    `phase` None: `wait` seconds after its start; else `wait` seconds after the phase is entered for the `nth` time.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _command(command, log, phase, nth, writer)
    os.close(writer)
    if phase is not None:
        os.read(reader, 1)  # a byte when the phase is entered, nothing when the child ends
    select.select([reader], [], [], wait)  # readable again when the child ends
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reader)
    return None if status == -signal.SIGKILL else status


def _command(command: list[str], log: Path, phase: str | None, nth: int, writer: int) -> None:
    """The child: `gspo-train` with its output in `log`; a byte into `writer` at the moment that was asked for."""
    code = 70
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives this script
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["gspo-train", *command]
        if phase is not None:
            sys.setprofile(_watch(*PHASES[phase][:2], nth, writer))
        from gspo.cli import train

        train()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(file: str, function: str, nth: int, writer: int) -> Any:
    """A profile function that writes a byte when the function is entered for the `nth` time, and then goes away."""
    left = nth

    def hook(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event == "call" and code.co_qualname == function and code.co_filename.endswith(f"/{file}"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                os.write(writer, b"!")

    return hook


def rows(path: Path) -> list[dict[str, Any]]:
    """A JSONL file without the columns that depend on the clock."""
    lines = path.read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(TIMES)} for line in lines]


def contents(run: Path) -> dict[str, Any]:
    """Everything that two equal runs must have in common, by the name of its file."""
    import pyarrow.parquet as pq

    found: dict[str, Any] = {name: rows(run / name) for name in ("metrics.jsonl", "eval.jsonl")}
    for path in (*(run / "samples").iterdir(), *(run / "eval_samples").iterdir()):
        found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    for path in sorted((run / "sequences").iterdir()):
        table = pq.read_table(path)
        found[f"sequences/{path.name}"] = (repr(table.to_pydict()), table.schema.metadata, str(table.schema))
    for path in sorted((run / "checkpoints" / f"step_{STEPS:06d}").glob("*.safetensors")):
        found[f"final {path.name}"] = path.read_bytes()
    return found


def differences(run: Path, straight: Path, first_id: str) -> list[str]:
    """What differs between a run that was killed and one that was not, and what is wrong with its W&B directory."""
    a, b = contents(run), contents(straight)
    wrong = [f"{name}: {'differs' if name in a and name in b else 'is in one only'}"
             for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]  # fmt: skip
    if (steps := [row["step"] for row in a["metrics.jsonl"]]) != list(range(STEPS)):
        wrong.append(f"metrics.jsonl: steps {steps}")
    record = json.loads((run / "run.json").read_bytes())
    if record["status"] != "finished":
        wrong.append(f"run.json: status {record['status']}")
    said, table = mirrored(run)
    if not said.run_id == record["wandb_id"] == first_id:
        wrong.append(f"W&B: id {said.run_id}, not {first_id}")
    expected: dict[int, dict[str, Any]] = {}
    for name in ("eval.jsonl", "metrics.jsonl"):
        for row in map(json.loads, (run / name).read_text().splitlines()):
            numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "step"}
            expected[row["step"]] = expected.get(row["step"], {}) | numbers
    if table != expected:
        wrong.append(f"W&B: steps {sorted(table)}, or their values, are not those of the files")
    litter = [path.name for path in (*run.iterdir(), *(run / "checkpoints").iterdir()) if path.name.endswith(".tmp")]
    return wrong + [f"litter: {name}" for name in litter]


def chaos(out: Path, rollout: str, kills: int, seed: int, more: list[str]) -> list[str]:
    """Kill `kills` times; returns what was wrong, of all runs. Says each run in one line."""
    tasks = out / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"{n}+4-{n}+1=", "answer": "5"}) + "\n" for n in range(5)))
    command = [*settings(rollout, tasks), *more]
    begun = time.monotonic()
    code = attempt([*command, f"run.dir={out / 'straight'}"], out / "straight.log", None, 0, 3600)
    if code != 0:
        raise SystemExit(f"the run left alone ended with code {code}: {(out / 'straight.log').read_text()[-2000:]}")
    length = time.monotonic() - begun
    draw, done, wrong = random.Random(seed), 0, []
    where: collections.Counter[str] = collections.Counter()
    for number in range(10 * kills):
        run, log = out / f"run{number}", out / f"run{number}.log"
        left, first_id, code = min(draw.randint(1, 5), kills - done), "", None
        while code is None:
            begun_before = any((run / "checkpoints").glob("step_*"))
            phases = [name for name in PHASES if begun_before or name not in ("restore", "cut")]
            phase = draw.choice([None, None, None, *phases]) if left else None
            wait = draw.uniform(0, length) if phase is None else draw.choice((0, 1)) * draw.uniform(0, 0.2)
            nth = draw.randint(1, PHASES[phase][2]) if phase else 0
            code = attempt([*command, f"run.dir={run}", "resume=auto"], log, phase, nth, wait if left else 3600)
            if code is None:
                left, done = left - 1, done + 1
                where[phase or "any moment"] += 1
            if not first_id and (run / "run.json").exists():
                first_id = json.loads((run / "run.json").read_bytes())["wandb_id"]
        found = [f"{run.name}: exit code {code}"] if code else differences(run, out / "straight", first_id)
        wrong += [f"{run.name}: {one}" for one in found]
        print(f"{run.name}: {done} of {kills} kills so far, {'; '.join(found) or 'same to the bit'}", flush=True)
        if done >= kills:
            break
    print(f"{done} kills ({', '.join(f'{name} {count}' for name, count in sorted(where.items()))})")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rollout", choices=("hf", "vllm"), default="hf")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="where the runs go, a new directory; default: a temporary one")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}
    import gspo.launch
    import gspo.parts
    import gspo.train  # noqa: F401 (children are forked from here)

    with tempfile.TemporaryDirectory() as scratch:
        out = (args.out or Path(scratch)).resolve()
        out.mkdir(parents=True, exist_ok=args.out is None)
        wrong = chaos(out, args.rollout, args.kills, args.seed, args.overrides)
    print("\n".join(wrong) or "every run is the run left alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
