"""A client: its model, data, private tensors and random streams."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.mixed_precision import LossScaler, autocast
from potluck.core.model import ClientModel, batch_norm_in_eval_mode, has_batch_norm, load_tensors
from potluck.core.payload import Tensors
from potluck.core.random import generator, seeded
from potluck.core.samples import ClassMean, Samples, batches_in_order, outputs, prepare
from potluck.core.task import ClientInfo, Task
from potluck.core.torch_fast import backward
from potluck.core.trained import trained_parameters
from potluck.core.training import FitRequest, FitResult, Loss, LossMeans, Training, cross_entropy_loss

ClassMeans = Callable[[Callable[[Tensor], Tensor], Samples | None], tuple[Tensor, Tensor, Tensor]]


class Client:
    """A client as `Method.client` sees it. It stays on one worker for the whole run."""

    def __init__(
        self,
        info: ClientInfo,
        model: ClientModel,
        train: Samples,
        test: Samples,
        task: Task,
        training: Training,
        *,
        validation: Samples | None = None,
        shared_test: Samples | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        self.info = info
        self.model = model
        self.train = train
        self.test = test
        self.validation = validation
        self.task = task
        self.training = training
        self.shared_test = shared_test
        self.on_shared_test = False
        """Whether the result of `predict` will be tested on the common test set."""
        self.augment = augment
        self.private: dict[str, Any] = {}
        self.trainer: Callable[[FitRequest], FitResult] | None = None
        """Set by an engine that trains several clients at once; otherwise the client trains alone."""
        self.private_class_means: ClassMeans | None = None
        """Replaces exact class means where single rows are protected."""
        self.standalone: Client | None = None
        """With `safeguard`: the same client, which only ever trains alone; its state is part of this client's."""
        self.job = 0
        self.round = 1
        self.rounds = 1
        self.trained_samples = 0
        self.train_loss: float | None = None
        self.train_ce: float | None = None
        self.notes: dict[str, float] = {}
        self._phase = "train"
        self._streams: Counter[str] = Counter()
        self._modules: dict[str, nn.Module] = {}
        self._saved_modules: dict[str, Tensors] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._saved_optimizers: dict[str, Any] = {}
        self._scale: LossScaler | None = None

    # -- the current job ------------------------------------------------------------------------------

    def begin(self, phase: str, job: int, round_number: int, rounds: int) -> None:
        """Start a job; random streams are derived from its number."""
        self._phase, self.job, self.round, self.rounds = phase, job, round_number, rounds
        self._streams.clear()
        self.trained_samples = 0
        self.train_loss = self.train_ce = None
        self.notes = {}

    def note(self, name: str, value: float) -> None:
        """Record a number of this job in `client_notes` of `rounds.jsonl`; `notes` has the mean over participants."""
        self.notes[name] = float(value)

    def rng(self, purpose: str) -> torch.Generator:
        """Return a random stream of this client, job and purpose; each call in a job returns another one."""
        self._streams[purpose] += 1
        return generator(*self._stream(purpose), self._streams[purpose])

    def _stream(self, purpose: str) -> tuple[object, ...]:
        return (self.task.seed, "client", self.info.name, self._phase, self.job, purpose)

    # -- local training -------------------------------------------------------------------------------

    def fit(
        self,
        loss: Loss = cross_entropy_loss,
        *given: Any,
        model: nn.Module | None = None,
        epochs: int | None = None,
        samples: Samples | None = None,
        batch_size: int | None = None,
        name: str = "model",
        adjust: Callable[[], None] | None = None,
        also: Sequence[nn.Parameter] = (),
        after: Callable[[], None] | None = None,
    ) -> FitResult:
        """Train a model (by default this client's own) on a loss over `(model, x, y, *given, *also)`.

        All other inputs of the loss are passed as `given`. Batching, optimiser, learning rate, clipping
        and the single-sample rule of BatchNorm come from the experiment; `batch_size` is for training on other
        data than the client's own. `adjust` may change the gradients before each step. `also` are parameters
        that get gradients of the same loss but take a step of their own in `after`, which runs after each step
        and resets their gradients; in `fp16` a gradient that overflowed is None. With `adjust` or `also` the client is
        not trained in a stack with others.
        """
        model = self.model if model is None else model
        request = FitRequest(
            loss=loss,
            loss_args=given,
            model=model,
            epochs=epochs,
            samples=samples,
            batch_size=batch_size,
            name=name,
            adjust=adjust,
            also=tuple(also),
            after=after,
        )
        return (self.trainer or self.train_alone)(request)

    def train_alone(self, request: FitRequest) -> FitResult:
        """Train as `fit` requests, this client alone."""
        return self.fit_models(
            {request.name: request.model},
            request.parts,
            epochs=request.epochs,
            samples=request.samples,
            batch_size=request.batch_size,
            adjust=request.adjust,
            after=request.after,
            also=request.also,
        )

    def fit_models(
        self,
        models: Mapping[str, nn.Module],
        loss: Loss,
        *,
        batches: Iterable[tuple[Tensor, Tensor]] | None = None,
        epochs: int | None = None,
        samples: Samples | None = None,
        batch_size: int | None = None,
        adjust: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
        also: Sequence[nn.Parameter] = (),
    ) -> FitResult:
        """Train models together: per batch one backward pass of `loss(x, y)` and one step of every model.

        Each model has its own optimiser and gradient clipping, by name. The caller sums the losses of several models:
        where each stops the gradient at the other models, one backward pass gives every model the gradient of its own
        loss. `batches` replaces the epochs over the client's data, `adjust` changes gradients before each step, `after`
        is called after it. `also` are as in `fit`.
        """
        optimizers = [self.optimizer(model, name=name) for name, model in models.items()]
        if batches is None:
            batches = self.batches(epochs, samples, models=models.values(), batch_size=batch_size)
        scale = self._loss_scale()
        means = LossMeans(self.task.dtype, self.task.device)
        with self.training_mode(*models.values(), samples=samples, batch_size=batch_size):
            for x, y in batches:
                with autocast(self.training.amp, self.task.device):
                    value = means.add(loss(x, y))
                for optimizer in optimizers:
                    optimizer.zero_grad()
                if scale is None:
                    backward(value)
                else:
                    scale.backward(value, optimizers, also)
                if adjust is not None:
                    adjust()
                for optimizer in optimizers:
                    self.apply(optimizer)
                if scale is not None:
                    scale.update()
                if after is not None:
                    after()
        return self.report(means.result())

    def report(self, fit: FitResult) -> FitResult:
        """Record the training losses of this job; methods with their own training loop call it themselves."""
        if fit.steps and self.private_class_means is None:  # with row-level privacy losses stay on the client
            self.train_loss, self.train_ce = fit.loss, fit.cross_entropy
        return fit

    def batches(
        self,
        epochs: int | None = None,
        samples: Samples | None = None,
        *,
        models: Iterable[nn.Module] = (),
        batch_size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled minibatches of the training data, epoch after epoch.

        A last batch of one sample is skipped where this client's model, or one of `models`, has BatchNorm.
        """
        samples = self.train if samples is None else samples
        count, size = len(samples), self.batch_size(samples, batch_size)
        # BatchNorm cannot normalise a batch of one; where every batch is single it runs in eval mode instead.
        smallest = 2 if size > 1 and any(map(has_batch_norm, (self.model, *models))) else 1
        if self.training.drop_last and count >= size:
            smallest = size
        order_rng = self.rng("batches")
        augment_rng = self.rng("augment") if self.augment else None
        for _ in range(self.training.epochs if epochs is None else epochs):
            order = torch.randperm(count, generator=order_rng)
            for x, y in batches_in_order(samples, order, size, self.task):
                if len(y) < smallest:
                    continue
                if self.augment is not None and augment_rng is not None:
                    x = self.augment(x, augment_rng)
                self.trained_samples += len(y)
                yield x, y

    def batch_size(self, samples: Samples | None = None, requested: int | None = None) -> int:
        """Return the size of a full batch: as requested or configured, at most all samples."""
        count = max(1, len(self.train if samples is None else samples))
        return min((self.training.batch_size if requested is None else requested) or count, count)

    def prepare(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Move a batch to the task's device and convert its real numbers to the task's precision."""
        return prepare(x, y, self.task)

    @property
    def lr(self) -> float:
        """The learning rate of the current round."""
        return self.training.rate(self.round)

    def optimizer(
        self, *parts: nn.Module | Iterable[Tensor], name: str = "model", lr: float | None = None
    ) -> Optimizer:
        """Return an optimiser over modules or tensors as configured, kept over jobs with `keep_optimizer`."""
        parameters = [
            tensor
            for part in parts
            for tensor in (trained_parameters(part) if isinstance(part, nn.Module) else part)
        ]
        rate = self.lr if lr is None else lr
        if not self.training.keep_optimizer:
            return self.training.make_optimizer(parameters, rate)
        if name not in self._optimizers:
            self._optimizers[name] = self.training.make_optimizer(parameters, rate)
            if name in self._saved_optimizers:
                self._optimizers[name].load_state_dict(self._saved_optimizers.pop(name))
        for group in self._optimizers[name].param_groups:
            group["lr"] = rate
        return self._optimizers[name]

    def step(self, optimizer: Optimizer, loss: Tensor) -> None:
        """Take one optimiser step on a loss, with gradients clipped as configured."""
        optimizer.zero_grad()
        backward(loss)
        self.apply(optimizer)

    def apply(self, optimizer: Optimizer) -> None:
        """Take one optimiser step on existing gradients, clipped as configured."""
        if self.training.clip_norm is not None:
            parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.training.clip_norm)
        if self._scale is None:
            optimizer.step()
        else:
            self._scale.step(optimizer)

    def _loss_scale(self) -> LossScaler | None:
        """Return the loss scaler of this client in `fp16`; it adapts over all its jobs."""
        if self.training.amp == "fp16" and self._scale is None:
            self._scale = LossScaler(self.task.device)
        return self._scale

    @contextmanager
    def training_mode(
        self, *models: nn.Module, samples: Samples | None = None, batch_size: int | None = None
    ) -> Iterator[None]:
        """Put models into train mode, then into eval mode; BatchNorm does not train on batches of one sample."""
        for model in models:
            model.train()
        single = models if self.batch_size(samples, batch_size) == 1 else ()
        with batch_norm_in_eval_mode(*single):
            yield
        for model in models:
            model.eval()

    # -- outputs without training ---------------------------------------------------------------------

    def outputs(
        self, function: Callable[[Tensor], Tensor], samples: Samples | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Apply `function` to all samples in large batches without gradients; yield (outputs, labels)."""
        return outputs(function, self.train if samples is None else samples, self.task)

    def class_means(
        self, function: Callable[[Tensor], Tensor], samples: Samples | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean output per class in the training data, in eval mode: (means, labels, counts)."""
        if self.private_class_means is not None:
            return self.private_class_means(function, samples)
        self.model.eval()
        means = ClassMean(self.task.num_classes)
        for output, y in self.outputs(function, samples):
            means.add(output, y)
        return means.result()

    def predictor(self, tensors: Tensors) -> nn.Module:
        """Return a copy of this client's model with some of its tensors replaced, in eval mode."""
        model = copy.deepcopy(self.model).eval()
        load_tensors(model, tensors)
        return model

    # -- private state --------------------------------------------------------------------------------

    def module(self, name: str, build: Callable[[], nn.Module], *, keep: bool = True) -> nn.Module:
        """Return a private module that persists over jobs, built on first use from this client's own stream.

        With `keep=False` a module that does not exist yet is built and not kept: for `predict`, which must not change
        the client.
        """
        if name in self._modules:
            return self._modules[name]
        with seeded(self.task.seed, "client", self.info.name, "module", name):
            module = build().to(device=self.task.device, dtype=self.task.dtype).eval()
        if name in self._saved_modules:
            module.load_state_dict(self._saved_modules.pop(name))
        elif not keep:
            return module
        self._modules[name] = module
        return module

    def state(self, *, copy: bool = True) -> tree.Flat:
        """Return everything that a later job depends on; live tensors with `copy=False`."""
        tree.check_restorable(self.private)
        try:
            return tree.flatten(self._parts(), copy=copy)
        except TypeError as error:
            raise PotluckError(
                f"The client's private state cannot be saved: {error}. Keep tensors, numbers, text, dicts and lists."
            ) from None

    def _parts(self) -> dict[str, Any]:
        everything: dict[str, Any] = {
            "model": self.model.trained_state(),
            "private": self.private,
            "modules": {
                **self._saved_modules,
                **{name: dict(module.state_dict()) for name, module in self._modules.items()},
            },
            "optimizers": {
                **self._saved_optimizers,
                **{name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
            },
        }
        if self._scale is not None:
            everything["scale"] = self._scale.state()
        if self.standalone is not None:
            everything["standalone"] = self.standalone._parts()
        return everything

    def free_gradients(self) -> None:
        """Free gradients, which take as much memory as the model."""
        for module in (self.model, *self._modules.values()):
            module.zero_grad()

    def restore(self, flat: tree.Flat) -> None:
        """Restore the client that `state` described."""
        # Modules and optimisers move tensors themselves; private tensors must be on the task's device.
        tensors = {
            name: tensor.to(self.task.device) if name.startswith("/private/") else tensor
            for name, tensor in flat.tensors.items()
        }
        self._restore_parts(tree.unflatten(tree.Flat(tensors, flat.layout)))

    def _restore_parts(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"], strict=not self.model.frozen)
        self.private = state["private"]
        self._modules, self._saved_modules = {}, state["modules"]
        self._optimizers, self._saved_optimizers = {}, state["optimizers"]
        self._scale = LossScaler(self.task.device, state["scale"]) if "scale" in state else None
        if self.standalone is not None:
            self.standalone._restore_parts(state["standalone"])
