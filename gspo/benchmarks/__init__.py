"""Readers of benchmarks whose rows are not plain problem and answer, and the reward of their programs.

A file of conf/benchmark names a reader by `data._target_`, as conf/data does; mathematics is read by `gspo.data.files`.
"""

from gspo.benchmarks.codeforces import codeforces
from gspo.benchmarks.functions import humaneval, mbpp
from gspo.benchmarks.livecodebench import livecodebench
from gspo.benchmarks.programs import program_reward
from gspo.rewards.code import ready

__all__ = ["codeforces", "humaneval", "livecodebench", "mbpp", "program_reward", "ready"]
