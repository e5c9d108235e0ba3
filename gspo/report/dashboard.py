"""A W&B workspace over the runs of a report: clip fractions, reward and collapse, grouped by algorithm.

Built and written as JSON without a network, through the private model of wandb-workspaces (`_to_model`, `internal`),
which the offline form needs: 0.4.13 is known to work. Sent only where a key is set and W&B is not offline; a W&B
Report is made only then too, since the library needs a login even to serialise one.
"""

from __future__ import annotations

import netrc
import os
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.report.collapse import DEFINITION
from gspo.report.summary import CLIPS, Summary
from gspo.report.tables import shown

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

KNOWN_TO_WORK = "0.4.13"
GROUP_BY = "algo.name"
REWARD = ("reward/correct", "reward/mean", "reward/zero_spread", "response/length_mean")
COLLAPSE = ("reward/correct", "response/truncated", "response/empty", "policy/entropy", "optim/grad_norm",
            "optim/skipped")  # fmt: skip
LOG_SCALE = (*CLIPS, "optim/grad_norm")


def publish(summary: Summary, out: Path) -> str:
    """Write `out`/workspace.json; send it where W&B can be reached. Returns a line that says what was done.

    Raises ValueError when wandb-workspaces is not there in the version this file is written for, or W&B refuses.
    """
    require_library()
    project, group, entity = target(summary)
    workspace = build(summary, entity or "entity", project, group)
    path = out / "workspace.json"
    path.write_text(to_json(workspace), encoding="utf-8")
    if not online():
        return f"W&B workspace: {path} (not sent: W&B is offline or no key is set)"
    return f"W&B workspace: {path}, {send(workspace, entity, summary, project, group)}"


def require_library() -> None:
    """Raises ValueError unless the pinned wandb-workspaces is installed."""
    try:
        found = version("wandb-workspaces")
    except PackageNotFoundError:
        found = "none"
    if found != KNOWN_TO_WORK:
        raise ValueError(f"--wandb needs wandb-workspaces=={KNOWN_TO_WORK}; found {found}")
    os.environ.setdefault("WANDB_REPORT_API_DISABLE_MESSAGE", "True")


def target(summary: Summary) -> tuple[str, str | None, str | None]:
    """W&B project and group that most runs of the report went to, and the entity if the environment names one."""
    runs = summary.runs or summary.everything
    projects = Counter(str(run.config.get("tracking.project", "gspo")) for run in runs)
    groups = Counter(run.config.get("tracking.group") or run.config.get("sweep.name") for run in runs)
    group = groups.most_common(1)[0][0]
    return projects.most_common(1)[0][0], None if group is None else str(group), os.environ.get("WANDB_ENTITY")


def build(summary: Summary, entity: str, project: str, group: str | None) -> Workspace:
    """The workspace: three sections of panels, runs of the group only, grouped by algorithm."""
    import wandb_workspaces.expr as expr
    import wandb_workspaces.workspaces as ws

    held = ["avg_at_k"] if any("avg_at_k" in row for run in summary.runs for row in run.evals) else []
    sections = [
        ws.Section(name="Clip fractions", is_open=True, panels=[*(_line(name) for name in CLIPS), *_bars(CLIPS)]),
        ws.Section(name="Reward", is_open=True, panels=[_line(name) for name in (*REWARD, *held)]),
        ws.Section(name="Collapse", is_open=True, panels=[_verdicts(summary), *(_line(name) for name in COLLAPSE)]),
    ]
    runs = ws.RunsetSettings(
        filters=[] if group is None else [expr.Metric("Group") == group],
        groupby=[expr.Config(GROUP_BY)],
        pinned_columns=["run:displayName", f"config:{GROUP_BY}", "config:seed", "summary:clip/token_binding"],
    )
    name = f"gspo: {group or project} by algorithm"
    settings = ws.WorkspaceSettings(x_axis="Step", smoothing_type="none", max_runs=100)
    return ws.Workspace(entity=entity, project=project, name=name, sections=sections, settings=settings,
                        runset_settings=runs)  # fmt: skip


def _line(name: str) -> Any:
    """A metric against the step: the mean over an algorithm's runs, and their range."""
    import wandb_workspaces.reports.v2 as wr

    return wr.LinePlot(title=name, x="Step", y=[name], log_y=name in LOG_SCALE, groupby=wr.Config(GROUP_BY),
                       groupby_aggfunc="mean", groupby_rangefunc="minmax", max_runs_to_show=100)  # fmt: skip


def _bars(names: tuple[str, ...]) -> list[Any]:
    """The last value of each clip fraction by algorithm."""
    import wandb_workspaces.reports.v2 as wr

    return [
        wr.BarPlot(title=f"{name}, last step", metrics=[name], orientation="v", groupby=wr.Config(GROUP_BY),
                   groupby_aggfunc="mean", groupby_rangefunc="stddev", max_runs_to_show=100)
        for name in names[:1]
    ]  # fmt: skip


def _verdicts(summary: Summary) -> Any:
    """The report's collapse rates as text: W&B cannot compute them."""
    import wandb_workspaces.reports.v2 as wr

    rows = [f"| {arm.arm} | {arm.collapsed} of {arm.determined} | {shown(arm.rate)} |" for arm in summary.collapse]
    return wr.MarkdownPanel(markdown="\n".join(["| arm | collapsed | rate |", "|---|---|---|", *rows, "", DEFINITION]))


def to_json(workspace: Workspace) -> str:
    """The view as W&B stores it; repeats to the byte but for the ids that the library draws."""
    return workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"


def from_json(text: str) -> Workspace:
    """The inverse of `to_json`."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.workspaces import internal

    return ws.Workspace._from_model(internal.View.model_validate_json(text))


def online() -> bool:
    """Is there a key, and does nothing say offline? Asks nobody."""
    if os.environ.get("WANDB_MODE", "online") != "online":
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        known = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
    except (OSError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in known.hosts)


def send(workspace: Workspace, entity: str | None, summary: Summary, project: str, group: str | None) -> str:
    """Save the workspace and a Report to W&B; returns their addresses. Raises ValueError when W&B refuses."""
    import requests
    import wandb
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces.reports.v2.interface import Report, Runset

    try:
        workspace.entity = entity or str(wandb.Api(timeout=20).default_entity)
        workspace.save()
        report = Report(entity=workspace.entity, project=project, title=workspace.name, blocks=[
            wr.MarkdownBlock(text=_verdicts(summary).markdown),
            wr.PanelGrid(runsets=[Runset(entity=workspace.entity, project=project, query="", name=group or "runs")],
                         panels=[_line(name) for name in (*CLIPS, *REWARD)]),
        ])  # fmt: skip
        report.save(draft=True)
    except (wandb.Error, requests.RequestException, OSError) as error:
        raise ValueError(f"W&B refused the workspace: {error}") from error
    return f"sent: {workspace.url}; report: {report.url}"
