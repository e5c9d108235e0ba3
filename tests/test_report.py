"""Reports on run directories whose contents are known: collapse, arms, claims, and files that repeat to the byte."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from report_runs import learning, write_run, write_sweep

from gspo.report import arms, main
from gspo.report.collapse import judge, of_run, peak, smoothed
from gspo.report.collect import collect, read_run
from gspo.report.contents import all_tables
from gspo.report.html import page
from gspo.report.statistics import Interval
from gspo.report.summary import summarize
from gspo.report.tables import Table, csv_text, latex_text

HEALTHY = np.zeros(120)
CHILD_MEMORY = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command and prints the most memory that it held, KiB."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_smoothed_and_peak():
    """R_t is the mean of r over t-9..t from t = 9; P_t never falls."""
    r = np.arange(15) / 10
    R = smoothed(r)
    assert np.isnan(R[:9]).all()
    assert R[9:] == pytest.approx([np.mean(r[t - 9 : t + 1]) for t in range(9, 15)])
    assert peak(np.array([math.nan, 0.2, 0.5, 0.1]))[1:].tolist() == [0.2, 0.5, 0.5]


def test_collapse_b_first_step():
    """r falls from 0.8 to 0 at step 60: R_t = 0.8 (69 - t) / 10 is first under 0.4 at 65 (0.4 at 64 is not under)."""
    r = np.where(np.arange(120) < 60, 0.8, 0.0)
    found = judge(r, HEALTHY)
    assert (found.verdict, found.time, found.rule, found.recovered) == ("collapsed", 65, "b", False)
    r[100:] = 0.8
    assert judge(r, HEALTHY).recovered is True


def test_collapse_b_needs_20_steps_and_something_learned():
    """19 steps under half of the peak are no collapse, 20 are; a run that never reached 0.10 has nothing to lose."""
    r = np.full(120, 0.8)
    r[60:80] = 0.0  # six zeros or more in t-9..t, so R < 0.4, at t = 65..83: 19 steps
    assert judge(r, HEALTHY).verdict == "stable"
    r[80] = 0.0  # 65..84: 20 steps
    assert (judge(r, HEALTHY).verdict, judge(r, HEALTHY).time) == ("collapsed", 65)
    assert judge(np.where(np.arange(120) < 60, 0.099, 0.0), HEALTHY).verdict == "stable"


def test_censoring_and_short_runs():
    """Without an event: censored at T - 20, and undetermined under 40 steps; what falls in the last 19 is not seen."""
    late = np.where(np.arange(120) < 100, 0.8, 0.0)  # R < 0.4 from t = 105 on: only 15 steps are left
    assert (judge(late, HEALTHY).verdict, judge(late, HEALTHY).time) == ("stable", 100)
    r = np.where(np.arange(39) < 10, 0.8, 0.0)
    assert judge(r, np.zeros(39)).verdict == "undetermined"
    assert judge(np.append(r, 0.0), np.zeros(40)).verdict == "collapsed"
    stopped = judge(r, np.zeros(39), stopped_at=39)
    assert (stopped.verdict, stopped.time, stopped.rule) == ("collapsed", 39, "a")


def test_collapse_c():
    """Over 90 % truncated or empty for 20 steps, after a step under 50 %: not for a run that starts that way."""
    r = np.full(120, 0.05)
    bad = np.where(np.arange(120) >= 50, 0.95, 0.2)
    assert (judge(r, bad).time, judge(r, bad).rule) == (50, "c")
    assert judge(r, np.full(120, 0.95)).verdict == "stable"
    assert judge(r, np.where(np.arange(120) >= 50, 0.95, 0.5)).verdict == "stable"
    bad[69] = 0.9
    assert (judge(r, bad).time, judge(r, bad).rule) == (70, "c")


def test_query_set_change_is_no_collapse():
    """A harder query set halves the reward without any collapse; its own peak starts afresh."""
    r = np.where(np.arange(120) < 60, 0.8, 0.3)
    assert judge(r, HEALTHY).verdict == "collapsed"
    assert judge(r, HEALTHY, changes=[60]).verdict == "stable"
    r[90:] = 0.0
    assert judge(r, HEALTHY, changes=[60]).time == 95


def test_stopped_run_counts_as_collapse_and_failed_one_does_not(tmp_path):
    """A stop after skipped updates is rule (a); an out-of-memory failure says nothing about the algorithm."""
    reason = "TrainingStopped: 3 updates in a row were skipped at step 50: Update(...)"
    write_run(tmp_path, "grpo", 0, np.full(50, 0.5), record={"status": "failed", "reason": reason})
    write_run(tmp_path, "grpo", 1, np.full(50, 0.5), record={"status": "failed", "reason": "OutOfMemoryError: ..."})
    first, second = (of_run(run) for run in collect(tmp_path))
    assert (first.verdict, first.time, first.rule) == ("collapsed", 50, "a")
    assert second.verdict == "excluded"


def test_collect_tolerates_what_a_kill_leaves(tmp_path):
    """A half line at the end is dropped; a doubled step keeps its later row; other damage is named; lost runs are."""
    path = write_run(tmp_path, "grpo", 0, np.full(5, 0.5))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/correct": 0.9}\n')
        file.write(
            '{"step": 5, "reward/correct": null, "optim/grad_norm": null, "nonfinite": {"optim/grad_norm": "inf"}}\n'
        )
        file.write('{"step": 6, "reward/cor')
    run = read_run(path, tmp_path)
    assert run.column("step").tolist() == [0, 1, 2, 3, 4, 5]
    assert run.column("reward/correct")[3:5].tolist() == [0.5, 0.9]
    assert math.isnan(run.column("reward/correct")[5])
    assert run.column("optim/grad_norm")[5] == math.inf
    write_run(tmp_path, "grpo", 1, np.full(5, 0.5), record={"status": "running"})
    (write_run(tmp_path, "grpo", 2, np.full(5, 0.5)) / "metrics.jsonl").write_text(
        '{"step": 0}\nnonsense\n{"step": 2}\n'
    )
    write_run(tmp_path, "grpo", 3, np.full(5, 0.5), name=".algo=grpo,seed=3.123.tmp")
    found = {run.seed: run for run in collect(tmp_path)}
    assert {seed: run.status for seed, run in found.items()} == {0: "finished", 1: "lost", 2: "unreadable"}
    assert "metrics.jsonl line 2" in found[2].reason


def test_differing_key_is_listed(tmp_path):
    """A key outside the sweep that differs inside an arm, and one that differs between arms, are both reported; data
    generated from the seed are no difference, a file that was changed on the way is."""
    for algo in ("grpo", "gspo"):
        for seed in range(4):
            config = {"optim.lr": 2e-3 if (algo, seed) == ("gspo", 3) else 1e-3, "data.seed": seed}
            config["sampling.temperature"] = 1.0 if algo == "grpo" else 0.7
            data = {"arithmetic from step 0": f"hash{seed}", "gsm8k from step 3": "abc" if seed < 2 else "def"}
            record = {"git": {"commit": "abc" if seed else "def"}, "data": data}
            write_run(tmp_path, algo, seed, np.full(5, 0.5), config=config, record=record)
    runs = collect(tmp_path)
    swept = arms.swept_keys(runs)
    assert swept == ["algo"]
    assert arms.assign(runs, swept) == ["grpo", "gspo"]
    found = {d.key: (d.inside, d.values) for d in arms.differences(runs, swept)}
    assert found == {
        "data.gsm8k from step 3": (True, {"abc": 4, "def": 4}),
        "git.commit": (True, {"abc": 6, "def": 2}),
        "optim.lr": (True, {"0.001": 7, "0.002": 1}),
        "sampling.temperature": (False, {"0.7": 4, "1.0": 4}),
    }


def test_arms_of_a_grid(tmp_path):
    """Two swept keys make the arms, numbers in order of size; a key that only one run overrides is no arm."""
    for lr in ("0.01", "0.0001", "0.001"):
        for seed in (0, 1):
            extra = ["train.aux=1"] if (lr, seed) == ("0.01", 1) else []
            write_run(tmp_path, "gspo", seed, np.full(5, 0.5), name=f"lr={lr},{seed}", config={"optim.lr": float(lr)},
                      overrides=["algo=gspo", f"optim.lr={lr}", f"seed={seed}", *extra])  # fmt: skip
    runs = collect(tmp_path)
    assert arms.assign(runs, arms.swept_keys(runs)) == ["gspo, lr=0.0001", "gspo, lr=0.001", "gspo, lr=0.01"]
    assert arms.assign(runs, arms.swept_keys(runs, ["seed"])) == ["gspo, seed=0", "gspo, seed=1"]
    with pytest.raises(ValueError, match="--by nothing"):
        arms.swept_keys(runs, ["nothing"])


def test_tables_keep_every_digit():
    """CSV floats read back to the bit, an interval is four columns, and LaTeX's special characters are escaped."""
    x = 0.1 + 0.2
    table = Table(
        "t", "a caption", ("arm_name", "value"), [("a_b & 50%", Interval(x, math.nan, 1.0, 7, "m")), ("c", None)]
    )
    header, first, second = csv_text(table).splitlines()
    assert header == "arm_name,value,value_low,value_high,value_n"
    assert first == "a_b & 50%,0.30000000000000004,,1.0,7"
    assert second == "c,,,,"
    assert float(first.split(",")[1]) == x
    assert r"a\_b \& 50\% & 0.3 (n=7) \\" in latex_text(table)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """10 seeds of two arms with a planted difference in reward and clip fraction, and its report."""
    root = tmp_path_factory.mktemp("multi_seed")
    write_sweep(root, {"grpo": 0.5, "gspo": 0.6}, 10, sequences=True)
    assert main([str(root)]) == 0
    return root


def test_planted_difference_is_claimed(sweep):
    """Held-out and training scores 5 standard deviations apart are claimed, with n and interval; collapse is not."""
    rows = {row["score"]: row for row in rows_of(sweep / "report" / "comparisons.csv")}
    for score in ("train reward/correct", "chains avg@4"):
        row = rows[score]
        assert row["verdict"] == "gspo is higher than grpo"
        assert row["test"] == "permutation"
        assert (row["n_a"], row["n_b"]) == ("10", "10")
        assert 0.05 < float(row["difference_low"]) < float(row["difference"]) < float(row["difference_high"]) < 0.15
    assert rows["collapse rate"]["verdict"].startswith("no claim")
    assert "gspo is higher than grpo" in (sweep / "report" / "report.html").read_text()


def test_clip_fractions_are_sums_divided_once(sweep):
    """A run's clip fraction is the sum of numerators over that of denominators; the ratio is near 0.15 / 0.0013."""
    table = rows_of(sweep / "report" / "runs.csv")
    for row in table[:3]:
        path = sweep / f"algo={row['arm']},seed={row['seed']}"
        metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        top = sum(m["clip/token_binding_num"] for m in metrics)
        assert float(row["clip/token_binding"]) == pytest.approx(
            top / sum(m["clip/token_binding_den"] for m in metrics)
        )
    ratio = next(r for r in rows_of(sweep / "report" / "clip_ratios.csv") if r["metric"] == "clip/token_binding")
    assert (ratio["a"], ratio["b"]) == ("gspo", "grpo")
    assert float(ratio["ratio_low"]) < 0.15 / 0.0013 < float(ratio["ratio_high"])


def test_report_is_self_contained(sweep):
    """report.html loads nothing, names no directory of this machine and no date."""
    text = (sweep / "report" / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert str(sweep) not in text
    assert "2025-07-18" not in text
    for path in (sweep / "report").glob("*.csv"):
        assert str(sweep.parent) not in path.read_text()
        assert "2025-07-18" not in path.read_text()
    for name in ("curves_step", "curves_tokens", "curves_flops", "curves_device_seconds", "clip_fractions", "collapse",
                 "final_scores", "comparisons", "lengths", "experts"):  # fmt: skip
        assert (sweep / "report" / f"{name}.svg").stat().st_size > 5000, name
        assert (sweep / "report" / f"{name}.png").stat().st_size > 5000, name


def test_files_repeat_to_the_byte(tmp_path):
    """The same rows with other dates, hosts and times give the same CSV, LaTeX and SVG but for the tables of time."""
    for name, slower in (("one", 1.0), ("two", 3.0)):
        write_sweep(tmp_path / name / "sweep", {"gspo": 0.6, "grpo": 0.5}, 4, steps=48, sequences=True)
        for path in (tmp_path / name / "sweep").glob("*/metrics.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            for row in rows:
                row.update(
                    {k: v * slower for k, v in row.items() if k.startswith(("time/", "perf/")) or "seconds" in k}
                )
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            record = json.loads((path.parent / "run.json").read_text()) | {"host": name, "started": str(slower)}
            (path.parent / "run.json").write_text(json.dumps(record))
        assert main([str(tmp_path / name / "sweep"), "--x", "tokens"]) == 0
    one, two = (tmp_path / name / "sweep" / "report" for name in ("one", "two"))
    compared = [path.name for path in sorted(one.iterdir()) if path.suffix in (".csv", ".tex", ".svg")]
    timed = {"time.csv", "time.tex", "curves_device_seconds.svg", "curves_device_seconds_data.csv"}
    assert timed < set(compared)
    assert len(compared) > 30
    differing = {name for name in compared if (one / name).read_bytes() != (two / name).read_bytes()}
    assert differing == timed


def test_three_seeds_make_no_claim(tmp_path):
    """However far apart, under 4 seeds the report shows points: no interval, no p, no claim."""
    write_sweep(tmp_path, {"grpo": 0.2, "gspo": 0.9}, 3, steps=40)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    for row in rows_of(tmp_path / "out" / "comparisons.csv"):
        assert row["verdict"].startswith("no claim: fewer than 4")
        assert (row["p"], row["p_holm"]) == ("", "")
    for row in rows_of(tmp_path / "out" / "final_scores.csv"):
        assert (row["mean_low"], row["iqm_high"], row["mean_n"]) == ("", "", "3")
    assert "No claim" in (tmp_path / "out" / "report.html").read_text()


def test_excluded_runs_are_named(tmp_path):
    """Failed, interrupted and lost runs leave the comparison and are listed with their reason."""
    write_sweep(tmp_path, {"grpo": 0.5}, 4, steps=40)
    low = np.full(40, 0.01)
    write_run(tmp_path, "grpo", 7, low, record={"status": "failed", "reason": "OutOfMemoryError: 3 GiB"})
    write_run(tmp_path, "grpo", 8, low, record={"status": "interrupted", "reason": "SIGTERM after step 39"})
    write_run(tmp_path, "grpo", 9, low, record={"status": "running"})
    found = summarize(tmp_path)
    text = page("title", found, all_tables(found), {}, "step")
    for words in ("OutOfMemoryError: 3 GiB", "SIGTERM after step 39", "the process is gone"):
        assert words in text
    table = next(table for table in all_tables(found) if table.name == "final_scores")
    mean, least = table.rows[0][table.columns.index("mean")], table.rows[0][table.columns.index("min")]
    assert mean.n == 4
    assert least > 0.3


def test_curves_meet_the_runs(sweep):
    """The curve against tokens is the runs' 10-step mean at the tokens they had sampled, interpolated and averaged."""
    rows = [r for r in rows_of(sweep / "report" / "curves_tokens_data.csv") if r["arm"] == "gspo"]
    row = [r for r in rows if r["metric"] == "train reward/correct"][100]
    values = []
    for run in collect(sweep):
        if run.config["algo.name"] == "gspo":
            R = [run.column("reward/correct")[t - 9 : t + 1].mean() for t in range(9, 60)]
            values.append(np.interp(float(row["x"]), run.column("compute/tokens_sampled")[9:], R))
    assert float(row["value"]) == pytest.approx(np.mean(values), rel=1e-6)
    assert float(row["value_low"]) < np.mean(values) < float(row["value_high"])


def test_workspace_is_built_offline(tmp_path, monkeypatch, capsys):
    """--wandb without a network writes a view that the library reads back: panels, grouping, the group's runs only."""
    pytest.importorskip("wandb_workspaces")
    from gspo.report import dashboard

    monkeypatch.setenv("WANDB_MODE", "offline")
    for seed in range(2):
        write_run(tmp_path, "gspo", seed, np.full(5, 0.5), config={"tracking.group": "multi_seed"}, held_out={0: 0.2})
    found = summarize(tmp_path)
    assert "not sent" in dashboard.publish(found, tmp_path)
    text = (tmp_path / "workspace.json").read_text()
    view = dashboard.from_json(text)
    panels = {section.name: section.panels for section in view.sections}
    assert list(panels) == ["Clip fractions", "Reward", "Collapse"]
    lines = [panel.y[0].name for section in view.sections for panel in section.panels if hasattr(panel, "y")]
    assert lines[:4] == ["clip/token_binding", "clip/token_outside", "clip/seq_binding", "clip/seq_outside"]
    logged = set(found.runs[0].metrics) | {"avg_at_k"}
    assert set(lines) - logged <= {"reward/zero_spread", "policy/entropy", "optim/grad_norm", "optim/skipped"}
    assert {panel.groupby.name for section in panels.values() for panel in section if hasattr(panel, "groupby")} == {
        "algo.name"
    }
    assert "multi_seed" in view.runset_settings.filters
    assert "| gspo | 0 of 0 |" in panels["Collapse"][0].markdown
    again = dashboard.to_json(view)
    assert (
        json.loads(again)["spec"]["section"]["panelBankConfig"]
        == json.loads(text)["spec"]["section"]["panelBankConfig"]
    )


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    """No traceback for a wrong directory: exit code 2 and one line that names it."""
    assert main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.strip() == f"gspo-report: no such directory: {tmp_path / 'nothing'}"
    assert main([str(tmp_path)]) == 2
    assert "run.json" in capsys.readouterr().err
    assert main(["clip", str(tmp_path)]) == 2
    assert "sequences" in capsys.readouterr().err


def test_report_needs_no_trainer(tmp_path):
    """gspo.report works where torch, hydra and transformers cannot be imported, and imports nothing else of gspo."""
    write_sweep(tmp_path, {"grpo": 0.5}, 2, steps=40, sequences=True)
    code = f"""
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "hydra", "omegaconf", "transformers", "vllm", "wandb", "rich", "pandas"):
            raise ImportError(name)
sys.meta_path.insert(0, No())
from gspo.report import main
assert main([{str(tmp_path)!r}]) == 0
assert main(["clip", {str(tmp_path)!r}]) == 0
print(sorted(m for m in sys.modules if m.startswith("gspo.") and not m.startswith("gspo.report")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.slow
def test_hundred_runs_in_20_seconds(tmp_path):
    """100 runs of 200 steps with 20 files of sequences each: under 20 s of CPU on one thread."""
    for lr in range(5):
        for algo in ("grpo", "gspo"):
            for seed in range(10):
                rng = np.random.default_rng([lr, seed, len(algo)])
                path = write_run(tmp_path, algo, seed, learning(rng, 0.5 + 0.02 * lr, 200), name=f"{algo}-{lr}-{seed}",
                                 config={"optim.lr": 1e-3 * (lr + 1)}, held_out={0: 0.2, 100: 0.4, 200: 0.5},
                                 overrides=[f"algo={algo}", f"optim.lr={1e-3 * (lr + 1)}", f"seed={seed}"])  # fmt: skip
                _pad(path / "metrics.jsonl")
    start = time.process_time()
    assert main([str(tmp_path)]) == 0
    assert time.process_time() - start < 20


def _pad(path: Path) -> None:
    """Give each row the 150 further keys that a real one has."""
    more = {f"clip/token_binding/mb{i}_num": 0.123456789 + i for i in range(150)}
    rows = [json.loads(line) | more for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_a_long_run(tmp_path):
    """A metrics file of 100,000 rows of 180 columns (0.6 GB) is reported to its last row, in less than 0.5 GB."""
    run = write_run(tmp_path / "long", "gspo", 0, np.linspace(0.1, 0.9, 100_000))
    more = ", ".join(f'"clip/token_binding/mb{i}_num": {0.123456789 + i}' for i in range(150))
    with (run / "metrics.jsonl").open() as plain, (run / "padded").open("w") as padded:
        padded.writelines(f"{line.rstrip()[:-1]}, {more}}}\n" for line in plain)
    (run / "padded").replace(run / "metrics.jsonl")
    command = [Path(sys.executable).parent / "gspo-report", tmp_path / "long"]
    done = subprocess.run([sys.executable, "-c", CHILD_MEMORY, *command], capture_output=True, text=True, check=True)
    (found,) = rows_of(tmp_path / "long" / "report" / "runs.csv")
    assert (found["steps"], found["status"]) == ("100000", "finished")
    assert int(done.stdout.split()[-1]) < 500_000


@pytest.mark.long
def test_many_directories(tmp_path):
    """A sweep of 10,000 directories is reported."""
    template = write_run(tmp_path / "one", "gspo", 0, np.full(3, 0.5))
    files = {path.name: path.read_bytes() for path in template.iterdir() if path.is_file()}
    for k in range(10_000):
        folder = tmp_path / "many" / f"job{k}"
        folder.mkdir(parents=True)
        for name, data in files.items():
            data = data.replace(b"seed: 0", b"seed: %d" % (k % 10)).replace(b"lr: 0.001", b"lr: %d" % (k // 10))
            (folder / name).write_bytes(data)
        record = json.loads(files["run.json"]) | {"overrides": [f"optim.lr={k // 10}", f"seed={k % 10}"]}
        (folder / "run.json").write_text(json.dumps(record))
    assert main([str(tmp_path / "many")]) == 0
    assert len(rows_of(tmp_path / "many" / "report" / "runs.csv")) == 10_000
