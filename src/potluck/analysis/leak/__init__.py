"""Measure what a server could infer from the answers it received, each score beside its chance level."""

from potluck.analysis.leak.audit import find_leaks
from potluck.analysis.leak.observations import LeakFindings, LeakScore, Reconstruction, read_pictures

__all__ = ["Findings", "Leak", "Shown", "find_leaks", "read_shown"]
