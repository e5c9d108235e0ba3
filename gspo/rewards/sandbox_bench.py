"""How fast the sandbox judges: for `scripts/bench.py sandbox`."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gspo.rewards.code_pool import close
from gspo.rewards.sandbox import choose_tier, judge

_SCRIPT = "import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b)"


def throughput(
    *, tests: int = 10, seconds: float = 10.0, workers: int = 2, sandbox: str = "auto"
) -> dict[str, str | int | float]:
    """Judge a script with `tests` stdin tests again and again for about `seconds`.

    `tests_per_second` is by the clock; `cpu_ms_per_test` counts the CPU time of judges, boxes and programs, which other
    work on the machine disturbs less. Raises InfrastructureError; RuntimeError if a verdict is not `pass`.
    """
    tier = choose_tier(sandbox)
    given: list[dict[str, Any]] = [
        {"type": "stdin", "input": f"{n} {n}\n", "output": f"{2 * n}\n"} for n in range(tests)
    ]
    close()
    used = _cpu_of_children()
    started = time.monotonic()

    def repeat(_: int) -> int:
        done = 0
        while time.monotonic() < started + seconds:
            verdict = judge(_SCRIPT, given, sandbox=tier, workers=workers)
            if verdict.verdict != "pass":
                raise RuntimeError(f"a right program was judged {verdict.verdict}: {verdict.reason}")
            done += 1
        return done

    with ThreadPoolExecutor(workers) as threads:
        programs = sum(threads.map(repeat, range(workers)))
    took = time.monotonic() - started
    close()  # the judges are reaped, and their CPU time counted
    cpu = _cpu_of_children() - used
    return {
        "tier": tier, "workers": workers, "tests_per_program": tests, "programs": programs, "seconds": took,
        "tests_per_second": programs * tests / took, "cpu_ms_per_test": 1000 * cpu / (programs * tests),
    }  # fmt: skip


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
