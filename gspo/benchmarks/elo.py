"""Codeforces ratings of a model: from the standings of real contests, or estimated from problem ratings.

As in CodeElo (Quan et al. 2025, arXiv 2501.01257): samples are attempts in their order; a contest's score comes from
the first that passes, less 50 points for each failed one before it (where problems have points), or one problem and 10
minutes of penalty for each (where they have none). The score has a rank among the participants, and the rating is the
one whose expected rank that is, 1 + sum_i 1 / (1 + 10^((r - r_i) / 400)), found by bisection between 0 and 100 above
the best participant. The rating of a model is the mean over contests.

Here both ranks count from 1; CodeElo's released script compares a rank counted from 0. Problems of a contest that are
not in the benchmark count as not solved.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo.types import Prompt


def rating_columns(
    prompts: Sequence[Prompt],
    correct: Sequence[Sequence[float]],
    *,
    standings: str | None = None,
    histogram: str | None = None,
    attempts: int = 8,
) -> dict[str, float]:
    """Columns of an evaluation's row, from `correct` [P][k] of `prompts` [P] with `contest_id, index` in `meta`.

    With `standings`, a JSON file {contest id: {"standings": answer of contest.standings, "rating_changes": answer of
    contest.ratingChanges}} of Codeforces' interface: `codeforces_rating` over the contests in it, and, with `histogram`
    (JSON, {rating: users}), `codeforces_percentile`. Without: `problem_rating_estimate`, another quantity, if the rows
    carry a `rating`; it does not know what the participants did. Raises ValueError for a file that says something else.
    """
    if standings is None:
        rated = [(float(p.meta["rating"]), s) for p, s in zip(prompts, correct, strict=True) if p.meta.get("rating")]
        estimate = problem_rating_estimate([r for r, _ in rated], [sum(s) / len(s) for _, s in rated])
        return {} if estimate is None else {"problem_rating_estimate": estimate, "rated_problems": len(rated)}
    known = _read(standings, "standings")
    solved: dict[str, dict[str, Sequence[float]]] = {}
    for prompt, samples in zip(prompts, correct, strict=True):
        contest = str(prompt.meta.get("contest_id"))
        solved.setdefault(contest, {})[str(prompt.meta.get("index"))] = samples[:attempts]
    ratings = []
    for contest in sorted(known.keys() & solved.keys()):
        try:
            ratings.append(contest_rating(known[contest], solved[contest]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"standings={standings}: contest {contest}: {error!r} is missing or wrong") from error
    if not ratings:
        raise ValueError(f"standings={standings}: holds none of the contests {', '.join(sorted(solved)[:5])}, ...")
    columns = {"codeforces_rating": math.fsum(ratings) / len(ratings), "codeforces_contests": len(ratings)}
    if histogram is not None:
        columns["codeforces_percentile"] = percentile(columns["codeforces_rating"], _read(histogram, "histogram"))
    return columns


def contest_rating(contest: Mapping[str, Any], solved: Mapping[str, Sequence[float]]) -> float:
    """Rating from one contest; `solved` maps a problem's index to its attempts in order (1: passed)."""
    points, penalty = score(contest["standings"]["problems"], solved)
    rows = [(float(row["points"]), float(row["penalty"])) for row in contest["standings"]["rows"]]
    better = sum(p > points or (p == points and q <= penalty) for p, q in rows)
    ratings = [float(change["oldRating"]) for change in contest["rating_changes"]]
    return rating_of_rank(1 + better, ratings)


def score(problems: Sequence[Mapping[str, Any]], solved: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Points and penalty of a contest: the first attempt that passed counts, the failed ones before it cost."""
    points = penalty = 0.0
    for problem in problems:
        tries = solved.get(str(problem["index"]), ())
        failed = next((i for i, right in enumerate(tries) if right >= 1), None)
        if failed is None:
            continue
        if "points" in problem:
            points += max(0.0, float(problem["points"]) - 50 * failed)
        else:
            points, penalty = points + 1, penalty + 10 * failed
    return points, penalty


def rating_of_rank(rank: float, ratings: Sequence[float]) -> float:
    """The rating, from 0 to 100 above the best of `ratings`, that is expected to come `rank`-th among them."""
    if not ratings:
        raise ValueError("a contest without rated participants has no rating")
    top = max(ratings) + 100

    def expected(rating: float) -> float:
        return 1 + math.fsum(1 / (1 + 10 ** ((rating - other) / 400)) for other in ratings)

    return _bisect(lambda rating: expected(rating) - rank, 0.0, top)


def problem_rating_estimate(ratings: Sequence[float], solved: Sequence[float]) -> float | None:
    """The rating r that is expected to solve as much as was solved: sum_j 1 / (1 + 10^((d_j - r) / 400)) = sum_j s_j.

    The maximum-likelihood Elo against problems of ratings d_j, solved to the share s_j. None where nothing or
    everything was solved: no finite rating fits.
    """
    total = math.fsum(solved)
    if not 0 < total < len(ratings):
        return None

    def missing(rating: float) -> float:
        return total - math.fsum(1 / (1 + 10 ** ((other - rating) / 400)) for other in ratings)

    return _bisect(missing, min(ratings) - 4000, max(ratings) + 4000)


def percentile(rating: float, histogram: Mapping[str, int]) -> float:
    """Share, in percent, of users with a lower rating; `histogram` maps a rating to users."""
    known = sorted((float(value), count) for value, count in histogram.items())
    below = bisect_left(known, (rating, -1))
    return 100 * sum(count for _, count in known[:below]) / sum(count for _, count in known)


def _bisect(decreasing: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function in [low, high], or the end that is nearer to it."""
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if decreasing(middle) > 0 else (low, middle)
    return (low + high) / 2


def _read(path: str, what: str) -> dict[str, Any]:
    file = Path(path).expanduser()
    file = file if file.is_absolute() else Path(os.environ.get("GSPO_DATA") or ".") / file
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{what}={path}: cannot be read: {error}") from error
    if not isinstance(held, dict) or not held:
        raise ValueError(f"{what}={path}: a JSON object with something in it is needed")
    return held
