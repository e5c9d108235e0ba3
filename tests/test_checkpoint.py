"""Checkpoints: complete or absent, found again to the bit, and never lost to a failing save."""

import json
import logging
import os
import random
import resource
import signal
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from gspo import checkpoint


class Net(nn.Module):
    """Two layers and a dropout, so that a step draws from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.dropout(torch.tanh(self.first(x)), 0.5, True))


def make(seed: int = 0):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(
        [{"params": model.first.parameters(), "lr": 3e-3}, {"params": model.last.parameters(), "betas": (0.8, 0.95)}],
        lr=1e-2,
        amsgrad=True,
    )
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def advance(model, optimizer, schedule, steps: int) -> list[float]:
    """Steps whose inputs come from numpy's and Python's global generators."""
    losses = []
    for _ in range(steps):
        x = torch.tensor(np.random.normal(size=(6, 4)) * random.gauss(1, 0.1), dtype=torch.float32)  # noqa: NPY002
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def save_run(directory, step, model, optimizer, schedule, **more):
    tensors, structure = checkpoint.flatten_optimizer(optimizer.state_dict())
    rng, rng_json = checkpoint.capture_rng()
    state = {"optimizer": structure, "rng": rng_json, "schedule": schedule.last_epoch}
    groups = {"model": model.state_dict(), "optimizer": tensors, "rng": rng}
    return checkpoint.save(directory, step, tensors=groups, state=state, **more)


def small(step: int, size: int = 64) -> dict:
    return {"tensors": {"model": {"w": torch.full((size,), float(step))}}, "state": {"step": step}}


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_stop_and_resume_equals_straight_run_to_the_bit(tmp_path):
    """Five steps, a save, a new process's worth of objects, four steps = nine steps (B43): Adam moments, its step
    counters, per-group options and the odd Gaussian that Python and numpy hold back are all found again."""
    seed_all(3)
    straight = make()
    seed_all(4)
    losses = advance(*straight, 9)

    seed_all(3)
    stopped = make()
    seed_all(4)
    assert advance(*stopped, 5) == losses[:5]
    path = save_run(tmp_path, 5, *stopped)

    seed_all(99)
    model, optimizer, schedule = make(seed=98)
    advance(model, optimizer, schedule, 2)
    tensors, state = checkpoint.load(path)
    model.load_state_dict(tensors["model"])
    optimizer.load_state_dict(checkpoint.unflatten_optimizer(tensors["optimizer"], state["optimizer"]))
    schedule.last_epoch = state["schedule"]
    checkpoint.restore_rng(tensors["rng"], state["rng"])
    assert advance(model, optimizer, schedule, 4) == losses[5:]
    for (name, mine), theirs in zip(model.state_dict().items(), straight[0].state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


def test_optimizer_state_comes_back_as_it_was(tmp_path):
    """Integer keys, tuples, 0-d float32 step tensors, None and -0.0, NaN or infinite floats survive JSON and
    safetensors; a plain json.dumps would turn keys into strings and tuples into lists."""
    model, optimizer, schedule = make()
    advance(model, optimizer, schedule, 3)
    said = optimizer.state_dict()
    said["param_groups"][0] |= {"odd": (1e-320, float("inf"), -0.0), "none": None, "flag": True}
    tensors, structure = checkpoint.flatten_optimizer(said)
    checkpoint.save(tmp_path, 1, tensors={"optimizer": tensors}, state={"optimizer": structure})
    loaded, state = checkpoint.load(tmp_path / "step_000001")
    back = checkpoint.unflatten_optimizer(loaded["optimizer"], state["optimizer"])
    assert back["param_groups"] == said["param_groups"]
    assert str(back["param_groups"]) == str(said["param_groups"])  # -0.0, True against 1, tuple against list
    assert list(back["state"]) == list(said["state"])
    for index, slots in said["state"].items():
        assert list(back["state"][index]) == list(slots)
        for name, tensor in slots.items():
            found = back["state"][index][name]
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert found.numpy().tobytes() == tensor.numpy().tobytes(), (index, name)


def test_optimizer_state_refuses_what_it_cannot_keep():
    """An object that JSON or safetensors would change is an error, not a pickle."""
    with pytest.raises(TypeError, match=r"optimizer\.a: a set cannot be stored"):
        checkpoint.flatten_optimizer({"a": {1, 2}})


def test_tied_and_strided_tensors(tmp_path):
    """A tied head is stored once and comes back tied; overlapping views, transposes, bf16 NaN and empty tensors come
    back to the bit. safetensors alone refuses shared memory."""
    table = torch.arange(12.0).reshape(3, 4)
    odd = torch.tensor([float("nan"), -0.0, 3e-39]).bfloat16()
    group = {"embed": table, "head": table, "part": table[1], "turned": table.t(), "odd": odd, "none": torch.empty(0)}
    group |= {"flag": torch.tensor([True, False]), "scalar": torch.tensor(7)}
    path = checkpoint.save(tmp_path, 1, tensors={"model": group}, state={})
    assert set(load_file(path / "model.safetensors")) == set(group) - {"head"}
    back = checkpoint.load(path)[0]["model"]
    assert back["head"] is back["embed"]
    for name, tensor in group.items():
        assert back[name].dtype == tensor.dtype, name
        assert torch.equal(back[name].nan_to_num(5), tensor.nan_to_num(5)), name
        assert torch.equal(torch.isnan(back[name]), torch.isnan(tensor)), name


def test_kept_by_number_and_by_protection(tmp_path):
    """keep_last counts in numeric order (step 1,000,000 after 999,999, which sorts before it as text), spares protected
    steps, and None or 0 keeps all (B42)."""
    for step in (1, 2, 10):
        checkpoint.save(tmp_path, step, **small(step))
    checkpoint.save(tmp_path, 11, **small(11), keep_last=0)
    assert names(tmp_path) == ["step_000001", "step_000002", "step_000010", "step_000011"]
    checkpoint.save(tmp_path, 999_999, **small(999_999), keep_last=2, protect={2})
    assert names(tmp_path) == ["step_000002", "step_000011", "step_999999"]
    checkpoint.save(tmp_path, 1_000_000, **small(1_000_000), keep_last=1)
    assert names(tmp_path) == ["step_1000000"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step_1000000"


@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "manifest", "state"])
def test_damaged_newest_is_named_and_skipped(tmp_path, caplog, harm):
    """One flipped bit, a short file, a missing file or manifest: the one before it is taken, with a warning that names
    the damaged one; load refuses it; when all are damaged it is an error, never a start from zero."""
    for step in (9, 10):
        checkpoint.save(tmp_path, step, **small(step))

    def hurt(path):
        weights = path / "model.safetensors"
        data = bytearray(weights.read_bytes())
        if harm == "flip":
            data[-3] ^= 1
            weights.write_bytes(data)
        elif harm == "cut":
            weights.write_bytes(data[:-1])
        elif harm == "missing":
            weights.unlink()
        elif harm == "manifest":
            (path / "manifest.json").write_text("{")
        else:
            (path / "state.json").write_text("{}")

    hurt(tmp_path / "step_000010")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(tmp_path) == tmp_path / "step_000009"
    assert "step_000010 is damaged" in caplog.text
    with pytest.raises(ValueError, match="step_000010 cannot be read"):
        checkpoint.load(tmp_path / "step_000010")
    hurt(tmp_path / "step_000009")
    with pytest.raises(ValueError, match=r"all 2 checkpoints in .* are damaged"):
        checkpoint.latest(tmp_path)


def test_none_and_missing(tmp_path):
    """No directory and an empty one have no checkpoint; a named one that is not there is an error."""
    assert checkpoint.latest(tmp_path / "nothing") is None
    assert checkpoint.latest(tmp_path) is None
    with pytest.raises(ValueError, match="step_000007 cannot be read: FileNotFoundError"):
        checkpoint.load(tmp_path / "step_000007")


def test_damaged_one_is_replaced_and_a_sound_one_stands(tmp_path):
    """A run that continued before a damaged checkpoint writes that step anew; saving a step twice (the periodic save
    and the one at the end) leaves the first."""
    checkpoint.save(tmp_path, 5, **small(5))
    checkpoint.save(tmp_path, 5, **small(6))
    assert checkpoint.load(tmp_path / "step_000005")[1] == {"step": 5}
    (tmp_path / "step_000005" / "state.json").write_text("{}")
    checkpoint.save(tmp_path, 5, **small(6))
    assert checkpoint.load(tmp_path / "step_000005")[1] == {"step": 6}
    assert names(tmp_path) == ["step_000005"]


def test_later_damaged_one_does_not_push_out_the_sound_one(tmp_path):
    """Step 10 is damaged, the run continues from 5 and saves 7 with keep_last=1: 7 is kept, not counted as older."""
    for step in (5, 10):
        checkpoint.save(tmp_path, step, **small(step))
    (tmp_path / "step_000010" / "manifest.json").unlink()
    checkpoint.save(tmp_path, 7, **small(7), keep_last=1)
    assert checkpoint.latest(tmp_path) == tmp_path / "step_000007"


def test_state_that_json_would_change_is_refused(tmp_path):
    """A tuple or an integer key would come back as another thing."""
    for state in ({"a": (1, 2)}, {"a": {1: 2}}):
        with pytest.raises(AssertionError):
            checkpoint.save(tmp_path, 1, tensors={}, state=state)
    assert names(tmp_path) == []


def in_child(work) -> int:
    """Run `work` in a forked child; its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("limit", [0, 10, 4096, 100_000])
def test_file_size_limit_leaves_the_earlier_one_and_no_litter(tmp_path, limit):
    """B42: with keep_last=1 a save that cannot be written names path and space, keeps step 3, leaves nothing else."""
    checkpoint.save(tmp_path, 3, **small(3))

    def work() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(OSError, match=r"cannot write .*step_000004: .*File too large.*MB free"):
            checkpoint.save(tmp_path, 4, **small(4, 100_000), keep_last=1)
        return 0

    assert in_child(work) == 0
    assert names(tmp_path) == ["step_000003"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step_000003"


def test_kill_during_save_leaves_a_loadable_newest(tmp_path):
    """SIGKILL at a random moment of a loop of saves, 60 times: every checkpoint under its own name is complete, the
    newest is at least the last that was reported, and the litter of dead saves goes with the next one."""
    draw = random.Random(1)
    newest = cut_short = 0
    for round_ in range(60):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for step in range(newest + 1, newest + 10**6):
                checkpoint.save(tmp_path, step, **small(step, 3000), keep_last=2)
                os.write(writer, step.to_bytes(4, "big"))
        os.close(writer)
        first = os.read(reader, 4) if round_ % 2 else b""
        time.sleep(draw.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as pipe:
            reported = first + pipe.read()
        cut_short += any(name.startswith(".") for name in names(tmp_path))
        for step in checkpoint.steps(tmp_path):
            assert checkpoint.damage(tmp_path / f"step_{step:06d}") == ""
        path = checkpoint.latest(tmp_path)
        if path is not None:
            tensors, state = checkpoint.load(path)
            assert state["step"] >= max(newest, int.from_bytes(reported[-4:], "big"))
            assert torch.equal(tensors["model"]["w"], torch.full((3000,), float(state["step"])))
            newest = state["step"]
    assert newest >= 30
    assert cut_short >= 10  # the kills did fall inside saves
    checkpoint.save(tmp_path, newest + 1, **small(newest + 1), keep_last=1)
    assert names(tmp_path) == [f"step_{newest + 1:06d}"]


def test_manifest_is_what_it_says(tmp_path):
    """The manifest holds size and SHA-256 of every other file as sha256sum reckons them, and nothing is a pickle."""
    path = checkpoint.save(tmp_path, 2, **small(2))
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest["files"]) == set(names(path)) - {"manifest.json"} == {"model.safetensors", "state.json"}
    for name, said in manifest["files"].items():
        shown = os.popen(f"sha256sum '{path / name}'").read().split()[0]
        assert said == {"bytes": (path / name).stat().st_size, "sha256": shown}
