"""Checkpoints: complete or absent, found again to the bit, and never lost to a failing save."""

import json
import logging
import os
import pickle
import random
import resource
import signal
import subprocess
import time
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gspo import checkpoint, shards
from gspo.export import export
from gspo.parts import Parts
from gspo.tracking import files


def small(step: int, size: int = 64) -> dict:
    return {"tensors": {"model": {"w": torch.full((size,), float(step))}}, "state": {"step": step}}


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


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


def test_the_best_evaluated_one_is_kept(tmp_path):
    """keep_last=1 and the highest avg@k at step 4: 4 and the newest stay; a later equal score does not move it, a step
    that was evaluated but not saved, a score that is not a number and a half-written row count for nothing."""
    scores = {2: 0.25, 3: 0.9, 4: 0.5, 6: float("nan"), 8: 0.5, 10: 0.25}
    table = tmp_path / "eval.jsonl"
    for step in (2, 4, 6, 8, 10):
        checkpoint.save(tmp_path / "checkpoints", step, **small(step), keep_last=1, protect=checkpoint.best(tmp_path))
        with table.open("ab") as file:
            for known in (one for one in scores if step <= one < step + 2):
                file.write(files.to_line({"step": known, "avg_at_k": scores[known]}))
    assert names(tmp_path / "checkpoints") == ["step_000004", "step_000010"]
    with table.open("ab") as file:
        file.write(b'{"step": 10, "avg_at_k": 1')
    assert checkpoint.best(tmp_path) == {4}
    assert checkpoint.best(tmp_path / "nowhere") == set()


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


def test_full_and_read_only_disks(tmp_path):
    """B42 on a mounted file system of 1 MB: a full disk and a read-only one are named with path and space, the earlier
    checkpoint stays, and no part of the new one is left to fill the disk."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount a file system")
    try:
        checkpoint.save(tmp_path, 3, **small(3))
        with pytest.raises(OSError, match=r"cannot write .*step_000004: .*No space left on device.* MB free"):
            checkpoint.save(tmp_path, 4, **small(4, 10**6), keep_last=1)
        assert names(tmp_path) == ["step_000003"]
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(OSError, match=r"cannot write .*step_000005: Read-only file system"):
            checkpoint.save(tmp_path, 5, **small(5), keep_last=1)
        assert checkpoint.latest(tmp_path) == tmp_path / "step_000003"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_loaded_tensors_are_not_the_file(tmp_path):
    """Training on in place changes neither the checkpoint nor, when the file is written over, the tensors."""
    path = checkpoint.save(tmp_path, 1, **small(1))
    tensors, _ = checkpoint.load(path)
    tensors["model"]["w"] += 1
    assert checkpoint.damage(path) == ""
    (path / "model.safetensors").write_bytes(b"")
    assert torch.equal(tensors["model"]["w"], torch.full((64,), 2.0))


def test_kill_during_save_leaves_a_loadable_newest(tmp_path):
    """SIGKILL at a random moment of a loop of saves, 40 times: every checkpoint under its own name is complete, the
    newest is at least the last that was reported, and the litter of dead saves goes with the next one."""
    draw = random.Random(1)
    newest = cut_short = 0
    for round_ in range(40):
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
    assert newest >= 20
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


class Bomb:
    """A pickle of it makes a directory when it is read."""

    def __init__(self, where):
        self.where = str(where)

    def __reduce__(self):
        return os.mkdir, (self.where,)


def test_an_index_that_the_manifest_does_not_hold_is_never_read(tmp_path):
    """The shards' index is a pickle. Changed after the checkpoint was sealed, it makes the checkpoint a damaged one to
    a resume and to an export; put beside the files of a single process, it counts for nothing. It is never unpickled,
    nor are further tensors taken up."""
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    (tmp_path / "config.yaml").write_text("model: {path: nowhere}")
    path = checkpoint.save(
        tmp_path / "checkpoints", 1, **small(1), fill=lambda inside: (inside / ".metadata").write_bytes(b"index")
    )
    assert shards.are_in(path)
    assert checkpoint.load(path)[1] == {"step": 1}
    (path / ".metadata").write_bytes(bomb)
    whatever: Any = None
    for use in (checkpoint.load, lambda path: Parts.restore(whatever, path), lambda path: export(path, tmp_path / "o")):
        with pytest.raises(ValueError, match=r"step_000001 cannot be read: \.metadata "):
            use(path)
    alone = checkpoint.save(tmp_path / "checkpoints", 2, **small(2))
    (alone / ".metadata").write_bytes(bomb)
    save_file({"w": torch.zeros(1)}, alone / "more.safetensors")
    assert not shards.are_in(alone)
    assert checkpoint.load(alone)[0].keys() == {"model"}
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(FileExistsError):  # it does explode where it is read
        [pickle.loads(bomb) for _ in range(2)]
