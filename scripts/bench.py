"""Benchmarks, one subcommand each: `python scripts/bench.py logp`. Every table compares its arms within one run.

To add one: a function of the parsed arguments that returns rows, and a subparser in `arguments`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import bench_mismatch
import bench_step

Row = dict[str, Any]
GIB = 2**30


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="one JSON object a row instead of a table")
    common = argparse.ArgumentParser(add_help=False, parents=[output])
    common.add_argument("--repeats", type=int, default=3, help="interleaved rounds; the table shows medians")
    common.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    common.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    commands = parser.add_subparsers(required=True, dest="bench")

    of_logp = commands.add_parser("logp", parents=[common], help="log-probs of tokens against the plain log-softmax")
    of_logp.add_argument("--tokens", type=int, default=4096)
    of_logp.add_argument("--hidden", type=int, default=1024)
    of_logp.add_argument("--vocab", type=int, default=151_936)
    of_logp.add_argument("--arms", nargs="+", help="run these alone, the first being the reference")
    of_logp.set_defaults(run=logp)

    of_step = commands.add_parser("step", parents=[output], help="a training step by phase, in turns with others")
    bench_step.add_arguments(of_step)
    of_step.set_defaults(run=bench_step.step)

    of_mismatch = commands.add_parser("mismatch", parents=[output], help="engine against trainer, by precision")
    bench_mismatch.add_arguments(of_mismatch)
    of_mismatch.set_defaults(run=bench_mismatch.mismatch)

    of_sandbox = commands.add_parser("sandbox", parents=[output], help="tests of programs judged a second")
    of_sandbox.add_argument("--tests", type=int, nargs="+", default=[1, 10, 40], help="tests a program, a row each")
    of_sandbox.add_argument("--seconds", type=float, default=10.0, help="a row")
    of_sandbox.add_argument("--workers", type=int, default=2)
    of_sandbox.add_argument("--sandbox", default="auto", help="the tier, as reward.sandbox")
    of_sandbox.set_defaults(run=sandbox)

    of_math = commands.add_parser("math", parents=[output], help="answers of mathematics judged a second")
    of_math.add_argument("--answers", type=int, default=4000, help="plain numbers; an eighth as many mixed ones")
    of_math.add_argument("--workers", type=int, default=1)
    of_math.set_defaults(run=mathematics)
    return parser


def logp(options: argparse.Namespace) -> list[Row]:
    """Log-probs, forward and backward, in float32: plain log-softmax, gspo's, and torch's own linear_cross_entropy.

    Errors are against the plain arm: values absolute, gradients relative to the largest entry of the tensor. The peak
    counts what exists during forward and backward beyond the inputs, the gradients of the inputs included.
    """
    import torch
    from torch import Tensor

    from gspo.linear_logp import linear_logp

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(options.tokens, options.hidden, generator=generator)
    weight = torch.randn(options.vocab, options.hidden, generator=generator) * 2 / options.hidden**0.5
    targets = torch.randint(options.vocab, (options.tokens,), generator=generator)
    upstream = torch.randn(options.tokens, generator=generator)
    hidden, weight, targets, upstream = (x.to(options.device) for x in (hidden, weight, targets, upstream))
    hidden.requires_grad_()
    weight.requires_grad_()

    def plain() -> Tensor:
        return torch.log_softmax(hidden @ weight.T, -1).gather(1, targets[:, None])[:, 0]

    arms: dict[str, Callable[[], Tensor]] = {
        "plain": plain,
        "gspo": lambda: linear_logp(hidden, weight, None, targets)[0],
        "gspo entropy": lambda: linear_logp(hidden, weight, None, targets, entropy=True)[0],
    }
    if options.device == "cuda":
        low = torch.bfloat16
        arms["gspo bfloat16"] = lambda: linear_logp(hidden, weight, None, targets, operands=low)[0]
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        arms["torch fused"] = lambda: (
            -torch.nn.functional.linear_cross_entropy(hidden, weight, targets, reduction="none", options=chunks)
        )

    arms = chosen(arms, options.arms)

    def once(arm: Callable[[], Tensor]) -> list[Tensor]:
        values = arm()
        return [values.detach(), *torch.autograd.grad(values, (hidden, weight), upstream)]

    reference: list[Tensor] = []
    rows = {name: {"arm": name, "seconds": [], "busy": [], "peak": []} for name in arms}
    for _ in range(options.repeats):
        for name, arm in arms.items():
            result, *costs = measured(lambda arm=arm: once(arm), options.device)
            for cost, value in zip(("seconds", "busy", "peak"), costs, strict=True):
                rows[name][cost].append(value)
            reference = reference or result
            errors = [(a - b).abs().max() for a, b in zip(result, reference, strict=True)]
            scales = [1.0, *(b.abs().max() for b in reference[1:])]
            errors = [float(error / scale) for error, scale in zip(errors, scales, strict=True)]
            rows[name] |= dict(zip(("logp error", "d hidden error", "d weight error"), errors, strict=True))
            del result
    return compared(list(rows.values()))


def sandbox(options: argparse.Namespace) -> list[Row]:
    """Programs of 1, 10 and 40 stdin tests through the sandbox, as `reward=code` judges them, none of them twice."""
    from gspo.rewards.sandbox_bench import throughput

    more = {"seconds": options.seconds, "workers": options.workers, "sandbox": options.sandbox}
    return [rounded(throughput(tests=tests, **more)) for tests in options.tests]


def mathematics(options: argparse.Namespace) -> list[Row]:
    """Different answers through the mathematics verifier: plain numbers, and the mix that benchmarks ask for."""
    from gspo.rewards.math_bench import throughput

    numbers = {"plain": options.answers, "mixed": max(1, options.answers // 8)}
    return [rounded(throughput(kind, answers=n, workers=options.workers)) for kind, n in numbers.items()]


def rounded(row: Row) -> Row:
    """Numbers to three significant digits or the unit, and words as a header has them."""
    short = {name: float(f"{x:.3g}") if isinstance(x, float) and x < 100 else x for name, x in row.items()}
    return {name.replace("_", " "): round(x) if isinstance(x, float) and x >= 100 else x for name, x in short.items()}


def chosen(arms: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """The arms of these names, or all; SystemExit for a name that is none of them."""
    for name in names or []:
        if name not in arms:
            raise SystemExit(f"--arms {name}: one of {list(arms)}")
    return {name: arms[name] for name in names or arms}


def measured(run: Callable[[], Any], device: str) -> tuple[Any, float, float, int]:
    """(result, wall seconds, seconds of CPU, peak bytes beyond what was held before) of one call."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    else:
        ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: blocks from 1 MiB go back to the system when freed
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the high-water mark of resident memory starts again (Linux)
        held = resident("VmRSS")
    start, busy = time.perf_counter(), time.process_time()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM")
    return result, seconds, busy, peak - held


def resident(field: str) -> int:
    """Bytes of VmRSS (resident) or VmHWM (its peak) of this process, from Linux."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def compared(rows: list[Row]) -> list[Row]:
    """Medians of seconds and peaks, and of their ratios to the first row's of the same round.

    The ratio of CPU seconds stays meaningful where other programs keep the cores busy.
    """
    first = rows[0]
    return [
        {
            "arm": row["arm"],
            "seconds": round(statistics.median(row["seconds"]), 2),
            "time ratio": round(ratio(row["seconds"], first["seconds"]), 3),
            "CPU ratio": round(ratio(row["busy"], first["busy"]), 3),
            "peak GiB": round(statistics.median(row["peak"]) / GIB, 3),
            "peak ratio": round(ratio(row["peak"], first["peak"]), 4),
        }
        | {name: f"{value:.1e}" for name, value in row.items() if name.endswith("error")}
        for row in rows
    ]


def ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    lines.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    options = arguments().parse_args()
    measured_by = f"{os.cpu_count()} cores"
    if "threads" in options:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        import torch

        torch.set_num_threads(options.threads)
        measured_by = f"torch {torch.__version__}"
    rows = options.run(options)
    if options.json:
        print("\n".join(json.dumps(row) for row in rows))
        return
    settings = {name: value for name, value in vars(options).items() if name not in ("run", "json")}
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"{measured_by}, {settings}, load averages {load}")
    print(table(rows))


if __name__ == "__main__":
    main()
