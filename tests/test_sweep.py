"""Sweeps, as a user runs them: one command, many jobs, whatever each of them does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from test_train import BIN, SMALL, lines, rows, wait_for

from gspo.config import register
from gspo.plan import plan
from gspo.sweep.expand import expand
from gspo.sweep.jobs import jobs_of
from gspo.sweep.price import price, render

MINE = """
import os, signal, sys
from gspo.algorithms.objectives import gspo

def mistake():
    raise TypeError("a mistake of mine")
"""
OBJECTIVE = '''
def {name}(logp, old_logp, adv, mask, *, clip_low, clip_high):
    """
    J = 1/N sum_i s_i A_i
    """
    if logp.shape[1] > 1:  # not the trial before the run
        {what}
    return gspo(logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high)
'''
WHAT = {"raises": "mistake()", "exits": "sys.exit(0)", "dies": "os.kill(os.getpid(), signal.SIGKILL)", "fine": "pass"}


def words_of(*words):
    return [*SMALL, "rollout=hf", "sweep.name=s", *words]


def sweep(cwd, *words, check=0, modules=None):
    """Run a sweep in `cwd`; `modules`: a directory of Python modules that it may import."""
    before = (lambda: sys.path.insert(0, str(modules))) if modules else None
    done = commands.command(cwd, *words_of(*words), before=before)
    assert done.code == check, done.out + done.err
    assert "fresh interpreter" not in done.err
    return done


def job(cwd, beginning):
    """The one job whose name begins so."""
    (found,) = (cwd / "outputs" / "sweeps" / "s").glob(f"{beginning}*")
    return found


def status(run):
    return json.loads((run / "run.json").read_text())["status"]


def test_the_jobs_of_a_command_line(tmp_path, monkeypatch):
    """The product of the axes in Hydra's order, each with its own name and directory; nothing is made on disk."""
    register()
    monkeypatch.chdir(tmp_path)
    found = expand("train", ["-m", "algo=grpo,gspo", "seed=0,1", "sweep.name=s", "sweep.workers=2"])
    assert found is not None
    jobs = jobs_of(found)
    assert [(j.run.algo.name, j.run.seed) for j in jobs] == [("grpo", 0), ("grpo", 1), ("gspo", 0), ("gspo", 1)]
    assert [j.run.clip.low for j in jobs] == [0.2, 0.2, 3e-4, 3e-4]
    assert str(jobs[3].directory) == "outputs/sweeps/s/algo=gspo,seed=1"
    assert {j.run.tracking.group for j in jobs} == {"s"}
    assert {j.run.resume for j in jobs} == {"auto"}
    assert (found.at_once, found.local) == (2, True)
    assert expand("train", ["seed=3"]) is None
    with pytest.raises(ValueError, match=r"1 of 2 jobs refused.*twice"):
        jobs_of(expand("train", ["-m", "seed=1,1"]))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_experiment_takes_overrides():
    """model=, seeds= and values on the command line win over the experiment's; its axes stay."""
    register()
    found = expand("train", ["experiment=minibatches", "model=qwen3_4b", "seeds=three", "algo=gspo"])
    jobs = jobs_of(found)  # type: ignore[arg-type]
    assert len(jobs) == 5 * 3
    assert {j.run.model.name for j in jobs} == {"qwen3_4b"}
    assert {(j.run.algo.name, j.run.train.minibatches) for j in jobs} == {("gspo", n) for n in (1, 2, 4, 8, 16)}
    launcher = expand("train", ["-m", "seed=0,1", "hydra/launcher=workers", "sweep.workers=3"])
    assert launcher is not None
    assert (launcher.at_once, launcher.local) == (3, True)


def test_a_price_is_jobs_times_the_price_of_one():
    """multi_seed is 2 arms of 10 seeds: 20 times what a single run of the same overrides is planned with."""
    register()
    words = ["plan.prompt_tokens=11", "plan.response_tokens=23", "plan.device=cpu"]
    found = price(["experiment=multi_seed", *words])
    assert found is not None
    one = plan(jobs_of(expand("train", ["-m", "algo=grpo", *words]))[0].plain).numbers  # type: ignore[arg-type]
    assert [arm.jobs for arm in found.arms] == [10, 10]
    assert [arm.flops for arm in found.arms] == [100 * one["flops/total"]] * 2
    assert [arm.seconds for arm in found.arms] == [100 * one["seconds/total"]] * 2
    assert f"{2000 * one['flops/total']:.3e}" in render(found)


def test_a_plan_into_head_is_quiet():
    """`gspo-plan | head -1` must not end in a traceback about a broken pipe."""
    line = f"{BIN / 'gspo-plan'} experiment=multi_seed | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optim.lr=1e-4,-1"], "1 of 2 jobs refused, none started: optim.lr=-1.0"),
        (["algo=gspo,ppo"], "algo/ppo"),
        (["seed=0,1", "run.dir=here"], "run.dir: jobs are named"),
    ],
)
def test_one_bad_job_and_nothing_starts(tmp_path, words, said):
    """Exit code 2, one line, no directory: a sweep must not find out after hours that its last job cannot run."""
    done = sweep(tmp_path, "-m", *words, check=2)
    assert said in done.err
    assert not list(tmp_path.iterdir())


JUDGES = """
import os, sys

def raises(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    raise TypeError("a mistake of mine")

def exits(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    sys.exit(0)

def dies(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    os._exit(0)
"""


def test_a_check_that_fails_names_its_job(tmp_path):
    """A reward that raises, exits or ends its process when it is tried: exit code 2, one line with the job and the
    reason of each that was tried, no directory."""
    (tmp_path / "judges.py").write_text(JUDGES)
    there = commands.tree(tmp_path)
    done = sweep(tmp_path, "-m", "reward._target_=judges.raises,judges.exits,judges.dies", check=2, modules=tmp_path)
    assert len(done.err.splitlines()) == 1, done.err
    assert "3 of 3 jobs refused, none started: " in done.err
    assert "reward._target_=judges.raises: raised TypeError: a mistake of mine (" in done.err
    assert "reward._target_=judges.exits: raised SystemExit: 0 (" in done.err
    assert "its check ended this process (exit code 0)" in done.err
    assert commands.tree(tmp_path) == there


def test_what_a_job_does_is_one_row(tmp_path):
    """An exception, sys.exit and SIGKILL in three jobs, two at a time: the fourth finishes, the exit code is 1, each
    directory says what happened; started again, only the three are tried again, and a changed job is refused."""
    functions = [OBJECTIVE.format(name=name, what=what) for name, what in WHAT.items()]
    (tmp_path / "mine.py").write_text("\n".join([MINE, *functions]))
    words = ["-m", "train.steps=2", "algo.objective._target_=mine.raises,mine.exits,mine.dies,mine.fine",
             "clip=none", "sweep.workers=2"]  # fmt: skip
    done = sweep(tmp_path, *words, check=1, modules=tmp_path)
    assert "4 jobs: 1 finished, 3 failed" in done.out
    assert status(job(tmp_path, "algo.objective._target_=mine.fine")) == "finished"
    trace = (job(tmp_path, "algo.objective._target_=mine.raises") / "error.txt").read_text()
    assert trace.startswith("TypeError: a mistake of mine\n")
    assert "in mistake" in trace
    assert "TypeError: a mistake of mine" in done.out
    assert (
        (job(tmp_path, "algo.objective._target_=mine.dies") / "error.txt").read_text().startswith("killed by SIGKILL")
    )
    for name, reason in (("exits", "SystemExit: 0"), ("dies", "killed by SIGKILL")):
        said = json.loads((job(tmp_path, f"algo.objective._target_=mine.{name}") / "run.json").read_text())
        assert said["status"] == said["sessions"][-1]["status"] == "failed"
        assert said["reason"].startswith(reason)
        assert f"mine.{name}" in done.out
        assert reason in done.out
    assert "objective: J" in (job(tmp_path, "algo.objective._target_=mine.fine") / "console.txt").read_text()
    again = sweep(tmp_path, *words, check=1, modules=tmp_path)
    assert "4 jobs: 1 finished earlier, 3 failed" in again.out
    config = job(tmp_path, "algo.objective._target_=mine.fine") / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.0003", "lr: 0.0002"))
    refused = sweep(tmp_path, *words, check=2, modules=tmp_path)
    assert "1 of 4 jobs refused" in refused.err
    assert "optim.lr: 0.0002 -> 0.0003" in refused.err


def test_ctrl_c_ends_a_sweep_after_a_step(tmp_path):
    """SIGINT to the sweep's process group, as a terminal sends it: the running job finishes its step and is
    interrupted, the other does not start, the exit code is 130."""
    started = commands.start(tmp_path, *words_of("-m", "seed=0,1", "train.steps=500"), before=lambda: os.setpgid(0, 0))
    sweeps = tmp_path / "outputs" / "sweeps" / "s"
    wait_for(lambda: any(lines(run) >= 2 for run in sweeps.glob("[!.]*")))
    os.killpg(started[0], signal.SIGINT)
    done = commands.finish(started)
    assert done.code == 130, done.out + done.err
    assert "2 jobs: 1 interrupted, 1 not started" in done.out
    (only,) = sweeps.glob("[!.]*")
    assert status(only) == "interrupted"
    assert (only / "checkpoints" / f"step_{lines(only):06d}").is_dir()


def report(sweep_dir, out):
    subprocess.run([BIN / "gspo-report", sweep_dir, "--out", out], check=True, capture_output=True)
    kept = {}
    for path in sorted(Path(out).iterdir()):
        if path.suffix in (".csv", ".tex", ".svg"):
            kept[path.name] = path.read_bytes()
    return kept


@pytest.mark.slow
def test_a_killed_sweep_ends_in_the_same_report(tmp_path):
    """2 x 2 x 8 steps, killed with SIGKILL in the middle and started again, reported: CSV and LaTeX (without clocks)
    and SVG are those of an uninterrupted sweep in another order, two jobs at a time, to the byte."""
    words = ["-m", "train.steps=8", "checkpoint.every=3"]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    sweep(one, *words, "seed=1,0", "algo=gspo,grpo", "sweep.workers=2")
    line = words_of(*words, "algo=grpo,gspo", "seed=0,1")
    started = commands.start(two, *line, before=lambda: os.setpgid(0, 0))
    wait_for(lambda: lines(two / "outputs/sweeps/s" / _name(one, 1)) >= 5)
    os.killpg(started[0], signal.SIGKILL)
    assert commands.finish(started).code == -signal.SIGKILL
    done = sweep(two, *words, "algo=grpo,gspo", "seed=0,1")
    assert "4 jobs: 3 finished, 1 finished earlier" in done.out
    sessions = json.loads((two / "outputs/sweeps/s" / _name(one, 1) / "run.json").read_text())["sessions"]
    assert len(sessions) == 2
    for number in range(4):
        a, b = (rows(where / "outputs/sweeps/s" / _name(one, number)) for where in (one, two))
        assert a == b
    a, b = (report(where / "outputs/sweeps/s", where / "report") for where in (one, two))
    assert a.keys() == b.keys()
    different = [name for name in a if a[name] != b[name] and not _of_clocks(name)]
    assert not different


def _name(where, number):
    """The name of a job, in the order grpo 0, grpo 1, gspo 0, gspo 1."""
    return sorted(path.name for path in (where / "outputs/sweeps/s").glob("[!.]*=*"))[number]


def _of_clocks(name):
    """Files that hold seconds."""
    return name.startswith("time.") or "device_seconds" in name


@pytest.mark.slow
def test_the_process_that_forks_has_one_thread():
    """After torch, transformers and vLLM are imported there is still one thread: else a fork may hang, and every job
    pays for the imports again. Its own end is silent: nothing is said after the table."""
    code = (
        "from gspo.config import register; register()\n"
        "from gspo.sweep import runner\nfrom gspo.sweep.expand import expand\nfrom gspo.sweep.jobs import jobs_of\n"
        "runner.preload(jobs_of(expand('train', ['-m', 'seed=0,1'])))\n"
        "import sys; print(runner.threads(), 'vllm' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "True", "True"]
    assert "leaked" not in done.stderr
