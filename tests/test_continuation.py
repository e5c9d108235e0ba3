"""What may be continued: the same settings and the same data, from a sound checkpoint; else nothing is touched."""

import json

import pytest
from commands import command
from hydra import compose, initialize_config_dir
from test_train import SMALL, rows

from gspo import continuation
from gspo.config import conf_dir, register, to_plain
from gspo.continuation import MAY_CHANGE, differences

QUESTIONS = "".join(json.dumps({"prompt": f"{n}+4-{n}+1=", "answer": "5"}) + "\n" for n in range(6))
RUN = [
    *(one for one in SMALL if not one.startswith("data.")),
    "rollout=hf",
    "run.dir=run",
    "data=files",
    "data.path=set.jsonl",
    "data.template='{prompt}'",
]


@pytest.fixture(autouse=True)
def _data_here(monkeypatch):
    monkeypatch.delenv("GSPO_DATA", raising=False)


def contents(folder):
    """Every file below a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def settings(*overrides):
    """The resolved configuration of a command line."""
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return to_plain(compose("train", overrides=["run.dir=r", "run.name=r", "sweep.name=s", *overrides]))


def test_what_may_change_and_what_may_not():
    """Keys without an effect on earlier numbers may change, any other is named with both values; more steps only where
    the schedule does not stretch over them."""
    old = settings()
    allowed = ["checkpoint.every=7", "checkpoint.keep_last=null", "tracking=jsonl", "run.name=b", "debug=true",
               "resume=auto", "trainer.devices=2", "rollout.check_every=3", "sweep.workers=3"]  # fmt: skip
    assert differences(old, settings(*allowed), MAY_CHANGE) == []
    for change, said in (
        ("seed=1", "seed: 0 -> 1"),
        ("optim.lr=1e-5", "optim.lr: 0.0003 -> 1e-05"),
        ("train.prompts_per_step=8", "train.prompts_per_step: 32 -> 8"),
        ("clip.high=null", "clip.high: 0.0004 -> None"),
        ("data.max_terms=9", "data.max_terms: 7 -> 9"),
        ("+data.stages=[{step: 3, max_terms: 9}]", "data.stages: None -> [{'step': 3, 'max_terms': 9}]"),
        ("eval.every=2", "eval.every: 0 -> 2"),
        ("sampling.temperature=0.9", "sampling.temperature: 1.0 -> 0.9"),
        ("trainer.micro_batch_tokens=64", f"trainer.micro_batch_tokens: {old['trainer']['micro_batch_tokens']} -> 64"),
    ):
        assert differences(old, settings(change), MAY_CHANGE) == [said]
    assert differences(old, settings("train.steps=9"), MAY_CHANGE) == ["train.steps: 100 -> 9"]
    assert continuation.differences({"a": {"b": 1}}, {"a": 2}, ("a.b",)) == ["a: {'b': 1} -> 2"]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_more_steps_are_another_schedule_unless_it_is_constant(tmp_path, schedule):
    """A constant rate may run on; a cosine over 100 steps is not the beginning of one over 200."""
    from gspo.config import Run
    from gspo.tracking import run_dir

    plain = settings(f"optim.schedule={schedule}")
    run_dir.create(tmp_path / "run", plain, {}).finish()
    more = settings(f"optim.schedule={schedule}", "train.steps=200", "resume=auto")
    run = Run(resume="auto")
    run.optim.schedule, run.train.steps = schedule, 200
    if schedule == "constant":
        assert not continuation.is_finished(tmp_path / "run", run, more)
    else:
        with pytest.raises(ValueError, match=r"another configuration \(train\.steps: 100 -> 200\); it is left"):
            continuation.is_finished(tmp_path / "run", run, more)


@pytest.mark.parametrize(("file", "named"), [("set.jsonl", "set from step 0"), ("gsm8k_test.jsonl", "gsm8k, held out")])
def test_other_data_are_refused(tmp_path, monkeypatch, file, named):
    """The file of the problems, or of the held-out ones, is another one when the run is resumed (one answer of six):
    exit code 2, the set is named in one line, nothing is written."""
    monkeypatch.setenv("GSPO_DATA", str(tmp_path))
    more = [*RUN, "eval.every=9", "eval.benchmark=gsm8k", "eval.problems=6"]
    for name in ("set.jsonl", "gsm8k_test.jsonl"):
        (tmp_path / name).write_text(QUESTIONS)
    assert command(tmp_path, *more, "train.steps=1").code == 0
    (tmp_path / file).write_text(QUESTIONS.replace('"answer": "5"', '"answer": "6"', 1))
    before = contents(tmp_path)
    done = command(tmp_path, *more, "train.steps=2", "resume=auto")
    assert (done.code, done.out) == (2, ""), done.err
    (said,) = done.err.splitlines()
    assert said.startswith(f"gspo-train: run: its data have changed since it began ({named}: sha256 ")
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_damaged_checkpoints_are_passed_over_and_never_started_over(tmp_path):
    """The newest of two checkpoints is damaged: the resumed run names it, continues from the other one, and its rows
    are those of the run left alone. Both damaged: exit code 1, both named, no row, sample or checkpoint is touched."""
    more = [*RUN, "checkpoint.every=1", "resume=auto"]
    (tmp_path / "set.jsonl").write_text(QUESTIONS)
    assert command(tmp_path, *more, "train.steps=3").code == 0
    run, whole = tmp_path / "run", rows(tmp_path / "run")
    weights = (run / "checkpoints" / "step_000003" / "model.safetensors").read_bytes()
    (run / "checkpoints" / "step_000003" / "model.safetensors").write_bytes(weights[:-1])
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "failed"}))
    done = command(tmp_path, *more, "train.steps=3")
    assert done.code == 0, done.err
    assert "checkpoint run/checkpoints/step_000003 is damaged (model.safetensors has" in (run / "log.txt").read_text()
    assert rows(run) == whole
    assert (run / "checkpoints" / "step_000003" / "model.safetensors").read_bytes() == weights
    for step in (2, 3):
        (run / "checkpoints" / f"step_{step:06d}" / "state.json").write_text("{}")
    before = contents(run)
    done = command(tmp_path, *more, "train.steps=4")
    assert done.code == 1
    for said in (
        "all 2 checkpoints in run/checkpoints are damaged (step_000003: state.json has 2",
        "; step_000002: st",
    ):
        assert said in done.err
    assert "Traceback" not in done.err
    after = contents(run)
    told = ("run.json", "log.txt", "error.txt")
    assert {name: data for name, data in after.items() if name not in told} == {
        name: data for name, data in before.items() if name not in told
    }
    assert json.loads(after["run.json"])["status"] == "failed"
