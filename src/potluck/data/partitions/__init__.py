"""Rules that deal the rows of one data set to many clients."""

from potluck.data.partitions.from_file import FromFile
from potluck.data.partitions.names import (
    contiguous,
    dirichlet,
    from_file,
    has_short_form,
    iid,
    natural,
    parse_partition,
    pathological,
    skew,
)
from potluck.data.partitions.pathological import Pathological
from potluck.data.partitions.result import Partitioning, match_shares, partition
from potluck.data.partitions.rules import Contiguous, Dirichlet, Iid, Natural, Partition, number_of_groups
from potluck.data.partitions.skew import Skew

__all__ = [
    "Contiguous",
    "Dirichlet",
    "FromFile",
    "Iid",
    "Natural",
    "Partition",
    "Partitioning",
    "Pathological",
    "Skew",
    "contiguous",
    "dirichlet",
    "from_file",
    "has_short_form",
    "iid",
    "match_shares",
    "natural",
    "number_of_groups",
    "parse_partition",
    "partition",
    "pathological",
    "skew",
]
