"""The console commands: Hydra in, a typed `Run` out, nothing else. Nothing heavy is imported before a run starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gspo import sft_config
from gspo.config import conf_dir, register, to_plain, to_run

USER_ERROR, FAILURE = 2, 1


def train() -> None:
    """`gspo-train`: train a policy, or with --multirun many."""
    codes: list[int] = []

    def job(config: DictConfig) -> None:
        from gspo import launch

        hydra_config = HydraConfig.get()
        overrides = list(hydra_config.overrides.task)
        if hydra_config.mode == RunMode.MULTIRUN:
            config.run.name = job_name(hydra_config.job.override_dirname)
            config.run.dir = f"{hydra_config.sweep.dir}/{config.run.name}"
            config.resume = "auto" if config.resume == "never" else config.resume
            config.tracking.group = config.tracking.group or config.sweep.name
            run, plain = to_run(config), to_plain(config)
            codes.append(launch.in_child(lambda: launch.launch(run, plain, overrides)))
        else:
            codes.append(launch.launch(to_run(config), to_plain(config), overrides))

    app("train", job)
    sys.exit(max(codes, default=0))


def sft() -> None:
    """`gspo-sft`: the cold start, supervised training of a tiny model up to a target pass rate."""

    def job(config: DictConfig) -> None:
        from omegaconf import OmegaConf

        from gspo.sft import run

        command = " ".join(["gspo-sft", *HydraConfig.get().overrides.task])
        print(f"cold start: {run(OmegaConf.to_object(config), command=command)}")  # type: ignore[arg-type]

    app("sft", job)


def plan() -> None:
    """`gspo-plan`: what a run of the same overrides would need; exit code 2 when it could not start."""
    refused: list[bool] = []

    def job(config: DictConfig) -> None:
        from gspo.plan import plan as made
        from gspo.plan import render

        found = made(to_plain(config))
        print(render(found))
        refused.append(any(finding.level == "error" for finding in found.findings))

    app("train", job)
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


def report() -> None:
    """`gspo-report`: figures and tables from run directories."""
    from gspo.report.command import main

    sys.exit(main(sys.argv[1:]))


def app(config_name: str, job: Callable[[DictConfig], None]) -> None:
    """Run a Hydra app; a wrong command line or configuration is one line on stderr and exit code 2."""
    register()
    sft_config.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing and exiting with 1
    raised: list[Exception] = []

    def kept(config: DictConfig) -> None:
        try:
            job(config)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raised.append(error)  # Hydra would print a line of its own about it

    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(kept)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raised.append(error)
    if raised:
        if "debug=true" in sys.argv:
            raise raised[0]
        for error in raised:
            print(f"{os.path.basename(sys.argv[0])}: {one_line(error)}", file=sys.stderr)
        sys.exit(USER_ERROR)


def one_line(error: BaseException) -> str:
    """The error's message, and that of its cause, on one line without Hydra's and omegaconf's own bookkeeping."""
    text = str(error)
    if error.__cause__ is not None and isinstance(error, HydraException):
        text += f"\n{error.__cause__}"
    text = text.partition("Config search path:")[0]
    lines = [line.strip().rstrip(".;") for line in text.splitlines() if line.strip()]
    bookkeeping = ("object_type=", "reference_type=", "full_key:", "To append to your config", "See https")
    kept = [line for line in lines if not line.startswith(bookkeeping)]
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        kept = [f"unknown key {unknown.group(1)}{near(unknown.group(1))}"]
    options = next((n for n, line in enumerate(kept) if line.startswith("Available options")), None)
    if options is not None:
        kept = [*kept[:options], f"{kept[options]} {', '.join(kept[options + 1 :])}"]
    return re.sub(r"\s+", " ", "; ".join(kept)) or type(error).__name__


def near(key: str) -> str:
    """Keys of the schema that look like `key`, or the ones beside it."""
    import dataclasses
    import difflib

    from gspo.config import Run

    known = {}
    for group in dataclasses.fields(Run):
        inner = group.default_factory() if group.default_factory is not dataclasses.MISSING else None
        fields = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
        known |= {f"{group.name}.{name}": group.name for name in fields} or {group.name: ""}
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6) or [
        k for k in known if key.split(".")[0] == known[k]
    ]
    return f"; near it: {', '.join(close)}" if close else "; `gspo-train --cfg job` lists all keys"


def job_name(overrides: str) -> str:
    """A job's directory name from its overrides: safe characters, 120 at most, unique by a hash when shortened."""
    import hashlib

    name = re.sub(r"[^A-Za-z0-9.,_=+-]+", "_", overrides) or "job"
    if name == overrides and len(name) <= 120:
        return name
    return f"{name[:110]}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"
