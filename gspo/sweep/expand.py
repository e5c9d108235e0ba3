"""A command line that stands for many runs, composed by Hydra's own loader and sweeper; nothing is created here.

Hydra's multirun would compose a job when it is that job's turn, after making the sweep's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from gspo.config import conf_dir


@dataclass(frozen=True, slots=True)
class Sweep:
    """The jobs of a multirun, in Hydra's order."""

    directory: Path
    """Where their run directories go."""
    name: str
    configs: list[Any]
    """Composed configurations, Hydra's own node included."""
    at_once: int
    """How many run at the same time."""
    repeats: int
    """Jobs that each of `configs` stands for: more than one when axes were dropped."""
    local: bool
    """False: another launcher (Slurm, Ray) was asked for, which starts them itself."""


def expand(config_name: str, arguments: Sequence[str], *, drop: Sequence[str] = ()) -> Sweep | None:
    """The jobs that `arguments` stand for; None for a single run, another flag of Hydra's, or another sweeper.

    Axes named in `drop` are left out. Raises Hydra's errors for what does not compose, and ValueError for no job at all
    and for a name that is no directory's.
    """
    args = get_args_parser().parse_intermixed_args(list(arguments))
    if (
        args.help
        or args.hydra_help
        or args.cfg
        or args.experimental_rerun
        or args.info is not None
        or args.shell_completion
        or args.run
    ):
        return None
    with _hydra(args.config_dir) as hydra:
        master = _master(hydra, args.config_name or config_name, args.overrides, asked=args.multirun)
        if master is None or master.hydra.sweeper._target_ != BasicSweeperConf._target_:
            return None
        jobs, repeats = _jobs(hydra, master, drop)
        configs = [hydra.config_loader.load_sweep_config(master, job) for job in jobs]
        launcher = master.hydra.launcher
        if not jobs:
            raise ValueError("a swept key has no value (accepted: key=a,b)")
        if not re.fullmatch(r"[^/\0]+", str(master.sweep.name)) or master.sweep.name in (".", ".."):
            raise ValueError(f"sweep.name='{master.sweep.name}': names a directory (accepted: any text without /)")
        return Sweep(
            directory=Path(master.hydra.sweep.dir),
            name=master.sweep.name,
            configs=configs,
            at_once=launcher.get("n_jobs") or master.sweep.workers,
            repeats=repeats,
            local=launcher._target_ == BasicLauncherConf._target_,
        )


def _master(hydra: Hydra, config_name: str, overrides: list[str], *, asked: bool) -> Any:
    """The configuration of the sweep itself; None when it is a single run, whose errors are told elsewhere."""
    compose: Callable[[], Any] = lambda: hydra.compose_config(  # noqa: E731
        config_name=config_name,
        overrides=overrides if not asked else [*overrides, "hydra.mode=MULTIRUN"],
        run_mode=RunMode.MULTIRUN,
        with_log_configuration=False,
        validate_sweep_overrides=asked,
    )
    if asked:
        return compose()
    mode = hydra.get_mode(config_name=config_name, overrides=overrides)
    return compose() if mode == RunMode.MULTIRUN else None


def _jobs(hydra: Hydra, master: Any, drop: Sequence[str]) -> tuple[list[list[str]], int]:
    """The overrides of each job, without the axes in `drop`, and how many jobs each of them stands for.

    The product of the swept values, as Hydra's basic sweeper orders it.
    """
    params = master.hydra.sweeper.params or {}
    words = [*(f"{key}={value}" for key, value in params.items()), *master.hydra.overrides.task]
    parsed = OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(words)
    kept = [override for override in parsed if override.get_key_element() not in drop]
    jobs = BasicSweeper.split_arguments(kept, None)[0]
    return jobs, len(BasicSweeper.split_arguments(parsed, None)[0]) // max(len(jobs), 1)


@contextmanager
def _hydra(config_dir: str | None) -> Iterator[Hydra]:
    """Hydra with our configuration directory, and with `--config-dir` before it."""
    path = create_automatic_config_search_path(None, None, str(conf_dir()))
    if config_dir is not None:
        if not os.path.isdir(config_dir):
            raise ValueError(f"--config-dir={config_dir}: no such directory")
        more = f"file://{os.path.abspath(config_dir)}"
        path.prepend(provider="command-line", path=more, anchor=SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2("gspo", path)
    finally:
        GlobalHydra.instance().clear()
