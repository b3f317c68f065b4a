"""Data sets, and how their rows are dealt to clients."""

from potluck.data.augment import augmentation
from potluck.data.dataset import Data
from potluck.data.load import list_data, load_data, prepare
from potluck.data.memory import as_data
from potluck.data.partitions import (
    Partition,
    Partitioning,
    contiguous,
    dirichlet,
    from_file,
    has_short_form,
    iid,
    match_shares,
    natural,
    number_of_groups,
    parse_partition,
    partition,
    pathological,
    skew,
)
from potluck.data.partitions.rules import parse_split, split_client, split_in_three
from potluck.data.public import public_samples
from potluck.data.show import bubble_plot, counts, sizes_table

__all__ = [
    "Data",
    "Partition",
    "Partitioning",
    "as_data",
    "augmentation",
    "bubble_plot",
    "contiguous",
    "counts",
    "dirichlet",
    "from_file",
    "has_short_form",
    "iid",
    "list_data",
    "load_data",
    "match_shares",
    "natural",
    "number_of_groups",
    "parse_partition",
    "parse_split",
    "partition",
    "pathological",
    "prepare",
    "public_samples",
    "sizes_table",
    "skew",
    "split_client",
    "split_in_three",
]
