"""`gspo-train trainer.devices=2`: gloo ranks on the CPU train, stop, fail and continue like one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gspo import ranks

BIN = Path(sys.executable).parent
SMALL = ["train.prompts_per_step=4", "train.group_size=4", "data.max_terms=5", "trainer.micro_batch_tokens=400",
         "tracking=jsonl", "checkpoint.every=2"]  # fmt: skip
CLOCK = ("time/", "perf/", "compute/device_seconds")
LOOSE = ("time/", "perf/", "compute/device_seconds", "compute/flops_", "mismatch/")
"""Columns that the number of ranks may change: the clock's, FLOPs (blocks are computed again), and differences of
rounding themselves."""


def train(cwd, *overrides):
    command = [BIN / "gspo-train", *SMALL, *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=500)


def rows(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(LOOSE)} for row in found]


def record(run):
    return json.loads((run / "run.json").read_text())


def contents(run):
    """What two equal runs have in common to the bit, by the name of its file; times aside."""
    found: dict[str, Any] = {}
    for name in ("metrics.jsonl", "eval.jsonl"):
        lines = map(json.loads, (run / name).read_text().splitlines())
        found[name] = [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in lines]
    for path in (*run.glob("*samples/*"), *run.glob("sequences/*"), *run.glob("checkpoints/step_000005/*")):
        if path.name not in ("manifest.json", "state.json", ".metadata"):
            found[str(path.relative_to(run))] = path.read_bytes()
    return found


def start(cwd, *overrides, rows=2):
    """Two ranks that would train for long; returns when `rows` steps are done, with the ranks' process ids in order."""
    command = [BIN / "gspo-train", *SMALL, "rollout=hf", "trainer.devices=2", "train.steps=500", *overrides]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = cwd / "run" / "metrics.jsonl"
    end = time.monotonic() + 200
    while not (metrics.exists() and metrics.read_text().count("\n") >= rows):
        assert time.monotonic() < end, process.communicate()
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, sorted(int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes())


@pytest.mark.slow
def test_two_ranks_are_one_process_and_either_continues(tmp_path):
    """Three steps on two ranks are three steps on one (rounding aside), and each continues the other's checkpoint.

    Catches samples of a rank left out, rewards or gradients counted twice, evaluation that only one rank sees, and
    checkpoints that know their number of ranks.
    """
    more = ["rollout=hf", "eval.every=2", "eval.benchmark=arithmetic", "eval.problems=6", "resume=auto"]
    for name, devices in (("one", 1), ("two", 2)):
        done = train(tmp_path, *more, f"run.dir={name}", f"trainer.devices={devices}", "train.steps=2")
        assert done.returncode == 0, done.stderr
        assert record(tmp_path / name)["ranks"] == devices
    assert (tmp_path / "two/checkpoints/step_000002/.metadata").is_file()
    assert not (tmp_path / "one/checkpoints/step_000002/.metadata").exists()
    for name, devices in (("one", 2), ("two", 1)):
        done = train(tmp_path, *more, f"run.dir={name}", f"trainer.devices={devices}", "train.steps=3")
        assert done.returncode == 0, done.stderr
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert [row["step"] for row in one] == [row["step"] for row in two] == [0, 1, 2]
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-7)
        assert a["reward/mean"] == b["reward/mean"]
    evals = [(tmp_path / name / "eval.jsonl").read_text().splitlines() for name in ("one", "two")]
    assert [json.loads(x)["avg_at_k"] for x in evals[0]] == [json.loads(x)["avg_at_k"] for x in evals[1]]


@pytest.mark.slow
def test_two_ranks_killed_and_resumed_are_two_ranks_left_alone(tmp_path):
    """SIGKILL to the launcher and both ranks after the third row, resumed on two ranks: rows, evaluations, samples,
    sequences and the last checkpoint's shards, moments and generators are those of the run left alone, to the bit.

    Catches a rank that restores another rank's generators or shards, rows written twice, and moments that are lost.
    """
    more = ["rollout=hf", "trainer.devices=2", "train.steps=5", "optim.schedule=cosine", "optim.warmup_steps=4"]
    more += ["train.routing_replay=old", "eval.every=2", "eval.benchmark=arithmetic", "eval.problems=4"]
    done = train(tmp_path, *more, "run.dir=straight")
    assert done.returncode == 0, done.stderr
    process, found = start(tmp_path, *more, "run.dir=run", rows=3)
    for victim in (process.pid, *found):
        os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)
    assert record(tmp_path / "run")["status"] == "running"
    again = train(tmp_path, *more, "run.dir=run", "resume=auto")
    assert again.returncode == 0, again.stderr
    assert [one["status"] for one in record(tmp_path / "run")["sessions"]] == ["lost", "finished"]
    assert record(tmp_path / "run")["from_step"] in (2, 4)
    left, resumed = (contents(tmp_path / name) for name in ("straight", "run"))
    assert left.keys() == resumed.keys()
    assert [name for name in left if left[name] != resumed[name]] == []
    assert len(left["metrics.jsonl"]) == 5
    assert {Path(name).suffix for name in left if "step_000005/" in name} >= {".distcp", ".safetensors"}


@pytest.mark.slow
def test_two_ranks_with_vllm(tmp_path):
    """Each rank hosts an engine of its own beside the process group; both reach the last step and agree with it."""
    done = train(tmp_path, "trainer.devices=2", "train.steps=3", "run.dir=run")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 3
    assert all(row["mismatch/token_abs_mean"] < 1e-5 for row in found)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_with_the_reason(tmp_path):
    """SIGKILL to rank 1: exit code 1, run.json says failed and which rank, and the run can be continued."""
    process, found = start(tmp_path, "run.dir=run")
    os.kill(found[1], signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rank 1: ended by SIGKILL" in said
    assert len(said.strip().splitlines()) == 1
    assert record(tmp_path / "run")["status"] == "failed"
    assert "rank 1: ended by SIGKILL" in record(tmp_path / "run")["reason"]
    steps = len(rows(tmp_path / "run"))
    again = train(tmp_path, "rollout=hf", "trainer.devices=2", f"train.steps={steps + 1}", "run.dir=run", "resume=auto")
    assert again.returncode == 0, again.stderr
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(steps + 1))


@pytest.mark.slow
def test_ranks_do_not_outlive_their_launcher(tmp_path):
    """SIGKILL to the launcher alone: the ranks finish their step with a checkpoint, run.json says so, and no process is
    left that would hold memory or the directory."""
    process, found = start(tmp_path, "run.dir=run")
    process.kill()
    end = time.monotonic() + 100
    while any(Path(f"/proc/{one}").exists() for one in found):
        assert time.monotonic() < end, found
        time.sleep(0.2)
    process.communicate(timeout=60)
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["reason"][:19]) == (
        "interrupted",
        "Interrupted: SIGINT",
    )
    assert (tmp_path / "run" / "checkpoints" / f"step_{len(rows(tmp_path / 'run')):06d}" / ".metadata").is_file()


@pytest.mark.slow
def test_a_signal_finishes_the_step_on_every_rank(tmp_path):
    """SIGTERM: both ranks leave after the same step with a checkpoint; exit code 143, status interrupted."""
    process, _ = start(tmp_path, "run.dir=run")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "interrupted: SIGTERM after step" in said
    assert record(tmp_path / "run")["status"] == "interrupted"
    assert (tmp_path / "run" / "checkpoints" / f"step_{len(rows(tmp_path / 'run')):06d}" / ".metadata").is_file()


def test_what_two_ranks_are_refused(tmp_path):
    """What is wrong before the start is one line and exit code 2, and nothing is created, whoever finds it."""
    done = train(tmp_path, "trainer.devices=2", "algo=rloo", "clip=none", "reward=steps", "run.dir=run", "rollout=hf")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "run").exists()


def test_torchrun_decides_the_number(monkeypatch):
    """Inside a rank none is started; trainer.devices must not contradict torchrun."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert ranks.to_start(None) == ranks.to_start(2) == 1
    with pytest.raises(ValueError, match=r"trainer\.devices=3: torchrun started 2 ranks on this node"):
        ranks.to_start(3)
