"""report.html: one file that needs no other, figures embedded, no date and no script."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from gspo.report.summary import Summary
from gspo.report.tables import Table, shown

CSS = """
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1.2rem;color:#1b1b1b}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-size:.86rem;margin:.6rem 0}
th,td{padding:.25rem .6rem;text-align:left;vertical-align:top}
th{border-bottom:1.5px solid #333}tr:nth-child(even) td{background:#f6f6f6}td{font-variant-numeric:tabular-nums}
figure{margin:.8rem 0}img{max-width:100%}figcaption,p.caption{color:#555;font-size:.86rem;max-width:60rem}
.warning{background:#fff4e5;border-left:4px solid #d55e00;padding:.5rem .9rem}.fine{background:#eef7f1;
border-left:4px solid #009e73;padding:.5rem .9rem}.wide{overflow-x:auto}details{margin:.6rem 0}code{font-size:.9em}
"""
FIGURES = {
    "curves": "Reward and held-out score: mean over seeds with its pointwise 95 % interval; single runs under 4 seeds.",
    "clip_fractions": "Clip fraction over all updates (the paper's Figure 2): mean over seeds, 95 % interval, seeds as "
    "points; log scale.",
    "final_scores": "Final scores: seeds (dots), mean (filled) and interquartile mean (diamond), 95 % intervals.",
    "comparisons": "Pairs of arms with 95 % intervals; a filled marker is a claim (Holm-adjusted p of at most 0.05).",
    "collapse": "Share of runs not collapsed (Kaplan-Meier, 95 % log-log interval); ticks are censored runs.",
    "clip_map": "Clip-range map: mean over seeds with 95 % interval, one line an algorithm.",
    "lengths": "By response length: mean over runs with 95 % interval. Dashed: length to the power -1/2.",
    "experts": "Share of expert choices that an update changed, 10-step mean over seeds.",
}
SECTIONS: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (
    ("Training and held-out score", ("curves",), ()),
    ("Final scores and claims", ("final_scores", "comparisons"), ("final_scores", "comparisons")),
    ("Clip fractions", ("clip_fractions", "clip_map"), ("clip_fractions", "clip_ratios")),
    ("Collapse", ("collapse",), ("collapse",)),
    ("Response length", ("lengths",), ("length_exponents", "lengths")),
    ("Expert change", ("experts",), ("expert_change",)),
    ("Compute and time", (), ("compute", "time")),
    ("Runs", (), ("runs",)),
)


def page(title: str, summary: Summary, tables: Sequence[Table], figures: Mapping[str, str], axis: str) -> str:
    """The whole page; `figures` maps a file name (without ending) to its SVG."""
    by_name = {table.name: table for table in tables}
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _opening(summary),
        _table(by_name.get("arms")),
        _checks(summary, by_name),
    ]
    for heading, drawn, shown_tables in SECTIONS:
        body = [_figure(name, figures, axis) for name in drawn] + [_table(by_name.get(name)) for name in shown_tables]
        if any(body):
            parts.append(f"<h2>{heading}</h2>" + "".join(body))
    parts.append(_excluded(summary))
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{CSS}</style>'
    return (
        f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n"
        + "\n".join(p for p in parts if p)
        + "\n</body></html>\n"
    )


def _opening(summary: Summary) -> str:
    """What the report claims, first."""
    claims = [claim for claim in summary.claims if claim.adjusted <= 0.05]
    tested = sum(claim.p == claim.p for claim in summary.claims)
    counts = (
        f"{len(summary.runs)} of {len(summary.everything)} runs compared in {len(summary.arms)} arms; {tested} tests."
    )
    if not claims:
        return f"<p>{counts} <b>No claim</b>: no difference reaches a Holm-adjusted p of 0.05.</p>"
    items = "".join(
        f"<li>{html.escape(c.score)}: <b>{html.escape(c.verdict)}</b>, difference {shown(c.difference)}, "
        f"{c.test} p = {c.p:.2g}, adjusted {c.adjusted:.2g}</li>"
        for c in claims
    )
    return f"<p>{counts} Claims:</p><ul>{items}</ul>"


def _checks(summary: Summary, tables: Mapping[str, Table]) -> str:
    """Do compared runs differ only in the swept keys?"""
    notes = "".join(f"<p class=warning>{html.escape(note)}</p>" for note in summary.notes)
    if not summary.differences:
        return "<p class=fine>Check: compared runs differ only in the seed and the swept keys.</p>" + notes
    inside = sum(d.inside for d in summary.differences)
    text = f"Check: compared runs also differ in {len(summary.differences)} other keys, {inside} of them within an arm."
    return f"<div class=warning>{text}{_table(tables.get('differences'))}</div>" + notes


def _figure(name: str, figures: Mapping[str, str], axis: str) -> str:
    """A figure with its caption; for curves the chosen axis, the others folded away."""
    if name != "curves":
        return _image(figures[name], FIGURES[name]) if name in figures else ""
    drawn = {key: svg for key, svg in figures.items() if key.startswith("curves_")}
    first = f"curves_{axis}"
    out = _image(drawn.pop(first), FIGURES[name]) if first in drawn else f"<p>No run recorded {axis}.</p>"
    rest = "".join(_image(svg, key.removeprefix("curves_").replace("_", "-")) for key, svg in drawn.items())
    return out + (f"<details><summary>Other x-axes</summary>{rest}</details>" if rest else "")


def _image(svg: str, caption: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _table(table: Table | None) -> str:
    if table is None or not table.rows:
        return ""
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in table.columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    caption = f"<p class=caption>{html.escape(table.caption)}</p>"
    return f"{caption}<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(cell: Any) -> str:
    return html.escape(shown(cell))


def _excluded(summary: Summary) -> str:
    """Runs that were found and not compared, with the reason."""
    if not summary.excluded:
        return ""
    items = "".join(
        f"<li><code>{html.escape(run.name)}</code>: {html.escape(run.status)}"
        f"{' - ' + html.escape(run.reason[:300]) if run.reason else ''}</li>"
        for run in sorted(summary.excluded, key=lambda run: run.name)
    )
    return f"<h2>Not compared</h2><ul>{items}</ul>"
