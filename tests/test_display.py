"""What a person sees: a bar on a terminal, plain lines elsewhere, a picture at the end; nothing that can stop a run."""

import io
import os
import pty
import subprocess
import sys
import time

import numpy as np
import pytest
from runs import make

from gspo.tracking import run_dir, summary
from gspo.tracking.display import Display

ROW = {"reward/mean": 0.43219, "clip/token_binding": 0.00123456, "perf/tokens_per_s": 1234.5}

SHOW = """if True:
    import sys
    from gspo.tracking.display import Display
    with Display(int(sys.argv[1]), 2, interval=0) as display:
        for step in range(2, int(sys.argv[1])):
            display.update({"step": step, "reward/mean": step / 8, "clip/token_binding": 0.0, "perf/tokens_per_s": 9.0})
    print("end", flush=True)
    print("the run went on", file=sys.stderr)
"""


def on_terminal(steps: int, term: str) -> str:
    """What SHOW writes to a pseudo-terminal of type `term`."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": term, "COLUMNS": "120"}
    child = subprocess.Popen([sys.executable, "-c", SHOW, str(steps)], stdout=theirs, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # the other end is closed
        assert child.wait() == 0
    return text.decode()


def test_plain_lines_in_a_pipe():
    """One line a step with step (from 1), reward, clip, tokens/s, time left; a resumed run counts from where it is."""
    done = subprocess.run([sys.executable, "-c", SHOW, "5"], capture_output=True, text=True, check=True)
    *lines, end = done.stdout.splitlines()
    assert end == "end"
    assert [line.split("  left ")[0] for line in lines] == [
        "step 3/5  reward 0.25  clip 0  tok/s 9",
        "step 4/5  reward 0.375  clip 0  tok/s 9",
        "step 5/5  reward 0.5  clip 0  tok/s 9",
    ]
    assert lines[-1].endswith("left 0:00:00")
    assert done.stderr == "the run went on\n"


def test_few_lines_when_steps_are_fast():
    """A thousand steps within `interval` print the first and the last; missing keys are `-`, numbers have 4 digits."""
    text = io.StringIO()
    with Display(1000, stream=text, interval=3600) as display:
        for step in range(1000):
            display.update({"step": step} | (ROW if step else {}))
    first, last = text.getvalue().splitlines()
    assert first.startswith("step 1/1000  reward -  clip -  tok/s -  left 0:0")
    assert last.startswith("step 1000/1000  reward 0.4322  clip 0.001235  tok/s 1234  left 0:00:00")


def test_time_left_is_steps_to_come_times_recent_time(monkeypatch):
    """20 slow steps of 5 s, then 20 of 2 s, 30 to come: 60 s, not the 105 s of a mean over all."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Display(70, stream=io.StringIO()) as display:
        for step in range(40):
            now[0] += 5 if step < 20 else 2
            display.update({"step": step})
        assert display.seconds_left() == 60.0


def test_bar_on_a_terminal():
    """On a terminal the line is drawn over itself (control codes) and ends at 6/6."""
    text = on_terminal(6, "xterm")
    assert "\x1b[" in text
    assert "6/6" in text
    assert "reward 0.625" in text
    assert "step 3/6" not in text


def test_dumb_terminal_gets_plain_lines():
    """TERM=dumb: no control codes at all."""
    text = on_terminal(4, "dumb")
    assert "\x1b" not in text
    assert "step 3/4  reward 0.25" in text


def test_reader_that_goes_away_does_not_stop_the_run():
    """`gspo-train | head -1`: the run goes to its end, exit code 0, and what prints afterwards has no error."""
    run = f"{sys.executable} -c '{SHOW}' 20000; echo code $? >&2"
    done = subprocess.run(["bash", "-c", f"({run}) | head -1"], capture_output=True, text=True)
    assert done.stdout.startswith("step 3/20000")
    warning = "progress display stopped: [Errno 32] Broken pipe"
    assert done.stderr.splitlines() == [warning, "the run went on", "code 0"]


def test_running_mean():
    """R_t of DESIGN 9: equal to a convolution from t = 9 on, undefined before."""
    values = np.random.default_rng(0).random(37)
    mean = summary.running_mean(list(values), 10)
    assert np.isnan(mean[:9]).all()
    np.testing.assert_allclose(mean[9:], np.convolve(values, np.ones(10) / 10, "valid"), rtol=1e-13)
    assert np.isnan(summary.running_mean([1.0] * 9)).all()


def test_summary_prints_the_run_and_draws_what_it_read(tmp_path, capsys):
    """Known means are printed with the directory; the picture has both curves in their colours, and another run gives
    another picture."""
    from matplotlib import colors, image

    pictures = []
    for name, rise in (("flat", 0.0), ("risen", 0.02)):
        with make(tmp_path / name) as run:
            for step in range(30):
                row = dict.fromkeys(summary.CLIPS, 0.1)
                run.metrics({"step": step, "reward/mean": 0.3 + rise * step} | row)
        path = summary.summarize(run.path)
        assert path == run.path / "summary.png"
        pictures.append(image.imread(path)[..., :3])
    text = capsys.readouterr().out
    assert f"finished: 30 steps in {tmp_path / 'risen'}" in text
    assert "reward/mean: first 10 steps 0.3900, last 10 0.7900" in text  # 0.3 + 0.02 * 4.5, 0.3 + 0.02 * 24.5
    assert "clip/token_binding 0.1" in text

    def rows_of(picture, colour):
        return np.flatnonzero((np.abs(picture - colors.to_rgb(colour)).max(axis=2) < 0.1).any(axis=1))

    flat, risen = (rows_of(picture[: len(picture) // 2], "C0") for picture in pictures)
    assert 0 < len(flat) < 10  # the legend's line and the curve's
    assert len(risen) > 100
    assert 0 < len(rows_of(pictures[0][len(pictures[0]) // 2 :], "C2")) < 30  # drawn last: four equal fractions


def test_summary_of_nothing(tmp_path):
    """A run without a row has no picture, and says so."""
    with make(tmp_path / "run"):
        pass
    with pytest.raises(ValueError, match="has no row"):
        summary.summarize(tmp_path / "run")
    assert run_dir.status(tmp_path / "run") == "finished"
