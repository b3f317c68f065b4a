"""What this machine can do, shown by doing it: `potluck doctor`."""

from potluck.doctor.examination import examine, table
from potluck.doctor.finding import Finding

__all__ = ["Finding", "examine", "table"]
