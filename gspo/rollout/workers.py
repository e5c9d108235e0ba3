"""Several engines on one computer: one in this process, each other in a process of its own (`rollout.workers`).

The CPU's counterpart of a GPU's large batch: engines of one thread each share a step's prompts. Every prompt brings its
own seeds, so which engine answers it does not matter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from gspo.rollout import Engine
from gspo.types import Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor

CLOSING_S = 10.0
"""Seconds that a worker has to end before it is killed."""


class Workers:
    """Engine protocol on `count` engines, each made by `start()`; what it is given must be picklable.

    What a worker raises is raised here: ValueError as it is, anything else, and a worker that is gone, as RuntimeError.
    """

    ranks = 1

    def __init__(self, start: Callable[[], Engine], count: int, prepare: Callable[[], None]):
        """`prepare()` comes first in each new process (say, torch's threads). Raises what `start` raises."""
        spawn = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []
        self._engine: Engine | None = None
        try:
            for number in range(1, count):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=_serve, args=(theirs, start, prepare), name=f"rollout-{number}")
                process.start()
                theirs.close()
                self._workers.append((process, ours))
            self._engine = start()
            self.prefix_block = self._engine.prefix_block
            self._answers()
        except BaseException:
            self.close()
            raise

    def generate(self, prompts: Sequence[Prompt], group_size: int, *, seed: int, step: int) -> list[list[Rollout]]:
        """`[P][G]` responses; see `Engine.generate`. Every engine takes each `count`-th prompt."""
        assert self._engine is not None
        size = len(self._workers) + 1
        for number, (process, pipe) in enumerate(self._workers, 1):
            _send(process, pipe, ("generate", list(prompts[number::size]), group_size, seed, step))
        try:
            mine = self._engine.generate(prompts[::size], group_size, seed=seed, step=step)
        finally:
            others = self._answers()
        done = [mine, *others]
        return [done[i % size][i // size] for i in range(len(prompts))]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Give every engine all weights, one at a time; see `Engine.update_weights`."""
        assert self._engine is not None
        for process, pipe in self._workers:
            _send(process, pipe, ("update_weights", version))

        def passed_on() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                array = tensor.detach().cpu().contiguous().numpy()
                for process, pipe in self._workers:
                    _send(process, pipe, (name, array))
                yield name, tensor

        rest = passed_on()
        try:
            self._engine.update_weights(rest, version=version)
        finally:
            for _ in rest:
                pass
            for process, pipe in self._workers:
                _send(process, pipe, None)
            self._answers()

    def sleep(self) -> None:
        """See `Engine.sleep`: there is no GPU memory to free."""

    def close(self) -> None:
        """Stop every engine; a worker that does not end in time is killed."""
        for _, pipe in self._workers:
            pipe.close()  # a worker ends where its pipe does
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        for process, _ in self._workers:
            process.join(CLOSING_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers = []

    def _answers(self) -> list[Any]:
        """What every worker says to what it was last sent; all are heard before anything is raised."""
        found = []
        for process, pipe in self._workers:
            try:
                found.append(pipe.recv())
            except (EOFError, OSError) as error:
                found.append(_gone(process, error))
        for failed in (one for one in found if isinstance(one, Exception)):
            raise failed
        return found


def _send(process: Any, pipe: Connection, message: Any) -> None:
    try:
        pipe.send(message)
    except OSError as error:
        raise _gone(process, error) from error


def _gone(process: Any, error: Exception) -> RuntimeError:
    process.join(1)
    code = process.exitcode
    how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    return RuntimeError(f"rollout worker {process.name} is gone ({how}; {type(error).__name__})")


def _serve(pipe: Connection, start: Callable[[], Engine], prepare: Callable[[], None]) -> None:
    """Answer requests until the pipe ends. Signals of the terminal are the parent's to handle."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prepare()
    engine: list[Engine] = []
    with contextlib.suppress(EOFError, OSError):
        pipe.send(_tried(lambda: engine.append(start())))
        while True:
            pipe.send(_tried(_work(engine[0], pipe, pipe.recv())))
    if engine:
        engine[0].close()


def _work(engine: Engine, pipe: Connection, message: tuple[Any, ...]) -> Callable[[], Any]:
    """What a request asks for. The weights that follow an update are read to their end whatever becomes of it."""
    verb, *rest = message
    if verb == "generate":
        prompts, group_size, seed, step = rest
        return lambda: engine.generate(prompts, group_size, seed=seed, step=step)

    def take() -> None:
        import torch

        coming = ((name, torch.from_numpy(array)) for name, array in iter(pipe.recv, None))
        try:
            engine.update_weights(coming, version=rest[0])
        finally:
            for _ in coming:
                pass

    return take


def _tried(work: Callable[[], Any]) -> Any:
    """The result of `work`, or an error that can be pickled and raised by the parent."""
    try:
        return work()
    except ValueError as error:
        return ValueError(str(error))
    except (EOFError, OSError):
        raise
    except Exception as error:
        return RuntimeError(f"rollout worker: {type(error).__name__}: {error}")
