"""What a server could find out from the answers that it saw, each score beside its chance level."""

from potluck.analysis.leak.find import Leak, find_leaks

__all__ = ["Leak", "find_leaks"]
