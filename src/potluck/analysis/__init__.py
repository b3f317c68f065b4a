"""Questions asked of finished runs: comparison, cost to a target, fairness, significance, curves."""

from potluck.analysis.clients import Fairness, fairness
from potluck.analysis.comparison import Comparison, ComparisonRow, compare
from potluck.analysis.cost import TargetCost, cost_to_target, speed_up
from potluck.analysis.curves import band, client_curve, client_mean_curve, loss_increase, note_curves, smooth
from potluck.analysis.groups import Group, group_runs
from potluck.analysis.significance import PairedTest, paired_over_clients, paired_over_seeds, paired_test
from potluck.analysis.tables import print_comparison, rich_table, to_csv, to_latex, to_markdown

__all__ = [
    "Comparison",
    "ComparisonRow",
    "Fairness",
    "Group",
    "PairedTest",
    "TargetCost",
    "band",
    "client_curve",
    "client_mean_curve",
    "compare",
    "cost_to_target",
    "fairness",
    "group_runs",
    "loss_increase",
    "note_curves",
    "paired_over_clients",
    "paired_over_seeds",
    "paired_test",
    "print_comparison",
    "rich_table",
    "smooth",
    "speed_up",
    "to_csv",
    "to_latex",
    "to_markdown",
]
