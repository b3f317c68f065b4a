"""What a source is: a name, one line about it, where its files come from and how to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.data.dataset import Data
from potluck.data.fetch import Download


@dataclass(frozen=True)
class LoadRequest:
    """What the user asked for: the data root, what follows `name:`, and the options of `load_data`."""

    root: Path
    argument: str = ""
    label: str | None = None
    groups: str | None = None
    image_size: int | None = None
    text: str | None = None
    class_names: tuple[str, ...] = ()
    impute: bool = False


@dataclass(frozen=True)
class Source:
    """One entry of the list of data sets."""

    name: str
    about: str
    load: Callable[[LoadRequest], Data]
    layout: str = ""  # which files belong where below the data root
    rows: int = 0  # training and test rows of the complete set, to tell it from a part of it
    downloads: tuple[Download, ...] = ()
    options: tuple[str, ...] = ()  # which of load_data's options mean something here


def unused_option(data: str, option: str, value: object) -> PotluckError:
    """Return the error for an option that these data have no use for."""
    flag = option.replace("_", "-")
    return PotluckError(
        f"{data} take no {option} (given: {value!r}); leave out data.{option} (--{flag}; in Python {option}=)."
    )
