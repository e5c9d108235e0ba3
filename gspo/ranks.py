"""Several ranks on this computer, started and watched by torch's own launcher (torchrun's, called as a function).

The processes of torchrun, on one node or several, are ranks already: nothing is started there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from gspo.devices import here

PEER_IS_GONE = ("gloo", "NCCL", "Connection", "SIGTERM")
"""Words of the errors of ranks that another one's failure brings down."""


class RankFailed(RuntimeError):
    """A rank ended with an error: its type, `kind`, and text, of the rank that failed first."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


class Stopped(RuntimeError):
    """A signal, `number`, asked for the end of the ranks, which had half a minute to finish their step."""

    def __init__(self, number: int):
        super().__init__(f"signal {number}")
        self.number = number


def are_running() -> bool:
    """Is this process a rank?"""
    return "WORLD_SIZE" in os.environ


def to_start(devices: int | None) -> int:
    """Ranks to start for `trainer.devices`: that many, or one for every CUDA device; 1 inside a rank.

    Raises ValueError for more ranks than CUDA devices, and for a number that torchrun's differs from.
    """
    if are_running():
        started = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        if devices not in (None, started):
            raise ValueError(f"trainer.devices={devices}: torchrun started {started} ranks on this node")
        return 1
    device, count = here()
    if device is not None and device.cuda:
        if (devices or 1) > count:
            raise ValueError(f"trainer.devices={devices}: {count} CUDA devices are here (accepted: 1 to {count}, null)")
        return devices or count
    return devices or 1


def first() -> bool:
    """Is this the process that writes and prints: rank 0, or no rank at all?"""
    return int(os.environ.get("RANK", 0)) == 0


def run(size: int, work: Callable[..., int], *arguments: Any) -> int:
    """`work(*arguments)` in `size` new processes, each a rank; the highest of the codes they return.

    `work` and its arguments are pickled. When one fails the others are ended. Raises RankFailed, or Stopped after
    SIGTERM or SIGINT, which the ranks receive too.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=f"gspo-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="spawn",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        return max(elastic_launch(config, _rank)(os.getpid(), work, *arguments).values())
    except ChildFailedError as error:
        raise _cause(error.failures) from error
    except SignalException as error:
        raise Stopped(int(error.sigval)) from error


def _rank(launcher: int, work: Callable[..., int], *arguments: Any) -> int:
    """`work(*arguments)` in a rank; its code.

    A launcher that is killed takes its ranks along: the kernel sends them SIGINT, with which they finish their step.
    torch would then wait for ever until the launcher has read what they return.
    """
    code = work(*arguments)
    if os.getppid() != launcher:
        os._exit(code)
    return code


def _cause(failures: dict[int, Any]) -> RankFailed:
    """What the rank that failed first said; its signal when it had no time to say anything.

    Times are whole seconds: in the same one, what is said of a peer that went away is not the cause.
    """

    def said(failure: Any) -> str:
        data = failure.error_file_data.get("message") if isinstance(failure.error_file_data, dict) else None
        text = data.get("message") if isinstance(data, dict) else data
        return (
            " ".join(str(text).split())
            if text and text != "<NONE>"
            else f"ended by {failure.signal_name()} ({failure.exitcode})"
        )

    def order(item: tuple[int, Any]) -> tuple[int, bool]:
        return item[1].timestamp, any(word in said(item[1]) for word in PEER_IS_GONE)

    rank, failure = min(failures.items(), key=order)
    kind, _, text = said(failure).partition(": ")
    return RankFailed(kind, text if kind in ("ValueError", "RunFailed") else f"rank {rank}: {said(failure)}")
