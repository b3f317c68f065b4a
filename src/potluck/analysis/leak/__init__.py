"""What a server could find out from the answers that it saw, each score beside its chance level."""

from potluck.analysis.leak.find import find_leaks
from potluck.analysis.leak.finding import Findings, Leak, Shown, read_shown

__all__ = ["Findings", "Leak", "Shown", "find_leaks", "read_shown"]
