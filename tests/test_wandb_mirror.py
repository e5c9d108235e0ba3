"""W&B as a mirror: each step once under one id, whatever happened, and never in the run's way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import known
from wandb_file import mirrored

from gspo.tracking import run_dir, wandb_mirror
from gspo.tracking.wandb_mirror import Mirror

CONFIG = {
    "seed": 7,
    "run": {"name": "gspo seed=7"},
    "optim": {"lr": 1e-6},
    "tracking": {"wandb": "offline", "project": "gspo", "group": "a sweep", "samples": 0},
}


def settings(wandb="offline") -> Any:
    return SimpleNamespace(wandb=wandb, project="gspo", group="a sweep")


def step(run, mirror, number, **more):
    row = {"step": number, "reward/mean": number / 7, "clip/seq_binding": 3e-4, **more}
    run.metrics(row)
    mirror.log(row)


def expected(numbers):
    return {number: {"reward/mean": number / 7, "clip/seq_binding": 3e-4} for number in numbers}


def test_every_row_under_the_same_names(tmp_path, capfd):
    """The .wandb file has each step once with the names and values of metrics.jsonl, the settings as a nested dict, the
    group and the name; an evaluation joins its step; NaN is NaN; nothing is printed."""
    with run_dir.create(tmp_path / "run", CONFIG, {}) as run, Mirror(run, settings(), name="gspo seed=7") as mirror:
        for number in range(40):
            if number % 20 == 0:
                evaluation = {"step": number, "eval/avg": 0.25, "eval/name": "aime24"}
                run.eval(evaluation)
                mirror.log(evaluation)
            step(run, mirror, number, **({"optim/grad_norm": float("nan")} if number == 5 else {}))
    said, table = mirrored(run.path)
    want = expected(range(40))
    want[0]["eval/avg"] = want[20]["eval/avg"] = 0.25
    assert str(table[5].pop("optim/grad_norm")).lower() == "nan"
    assert table == want
    assert (said.run_id, said.run_group, said.display_name) == (run.record["wandb_id"], "a sweep", "gspo seed=7")
    config = {item.key: json.loads(item.value_json) for item in said.config.update if item.key != "_wandb"}
    assert config == CONFIG
    assert capfd.readouterr() == ("", "")


def test_killed_cut_and_continued(tmp_path):
    """SIGKILL in step 13, cut to the checkpoint at 10, continued to 30: one W&B directory, the first id, steps 0 to 29
    once each. Without the refill W&B would have two directories or none of the first rows."""
    script = """if True:
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = [sys.argv[2], sys.argv[2] + "/../scripts"]
        from test_wandb_mirror import CONFIG, Mirror, run_dir, settings, step
        run = run_dir.create(Path(sys.argv[1]), CONFIG, {})
        mirror = Mirror(run, settings(), name="x")
        for number in range(13):
            step(run, mirror, number)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run"), str(Path(__file__).parent)])
    assert done.returncode == -signal.SIGKILL
    first = known(tmp_path / "run")["wandb_id"]
    with (
        run_dir.open_existing(tmp_path / "run", next_step=10) as run,
        Mirror(run, settings(), name="x") as mirror,
    ):
        run.truncate(10)
        for number in range(10, 30):
            step(run, mirror, number)
    said, table = mirrored(tmp_path / "run")
    assert said.run_id == first
    assert table == expected(range(30))


def test_refilled_after_the_end(tmp_path):
    """A run that was recorded without W&B, or whose W&B directory is lost, is mirrored from its files alone."""
    with run_dir.create(tmp_path / "run", CONFIG, {}) as run:
        for number in range(5):
            step(run, Mirror(run, settings("disabled"), name="x"), number)
        with pytest.raises(ValueError, match="in use by a live process"):
            wandb_mirror.refill(run.path)
    for _ in range(2):
        assert wandb_mirror.refill(run.path)
        said, table = mirrored(run.path)
        assert (said.run_id, said.display_name) == (run.record["wandb_id"], "gspo seed=7")
        assert table == expected(range(5))


def test_runs_one_after_another(tmp_path):
    """B39: three runs in one process, the second raises: three ids, one group, and the third has its own rows only."""
    for number in range(3):
        path = tmp_path / str(number)
        try:
            with run_dir.create(path, CONFIG, {}) as run, Mirror(run, settings(), name=f"job {number}") as mirror:
                for index in range(number + 2):
                    step(run, mirror, index)
                    if number == 1:
                        raise RuntimeError("job 1 fails")
        except RuntimeError:
            assert known(path)["status"] == "failed"
    found = [mirrored(tmp_path / str(number)) for number in range(3)]
    assert len({said.run_id for said, _ in found}) == 3
    assert [said.run_group for said, _ in found] == ["a sweep"] * 3
    assert [said.display_name for said, _ in found] == ["job 0", "job 1", "job 2"]
    assert [len(table) for _, table in found] == [2, 1, 4]


def test_a_dead_service_does_not_stop_the_run(tmp_path, caplog):
    """W&B's own process is killed in step 3: one warning, all rows in metrics.jsonl, the mirror whole at the end."""
    with run_dir.create(tmp_path / "run", CONFIG, {}) as run, Mirror(run, settings(), name="x") as mirror:
        for number in range(8):
            if number == 3:
                children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True)
                services = [line.split()[0] for line in children.stdout.splitlines() if b"wandb" in line]
                assert services
                for service in services:
                    os.kill(int(service), signal.SIGKILL)
                time.sleep(0.3)
            step(run, mirror, number)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "the W&B mirror stopped" in warnings[0]
    assert mirrored(run.path)[1] == expected(range(8))


def test_online_without_a_key_is_refused_before_anything_is_loaded(monkeypatch, tmp_path):
    """B40: one line at once, no prompt; a key in the environment or in ~/.netrc is enough; other modes are named."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"tracking.wandb=online: no W&B key; .*offline or disabled"):
        wandb_mirror.check("online")
    with pytest.raises(ValueError, match=r"tracking.wandb=yes: one of disabled, offline, online"):
        wandb_mirror.check("yes")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password abc\n")
    wandb_mirror.check("online")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    with pytest.raises(ValueError, match="no W&B key"):
        wandb_mirror.check("online")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    wandb_mirror.check("online")


def test_online_without_a_network_goes_offline(tmp_path):
    """B40: a key but nobody at the other end: after init_timeout (20 s; here 2) one warning that names the sync
    command, the rows in an offline directory, nothing printed or asked, and neither key nor environment in any file."""
    key = "0123456789abcdef" * 2 + "s3cr3tky"
    script = """if True:
        import sys
        from pathlib import Path
        sys.path[:0] = [sys.argv[2], sys.argv[2] + "/../scripts"]
        from test_wandb_mirror import CONFIG, Mirror, run_dir, settings, step, wandb_mirror
        wandb_mirror._QUIET["init_timeout"] = 2.0
        with run_dir.create(Path(sys.argv[1]), CONFIG, {}) as run, Mirror(run, settings("online"), name="x") as mirror:
            for number in range(3):
                step(run, mirror, number)
    """
    more = {"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9", "PASSPHRASE": "hunter2hunter2"}
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"} | more
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run"), str(Path(__file__).parent)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr.count("Traceback"), done.stderr.count("wandb:")) == ("", 0, 0), done.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("WARNING") == 1
    assert "offline instead; later: wandb sync" in log
    assert mirrored(tmp_path / "run")[1] == expected(range(3))
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path
            assert b"hunter2" not in path.read_bytes(), path


def test_disabled_never_imports_wandb(tmp_path):
    """tracking.wandb=disabled costs nothing and leaves nothing."""
    script = """if True:
        import sys
        from pathlib import Path
        sys.path[:0] = [sys.argv[2], sys.argv[2] + "/../scripts"]
        from test_wandb_mirror import CONFIG, Mirror, run_dir, settings, step
        run = run_dir.create(Path(sys.argv[1]), CONFIG, {})
        with run, Mirror(run, settings("disabled"), name="x") as mirror:
            step(run, mirror, 0)
        assert not {"wandb", "torch", "matplotlib", "pyarrow", "rich"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "run"), str(Path(__file__).parent)], check=True)
    assert not (tmp_path / "run" / "wandb").exists()


def test_offline_runs_are_found_for_the_upload(tmp_path):
    """scripts/wandb_sync.sh hands every offline run below a directory to `wandb sync`, names with spaces and `=` whole,
    online runs not; without any it is one line and exit code 2."""
    script = Path(__file__).parent.parent / "scripts" / "wandb_sync.sh"
    wanted = [tmp_path / "s" / job / "wandb" / "offline-run-1-a" for job in ("algo=grpo,seed=0", "two words")]
    for path in (*wanted, tmp_path / "s" / "c" / "wandb" / "run-1-a"):
        path.mkdir(parents=True)

    program = tmp_path / "program"  # in the place of wandb: prints its arguments, a line each
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)

    def sync(*words):
        environment = os.environ | {"WANDB": str(program)}
        return subprocess.run(
            ["bash", str(script), *words], capture_output=True, text=True, env=environment, check=False
        )

    done = sync(str(tmp_path), "--no-include-synced")
    assert done.stdout.splitlines() == ["sync", "--no-include-synced", *map(str, wanted)]
    assert done.returncode == 0
    for words, said in (
        ([str(tmp_path / "s" / "c")], "no offline runs"),
        ([str(tmp_path / "none")], "no such directory"),
    ):
        done = sync(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr
