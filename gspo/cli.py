"""The console commands: Hydra in, a typed `Run` out, nothing else. Nothing heavy is imported before a run starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gspo import eval_config, sft_config
from gspo.config import conf_dir, register, to_plain, to_run
from gspo.messages import help_text, one_line
from gspo.sweep.jobs import job_name, place
from gspo.tracking.display import say

USER_ERROR, FAILURE = 2, 1


def train() -> None:
    """`gspo-train`: train a policy, or with --multirun many."""
    codes: list[int] = []

    def job(config: DictConfig) -> None:
        from gspo import launch

        hydra_config = HydraConfig.get()
        if hydra_config.mode == RunMode.MULTIRUN:  # a launcher that starts the jobs itself
            _, overrides = place(config, hydra_config)
            run, plain = to_run(config), to_plain(config)
            codes.append(launch.in_child(lambda: launch.launch(run, plain, overrides)))
        else:
            codes.append(launch.launch(to_run(config), to_plain(config), list(hydra_config.overrides.task)))

    def jobs(hydra_main: Callable[[], None]) -> bool:
        from gspo.sweep import command

        code = command.run(sys.argv[1:], hydra_main)
        if code is not None:
            codes[:] = [code]
        return code is not None

    app("train", job, many=jobs)
    sys.exit(max(codes, default=0))


def sft() -> None:
    """`gspo-sft`: the cold start, supervised training of a tiny model up to a target pass rate."""

    def job(config: DictConfig) -> None:
        from omegaconf import OmegaConf

        to_plain(config)
        settings: Any = OmegaConf.to_object(config)
        from gspo import sft_check

        sft_check.check(settings)
        from gspo.sft import run

        command = " ".join(["gspo-sft", *HydraConfig.get().overrides.task])
        print(f"cold start: {run(settings, command=command)}")

    app("sft", job)


def plan() -> None:
    """`gspo-plan`: what a run, or a sweep, of the same overrides would need; exit code 2 when it could not start."""
    refused: list[bool] = []

    def job(config: DictConfig) -> None:
        from gspo.plan import plan as made
        from gspo.plan import render

        found = made(to_plain(config))
        say(render(found))
        refused.append(any(finding.level == "error" for finding in found.findings))

    def jobs(hydra_main: Callable[[], None]) -> bool:
        from gspo.sweep import price

        found = price.price(sys.argv[1:])
        if found is not None:
            say(price.render(found))
            refused.append(any(finding.level == "error" for finding in found.findings))
        return found is not None

    app("train", job, many=jobs)
    sys.exit(USER_ERROR if any(refused) else 0)


def grade() -> None:
    """`gspo-grade`: the training verifier on a file; exit code 1 when anything failed for the judge's own reasons."""
    codes: list[int] = []

    def job(config: DictConfig) -> None:
        from gspo.grade import grade as run
        from gspo.grade import judge_of

        plain = to_plain(config)
        codes.append(run(*judge_of(plain["reward"]), plain["input"], plain["output"]))

    app("grade", job)
    sys.exit(max(codes, default=0))


def evaluate() -> None:
    """`gspo-eval`: a model or a checkpoint on a benchmark; `gspo-eval compare A B`: two evaluations, paired."""
    if sys.argv[1:2] == ["compare"]:
        sys.exit(compare(sys.argv[2:]))
    codes: list[int] = []

    def job(config: DictConfig) -> None:
        from omegaconf import OmegaConf

        from gspo import eval_command, launch

        hydra_config = HydraConfig.get()
        overrides = list(hydra_config.overrides.task)
        if hydra_config.mode == RunMode.MULTIRUN:
            config.run.name = job_name(hydra_config.job.override_dirname)
            config.run.dir = f"{hydra_config.sweep.dir}/{config.run.name}"
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise ValueError(f"{missing[0]}=???: a value is needed")
        settings, plain = OmegaConf.to_object(config), to_plain(config)

        def work() -> int:
            return eval_command.run(settings, plain, overrides)  # type: ignore[arg-type]

        codes.append(launch.in_child(work) if hydra_config.mode == RunMode.MULTIRUN else work())

    app("eval", job)
    sys.exit(max(codes, default=0))


def compare(arguments: list[str]) -> int:
    """Print the paired difference of two evaluations; the exit code."""
    from pathlib import Path

    from gspo.eval_command import paired

    if len(arguments) != 2:
        print(f"gspo-eval: compare takes two directories, not {len(arguments)}", file=sys.stderr)
        return USER_ERROR
    try:
        print(paired(*map(Path, arguments))[1])
    except ValueError as error:
        print(f"gspo-eval: {one_line(error)}", file=sys.stderr)
        return USER_ERROR
    return 0


def export() -> None:
    """`gspo-export`: a checkpoint as a Hugging Face directory."""
    from gspo.export import main

    sys.exit(main())


def report() -> None:
    """`gspo-report`: figures and tables from run directories."""
    from gspo.report.command import main

    sys.exit(main(sys.argv[1:]))


def app(
    config_name: str, job: Callable[[DictConfig], None], *, many: Callable[[Callable[[], None]], bool] | None = None
) -> None:
    """Run a Hydra app; a wrong command line or configuration is one line on stderr and exit code 2.

    `many` is asked first: it takes a command line that stands for many jobs, and says whether this one does.
    """
    register()
    sft_config.register()
    eval_config.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing and exiting with 1
    if {"--help", "-h"} & set(sys.argv[1:]):
        say(help_text(os.path.basename(sys.argv[0]), config_name))
        return
    raised: list[Exception] = []

    def kept(config: DictConfig) -> None:
        try:
            job(config)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raised.append(error)  # Hydra would print a line of its own about it

    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(kept)
    try:
        flags(sys.argv[1:])
        if many is None or not many(main):
            main()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raised.append(error)
    if raised:
        if "debug=true" in sys.argv:
            raise raised[0]
        for error in raised:
            print(f"{os.path.basename(sys.argv[0])}: {one_line(error)}", file=sys.stderr)
        sys.exit(USER_ERROR)


def flags(arguments: Sequence[str]) -> None:
    """Raise ValueError, instead of a page of usage, for flags that Hydra does not know."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"{message} (accepted: GROUP=OPTION, KEY=VALUE, --multirun, --cfg job, --help, --hydra-help)")

    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_intermixed_args(list(arguments))
