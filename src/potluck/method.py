"""Everything that a method file imports: `from potluck.method import Client, Method, Payload, kit, setting`.

`kit` holds the shared building blocks, used as `kit.average(...)`.
"""

from potluck import kit
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, PaperAccounting, Predictor, Update
from potluck.core.model import ClientModel, load_tensors, tensors_of
from potluck.core.needs import Need
from potluck.core.payload import EmptyPayload, Payload, PayloadError, Tensors
from potluck.core.samples import Samples
from potluck.core.schema import Counts, Integers, Labels, Like, Range, Shape
from potluck.core.settings import setting
from potluck.core.supports import SecureSums, Supports
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.core.training import FitResult, Training

__all__ = [
    "Architecture",
    "Client",
    "ClientInfo",
    "ClientModel",
    "Context",
    "Counts",
    "EmptyPayload",
    "FitResult",
    "Integers",
    "Labels",
    "Like",
    "Method",
    "Need",
    "PaperAccounting",
    "Payload",
    "PayloadError",
    "PotluckError",
    "Predictor",
    "Range",
    "Samples",
    "SecureSums",
    "Shape",
    "Supports",
    "Task",
    "Tensors",
    "Training",
    "Update",
    "kit",
    "load_tensors",
    "setting",
    "tensors_of",
]
