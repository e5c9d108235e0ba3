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
            config.run.dir = f"{hydra_config.sweep.dir}/{job_name(hydra_config.job.override_dirname)}"
            config.resume = "auto" if config.resume == "never" else config.resume
            config.tracking.group = config.tracking.group or config.sweep.name
            codes.append(launch.in_child(lambda: launch.launch(to_run(config), to_plain(config), overrides)))
        else:
            codes.append(launch.launch(to_run(config), to_plain(config), overrides))

    app("train", job)
    sys.exit(max(codes, default=0))


def app(config_name: str, job: Callable[[DictConfig], None]) -> None:
    """Run a Hydra app; a wrong command line or configuration is one line on stderr and exit code 2."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing and exiting with 1
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(job)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if "debug=true" in sys.argv:
            raise
        print(f"{os.path.basename(sys.argv[0])}: {one_line(error)}", file=sys.stderr)
        sys.exit(USER_ERROR)


def one_line(error: BaseException) -> str:
    """The error's message on one line, without Hydra's and omegaconf's own bookkeeping."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("object_type=", "reference_type="))]
    return re.sub(r"\s+", " ", "; ".join(kept)) or type(error).__name__


def job_name(overrides: str) -> str:
    """A job's directory name from its overrides: safe characters, 120 at most, unique by a hash when shortened."""
    import hashlib

    name = re.sub(r"[^A-Za-z0-9.,_=+-]+", "_", overrides) or "job"
    if name == overrides and len(name) <= 120:
        return name
    return f"{name[:110]}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"
