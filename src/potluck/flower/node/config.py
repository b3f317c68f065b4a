"""`node.toml`: data, model and policy of one node."""

from __future__ import annotations

import importlib
import math
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potluck.core.errors import PotluckError
from potluck.methods import METHODS
from potluck.privacy.settings import Privacy

if TYPE_CHECKING:  # the supervisor of a node reads this file, and loads neither torch nor a data set
    from potluck.data import Data
    from potluck.experiment import Experiment
    from potluck.wire.jobs import Job


class Section(BaseModel):
    """A table of node.toml. Unknown keys are refused, defaults are visible."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)


ALLOWED_JOB_KINDS = ("train", "evaluate", "join", "sum")
"""The kinds of job that a node does; its state is neither handed over nor replaced, whoever asks."""


class Policy(Section):
    """Limits of this node. What goes beyond them is refused with one sentence, here and at the server."""

    methods: tuple[str, ...] = Field(
        (), description="exactly these, module:Class among them; empty: all built-in"
    )
    epochs: int = Field(100, ge=1, description="passes over the rows in one job")
    samples: int = Field(
        10_000_000, ge=1, description="rows that one job may train on, counted as often as it does"
    )
    jobs: int = Field(10_000, ge=1, description="answers for one run, scores included")
    hours: float = Field(168.0, gt=0, description="of computing for one run")
    clip: float = Field(
        0.0, ge=0, description="answers must be clipped to this length or less; 0: need not be"
    )
    noise: float = Field(0.0, ge=0, description="the least privacy.noise_multiplier; 0: none is needed")
    epsilon: float = Field(
        0.0, ge=0, description="privacy that may be spent in all runs together; 0: no limit"
    )
    row_epsilon: float = Field(
        0.0, ge=0, description="privacy of a single training row that a run may spend; 0: no limit"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the δ at which ε is counted")
    smallest_class: int = Field(
        2, ge=1, description="classes with fewer training rows are left out of training"
    )
    scores: bool = Field(True, description="whether scores and training losses leave this node")
    class_names: bool = Field(True, description="whether the names of the node's classes leave it")
    kept_jobs: int = Field(64, ge=2, description="the most jobs that a run may have kept for its restarts")
    secure_sums: bool = Field(
        False, description="whether answers leave only masked, so that the server learns sums alone"
    )
    sum_clients: int = Field(3, ge=2, description="fewest clients in such a sum")

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that asks for more than this node gives; nothing of it has been built yet."""
        for problem in self.problems(experiment):
            raise PotluckError(f"This node refuses the run: {problem}.")

    def problems(self, experiment: Experiment) -> list[str]:
        """Everything that this node would refuse, with the remedy on either side."""
        return [
            *self._of_method(experiment),
            *self._of_work(experiment),
            *self._of_privacy(experiment),
            *self._of_row_privacy(experiment.privacy),
            *self._of_sums(experiment.privacy),
        ]

    def _of_method(self, experiment: Experiment) -> list[str]:
        name, allowed = experiment.method.name, self.methods or tuple(METHODS)
        problems = []
        if name not in allowed:
            listed = ", ".join(self.methods) if self.methods else "the built-in ones"
            problems.append(f"method {name!r} is not among its policy.methods ({listed})")
        public = experiment.data.public
        if isinstance(public, str) and ":" in public:
            problems.append(
                f"data.public = {public!r} names a file or an address; it loads public sets by name only"
            )
        if (shared := experiment.models.shared or "").startswith("file:"):
            problems.append(f"models.shared = {shared!r} names code; it builds models by name only")
        if experiment.attack:
            problems.append("it has an [attack], and a node with data of its own is not for that")
        return problems

    def _of_work(self, experiment: Experiment) -> list[str]:
        problems = []
        if experiment.training.epochs > self.epochs:
            problems.append(
                f"training.epochs = {experiment.training.epochs} is above its policy.epochs = {self.epochs}"
            )
        if (needed := jobs_to_keep(experiment)) > self.kept_jobs:
            problems.append(
                f"engine.checkpoint_every = {experiment.engine.checkpoint_every} needs {needed} kept jobs, above its "
                f"policy.kept_jobs = {self.kept_jobs}"
            )
        return problems

    def _of_privacy(self, experiment: Experiment) -> list[str]:
        privacy, problems = experiment.privacy, []
        if self.clip and not 0 < privacy.clip <= self.clip:
            problems.append(
                f"privacy.clip = {privacy.clip:g} must be above 0 and at most its policy.clip = {self.clip:g}"
            )
        if privacy.unit == "record" and (self.clip or self.noise or self.epsilon):
            problems.append(
                "privacy.unit = 'record' protects single rows, and its policy.clip, noise and epsilon are about whole "
                "answers"
            )
        least = self.noise or (1e-9 if self.epsilon else 0.0)
        if privacy.noise_multiplier < least:
            setting = f"privacy.noise_multiplier = {privacy.noise_multiplier:g}"
            rule = (
                f"policy.noise = {self.noise:g}"
                if self.noise
                else f"policy.epsilon = {self.epsilon:g} needs noise"
            )
            problems.append(f"{setting} is too little for it ({rule})")
        if least and privacy.reproducible:
            problems.append(
                "privacy.reproducible = true gives noise that the server can take away; set it to false"
            )
        return problems or self._of_budget(experiment)

    def _of_budget(self, experiment: Experiment) -> list[str]:
        """Estimate ε of the whole run: its rounds times the share of clients in each."""
        if not self.epsilon:
            return []
        from potluck.privacy.accounting import epsilon

        schedule, noise = experiment.schedule, experiment.privacy.noise_multiplier
        answers = max(1, math.ceil(schedule.rounds * schedule.participation - 1e-9))
        total = epsilon(noise, answers, self.delta)
        if total <= self.epsilon:
            return []
        return [
            f"ε of {answers} answers with privacy.noise_multiplier = {noise:g} is {total:.3g} at δ = {self.delta:g}, "
            f"above its policy.epsilon = {self.epsilon:g}; lower schedule.rounds or raise the noise"
        ]

    def _of_row_privacy(self, privacy: Privacy) -> list[str]:
        if not self.row_epsilon:
            return []
        rule = f"its policy.row_epsilon = {self.row_epsilon:g}"
        if not privacy.protects_records or not privacy.noise_multiplier:
            return [
                f"{rule} needs privacy.unit = 'record', with privacy.clip and privacy.noise_multiplier above 0"
            ]
        if privacy.reproducible:
            return [
                f"{rule} needs secret noise, and privacy.reproducible = true gives noise that the server can take "
                "away; set it to false"
            ]
        return []

    def _of_sums(self, privacy: Privacy) -> list[str]:
        if not self.secure_sums:
            return []
        if not privacy.secure_sums:
            return ["its policy.secure_sums = true, and privacy.secure_sums is false; set it to true"]
        if privacy.sum_clients < self.sum_clients:
            return [
                f"privacy.sum_clients = {privacy.sum_clients} is below its policy.sum_clients = {self.sum_clients}"
            ]
        return []

    def check_job(self, job: Job, rows: int) -> None:
        """Refuse a job that is not a node's, or that trains for longer than this node does."""
        if job.kind not in ALLOWED_JOB_KINDS:
            raise PotluckError(
                f"This node refuses the job: it does not {job.kind} its state, which is its own."
            )
        if job.epochs > self.epochs:
            raise PotluckError(
                f"This node refuses the job: {job.epochs} epochs are above its policy.epochs = {self.epochs}."
            )
        if max(job.epochs, 1) * rows > self.samples:
            raise PotluckError(
                f"This node refuses the job: its {rows} rows alone are above its policy.samples = {self.samples}."
            )


def jobs_to_keep(experiment: Experiment) -> int:
    """Return how many jobs of one client lie between two checkpoints at most, and the two at their ends.

    In an asynchronous schedule a quick node may do all jobs of a round.
    """
    often = 1 if experiment.schedule.synchronous else max(1, experiment.engine.nodes)
    return max(1, experiment.engine.checkpoint_every) * often + 2


class NodeData(Section):
    """Where the node's rows come from, and how they are split."""

    source: str = Field(description="a data source of Potluck (npz:rows.npz, csv:…), or module:function")
    root: str | None = None
    label: str | None = None
    text: str | None = Field(None, description="the column of a table that holds texts")
    image_size: int | None = Field(None, ge=1, description="resize images to this size")
    normalise: Literal["own", "half", "mean-image", "unit", "none"] = Field(
        "own", description="normalisation of images: the data set's own, or that of one of the papers"
    )
    missing: Literal["refuse", "impute"] = Field(
        "refuse", description="missing values of a table: an error, or the mean or most frequent word"
    )
    class_names: tuple[str, ...] = Field((), description="names of labels 0, 1, …, where the data have none")
    split: str = Field("75:25", description="train:test, or train:val:test")

    def options(self) -> dict[str, Any]:
        """Return the options of `load_data`."""
        missing = None if self.missing == "refuse" else self.missing
        return {"label": self.label, "text": self.text, "image_size": self.image_size, "missing": missing}


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
        """Return the node's data."""
        from potluck.data.classes import with_class_names

        settings = self.data
        data = self._load(settings)
        if settings.class_names:
            if data.class_names:
                raise PotluckError(
                    f"data.class_names in the file of node {self.name!r} has no effect: its data name their classes "
                    "themselves; leave it out."
                )
            data = with_class_names(data, settings.class_names, f"Node {self.name!r}")
        return data if settings.normalise == "own" else data.normalised(settings.normalise)

    def _load(self, settings: NodeData) -> Data:
        from potluck.data import as_data, load_data
        from potluck.data.load import SOURCES

        if settings.source.partition(":")[0] in SOURCES:
            return load_data(self._beside(settings.source), settings.root, **settings.options())
        for name, value in settings.options().items():
            if value is not None:
                raise PotluckError(
                    f"data.{name} = {value!r} has no effect on the rows of {settings.source!r}; leave it out."
                )
        return as_data(self.imported(settings.source, "data.source")(), name=self.name)

    def model_source(self) -> Any:
        """Return a zoo name, or the user's own factory."""
        return self.imported(self.model, "model") if ":" in self.model else self.model

    def state_folder(self) -> Path:
        """Return where private state is kept."""
        return self.folder / self.state

    def audit_log(self) -> Path:
        """Return where it is written down what left this node."""
        return self.state_folder() / "audit.jsonl"

    def imported(self, name: str, field: str) -> Any:
        """Return the object called `module:name`, from a file beside node.toml or from an installed package."""
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
        local = self.folder / rest
        return f"{kind}:{local}" if rest and local.exists() else source


def read_node(path: Path) -> NodeFile:
    """Return the node that a file describes; the first thing wrong with it becomes one sentence."""
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
# Nothing in this file travels but the name, the numbers of training and validation rows, the shape of the model,
# the device class and, if the experiment does not list them, the names of the classes.

name = "{name}"          # unique in the federation, and always the same: random streams depend on it

# The model: a name of `potluck models`, or module:factory of your own (a function without arguments that
# gives a torch module; see `potluck.split`). The module may lie beside this file.
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
# text = "column"            # texts, for tables
# missing = "impute"         # missing values of a table: the mean, or the most frequent word
# image_size = 32            # resize images to this size
# class_names = ["a", "b"]   # names of labels 0, 1, … where the data have none

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
row_epsilon = 0              # privacy of a single training row that a run may spend, at delta; 0: no limit
delta = 1e-5
smallest_class = 2           # classes with fewer training rows are left out: a mean of one row is that row
scores = true                # whether scores and training losses leave this node
class_names = true           # whether the server may unite the names of this node's classes with the others'
kept_jobs = 64               # the most jobs that a run may have kept for its restarts
secure_sums = false          # true: answers leave this node only masked, so that the server learns sums alone
sum_clients = 3              # fewest clients in such a sum
"""
