"""What a run writes: rows whole at any moment and exact to the bit, cut and written again without a trace."""

import hashlib
import json
import math
import os
import resource
import subprocess
import time

import numpy as np
import pytest
from runs import code_of, fork, known, make

from gspo.tracking import files, run_dir
from gspo.tracking.samples import sample_rows
from gspo.types import Group, Prompt, Reward, Rollout


def test_rows_read_back_to_the_bit():
    """Floats by repr, numpy scalars and arrays as Python's, NaN and infinity as null with their name: any JSON parser
    reads the line, and ours gives the floats back."""
    row = {"step": np.int64(3), "a": 0.1 + 0.2, "b": 5e-324, "c": -0.0, "d": float("inf"), "e": np.float32(0.1)}
    row |= {"parts": {"x": float("nan"), "y": 1.0}, "list": np.array([1.5, -np.inf]), "text": "\ud800 \u2028 \n é"}
    line = files.to_line(row)
    assert line.count(b"\n") == 1

    def refuse(constant):
        raise AssertionError(constant)

    plain = json.loads(line, parse_constant=refuse)
    assert plain["nonfinite"] == {"d": "inf", "parts": {"x": "nan"}, "list": {"1": "-inf"}}
    assert (plain["d"], plain["parts"]["x"], plain["list"]) == (None, None, [1.5, None])
    back = files.from_line(line)
    assert math.isnan(back["parts"].pop("x"))
    assert back == {
        "step": 3,
        "a": 0.30000000000000004,
        "b": 5e-324,
        "c": -0.0,
        "d": float("inf"),
        "e": float(np.float32(0.1)),
        "parts": {"y": 1.0},
        "list": [1.5, -math.inf],
        "text": "\ud800 \u2028 \n é",
    }
    assert str(back["c"]) == "-0.0"


def test_rows_are_whole_at_any_moment(tmp_path):
    """While a process appends rows of 10 kB, every reading of the file gives steps 0 to some k, each row whole."""

    def work() -> None:
        run = make(tmp_path / "run")
        for step in range(1500):
            run.metrics({"step": step, "text": "x" * 10_000})
            time.sleep(0.002 if step % 5 == 0 else 0)  # over half a second in all, whatever the machine

    child = fork(work)
    path, seen = tmp_path / "run" / "metrics.jsonl", [0]
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        rows = list(files.rows(path))
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert all(len(row["text"]) == 10_000 for row in rows)
        assert len(rows) >= seen[-1]
        seen.append(len(rows))
    assert len(set(seen)) > 3
    assert len(list(files.rows(path))) == 1500


def test_a_row_counts_from_its_newline_on(tmp_path):
    """A last line without its end, even one that is JSON so far, is not a row for any reader."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "x": 12}')
    assert list(files.rows(path)) == [{"step": 0}]
    assert files.end_before(path, 5) == (12, 0)
    assert list(files.rows(tmp_path / "none")) == []
    assert files.end_before(tmp_path / "none", 5) == (0, -1)


def test_a_step_has_one_row(tmp_path):
    """A step logged twice is a mistake of the loop, caught at once."""
    with make(tmp_path / "run") as run:
        run.metrics({"step": 0})
        with pytest.raises(AssertionError):
            run.metrics({"step": 0})


def fill(run, size):
    for step in range(1000):
        run.metrics({"step": step, "text": "x" * size})


def test_a_short_write_is_taken_back(tmp_path):
    """A file-size limit in the middle of a row: an error with path and space, and the file ends with the row before."""

    def work() -> int:
        run = make(tmp_path / "run")
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(OSError, match=r"cannot write .*metrics.jsonl: .*MB free"):
            fill(run, 990)
        return 0

    assert code_of(fork(work)) == 0
    whole = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert whole.endswith(b"\n")
    assert [row["step"] for row in files.rows(tmp_path / "run" / "metrics.jsonl")] == list(range(whole.count(b"\n")))


def test_full_disk_leaves_a_true_status(tmp_path):
    """On a full file system (64 kB, mounted) the failing write names path and space, run.json still says failed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount a file system")
    try:
        full = r"cannot write .*metrics.jsonl: No space left on device \(0.0 MB free"
        with pytest.raises(OSError, match=full), make(disk / "run") as run:
            fill(run, 3000)
        said = known(disk / "run")
        assert said["status"] == "failed"
        assert "No space left on device" in said["reason"]
        assert [row["step"] for row in files.rows(run.path / "metrics.jsonl")] == list(range(run.last_step + 1))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def write_steps(run, steps):
    for step in steps:
        if step % 5 == 0:
            run.eval({"step": step, "eval/avg": step / 10}, [{"problem": "a", "correct": step}])
        run.sequences(
            step, {"length": np.array([step, 2], dtype=np.int32), "ids": [np.arange(step, dtype=np.int32)] * 2}
        )
        run.samples(step, [{"response": str(step)}])
        run.metrics({"step": step, "reward/mean": step / 7, "optim/grad_norm": math.inf if step == 3 else 1.0})


def contents(path):
    names = ("metrics.jsonl", "eval.jsonl", "samples/*", "eval_samples/*", "sequences/*")
    found = sorted(p for name in names for p in path.glob(name))
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def test_cut_and_written_again_equals_written_once(tmp_path):
    """A run killed in step 17, with half a row and half a file left, and continued from step 10, has the bytes of one
    that was never stopped; step 100 is not cut as if it came before 20 (text order)."""
    with make(tmp_path / "straight") as straight:
        write_steps(straight, [*range(31), 100])
    with make(tmp_path / "killed") as killed:
        write_steps(killed, range(17))
        (killed.path / "samples" / "step_000017.jsonl").write_text("{")
        (killed.path / "sequences" / ".step_000017.parquet.tmp").write_text("PAR1")
        with (killed.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 17, "rew')
    with run_dir.open_existing(killed.path, next_step=10) as again:
        again.truncate(10)
        assert again.last_step == 9
        write_steps(again, [*range(10, 31), 100])
    assert contents(killed.path) == contents(straight.path)
    with run_dir.open_existing(killed.path, next_step=20) as again:
        again.truncate(20)
    kept = contents(killed.path)
    assert max(kept) == "sequences/step_000019.parquet"
    assert kept["samples/step_000019.jsonl"] == contents(straight.path)["samples/step_000019.jsonl"]
    assert len(kept) == 2 + 20 + 20 + 4


def test_missing_rows_are_told(tmp_path, caplog):
    """Rows before the checkpoint that are not there are said, not passed over."""
    with make(tmp_path / "run") as run:
        write_steps(run, range(4))
        run.truncate(6)
    assert "the last row before step 6 is step 3" in caplog.text


def test_damaged_row_is_named(tmp_path):
    """A broken line is an error with its number, or its place for one who reads from the end; not a shorter file."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl line 2"):
        list(files.rows(path))
    assert files.end_before(path, 3) == (29, 2)
    with pytest.raises(ValueError, match=r"metrics.jsonl at byte 12"):
        files.end_before(path, 1)


def test_sequences_keep_types_and_metadata(tmp_path):
    """float32 stays float32, int32 lists stay int32 lists (empty ones too), [rows, k] is a list column, metadata is
    found in the schema; read by pyarrow."""
    import pyarrow.parquet as pq
    import torch

    ids = [np.array([5, 6], dtype=np.int32), np.array([], dtype=np.int32)]
    adv = torch.tensor([0.1, -1.0], requires_grad=True)
    grid = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int16)
    with make(tmp_path / "run") as run:
        columns = {"id": ["a", "b"], "ids": ids, "empty": [ids[1]] * 2, "adv": adv, "grid": grid}
        run.sequences(12, columns, {"clip_grid": "[0.1, 0.2]"})
    table = pq.read_table(run.path / "sequences" / "step_000012.parquet")
    types = {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    assert {name: kind.replace("element", "item") for name, kind in types.items()} == {
        "id": "string",
        "ids": "list<item: int32>",
        "empty": "list<item: int32>",
        "adv": "float",
        "grid": "list<item: int16>",
    }
    assert table.schema.metadata[b"clip_grid"] == b"[0.1, 0.2]"
    assert table["ids"].to_pylist() == [[5, 6], []]
    assert table["grid"].to_pylist() == grid.tolist()
    assert table["adv"].to_numpy().tobytes() == adv.detach().numpy().tobytes()


def test_sample_table_favours_no_outcome():
    """Eight responses, four shown: one of each pair in order, with length in trained tokens and NaN for no verdict."""

    def one(prompt, g):
        ids = np.arange(g + 1)
        trained = ids != 0
        roll = Rollout(ids, trained, np.zeros(g + 1, np.float32), "stop", 0, f"{prompt}.{g}")
        failed = g == 3
        reward = Reward(math.nan, verdict="verifier failed") if failed else Reward(1.0, {"correct": 1.0})
        return roll, reward

    groups = []
    for name in ("p", "q"):
        pairs = [one(name, g) for g in range(4)]
        prompt = Prompt(name, f"{name}?", (1,), "1", "test")
        groups.append(Group(prompt, [roll for roll, _ in pairs], [reward for _, reward in pairs]))
    rows = sample_rows(groups, 4)
    assert [(row["prompt"], row["response"], row["length"]) for row in rows] == [
        ("p?", "p.1", 1),
        ("p?", "p.3", 3),
        ("q?", "q.1", 1),
        ("q?", "q.3", 3),
    ]
    assert [row["verdict"] for row in rows] == ["ok", "verifier failed"] * 2
    assert len(sample_rows(groups, 100)) == 8
    assert sample_rows(groups, 0) == []


def test_hundred_thousand_steps(tmp_path):
    """A long run's file is cut and opened in seconds, in place, without holding it in memory."""
    make(tmp_path / "run").finish()
    path = tmp_path / "run" / "metrics.jsonl"
    with path.open("wb") as file:
        file.writelines(b'{"step": %d, "reward/mean": 0.5}\n' % step for step in range(100_000))
    start = time.monotonic()
    with run_dir.open_existing(tmp_path / "run", next_step=99_999) as run:
        run.truncate(99_999)
    assert time.monotonic() - start < 10
    assert sum(1 for _ in files.rows(path)) == 99_999
