"""The contract of methods and clients; everything else builds on it. Names are importable flat from here."""

from potluck.core.client import Client
from potluck.core.errors import PotluckError, unknown
from potluck.core.method import Method, PaperAccounting, Predictor, Update, payload_types
from potluck.core.model import (
    ClientModel,
    batch_norm_in_eval_mode,
    load_tensors,
    tensors_of,
    with_batch_norm_statistics,
)
from potluck.core.needs import Need, check_needs
from potluck.core.payload import EmptyPayload, Payload, PayloadError, Tensors
from potluck.core.random import derive_seed, generator, one_thread, seeded
from potluck.core.samples import ClassMean, Samples, outputs
from potluck.core.schema import Counts, Integers, Labels, Like, Range, Shape, check_payload
from potluck.core.settings import Settings, setting
from potluck.core.supports import SecureSums, Supports
from potluck.core.task import Architecture, Averaging, ClientInfo, Context, Task
from potluck.core.training import FitResult, Loss, Training, cross_entropy_loss

__all__ = [
    "Architecture",
    "Averaging",
    "ClassMean",
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
    "Loss",
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
    "Settings",
    "Shape",
    "Supports",
    "Task",
    "Tensors",
    "Training",
    "Update",
    "batch_norm_in_eval_mode",
    "check_needs",
    "check_payload",
    "cross_entropy_loss",
    "derive_seed",
    "generator",
    "load_tensors",
    "one_thread",
    "outputs",
    "payload_types",
    "seeded",
    "setting",
    "tensors_of",
    "unknown",
    "with_batch_norm_statistics",
]
