"""`node.toml`: what one machine brings to a federation, and where it keeps what is its own."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from potluck.core.errors import PotluckError
from potluck.data import Data, as_data, load_data
from potluck.data.load import SOURCES
from potluck.flower.node.policy import Policy
from potluck.flower.node.section import Section


class NodeData(Section):
    """Where the node's rows come from, and how they are split."""

    source: str = Field(description="a data source of Potluck (npz:rows.npz, csv:…), or module:function")
    root: str | None = None
    label: str | None = None
    split: str = Field("75:25", description="train:test, or train:val:test")


class NodeFile(Section):
    """One node. Relative paths, and modules named in it, are looked for beside the file."""

    name: str = Field(min_length=1, pattern=r"^[\w.-]+$")
    model: str = Field(description="a model of Potluck's zoo, or module:factory")
    data: NodeData
    device: str = Field("cpu", description="cpu, cuda, …")
    device_class: str = Field("default", description="what the server may know of the machine")
    state: Path = Field(Path("potluck-state"), description="folder of the private model and method state")
    keep: int = Field(4, ge=2, description="jobs that can be answered again, should the server be restarted")
    max_megabytes: float = Field(1024.0, gt=0, description="larger messages are refused unread")
    policy: Policy = Policy()
    folder: Path = Field(Path(), exclude=True)

    def load_data(self) -> Data:
        """The node's data."""
        settings = self.data
        if settings.source.partition(":")[0] in SOURCES:
            return load_data(self._beside(settings.source), settings.root, label=settings.label)
        return as_data(self.imported(settings.source, "data.source")(), name=self.name)

    def model_source(self) -> Any:
        """A zoo name, or the user's own factory."""
        return self.imported(self.model, "model") if ":" in self.model else self.model

    def state_folder(self) -> Path:
        """Where private state is kept."""
        return self.folder / self.state

    def audit_log(self) -> Path:
        """Where it is written down what left this node."""
        return self.state_folder() / "audit.jsonl"

    def imported(self, name: str, field: str) -> Any:
        """The object called `module:name`, from a file beside node.toml or from an installed package."""
        module, _, attribute = name.partition(":")
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise PotluckError(
                f"{field} = {name!r} could not be imported ({error}); write module:name of something in "
                f"{str(self.folder)!r} or installed."
            ) from None

    def _beside(self, source: str) -> str:
        kind, _, rest = source.partition(":")
        here = self.folder / rest
        return f"{kind}:{here}" if rest and here.exists() else source


def read_node(path: Path) -> NodeFile:
    """The node that a file describes; the first thing wrong with it becomes one sentence."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return NodeFile.model_validate({**values, "folder": path.resolve().parent})
    except OSError as error:
        raise PotluckError(
            f"Node file {str(path)!r} cannot be read ({error.strerror}); write one with potluck node init."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PotluckError(f"Node file {str(path)!r} is not valid TOML: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PotluckError(f"{path!s}: {where} is not valid: {first['msg'].lower()}.") from None


TEMPLATE = """\
# What this machine brings to a federation. Try it with: potluck node check node.toml
# Nothing in this file travels but the name, the numbers of training and validation rows, the shape of the model
# and the device class.

name = "{name}"          # unique in the federation, and always the same: random streams depend on it

# The model: a name of `potluck models`, or module:factory of your own (a function without arguments that
# gives a potluck.ClientModel; see `potluck.split`). The module may lie beside this file.
model = "{model}"

device = "cpu"
device_class = "default"     # what the server may know of this machine
state = "potluck-state"      # private model and method state, committed after every job
keep = 4                     # jobs that can be answered again after the server was restarted
max_megabytes = 1024         # larger messages are refused unread

[data]
# npz:FILE, csv:FILE, folder:PATH, hf:NAME, a data set's name, or module:function that returns (x, y).
source = "{source}"
split = "75:25"              # train:test, or train:validation:test such as 8:1:1
# root = "/data"             # where named data sets lie
# label = "column"           # what to predict, for tables

# What this node does for a server. Whatever goes beyond is refused before anything is computed or sent; see what an
# experiment would be allowed with: potluck node check node.toml --experiment experiment.toml
[policy]
methods = []                 # exactly these, module:Class among them; empty: every method that comes with Potluck
epochs = 100                 # passes over the rows in one job
samples = 10_000_000         # rows that one job may train on, counted as often as it does
jobs = 10_000                # answers for one run, scores included
hours = 168                  # of computing for one run
clip = 0                     # answers must be clipped to this length or less; 0: need not be
noise = 0                    # the least privacy.noise_multiplier; 0: none is needed
epsilon = 0                  # privacy that may be spent in all runs together, at delta; 0: no limit
delta = 1e-5
smallest_class = 2           # classes with fewer training rows are left out: a mean of one row is that row
scores = true                # whether scores and training losses leave this node
kept_jobs = 64               # the most jobs that a run may have kept for its restarts
"""
