"""Every file in conf composes into a run of the right types; algorithms and models bring their own values."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from gspo import sft_config
from gspo.binding import bind, target
from gspo.cli import job_name
from gspo.config import Run, conf_dir, register, to_plain, to_run
from gspo.formula import formula

BIN = Path(sys.executable).parent


def options(group):
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def composed(*overrides, name="train"):
    register()
    sft_config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose(name, overrides=["run.dir=somewhere", "sweep.name=a", *overrides], return_hydra_config=False)
    return config


def run_of(*overrides) -> Run:
    return to_run(composed(*overrides))


@pytest.mark.parametrize(("algo", "model"), itertools.product(options("algo"), options("model")))
def test_every_algo_with_every_model(algo, model):
    """Learning rate and data are the model's, the clip the algo's: catches a defaults list in the wrong order."""
    run = run_of(f"algo={algo}", f"model={model}")
    assert run.algo.name == algo
    assert run.model.name == model
    assert (run.optim.lr >= 1e-4) == ("tiny" in model)
    if model == "qwen3_30b_a3b":
        assert run.optim.lr == 1e-6
    own = {"tiny_programs": "tiny_programs", "smollm2_135m": "arithmetic_words"}
    expected = own.get(model, "arithmetic" if model.endswith("_tiny") else "files")
    assert run.data["_target_"] == f"gspo.data.{expected}"
    if algo in ("gspo", "gspo-token", "grpo-seqclip"):
        assert (run.clip.low, run.clip.high) == (3e-4, 4e-4)
    if algo in ("grpo", "gspo-tokenclip"):
        assert (run.clip.low, run.clip.high) == (0.2, 0.27)
    if algo in ("rloo", "reinforce"):
        assert run.clip.low is run.clip.high is None


@pytest.mark.parametrize("algo", options("algo"))
def test_every_algo_says_what_it_optimises(algo):
    """The objective is found by `_target_`, takes its keywords, and its docstring has the line that run.json quotes."""
    run = run_of(f"algo={algo}")
    bind(run.algo.objective, "algo.objective", clip_low=run.clip.low, clip_high=run.clip.high)
    assert "J = 1/" in (formula(run.algo.objective) or "")
    target(run.algo.advantage, "algo.advantage")


@pytest.mark.parametrize(
    ("group", "option"),
    [(g, o) for g in ("clip", "data", "reward", "rollout", "trainer", "tracking", "seeds") for o in options(g)],
)
def test_every_option_composes(group, option):
    """A file that no default names is loaded all the same; nothing is missing, and the plain form has no `${`."""
    named = ["data.path=mine.jsonl"] if option == "files" else []
    config = composed(f"{group}={option}", *named)
    assert isinstance(to_run(config), Run)
    assert "${" not in str(to_plain(config))


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_is_a_sweep(experiment):
    """An experiment file sets hydra.mode: MULTIRUN; without it `experiment=...` would silently run one job."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", overrides=[f"experiment={experiment}"], return_hydra_config=True)
    assert config.hydra.mode.name == "MULTIRUN"
    assert config.sweep.name == experiment


@pytest.mark.parametrize("seeds", ["three", "four", "five", "ten"])
def test_seeds_are_a_sweep(seeds):
    """`seeds=five` without --multirun must not run one seed."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", overrides=[f"seeds={seeds}"], return_hydra_config=True)
    assert config.hydra.mode.name == "MULTIRUN"
    count = {"three": 3, "four": 4, "five": 5, "ten": 10}[seeds]
    assert config.hydra.sweeper.params.seed == ",".join(map(str, range(count)))


def test_the_command_line_wins_over_algo_and_model():
    """An override of a value, or of a group, beats what algo and model bring."""
    run = run_of("algo=gspo", "clip=grpo", "optim.lr=1e-6", "model=qwen3_30b_a3b", "data=arithmetic")
    assert (run.clip.low, run.optim.lr) == (0.2, 1e-6)
    assert run.data["_target_"] == "gspo.data.arithmetic"
    assert isinstance(run.optim.lr, float)


def test_bind_refuses_what_a_function_does_not_take():
    """No option is silently ignored, none of another type is passed on."""
    node = {"_target_": "gspo.data.arithmetic", "min_terms": 2, "max_terms": 3}
    assert bind(node, "data", seed=0)().row(0).reference.isdigit()
    with pytest.raises(ValueError, match=r"data\.terms=2: arithmetic takes .*min_terms"):
        bind(node | {"terms": 2}, "data", seed=0)
    with pytest.raises(ValueError, match=r"data\.min_terms=two: int is accepted, not str"):
        bind(node | {"min_terms": "two"}, "data", seed=0)
    with pytest.raises(ValueError, match=r"data\.verbose=1: bool"):
        bind(node | {"verbose": 1}, "data", seed=0)
    with pytest.raises(ValueError, match=r"data\._target_=gspo\.data\.nothing"):
        bind({"_target_": "gspo.data.nothing"}, "data")


def test_job_names_are_safe_and_unique():
    """One directory level, no name over 255 bytes, different overrides never the same name."""
    long = ",".join(f"key{n}=value{n}" for n in range(40))
    names = [job_name(o) for o in ("model=Qwen/A,seed=1", "model=Qwen_A,seed=1", long, long + "x", "a b", "", "x='é'")]
    assert len(set(names)) == len(names)
    assert all("/" not in name and 0 < len(name.encode()) <= 130 for name in names)


def test_a_run_directory_that_exists_is_left_alone(tmp_path):
    """Without resume nothing in it is touched."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    done = subprocess.run(
        [BIN / "gspo-train", "run.dir=run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "run.dir=run: exists" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("flag", "limit"), [("--help", 1.5), ("--cfg=job", 2.0)])
def test_commands_start_quickly(flag, limit):
    """CPU seconds, which another process on the core does not change; catches a torch import before a run starts."""
    code = f"import sys, time; sys.argv = ['gspo-train', *'{flag}'.split('=')]; from gspo.cli import train; train()"
    before = children()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert children() - before < limit
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {line.split("|")[-1].strip() for line in loaded.stderr.splitlines()}
    assert not heavy & {"torch", "vllm", "wandb", "transformers"}


def children():
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
