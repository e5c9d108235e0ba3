"""Breaks each equation on purpose and demands that a named test notices.

    .venv/bin/python scripts/mutants.py [NAME ...]

A mutant is one replacement of source text in a copy of the package; it is *killed* when the test named beside it fails.
A survivor, or a mutant whose text is no longer there, fails the run. The tests named pass on the unbroken copy first.
Each mutant runs in a child forked from a process that has imported torch and pytest, so one costs about a second.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTCOMES = {0: "SURVIVED", 1: "killed"}


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str
    test: str
    """tests/FILE::TEST that must fail."""


RATIOS, OBJECTIVES, HYBRIDS = (f"gspo/algorithms/{name}.py" for name in ("ratios", "objectives", "hybrids"))
ADVANTAGES, SEQUENCES, METRICS = "gspo/algorithms/advantages.py", "gspo/sequences.py", "gspo/metrics.py"
CLOSED_FORM = "test_objectives.py::test_gradient_is_the_closed_form"
HYBRID_FORM = "test_hybrids.py::test_gradient_is_the_closed_form"
BY_HAND = "test_metrics.py::test_ratio_statistics_by_hand"

MUTANTS = [
    Mutant("no length norm in s", RATIOS, ".sum(-1) / lengths(mask)", ".sum(-1)", CLOSED_FORM),
    Mutant("mean over padded T in s", RATIOS, ".sum(-1) / lengths(mask)", ".mean(-1)", CLOSED_FORM),
    Mutant("* mask for masked fill", RATIOS, "(logp - old_logp).masked_fill(~mask, 0.0)", "(logp - old_logp) * mask",
           "test_objectives.py::test_padding_cannot_be_felt"),
    Mutant("no guard before exp", RATIOS, "log.clamp(-GUARD, GUARD).exp()", "log.exp()",
           "test_objectives.py::test_exponents_are_guarded"),
    Mutant("guard hides NaN", RATIOS, "log.clamp(-GUARD, GUARD).exp()", "log.nan_to_num().clamp(-GUARD, GUARD).exp()",
           "test_objectives.py::test_a_nan_at_a_trained_position_is_not_hidden"),
    Mutant("missing stop-gradient in s_it", RATIOS, "sequence_ratio(logp, old_logp, mask).detach()",
           "sequence_ratio(logp, old_logp, mask)", CLOSED_FORM),
    Mutant("s_it without its gradient", RATIOS, "log_ratio(logp, logp.detach(), mask).exp()",
           "log_ratio(logp, logp, mask).exp()", CLOSED_FORM),
    Mutant("empty response divides by zero", RATIOS, "mask.sum(-1).clamp(min=1)", "mask.sum(-1)",
           "test_objectives.py::test_a_response_without_tokens_has_no_loss_and_stays_in_n"),
    Mutant("max for min", OBJECTIVES, "torch.minimum(ratio * adv", "torch.maximum(ratio * adv", CLOSED_FORM),
    Mutant("swapped clip sides", OBJECTIVES, "low = None if clip_low is None else 1 - clip_low",
           "low = None if clip_high is None else 1 - clip_high", CLOSED_FORM),
    Mutant("upper clip at 1 - eps", OBJECTIVES, "1 + clip_high\n    return ratio.clamp",
           "1 - clip_high\n    return ratio.clamp", CLOSED_FORM),
    Mutant("sign-blind binding", OBJECTIVES, "(adv > 0) & (ratio > 1 + clip_high)", "(ratio > 1 + clip_high)",
           "test_objectives.py::test_which_tokens_bind"),
    Mutant("binding reversed", OBJECTIVES, "(adv < 0) & (ratio < 1 - clip_low)", "(adv > 0) & (ratio < 1 - clip_low)",
           "test_objectives.py::test_which_responses_bind"),
    Mutant("token sum for token mean", OBJECTIVES, "token_sum(terms, mask) / lengths(mask)", "token_sum(terms, mask)",
           CLOSED_FORM),
    Mutant("length-weighted GSPO", OBJECTIVES, "return Objective(terms.masked_fill(~mask.any(-1), 0.0), s,",
           "return Objective(terms * mask.sum(-1) / mask.sum(-1).double().mean(), s,", CLOSED_FORM),
    Mutant("GSPO with token ratios", OBJECTIVES, "    s = sequence_ratio(logp, old_logp, mask)\n    terms",
           "    s = token_ratio(logp, old_logp, mask).mean(-1)\n    terms", CLOSED_FORM),
    Mutant("empty response rewarded", OBJECTIVES, "terms.masked_fill(~mask.any(-1), 0.0)", "terms",
           "test_objectives.py::test_a_response_without_tokens_has_no_loss_and_stays_in_n"),
    Mutant("clip counted on padding", OBJECTIVES, "return Objective(token_mean(terms, mask), w, clipped & mask)",
           "return Objective(token_mean(terms, mask), w, clipped | ~mask)",
           "test_objectives.py::test_padding_cannot_be_felt"),
    Mutant("sample std", ADVANTAGES, "count = valid.sum(-1, keepdim=True).clamp(min=1)\n    std",
           "count = (valid.sum(-1, keepdim=True) - 1).clamp(min=1)\n    std",
           "test_advantages.py::test_population_std"),
    Mutant("spread by std, not by max - min", ADVANTAGES, "& (high > low)", "& (known.std(-1, keepdim=True) > 0)",
           "test_advantages.py::test_no_spread_is_exactly_zero"),
    Mutant("epsilon in the std", ADVANTAGES, "centered / std.where", "centered / (1e-4 + std).where",
           "test_advantages.py::test_tiny_spread_is_not_flattened"),
    Mutant("failed verifier is reward 0", ADVANTAGES, "valid = ~r.isnan()", "valid = torch.ones_like(r, dtype=torch.bool)",
           "test_advantages.py::test_a_failed_verifier_leaves_the_others_alone"),
    Mutant("batch-level mean", ADVANTAGES, "mean = known.sum(-1, keepdim=True) / count", "mean = known.mean()",
           "test_advantages.py::test_groups_do_not_mix"),
    Mutant("leave-one-out keeps one in", ADVANTAGES, "(count - 1).clamp(min=1)", "count.clamp(min=1)",
           "test_advantages.py::test_centered_and_leave_one_out"),
    Mutant("seqclip keeps the gradient", HYBRIDS, "torch.where(bound[:, None], w.detach(), w)", "w", HYBRID_FORM),
    Mutant("seqclip decided by tokens", HYBRIDS, "bound = binding(s, adv, clip_low, clip_high) & mask.any(-1)",
           "bound = (binding(w, adv[:, None], clip_low, clip_high) & mask).any(-1)", HYBRID_FORM),
    Mutant("tokenclip keeps the gradient", HYBRIDS, "torch.where(bound, s.detach(), s)", "s", HYBRID_FORM),
    Mutant("DAPO by sequence", HYBRIDS, 'w, clipped & mask, denominator="tokens")', "w, clipped & mask)", HYBRID_FORM),
    Mutant("CISPO drops the truncated", HYBRIDS, "w.clamp(max=1 + clip_high)", "w * (w <= 1 + clip_high)", HYBRID_FORM),
    Mutant("CISPO eps absolute", HYBRIDS, "w.clamp(max=1 + clip_high)", "w.clamp(max=clip_high)", HYBRID_FORM),
    Mutant("GMPO clips after the mean", HYBRIDS, "guarded_exp(clipped.sum(-1) / lengths(mask))",
           "guarded_exp(log_w.sum(-1) / lengths(mask)).clamp(1 - (clip_low or 1), 1 + (clip_high or 1e9))",
           "test_hybrids.py::test_gmpo_clips_before_the_mean"),
    Mutant("fraction over all responses' tokens alike", METRICS, "/ np.maximum(rows[\"length\"], 1)", "/ 10",
           "test_metrics.py::test_four_clip_fractions_of_grpo"),
    Mutant("clip fraction without zero advantages", METRICS,
           'Metric(f"clip/seq_{name}", "share of responses", shares, None, share_of_tokens(column), count, both)',
           'Metric(f"clip/seq_{name}", "", shares, None, share_of_tokens(column), with_adv(count), both)',
           "test_metrics.py::test_zero_advantage_is_in_the_denominator_but_for_given_adv"),
    Mutant("k1 for k3", SEQUENCES, "(w.sub(1) - log_w)", "(-log_w)", BY_HAND),
    Mutant("log s is the sum", SEQUENCES, "log_s = log_sequence_ratio(logp, old_logp, mask).double()",
           "log_s = log_w.sum(-1)", BY_HAND),
    Mutant("std of log w about 0", METRICS, "rows[\"log_w_sq_sum\"].sum() / n - mean**2",
           "rows[\"log_w_sq_sum\"].sum() / n", BY_HAND),
    Mutant("mismatch backwards", SEQUENCES, "log_ratio(trainer_logp, micro.sampler_logp, micro.mask)",
           "log_ratio(micro.sampler_logp, trainer_logp, micro.mask)", "test_metrics.py::test_mismatch_by_hand"),
    Mutant("outside is sign-aware", SEQUENCES, "outside(terms.ratio, clip_low, clip_high)", "terms.clipped",
           "test_metrics.py::test_four_clip_fractions_of_gspo"),
    Mutant("zero spread by std", METRICS, "rewards.max() == rewards.min()", "rewards.std() == 0 and len(rewards) > 2",
           "test_metrics.py::test_rewards_and_groups"),
]  # fmt: skip


def run_test(test: str, mutant: Mutant | None) -> int:
    """pytest's exit code for `test` on a copy of the package with the mutant applied, in a forked child."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(
            ROOT / "gspo", Path(tmp) / "gspo", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
        shutil.copytree(ROOT / "tests", Path(tmp) / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            path = Path(tmp) / mutant.file
            path.write_text(path.read_text().replace(mutant.before, mutant.after))
        child = os.fork()
        if child == 0:
            os._exit(_pytest(tmp, test))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pytest(root: str, test: str) -> int:
    import pytest

    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    sys.path.insert(0, root)
    sys.dont_write_bytecode = True
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", f"{root}/tests/{test}"]))


def main(names: list[str]) -> int:
    import numpy  # noqa: F401  imported before the forks
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    chosen = [m for m in MUTANTS if not names or m.name in names]
    start, bad = time.time(), 0
    for test in sorted({m.test for m in chosen}):
        if run_test(test, None) != 0:
            print(f"BROKEN     {test} fails on the unbroken package", flush=True)
            bad += 1
    for mutant in chosen:
        count = (ROOT / mutant.file).read_text().count(mutant.before)
        outcome = OUTCOMES.get(run_test(mutant.test, mutant), "BROKEN") if count == 1 else f"TEXT FOUND {count} TIMES"
        bad += outcome != "killed"
        print(f"{outcome:10} {mutant.name}  [{mutant.test}]", flush=True)
    print(f"mutants: {len(chosen)} made, {bad} not killed, {time.time() - start:.0f} s", flush=True)
    return bad > 0


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main(sys.argv[1:]))
