"""Progress of the cold start: a bar on a terminal; each level and measurement a line, there and elsewhere."""

from __future__ import annotations

from gspo.pass_rate import PassRate


class Display:
    """On stderr, so that the command's output is the directory and nothing else."""

    def __init__(self, max_updates: int, target: float):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("supervised"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[said]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=max_updates, said="")
        self._target, self._level = target, 0

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def update(self, update: int, level: int, loss: float, accuracy: float) -> None:
        """An update was made; a new level is said."""
        said = f"update {update}, level {level}, loss {loss:.3f}, accuracy {accuracy:.2f}"
        if level != self._level:
            self._say(said)
        self._level = level
        self._bar.update(self._task, completed=update, said=said)

    def measured(self, rate: PassRate) -> None:
        """The pass rate was measured."""
        self._say(f"pass rate {rate.mean:.3f} (target {self._target:.2f}), mixed groups {rate.mixed:.2f}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)
