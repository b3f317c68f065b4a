"""Results for people: a self-contained HTML report, and figures for print."""

from potluck.report.figures import KINDS, plot
from potluck.report.html import write_report

__all__ = ["KINDS", "plot", "write_report"]
