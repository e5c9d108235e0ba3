"""Clip fractions of ranges that were not used, recomputed from sequences/, against the token ratios themselves."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from report_runs import EPS_GRID, write_run, write_sequences

from gspo.report import clip, lengths, main
from gspo.report.collect import read_run


def made(
    root: Path, algo: str, seed: int, *, steps: int = 4, sigma: float = 0.1, exponent: float = -0.5, by_step=False
):
    """A run with sequences/ of `steps` steps, and the columns that were written."""
    path = write_run(root, algo, seed, np.full(60, 0.5), overrides=[f"algo={algo}", f"seed={seed}"])
    rng = np.random.default_rng([seed, len(algo)])
    parts = [write_sequences(path, algo, s, rng, sigma=sigma, exponent=exponent, by_step=by_step) for s in range(steps)]
    return read_run(path, root), parts


def brute(parts, low: float, high: float, level: str) -> dict[str, float]:
    """The six fractions by walking over every token, as DESIGN section 6 defines them."""
    tokens = bound = out = given_tokens = responses = given = 0
    seq_bound = seq_out = 0.0
    for part in parts:
        for w, a in zip(part["w"], part["advs"], strict=True):
            ratio = np.full(len(w), np.exp(np.log(w).mean())) if level == "sequence" else w
            b = ((a > 0) & (ratio > 1 + high)) | ((a < 0) & (ratio < 1 - low))
            o = (ratio > 1 + high) | (ratio < 1 - low)
            tokens, bound, out = tokens + len(w), bound + b.sum(), out + o.sum()
            responses, seq_bound, seq_out = responses + 1, seq_bound + b.mean(), seq_out + o.mean()
            given_tokens, given = given_tokens + len(w) * (a != 0).any(), given + (a != 0).any()
    return {
        "token_binding": bound / tokens,
        "token_outside": out / tokens,
        "seq_binding": seq_bound / responses,
        "seq_outside": seq_out / responses,
        "token_given_adv": bound / given_tokens,
        "seq_given_adv": seq_bound / given,
    }


@pytest.mark.parametrize(
    ("low", "high", "level"),
    [
        (3e-4, 4e-4, "sequence"),
        (1e-2, 2e-3, "sequence"),
        (0.2, 0.27, "token"),
        (0.05, 0.1, "token"),
        (3e-4, 4e-4, "token"),
    ],
)
@pytest.mark.parametrize(("algo", "by_step"), [("grpo", False), ("gspo", False), ("grpo", True), ("gspo", True)])
def test_any_range_of_the_same_updates(tmp_path, algo, by_step, low, high, level):
    """The counterfactual is what the range would have clipped, token by token, whichever algorithm made the updates,
    with one advantage a response or one a token.

    Swapped sides, a forgotten A = 0 in the denominator, a mean of means instead of sums over steps, or the sign of a
    response's mean advantage for that of its tokens would differ.
    """
    run, parts = made(tmp_path, algo, 0, by_step=by_step)
    rows = clip.load(run)
    found = clip.at(rows, low, high, level)
    for name, value in brute(parts, low, high, level).items():
        assert getattr(found, name).value == pytest.approx(value, rel=1e-12), name


def test_own_range_agrees_with_the_counts_of_training(tmp_path):
    """Recomputed from log s or the grid, the run's own fractions are those counted while training."""
    for algo in ("grpo", "gspo"):
        rows = clip.load(made(tmp_path, algo, 1)[0])
        counted, again = clip.as_run(rows), clip.at(rows, rows.low, rows.high, rows.level)
        assert counted.token_binding.value > 0
        for name in ("token_binding", "token_outside", "seq_binding", "seq_outside"):
            assert getattr(counted, name).value == pytest.approx(getattr(again, name).value, rel=1e-12)


def test_no_clip_and_first_minibatch(tmp_path):
    """An open side clips nothing on that side; the first mini-batch clips nothing and stays in the denominator."""
    rows = clip.load(made(tmp_path, "gspo", 2)[0])
    both = clip.at_sequence(rows, 3e-4, 4e-4).token_binding
    upper, lower = clip.at_sequence(rows, None, 4e-4).token_binding, clip.at_sequence(rows, 3e-4, None).token_binding
    assert upper.value + lower.value == pytest.approx(both.value, rel=1e-12)
    assert clip.at_token(rows, None, None).token_outside.value == 0
    first = rows.where(rows.columns["minibatch"] == 0)
    assert clip.at_sequence(first, 1e-6, 1e-6).token_outside.value == 0
    assert both.den.sum() == rows.columns["length"].sum()


def test_off_the_grid_is_refused(tmp_path):
    """A token-level eps that was not counted is an error that names the grid, not the nearest value."""
    rows = clip.load(made(tmp_path, "grpo", 3, steps=1)[0])
    with pytest.raises(ValueError, match=r"eps 0.25 was not counted; the grid is \[0.0001, "):
        clip.at_token(rows, 0.25, 0.27)


@pytest.mark.parametrize("exponent", [-0.5, -0.2])
def test_exponent_of_length_is_found(tmp_path, exponent):
    """Planted std(log s) ~ |y|^-1/2 and |y|^-0.2 are recovered, each interval holds its own and not the other."""
    run, _ = made(tmp_path, "gspo", 4, steps=8, exponent=exponent)
    rows = clip.load(run)
    fit = lengths.exponent(lengths.spreads(rows, lengths.length_edges(rows.columns["length"])))
    assert fit.n == 8
    assert fit.low < exponent < fit.high
    assert not fit.low < (-0.7 - exponent) < fit.high


def test_spread_interval_covers():
    """The delta-method interval of a std holds the truth in about 95 %, for normal and for heavy-tailed values."""
    rng = np.random.default_rng(0)
    for draw, truth in ((lambda: rng.normal(0, 2.0, 400), 2.0), (lambda: rng.laplace(0, 1.0, 400), 2**0.5)):
        inside = 0
        for _ in range(600):
            columns = {"log_s": draw(), "length": np.full(400, 9), "minibatch": np.ones(400)}
            rows = clip.Updates("", "", 0, "token", None, None, (), columns, 1, 1)
            (point,) = lengths.spreads(rows, np.array([9.0]))
            inside += point.low <= truth <= point.high
        assert 0.91 <= inside / 600 <= 0.98


def test_interval_over_steps_covers(tmp_path):
    """A single run's interval over steps holds the share of the process that made the steps, in about 95 %."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        den = rng.integers(500, 1500, 25).astype(float)
        share = rng.beta(2, 18, 25)
        m = clip.Fraction(den * share, den).interval()
        inside += m.low <= 0.1 <= m.high
    assert 0.92 <= inside / 1000 <= 0.97


def test_strata_split_all_rows():
    """Every response falls in exactly one class of length, classes are about equal, and ties stay together."""
    length = np.concatenate([np.full(100, 7), np.arange(8, 108)])
    rows = clip.Updates("", "", 0, "token", None, None, (), {"length": length}, 1, 1)
    parts = lengths.strata(rows, lengths.length_edges(length, 4))
    assert sum(part.n for part in parts) == 200
    assert (parts[0].columns["length"] == 7).sum() == 100
    assert [part.n for part in parts] == [100, 50, 50]


def test_clip_command(tmp_path, capsys):
    """`gspo-report clip` prints what GRPO's and GSPO's ranges would have clipped of the same batch."""
    runs = {algo: made(tmp_path, algo, 5) for algo in ("grpo", "gspo")}
    out = tmp_path / "out"
    paths = [str(run.path) for run, _ in runs.values()]
    assert main(["clip", *paths, "--low", "1e-3", "--high", "3e-3", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "another range would have changed the later mini-batches" in said
    with (out / "clip_counterfactual.csv").open() as file:
        rows = list(csv.DictReader(file))
    for algo, (_, parts) in runs.items():
        mine = {(r["level"], r["low"], r["high"]): r for r in rows if r["arm"] == algo}
        assert set(mine) == {("token", "0.2", "0.27"), ("sequence", "0.0003", "0.0004"), ("sequence", "0.001", "0.003"),
                             ("token", "0.001", "0.003")}  # fmt: skip
        for (level, low, high), row in mine.items():
            want = brute(parts, float(low), float(high), level)
            assert float(row["token_binding"]) == pytest.approx(want["token_binding"], rel=1e-12)
            assert float(row["seq_outside"]) == pytest.approx(want["seq_outside"], rel=1e-12)
            assert int(row["token_binding_n"]) == 4
    assert (out / "clip_counterfactual.png").stat().st_size > 20_000
    assert {path.stem for path in out.glob("*.csv")} == {
        "clip_counterfactual", "clip_minibatch", "clip_length", "clip_log_s_std", "clip_exponent", "clip_agreement",
        "clip_curve",
    }  # fmt: skip
    assert main(["clip", *paths, "--low", "1e-3"]) == 2
    assert "come in pairs" in capsys.readouterr().err


def test_grid_of_the_trainer_is_read(tmp_path):
    """eps values come from each file's own metadata, not from a constant here."""
    run, _ = made(tmp_path, "grpo", 6, steps=1)
    assert clip.load(run).grid == EPS_GRID
