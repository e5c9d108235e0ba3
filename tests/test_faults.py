"""What breaks while a run is going, and what is left of it: every ending is on record, and nothing sound is lost."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import command, finish, start
from test_train import SMALL, rows, wait_for

from gspo import checkpoint, faults, messages
from gspo.parallel import World
from gspo.report.collapse import STOPPED
from gspo.report.collect import read_run
from gspo.restart import EngineFailed, Restarting
from gspo.tracking import files

ROOT = Path(__file__).parent.parent
GSPO_TRAIN = Path(sys.executable).parent / "gspo-train"
TINY = [*SMALL, "rollout=hf", "run.dir=run"]


def known(run):
    return json.loads((run / "run.json").read_text())


def module(folder, text):
    """A module of the user's own, importable by the commands that are started in `folder`."""
    (folder / "mine.py").write_text(text)
    return lambda: sys.path.insert(0, str(folder))


BAD_OBJECTIVE = """
import torch
from gspo.algorithms.objectives import gspo

calls = 0
def broken(logp, old_logp, adv, mask, *, clip_low, clip_high, bad: list):
    \"\"\"GSPO, but some calls give a NaN.

    J = 1/N sum_i min( s_i A_i, clip(s_i, 1-eL, 1+eR) A_i )
    \"\"\"
    global calls
    terms = gspo(logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high)
    if logp.requires_grad:
        calls += 1
        if calls - 1 in bad:
            terms.value = terms.value * float("nan")
    return terms
"""


def test_an_update_that_is_not_finite_is_skipped_and_told(tmp_path):
    """A NaN in the second update of four: it is skipped, its prompts, loss and gradient norm are in the row and in the
    log, the other updates count and the run ends well."""
    done = command(
        tmp_path, *TINY, "train.steps=2", "algo.objective._target_=mine.broken", "+algo.objective.bad=[1]",
        "trainer.micro_batch_tokens=4000", before=module(tmp_path, BAD_OBJECTIVE),
    )  # fmt: skip
    assert done.code == 0, done.err
    first, second = rows(tmp_path / "run")
    (said,) = first["optim/skipped_updates"]
    assert (first["optim/skipped"], said["minibatch"], said["loss"]) == (1, 1, "nan")
    assert set(said["prompts"]) < {f"arithmetic-{n}" for n in range(4)}
    assert (second["optim/skipped"], second.get("optim/skipped_updates")) == (0, None)
    words = f"skipped: loss nan, gradient norm {said['grad_norm']}, prompts {said['prompts'][0]}"
    assert f"step 0, update 1: not finite, {words}" in (tmp_path / "run" / "log.txt").read_text()
    assert known(tmp_path / "run")["status"] == "finished"


def test_too_many_skipped_updates_end_the_run_with_a_sound_checkpoint(tmp_path):
    """Three in a row across a step's end: the reason counts them and names the prompts, the row of the step is there, a
    checkpoint of it is sound and finite, and the exit code is 1."""
    done = command(
        tmp_path, *TINY, "train.steps=9", "algo.objective._target_=mine.broken", "+algo.objective.bad=[1,3,4,5]",
        "trainer.micro_batch_tokens=4000", before=module(tmp_path, BAD_OBJECTIVE),
    )  # fmt: skip
    run = tmp_path / "run"
    assert done.code == 1
    assert "TrainingStopped: 3 updates in a row were skipped, the last at step 1 (loss nan" in done.err
    assert len(done.err.strip().splitlines()) <= 2
    assert (known(run)["status"], len(rows(run))) == ("failed", 2)
    assert "3 updates in a row" in known(run)["reason"]
    tensors, state = checkpoint.load(run / "checkpoints" / "step_000002")
    assert state["skipped"] == 0  # updates 6 and 7, the last of the step, were finite
    assert all(bool(weight.isfinite().all()) for weight in tensors["model"].values())


def test_weights_that_are_not_finite_are_never_saved():
    """One infinite weight among many: the run ends, and the reason is one that reports count as a collapse."""
    model = torch.nn.Linear(3, 3)
    parts: Any = SimpleNamespace(learner=SimpleNamespace(model=model))
    faults.require_finite(parts, 4)
    with torch.no_grad():
        model.bias[1] = float("inf")
    with pytest.raises(faults.TrainingStopped, match="non-finite weights after step 4: bias and 0 more") as caught:
        faults.require_finite(parts, 4)
    assert STOPPED.search(str(caught.value))


BROKEN_ENGINE = """
from gspo.rollout.hf import HfEngine, check  # noqa

class Broken(HfEngine):
    made, asked = 0, 0

    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        Broken.made += 1

    def generate(self, prompts, group_size, *, seed, step):
        import os
        Broken.asked += 1
        if step == 1 and Broken.made <= int(os.environ["BREAK"]):
            raise RuntimeError("the worker died")
        return super().generate(prompts, group_size, seed=seed, step=step)
"""


def test_a_broken_engine_is_started_anew_once(tmp_path, monkeypatch):
    """The engine raises in step 1: a new one redoes the step with the same seeds and weights, so that the rows are
    those of a run without the fault; when the new one breaks too the run ends with both reasons and exit code 1."""
    begin = module(tmp_path, BROKEN_ENGINE)
    for times, name in ((0, "whole"), (1, "once"), (2, "twice")):
        monkeypatch.setenv("BREAK", str(times))
        overrides = [*SMALL, "rollout._target_=mine.Broken", "train.steps=3", f"run.dir={name}"]
        done = command(tmp_path, *overrides, before=begin)
        assert done.code == (times == 2), done.err
    assert rows(tmp_path / "once") == rows(tmp_path / "whole")
    assert (
        "the rollout engine failed in step 1 (RuntimeError: the worker died)"
        in (tmp_path / "once" / "log.txt").read_text()
    )
    reason = known(tmp_path / "twice")["reason"]
    assert "EngineFailed: the rollout engine failed: RuntimeError: the worker died; and again after" in reason
    assert reason.split(": ", 1)[1] in done.err
    assert len(rows(tmp_path / "twice")) == 1


def test_a_run_whose_checkpoints_are_gone_is_not_started_over(tmp_path):
    """A step and its checkpoint; without it `resume=auto` is refused and nothing is touched. A run that was
    killed before its first one starts over, and says so."""
    assert command(tmp_path, *TINY, "train.steps=1").code == 0
    run, more = tmp_path / "run", [*TINY, "train.steps=2", "resume=auto"]
    assert known(run)["checkpoint"] == 1
    shutil.rmtree(run / "checkpoints")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = command(tmp_path, *more)
    assert (done.code, done.out) == (2, "")
    assert "run: wrote a checkpoint at step 1 and run/checkpoints holds none; it is left as it is" in done.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    old = known(run)
    del old["checkpoint"]
    lost = {"status": "running", "ended": None}
    (run / "run.json").write_text(json.dumps(old | lost | {"sessions": [old["sessions"][0] | lost]}))
    done = command(tmp_path, *more)
    assert done.code == 0, done.err
    assert "no checkpoint was written, though step 0 ended; it starts over" in done.err
    assert "it starts over" in (run / "log.txt").read_text()
    assert [row["step"] for row in rows(run)] == [0, 1]


def test_a_run_killed_while_it_deletes_after_its_last_step(tmp_path):
    """SIGKILL in the deletion that follows the last save: the run is resumed, has no step left, and leaves what a run
    left alone does, one checkpoint and nothing beside it."""
    more = [*TINY, "train.steps=2", "checkpoint.every=1", "checkpoint.keep_last=1"]

    def kill_in_delete():
        really = shutil.rmtree

        def rmtree(path, *args, **more):
            if str(path).endswith(".old.tmp"):
                (path / "manifest.json").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return really(path, *args, **more)

        shutil.rmtree = rmtree

    assert command(tmp_path, *more, before=kill_in_delete).code == -signal.SIGKILL
    stored = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in stored.iterdir()) == [".step_000001.old.tmp", "step_000002"]
    assert command(tmp_path, *more, "resume=auto").code == 0
    assert [path.name for path in stored.iterdir()] == ["step_000002"]
    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1]


@pytest.mark.slow
def test_a_rollout_worker_that_is_killed_is_replaced(tmp_path):
    """SIGKILL to one of two workers after the second row: both are started anew with the present weights, the step is
    redone with the same seeds, and the rows are those of the run that was left alone; nothing outlives the run."""
    more = [*SMALL, "rollout=hf", "rollout.workers=2", "train.steps=8"]
    straight = subprocess.run([GSPO_TRAIN, *more, "run.dir=whole"], cwd=tmp_path, capture_output=True, text=True)
    assert straight.returncode == 0, straight.stderr
    process = subprocess.Popen([GSPO_TRAIN, *more, "run.dir=run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (path := tmp_path / "run" / "metrics.jsonl").exists() and path.read_bytes().count(b"\n") >= 2, 300)
    first = workers_of(process.pid)
    assert len(first) == 1
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: process.poll() is not None or workers_of(process.pid) not in ([], first), 100)
    second = workers_of(process.pid)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    logged = (tmp_path / "run" / "log.txt").read_text()
    told = r"the rollout engine failed (in step \d|taking the weights of version \d) \(RuntimeError: rollout worker"
    assert len(re.findall(told, logged)) == 1
    assert "rollout worker rollout-1 is gone (signal 9" in logged
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert not any(Path(f"/proc/{one}").exists() for one in (*first, *second))


def workers_of(process):
    """Process ids of the rollout workers of a run."""
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
        return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:
        return []


class Flaky:
    """An engine that fails at the calls whose numbers are given; it knows the weights' version it was sent."""

    prefix_block = 1
    ranks = 1

    def __init__(self, log, fails):
        self.log, self.fails, self.calls = log, fails, 0
        log.append("start")

    def _call(self, what):
        self.calls += 1
        self.log.append(what)
        if (what.split()[0], self.calls) in self.fails:
            raise OSError("gone")

    def generate(self, prompts, group_size, *, seed, step):
        self._call(f"generate {step} {seed}")
        return [[step] * group_size for _ in prompts]

    def update_weights(self, weights, *, version):
        self._call(f"weights {version} {[name for name, _ in weights]}")

    def close(self):
        self.log.append("close")


def test_a_restart_sends_the_weights_again_and_leaves_the_generators():
    """After a failure: close, start, weights of the present version, the same request; also when taking weights fails;
    the process's random numbers are those of a run without a restart; memory that ran out is not tried again."""
    log, fails = [], [{("generate", 2)}, {("weights", 3)}, set()]
    engine = Restarting(lambda: Flaky(log, fails[log.count("start")]), World())
    engine.weights = lambda: iter([("w", torch.zeros(1))])
    engine.update_weights(iter([("w", torch.ones(1))]), version=4)
    torch.manual_seed(3)
    random.seed(3)
    assert engine.generate(["p"], 2, seed=7, step=4) == [[4, 4]]
    drawn = torch.rand(1).item(), random.random()
    engine.update_weights(iter([("w", torch.ones(1))]), version=5)
    torch.manual_seed(3)
    random.seed(3)
    assert drawn == (torch.rand(1).item(), random.random())
    again = ["close", "start"]
    assert log == ["start", "weights 4 ['w']", "generate 4 7", *again, "weights 4 ['w']", "generate 4 7",
                   "weights 5 ['w']", *again, "weights 5 ['w']"]  # fmt: skip

    def no_room(*a, **k):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    engine._engine.generate = no_room
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate(["p"], 2, seed=7, step=5)
    assert log.count("start") == 3
    always = Restarting(lambda: Flaky([], {("generate", n) for n in range(9)}), World())
    with pytest.raises(EngineFailed, match="OSError: gone; and again after it was started anew: OSError: gone"):
        always.generate(["p"], 2, seed=7, step=5)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "CUDA out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "DefaultCPUAllocator"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_memory_that_runs_out_names_the_settings(error, said):
    """torch on a GPU, torch on the CPU and Python itself say it in three ways; each becomes one line with the settings
    that need less; other errors pass."""
    with pytest.raises(messages.OutOfMemory) as caught, messages.memory_explained():
        raise error
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    for key in ("trainer.micro_batch_tokens", "sampling.max_tokens", "train.group_size", "model.context"):
        assert key in text
    with pytest.raises(RuntimeError, match=r"^shapes$"), messages.memory_explained():
        raise RuntimeError("shapes")


ENDINGS = """
import os, signal, time
from gspo.rollout.hf import HfEngine, check  # noqa
from gspo.rollout.contract import make_rollout

class Ending(HfEngine):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        if os.environ["ENDING"] == "sigterm at the start":
            os.kill(os.getpid(), signal.SIGTERM)

    def generate(self, prompts, group_size, *, seed, step):
        how = os.environ["ENDING"]
        if step == 2 and how == "memory":
            raise MemoryError
        if step == 2 and how == "two signals":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.2)
            os.kill(os.getpid(), signal.SIGINT)
        groups = super().generate(prompts, group_size, seed=seed, step=step)
        if step == 2 and how == "nan":
            logp = [float("nan"), *groups[1][0].logp.tolist()[1:]]
            groups[1][0] = make_rollout(groups[1][0].token_ids.tolist(), logp, finish="stop", version=2,
                                        prompt=prompts[1], tokenizer=self._tokenizer)
        return groups
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "status", "said"),
    [
        ("sigterm at the start", 143, "interrupted", "KeyboardInterrupt: SIGTERM"),
        ("two signals", 130, "interrupted", "KeyboardInterrupt: SIGINT"),
        ("memory", 1, "failed", "MemoryError. Less is needed with smaller values of: rollout: sampling.max_tokens"),
        ("nan", 1, "failed", "ValueError: prompt 'arithmetic-9': log-prob nan at position 0 of the response"),
    ],
)
def test_every_ending_is_true(tmp_path, monkeypatch, ending, code, status, said):
    """Exit code, status and reason agree, the message is one line, and the run goes on from its checkpoint after it."""
    monkeypatch.setenv("ENDING", ending)
    overrides = [*SMALL, "rollout._target_=mine.Ending", "train.steps=4", "checkpoint.every=1", "run.dir=run"]
    begin = module(tmp_path, ENDINGS)
    done = command(tmp_path, *overrides, before=begin)
    record = known(tmp_path / "run")
    assert (done.code, record["status"]) == (code, status), done.err
    assert said in record["reason"]
    assert "Traceback" not in done.err
    if ending != "sigterm at the start":
        assert len(rows(tmp_path / "run")) == 2
        assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [1, 2]
    monkeypatch.setenv("ENDING", "none")
    again = command(tmp_path, *overrides, "resume=auto", before=begin)
    assert again.code == 0, again.err
    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1, 2, 3]
    assert [one["status"] for one in known(tmp_path / "run")["sessions"]] == [status, "finished"]


@pytest.mark.slow
def test_a_full_disk_ends_a_run_with_path_and_space(tmp_path):
    """No file may be longer than 100 kB: the first checkpoint fails, the reason names it and the space that is left,
    the rows are whole, and nothing half-written stays."""

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = command(tmp_path, *TINY, "train.steps=2", "checkpoint.every=1", before=small_files)
    run = tmp_path / "run"
    assert done.code == 1, done.err
    assert known(run)["status"] == "failed"
    assert re.search(r"cannot write run/checkpoints/step_000001: .*File too large .*MB free", known(run)["reason"])
    assert "MB free on its file system" in done.err
    assert [row["step"] for row in rows(run)] == [0]
    assert list((run / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_eight_runs_at_once_in_one_sweep_directory(tmp_path):
    """Eight runs start together; a reader sees whole lines only at every moment; a second process for the directory of
    one that runs is refused, and once that is killed it is found lost; equal seeds have equal rows."""
    begun = [start(tmp_path, *TINY[:-1], "train.steps=3", f"seed={n % 4}", f"run.dir=sweep/{n}") for n in range(8)]
    looks = 0
    while any(os.waitid(os.P_PID, one[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for one in begun):
        for path in tmp_path.glob("sweep/*/metrics.jsonl"):
            steps = [row["step"] for row in files.rows(path)]
            assert steps == list(range(len(steps)))
            looks += 1
        time.sleep(0.02)
    assert [finish(one).code for one in begun] == [0] * 8
    assert looks > 8
    for n in range(4):
        assert rows(tmp_path / "sweep" / str(n)) == rows(tmp_path / "sweep" / str(n + 4))
    assert len({known(tmp_path / "sweep" / str(n))["wandb_id"] for n in range(8)}) == 8
    held = [*TINY[:-1], "train.steps=900", "run.dir=sweep/held"]
    holder = start(tmp_path, *held)
    wait_for(lambda: (tmp_path / "sweep" / "held" / "metrics.jsonl").exists(), 400)
    second = command(tmp_path, *held, "resume=auto")
    os.kill(holder[0], signal.SIGKILL)
    assert (second.code, finish(holder).code) == (2, -signal.SIGKILL)
    assert "run directory sweep/held is in use by a live process" in second.err
    assert read_run(tmp_path / "sweep" / "held", tmp_path).status == "lost"


@pytest.mark.slow
def test_no_secret_and_no_pickle_in_a_run(tmp_path, monkeypatch):
    """A token in the environment and on the command line is in no file of a run with W&B, nor is any other variable's
    value; and no file is a pickle (weights are safetensors)."""
    secret, other = "hf_s3cr3tS3CR3T0123456789", "hunter2-is-nobodys-business"
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("PASSPHRASE", other)
    overrides = [*SMALL, "rollout=hf", "train.steps=2", "run.dir=run", "tracking=wandb_offline"]
    done = command(tmp_path, *overrides, f"tracking.project=p-{secret}")
    assert done.code == 0, done.err
    found = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(found) > 10
    for path in found:
        data = path.read_bytes()
        assert secret.encode() not in data, path
        assert other.encode() not in data, path
        assert not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")), path
    assert {path.suffix for path in (tmp_path / "run" / "checkpoints").rglob("*.*")} == {".safetensors", ".json"}


@pytest.mark.slow
@pytest.mark.parametrize(("rollout", "kills"), [("hf", 10), ("vllm", 3)])
def test_kills_at_random_moments_lose_nothing(tmp_path, rollout, kills):
    """SIGKILL while it saves, syncs, generates, writes or anywhere: every resumed run is the run left alone."""
    script = [sys.executable, ROOT / "scripts" / "chaos.py", "--kills", str(kills), "--rollout", rollout]
    done = subprocess.run([*script, "--out", tmp_path / "runs"], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kills} kills" in done.stdout
    assert "every run is the run left alone" in done.stdout


def test_promises_name_tests_that_exist():
    """Every test that README's table of promises names is there, under that name, in that file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Promises, and the tests that hold them")[2].partition("\n## ")[0]
    promises = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    missing, named = [], 0
    for _, held in promises:
        file = ""
        for path, name in re.findall(r"`(?:tests/)?(test_\w+\.py)?(?:::)?(test_\w+)?`", held):
            file = path or file
            if not name and not path:
                continue
            source = ROOT / "tests" / file
            named += 1
            if not source.is_file() or (name and f"\ndef {name}(" not in source.read_text(encoding="utf-8")):
                missing.append(f"{file}::{name}")
    assert missing == []
    assert named > len(promises) >= 18
