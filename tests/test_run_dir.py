"""The life of a run directory: made whole, held by one live process, true about how the run ended."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from runs import CONFIG, FACTS, code_of, fork, known, make

from gspo.tracking import record, run_dir


def test_created_whole(tmp_path):
    """config.yaml reads back as the settings (1e-6 a float to plain PyYAML, B35), run.json says who, what and when."""
    with make(tmp_path / "runs" / "one") as run:
        said = known(run.path)
        assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG == run_dir.read_config(run.path)
        assert {key: said[key] for key in FACTS} == FACTS
        assert (said["status"], said["reason"], said["pid"]) == ("running", "", os.getpid())
        assert said["versions"]["python"] == sys.version.split()[0]
        assert said["versions"]["numpy"] == np.__version__
        assert run_dir.status(run.path) == "running"
    assert known(run.path)["status"] == "finished"
    assert known(run.path)["ended"] >= known(run.path)["started"]


def test_git_of_the_code(tmp_path, monkeypatch):
    """Commit and dirty flag are those of the checkout that the code is in, wherever the run starts; null for a package
    installed inside somebody else's checkout, and outside one."""

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    mine = record.git()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.git() == mine
    code, installed = tmp_path / "package" / "file.py", tmp_path / "site-packages" / "file.py"
    for path in (code, installed):
        path.parent.mkdir()
        path.write_text("1")
    assert record.git(code) is None
    git("init")
    git("add", "package")
    git("commit", "-m", "one")
    assert record.git(code) == {"commit": git("rev-parse", "HEAD"), "dirty": False, "root": str(tmp_path)}
    assert record.git(installed) is None
    code.write_text("2")
    found = record.git(code)
    assert found is not None
    assert found["dirty"] is True


@pytest.mark.parametrize("kind", ["run", "empty", "file", "link"])
def test_existing_directory_is_refused_and_untouched(tmp_path, kind):
    """Nothing that is there is overwritten or added to, whatever it is (B36)."""
    path = tmp_path / "there"
    if kind == "run":
        make(path).finish()
    elif kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in [path, *path.rglob("*")])
    with pytest.raises(ValueError, match="there exists; choose another"):
        make(path)
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in [path, *path.rglob("*")]) == before
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_one_of_many_creators_wins(tmp_path):
    """Eight processes make the same directory at once (two runs in one second, B36): one has it, seven are told."""

    def work() -> int:
        try:
            run = make(tmp_path / "same")
        except ValueError:
            return 3
        time.sleep(0.5)
        run.finish()
        return 0

    assert sorted(code_of(child) for child in [fork(work) for _ in range(8)]) == [0] + [3] * 7
    assert [p.name for p in tmp_path.iterdir()] == ["same"]
    assert known(tmp_path / "same")["status"] == "finished"


def test_second_process_is_refused_and_a_dead_one_is_lost(tmp_path):
    """A live process keeps others out, also one of its own; killed, it holds nothing, even when a child that it forked
    lives on, and its run is found lost, then continued with both sessions on record."""
    reader, writer = os.pipe()

    def work() -> None:
        run = make(tmp_path / "run")
        run.metrics({"step": 0})
        child = fork(lambda: time.sleep(30))
        os.write(writer, child.to_bytes(4, "big"))
        time.sleep(30)

    child = fork(work)
    orphan = int.from_bytes(os.read(reader, 4), "big")
    with pytest.raises(ValueError, match="is in use by a live process"):
        run_dir.open_existing(tmp_path / "run")
    assert run_dir.status(tmp_path / "run") == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        assert run_dir.status(tmp_path / "run") == "lost"
        with run_dir.open_existing(tmp_path / "run", next_step=1) as run:
            assert run.last_step == 0
            assert run_dir.status(tmp_path / "run") == "running"
            with pytest.raises(ValueError, match="in use"):
                run_dir.open_existing(tmp_path / "run")
    finally:
        os.kill(orphan, signal.SIGKILL)
    sessions = known(tmp_path / "run")["sessions"]
    assert [(s["status"], s["from_step"], s["pid"]) for s in sessions] == [
        ("lost", 0, child),
        ("finished", 1, os.getpid()),
    ]


def test_asking_whether_a_run_lives_does_not_stop_it_from_starting(tmp_path):
    """A reader that is just looking at the lock is not taken for the run by another, and a resume waits for it."""
    make(tmp_path / "run").finish()
    reader = os.open(tmp_path / "run" / ".lock", os.O_RDWR)
    fcntl.flock(reader, fcntl.LOCK_SH)
    assert not record.is_locked(tmp_path / "run")

    def look() -> None:
        time.sleep(0.05)

    child = fork(look)  # it has the reader's lock until it ends
    os.close(reader)
    run_dir.open_existing(tmp_path / "run").finish()
    assert code_of(child) == 0


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("bad\nvalue"), "failed", "ValueError: bad value"),
        (RuntimeError("x"), "failed", "RuntimeError: x"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(143), "failed", "SystemExit: 143"),
        (run_dir.Interrupted("SIGTERM after step 3"), "interrupted", "Interrupted: SIGTERM after step 3"),
    ],
)
def test_every_ending_is_on_record(tmp_path, error, status, reason):
    """An exception that leaves the run is its status and its one-line reason; the lock is free again."""
    with pytest.raises(type(error)), make(tmp_path / "run"):
        raise error
    assert (known(tmp_path / "run")["status"], known(tmp_path / "run")["reason"]) == (status, reason)
    assert not record.is_locked(tmp_path / "run")


def test_a_forked_child_does_not_end_the_run(tmp_path):
    """A worker forked inside the run that leaves the block (sys.exit) neither ends it on record nor frees its lock."""

    with make(tmp_path / "run") as run:

        def work() -> int:
            run.__exit__(SystemExit, SystemExit(1), None)
            return 0

        assert code_of(fork(work)) == 0
        assert known(run.path)["status"] == "running"
        assert record.is_locked(run.path)
    assert known(run.path)["status"] == "finished"


def test_log_goes_to_the_open_run_only(tmp_path):
    """Two runs in one process, one after another: each log.txt has its own lines, INFO of ours, WARNING of others."""
    logging.disable(logging.NOTSET)
    for logger in (logging.getLogger(), logging.getLogger("other")):
        logger.disabled = False
        logger.setLevel(logging.WARNING)
    for name in ("one", "two"):
        with make(tmp_path / name):
            logging.getLogger("gspo.train").info("of %s", name)
            logging.getLogger("other").info("chatter")
            logging.getLogger("other").warning("trouble in %s", name)
    logging.getLogger("gspo.train").warning("after")
    for name in ("one", "two"):
        lines = (tmp_path / name / "log.txt").read_text().splitlines()
        assert [line.split(" ", 2)[2] for line in lines] == [
            f"INFO gspo.train: of {name}",
            f"WARNING other: trouble in {name}",
        ]


def test_secrets_are_not_written(tmp_path, monkeypatch):
    """A key under a telling name, or the value of a secret variable anywhere (an override, a reason), is `***`;
    numbers named `max_tokens` and the like are not."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", "s3cr3t-value-123")
    config = {"sampling": {"max_tokens": 64, "micro_batch_tokens": 9}, "model": {"path": "x?t=s3cr3t-value-123"}}
    config |= {"hub": {"token": "hf_abc", "api_key": "k", "names": ["s3cr3t-value-123"]}}
    with pytest.raises(RuntimeError), run_dir.create(tmp_path / "run", config, {"overrides": ["a=s3cr3t-value-123"]}):
        raise RuntimeError("refused: s3cr3t-value-123")
    assert run_dir.read_config(tmp_path / "run") == {
        "sampling": {"max_tokens": 64, "micro_batch_tokens": 9},
        "model": {"path": "x?t=***"},
        "hub": {"token": "***", "api_key": "***", "names": ["***"]},
    }
    assert "s3cr3t" not in (tmp_path / "run" / "run.json").read_text()
