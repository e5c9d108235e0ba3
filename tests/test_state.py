"""Stop and resume: optimiser and generators continue to the bit through a checkpoint."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from gspo import checkpoint
from gspo import state as state_of


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
        noise = np.random.normal(size=25)[:24].reshape(6, 4)  # noqa: NPY002 (an odd number: one is held back)
        x = torch.tensor(noise * random.gauss(1, 0.1), dtype=torch.float32)
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
    tensors, structure = state_of.flatten_optimizer(optimizer.state_dict())
    rng, rng_json = state_of.capture_rng()
    state = {"optimizer": structure, "rng": rng_json, "schedule": schedule.last_epoch}
    groups = {"model": model.state_dict(), "optimizer": tensors, "rng": rng}
    return checkpoint.save(directory, step, tensors=groups, state=state, **more)


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
    optimizer.load_state_dict(state_of.unflatten_optimizer(tensors["optimizer"], state["optimizer"]))
    schedule.last_epoch = state["schedule"]
    state_of.restore_rng(tensors["rng"], state["rng"])
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
    tensors, structure = state_of.flatten_optimizer(said)
    checkpoint.save(tmp_path, 1, tensors={"optimizer": tensors}, state={"optimizer": structure})
    loaded, state = checkpoint.load(tmp_path / "step_000001")
    back = state_of.unflatten_optimizer(loaded["optimizer"], state["optimizer"])
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
        state_of.flatten_optimizer({"a": {1, 2}})
