"""Data sets, and how their rows are dealt to clients."""

from potluck.data.dataset import Data
from potluck.data.load import load_data
from potluck.data.memory import as_data
from potluck.data.partitions import (
    Partition,
    Partitioning,
    contiguous,
    dirichlet,
    from_file,
    iid,
    match_shares,
    natural,
    number_of_groups,
    parse_partition,
    partition,
    pathological,
)
from potluck.data.show import counts
from potluck.data.split import parse_split, split_client

__all__ = [
    "Data",
    "Partition",
    "Partitioning",
    "as_data",
    "contiguous",
    "counts",
    "dirichlet",
    "from_file",
    "iid",
    "load_data",
    "match_shares",
    "natural",
    "number_of_groups",
    "parse_partition",
    "parse_split",
    "partition",
    "pathological",
    "split_client",
]
