"""`gspo-report DIR` and `gspo-report clip RUN...`: arguments in, files out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gspo.report.curves import AXES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or with one line on stderr 2 for what the user can mend, 1 for a disk that fails."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["clip"]:
            return _clip(clip_parser().parse_args(words[1:]))
        return _report(report_parser().parse_args(words))
    except ValueError as error:
        print(f"gspo-report: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gspo-report: {error}", file=sys.stderr)
        return 1


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.format_usage()}")


def report_parser() -> argparse.ArgumentParser:
    """Arguments of the report."""
    parser = Parser(
        "gspo-report",
        description="Turn run directories into report.html, SVG, PNG, CSV and LaTeX.",
        epilog="gspo-report clip RUN... : what other clip ranges would have clipped of the same updates.",
    )
    parser.add_argument("dir", type=Path, help="a run, a sweep, or any directory above them")
    parser.add_argument(
        "--x", choices=list(AXES), default="step", help="x-axis shown first in the page (all are drawn)"
    )
    parser.add_argument("--out", type=Path, help="where to write; default: DIR/report")
    parser.add_argument("--by", default="", metavar="KEY,...", help="keys that make the arms; default: what was swept")
    parser.add_argument("--paired", action="store_true", help="test differences paired by seed (needs 6 pairs)")
    parser.add_argument("--wandb", action="store_true", help="also build a W&B workspace over the runs' group")
    return parser


def clip_parser() -> argparse.ArgumentParser:
    """Arguments of the clip report."""
    parser = Parser(
        "gspo-report clip", description="Clip fractions of the same updates at other ranges, from sequences/."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories, or directories above them")
    parser.add_argument("--low", type=float, nargs="*", default=[], help="more ranges: eps_L of each")
    parser.add_argument("--high", type=float, nargs="*", default=[], help="more ranges: eps_R of each")
    parser.add_argument("--out", type=Path, help="where to write; default: RUN/report of the first RUN")
    return parser


def _report(args: argparse.Namespace) -> int:
    from gspo.report.build import build

    keys = [key for key in args.by.split(",") if key]
    out = args.out or args.dir / "report"
    summary = build(args.dir, out, axis=args.x, by=keys, paired=args.paired)
    left = f", {len(summary.excluded)} not compared" if summary.excluded else ""
    print(f"{len(summary.runs)} runs in {len(summary.arms)} arms{left}: {out / 'report.html'}")
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.wandb:
        from gspo.report.dashboard import publish

        print(publish(summary, out))
    return 0


def _clip(args: argparse.Namespace) -> int:
    from gspo.report.clip_report import build

    if len(args.low) != len(args.high):
        raise ValueError(f"--low and --high come in pairs; got {len(args.low)} and {len(args.high)}")
    out = args.out or args.runs[0] / "report"
    print(build(args.runs, out, list(zip(args.low, args.high, strict=True))))
    return 0
