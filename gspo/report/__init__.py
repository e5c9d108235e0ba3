"""Reports: run directories in; statistics, tables, figures and one page out. Imports nothing of the trainer."""

from gspo.report.command import main

__all__ = ["main"]
