"""The contract of methods and clients; everything else builds on it. Names are importable flat from here."""

from potluck.core.client import Client
from potluck.core.errors import PotluckError, unknown
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update, check_needs, payload_types
from potluck.core.model import ClientModel, load_tensors, norms_at_rest, tensors_of, with_statistics
from potluck.core.payload import Nothing, Payload, PayloadError, Tensors
from potluck.core.random import derive_seed, generator, one_thread, seeded
from potluck.core.samples import ClassMean, Samples, outputs
from potluck.core.schema import Counts, Labels, Like, Range, Shape, Whole, check_payload
from potluck.core.settings import Settings, setting
from potluck.core.task import Architecture, Averaging, ClientInfo, Context, Task
from potluck.core.training import Fit, Loss, Training, cross_entropy_loss

__all__ = [
    "Architecture",
    "Averaging",
    "ClassMean",
    "Client",
    "ClientInfo",
    "ClientModel",
    "Context",
    "Counts",
    "Fit",
    "Labels",
    "Like",
    "Loss",
    "Method",
    "Need",
    "Nothing",
    "PaperAccounting",
    "Payload",
    "PayloadError",
    "PotluckError",
    "Predictor",
    "Range",
    "Samples",
    "Settings",
    "Shape",
    "Task",
    "Tensors",
    "Training",
    "Update",
    "Whole",
    "check_needs",
    "check_payload",
    "cross_entropy_loss",
    "derive_seed",
    "generator",
    "load_tensors",
    "norms_at_rest",
    "one_thread",
    "outputs",
    "payload_types",
    "seeded",
    "setting",
    "tensors_of",
    "unknown",
    "with_statistics",
]
