"""What another range would have clipped of the very same updates, from the rows of sequences/ and nothing else.

A sequence-level range is exact, from log s_i and the tokens with A_it > 0 and < 0 (all or none of a response, but for
rewards by step); a token-level one is known on the stored grid of eps. The first mini-batch counts (nothing is clipped
there) as do responses with A = 0. Another range would have changed the later mini-batches of a step and all later
steps: these numbers compare ranges on one trajectory, not two trajectories.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gspo.report.collect import Run
from gspo.report.statistics import MIN_SEEDS, Interval, t_quantile

CAVEAT = (
    "Counted on the updates that were made; another range would have changed the later mini-batches of each step and "
    "every later step."
)
PAPER = ((0.2, 0.27, "token", "GRPO's range on w"), (3e-4, 4e-4, "sequence", "GSPO's range on s"))
COUNTS = ("w_above", "w_below", "w_above_bound", "w_below_bound")
PLAIN = ("minibatch", "length", "adv", "reward", "log_s", "max_abs_log_w", "tokens_outside", "tokens_binding",
         "truncated")  # fmt: skip


SIGNS = ("adv_tokens", "adv_positive")
"""Tokens with A != 0, and with A > 0; where a file has none, all tokens of a response have the sign of its `adv`."""


@dataclass(slots=True)
class Updates:
    """The rows of a run's sequences/: one for each (response, update)."""

    run: str
    arm: str
    seed: int | None
    level: str
    """At which the run clipped: `token` or `sequence`."""
    low: float | None
    high: float | None
    grid: tuple[float, ...]
    """The K values of eps of the counts."""
    columns: dict[str, npt.NDArray[Any]]
    """`[rows]`, and the counts `[rows, K]`; `step` is the file's."""
    files: int
    """Steps read, of the `steps` there are."""
    steps: int

    @property
    def n(self) -> int:
        return len(self.columns["length"])

    def where(self, keep: npt.NDArray[np.bool_]) -> Updates:
        """The rows at which `keep` holds."""
        columns = {name: values[keep] for name, values in self.columns.items()}
        return Updates(self.run, self.arm, self.seed, self.level, self.low, self.high, self.grid, columns, self.files,
                       self.steps)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fraction:
    """A share, as numerators and denominators by step `[steps]`."""

    num: npt.NDArray[np.float64]
    den: npt.NDArray[np.float64]

    @property
    def value(self) -> float:
        """Summed, then divided once; NaN over nothing."""
        return float(self.num.sum() / self.den.sum()) if self.den.sum() else math.nan

    def interval(self) -> Interval:
        """The ratio with the t interval of its linearised error over steps (Cochran 1977, 6.3); `n` counts steps."""
        n = int((self.den > 0).sum())
        if n < MIN_SEEDS:
            return Interval(self.value, math.nan, math.nan, n, "points")
        error = self.num - self.value * self.den
        half = t_quantile(n - 1) * math.sqrt(n / (n - 1) * float((error**2).sum())) / float(self.den.sum())
        return Interval(self.value, max(self.value - half, 0.0), min(self.value + half, 1.0), n, "ratio over steps")


@dataclass(frozen=True, slots=True)
class Clipped:
    """The four clip fractions at one range, and the two binding ones over responses with A != 0."""

    token_binding: Fraction
    token_outside: Fraction
    seq_binding: Fraction
    seq_outside: Fraction
    token_given_adv: Fraction
    seq_given_adv: Fraction


def load(run: Run, *, counts: bool = True, limit: int | None = None) -> Updates | None:
    """A run's rows, of at most `limit` steps spread evenly; None when it kept none.

    Raises ValueError for a file that lacks a column.
    """
    paths = run.sequence_files()
    if not paths:
        return None
    chosen = paths
    if limit is not None and len(paths) > limit:
        chosen = [paths[i] for i in sorted({round(x) for x in np.linspace(0, len(paths) - 1, limit)})]
    meta: dict[bytes, bytes] = {}
    parts: list[dict[str, npt.NDArray[Any]]] = []
    for path in chosen:
        columns, meta = _read(path, PLAIN + (COUNTS if counts else ()))
        parts.append(columns)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    clip = json.loads(meta.get(b"clip", b"{}"))
    level = clip.get("level") or ("sequence" if "gspo" in str(run.config.get("algo.name")) else "token")
    low, high = (clip.get(side, run.config.get(f"clip.{side}")) for side in ("low", "high"))
    grid = tuple(float(eps) for eps in json.loads(meta.get(b"eps_grid", b"[]")))
    return Updates(run.name, run.arm, run.seed, level, low, high, grid, columns, len(chosen), len(paths))


def _read(path: Path, names: Sequence[str]) -> tuple[dict[str, npt.NDArray[Any]], dict[bytes, bytes]]:
    """Columns of one file (counts as `[rows, K]`) and its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        held = file.schema_arrow.names
        lacking = [name for name in names if name not in held]
        if lacking:
            raise ValueError(f"{path.parent.name}/{path.name} has no column {lacking[0]}; it has {held}")
        chosen = [*names, *(name for name in SIGNS if name in held)]
        table = file.read(columns=chosen, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path.parent.name}/{path.name}: {error}") from error
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in chosen:
        column = table.column(name).combine_chunks()
        if name in COUNTS:
            flat = column.flatten().to_numpy(zero_copy_only=False)
            columns[name] = flat.reshape(table.num_rows, -1) if table.num_rows else np.zeros((0, 0))
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    length, adv = columns["length"], columns["adv"]
    columns = {"adv_tokens": length * (adv != 0), "adv_positive": length * (adv > 0)} | columns
    columns["step"] = np.full(table.num_rows, int(path.stem.removeprefix("step_")))
    return columns, dict(table.schema.metadata or {})


def at_sequence(rows: Updates, low: float | None, high: float | None) -> Clipped:
    """Clip fractions of the same updates with a range on s_i: exact."""
    s_minus_1, length = np.expm1(rows.columns["log_s"]), rows.columns["length"]
    positive, negative = rows.columns["adv_positive"], rows.columns["adv_tokens"] - rows.columns["adv_positive"]
    above = s_minus_1 > high if high is not None else np.zeros(rows.n, dtype=bool)
    below = s_minus_1 < -low if low is not None else np.zeros(rows.n, dtype=bool)
    return _clipped(rows, positive * above + negative * below, length * (above | below))


def at_token(rows: Updates, low: float | None, high: float | None) -> Clipped:
    """Clip fractions of the same updates with a range on w_it. Raises ValueError for an eps that is not on the grid."""
    zero = np.zeros(rows.n)
    up, down = _on_grid(rows, high), _on_grid(rows, low)
    c = rows.columns
    bound = (zero if up is None else c["w_above_bound"][:, up]) + (
        zero if down is None else c["w_below_bound"][:, down]
    )
    out = (zero if up is None else c["w_above"][:, up]) + (zero if down is None else c["w_below"][:, down])
    return _clipped(rows, bound, out)


def as_run(rows: Updates) -> Clipped:
    """Clip fractions at the run's own range, from the counts made during training."""
    return _clipped(rows, rows.columns["tokens_binding"], rows.columns["tokens_outside"])


def at(rows: Updates, low: float | None, high: float | None, level: str) -> Clipped:
    """`at_sequence` or `at_token`."""
    return at_sequence(rows, low, high) if level == "sequence" else at_token(rows, low, high)


def _on_grid(rows: Updates, eps: float | None) -> int | None:
    """The grid's index of eps; None for a side without clip."""
    if eps is None:
        return None
    near = [i for i, value in enumerate(rows.grid) if math.isclose(value, eps, rel_tol=1e-9)]
    if not near:
        raise ValueError(f"token-level eps {eps:g} was not counted; the grid is {sorted(rows.grid)}")
    return near[0]


def _clipped(rows: Updates, bound: npt.NDArray[Any], out: npt.NDArray[Any]) -> Clipped:
    """Fractions from tokens bound and outside per row; a row counts in `seq_*` by the share of its own tokens."""
    length = rows.columns["length"]
    given = rows.columns["adv_tokens"] > 0
    _, place = np.unique(rows.columns["step"], return_inverse=True)

    def by_step(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Sums over the rows of each step."""
        return np.bincount(place, weights=values.astype(np.float64)).astype(np.float64)

    own = np.maximum(length, 1)
    tokens, responses = by_step(length), by_step(np.ones(rows.n))
    bound_tokens, bound_shares = by_step(bound), by_step(bound / own)
    return Clipped(
        Fraction(bound_tokens, tokens),
        Fraction(by_step(out), tokens),
        Fraction(bound_shares, responses),
        Fraction(by_step(out / own), responses),
        Fraction(bound_tokens, by_step(length * given)),
        Fraction(bound_shares, by_step(given)),
    )
