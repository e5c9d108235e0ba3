"""The paper (arXiv 2507.18071) as functions of tensors; torch and nothing else.

Legend, used in every file of this package:
  logp, old_logp  [B, T]  log pi_theta(y_it | x, y_i<t), log pi_theta_old(...), at the sampling temperature
  mask            [B, T]  bool, True at trained tokens; |y_i| = mask[i].sum()
  adv             [B]     A_i, or [B, T] A_it where the algorithm allows it
  w               [B, T]  token importance ratio w_it (Eq. 3)
  s               [B]     sequence importance ratio s_i (Eq. 7)
  clip_low/high           eps_L, eps_R of the range [1 - eps_L, 1 + eps_R]; None: not clipped on that side
  N                       sequences of the mini-batch over all micro-batches and ranks

Left out because the paper has none: KL term, entropy bonus, auxiliary loss, value function.
"""
