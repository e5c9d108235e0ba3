"""Importance ratios: w_it (Eq. 3), s_i (Eq. 7) and s_it (Eq. 14).

The exponent (the token log-ratio in w, the mean one in s) is clamped to [-GUARD, GUARD] just before exp: clamped
positions have zero gradient and are counted as `ratio/guarded`. NaN passes the clamp: it is never hidden.
"""

from torch import Tensor

GUARD = 20.0


def log_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """log w_it = logp_it - old_logp_it: [B, T], exactly 0 off the mask whatever stands there (NaN included)."""
    return (logp - old_logp).masked_fill(~mask, 0.0)


def lengths(mask: Tensor) -> Tensor:
    """|y_i|: [B], at least 1 so that a response without trained tokens gets s_i = 1 and not 0/0."""
    return mask.sum(-1).clamp(min=1)


def guarded_exp(log: Tensor) -> Tensor:
    """exp(log) with the exponent clamped to [-20, 20]."""
    return log.clamp(-GUARD, GUARD).exp()


def token_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """w_it = pi(y_it) / pi_old(y_it), Eq. 3: [B, T], 1 off the mask."""
    return guarded_exp(log_ratio(logp, old_logp, mask))


def log_sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """log s_i = sum_t log w_it / |y_i|: [B]."""
    return log_ratio(logp, old_logp, mask).sum(-1) / lengths(mask)


def sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """s_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|) = exp(sum_t log w_it / |y_i|), Eq. 7: [B]."""
    return guarded_exp(log_sequence_ratio(logp, old_logp, mask))


def sequence_token_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """s_it = sg[s_i] * pi(y_it) / sg[pi(y_it)], Eq. 14: [B, T]; the value is s_i, the gradient that of logp_it.

    Where s_i is guarded the gradient is zero, as for s_i itself.
    """
    s = sequence_ratio(logp, old_logp, mask).detach()
    free = log_sequence_ratio(logp, old_logp, mask).detach().abs() <= GUARD
    unit = log_ratio(logp, logp.detach(), mask).exp()
    return s[:, None] * unit.where(free[:, None], unit.detach())
