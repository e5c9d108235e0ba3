"""Console commands in forked children of the test process, which has imported what they need: a second, not ten."""

import contextlib
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Done:
    code: int
    out: str
    err: str


def start(cwd, *arguments, program="train", before=None):
    """Start `gspo-PROGRAM ARGUMENTS` in `cwd`; (process id, file of stdout, file of stderr). `before()` runs first."""
    import gspo.train  # noqa: F401 (imported once, here)

    files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (read by `finish`)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(cwd)
            for number, file in enumerate(files, 1):
                os.dup2(file.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = open(os.devnull), open(1, "w"), open(2, "w")  # noqa: SIM115
            sys.argv = [f"gspo-{program}", *map(str, arguments)]
            _fresh()
            if before:
                before()
            from gspo import cli

            getattr(cli, {"eval": "evaluate"}.get(program, program))()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return child, *files


def finish(started) -> Done:
    """Wait for a command; its exit code (minus the signal that killed it) and what it said."""
    child, *files = started
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files:
        file.seek(0)
    return Done(code, *(file.read() for file in files))


def command(cwd, *arguments, program="train", before=None) -> Done:
    """Run a command to its end."""
    return finish(start(cwd, *arguments, program=program, before=before))


def _fresh():
    """Forget what pytest and earlier tests did to this process."""
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    logging.disable(logging.NOTSET)
    logging.getLogger().handlers.clear()
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).disabled = False


def tree(path: Path) -> list[str]:
    """Everything below a directory."""
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))
