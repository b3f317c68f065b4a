"""One participant: its model, its data, its private tensors, its random streams."""

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
from potluck.core.model import ClientModel, has_batch_norm, load_tensors, norms_at_rest
from potluck.core.optimizers import Scale, autocast, backward
from potluck.core.payload import Tensors
from potluck.core.random import generator, seeded
from potluck.core.samples import ClassMean, Samples, outputs, prepare
from potluck.core.task import ClientInfo, Task
from potluck.core.training import Fit, FitRequest, Loss, Training, cross_entropy_loss

ClassMeans = Callable[[Callable[[Tensor], Tensor], Samples | None], tuple[Tensor, Tensor, Tensor]]
GATHERED = 1 << 20
"""How many input numbers of coming batches are made ready at once."""


class Client:
    """A participant as `Method.client` sees it. It lives on one engine worker for the whole run."""

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
        """Whether what `predict` gives will be tested on the common test set."""
        self.augment = augment
        self.private: dict[str, Any] = {}
        self.trainer: Callable[[FitRequest], Fit] | None = None
        """Set by an engine that trains several clients at once; otherwise a client trains by itself."""
        self.guard: ClassMeans | None = None
        """What gives class means in the place of the exact ones, where single rows are to be protected."""
        self.job = 0
        self.round = 1
        self.rounds = 1
        self.trained_samples = 0
        self.train_loss: float | None = None
        self.notes: dict[str, float] = {}
        self._phase = "train"
        self._streams: Counter[str] = Counter()
        self._modules: dict[str, nn.Module] = {}
        self._saved_modules: dict[str, Tensors] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._saved_optimizers: dict[str, Any] = {}
        self._scale: Scale | None = None

    # -- the job at hand ------------------------------------------------------------------------------

    def begin(self, phase: str, job: int, round_number: int, rounds: int) -> None:
        """Set the stage for one job; random streams start anew from its number."""
        self._phase, self.job, self.round, self.rounds = phase, job, round_number, rounds
        self._streams.clear()
        self.trained_samples = 0
        self.train_loss = None
        self.notes = {}

    def note(self, name: str, value: float) -> None:
        """Record a number of this job: `client_notes` in `rounds.jsonl`, and `notes` has the mean over participants."""
        self.notes[name] = float(value)

    def rng(self, purpose: str) -> torch.Generator:
        """A random stream of this client, job and purpose; a second call in one job gives a second stream."""
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
    ) -> Fit:
        """Train a model (this client's own unless told) on a loss over `(model, x, y, *given)`.

        Whatever else the loss reads is handed over as `given`. Batching, optimiser, learning rate, clipping
        and the single-sample rule of BatchNorm are the experiment's; `batch_size` is for training on other
        data than the client's own. `adjust` may change the gradients before each step; a method that uses it
        is not trained together with others.
        """
        model = self.model if model is None else model
        request = FitRequest(loss, given, model, epochs, samples, batch_size, name, adjust)
        return (self.trainer or self.train_alone)(request)

    def train_alone(self, request: FitRequest) -> Fit:
        """Do what `fit` asks for with this client alone."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return request.loss(request.model, x, y, *request.given)

        return self.fit_models(
            {request.name: request.model},
            loss,
            epochs=request.epochs,
            samples=request.samples,
            batch_size=request.batch_size,
            adjust=request.adjust,
        )

    def fit_models(
        self,
        models: Mapping[str, nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        batches: Iterable[tuple[Tensor, Tensor]] | None = None,
        epochs: int | None = None,
        samples: Samples | None = None,
        batch_size: int | None = None,
        adjust: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
        others: Sequence[nn.Parameter] = (),
    ) -> Fit:
        """The one loop of local training: a backward pass of `loss(x, y)` and a step of every model per batch.

        Each model has an optimiser and a gradient clip of its own, under its name. Losses of several models are summed
        by the caller: where each stops the gradient at the other models, one backward pass gives every model the
        gradient of its own loss. `batches` may be other ones than the usual epochs, `adjust` changes gradients
        before each step, `after` follows it. `others` learn from the same loss by what `after` does with their
        gradients; in `fp16` one that overflowed is None.
        """
        optimizers = [self.optimizer(model, name=name) for name, model in models.items()]
        if batches is None:
            batches = self.batches(epochs, samples, models=models.values(), batch_size=batch_size)
        scale = self._loss_scale()
        total, steps = torch.zeros((), device=self.task.device, dtype=self.task.dtype), 0
        with self.training_mode(*models.values(), samples=samples, batch_size=batch_size):
            for x, y in batches:
                with autocast(self.training.amp, self.task.device):
                    value = loss(x, y)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                if scale is None:
                    backward(value)
                else:
                    scale.backward(value, optimizers, others)
                if adjust is not None:
                    adjust()
                for optimizer in optimizers:
                    self.apply(optimizer)
                if scale is not None:
                    scale.update()
                if after is not None:
                    after()
                total += value.detach()
                steps += 1
        return self.report(steps, float(total) / steps if steps else float("nan"))

    def report(self, steps: int, loss: float) -> Fit:
        """Note the training loss of this job; methods with steps of their own call it themselves."""
        if steps:
            self.train_loss = loss
        return Fit(steps, loss)

    def batches(
        self,
        epochs: int | None = None,
        samples: Samples | None = None,
        *,
        models: Iterable[nn.Module] = (),
        batch_size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled minibatches of the training data, epoch after epoch.

        A trailing batch of one is left out where this client's model, or one of `models`, has BatchNorm.
        """
        samples = self.train if samples is None else samples
        count, size = len(samples), self.batch_size(samples, batch_size)
        # BatchNorm cannot normalise a batch of one; where every batch is single it runs in eval mode instead.
        smallest = 2 if size > 1 and any(map(has_batch_norm, (self.model, *models))) else 1
        if self.training.drop_last and count >= size:
            smallest = size
        # Rows are gathered and converted for several batches at once, which then are slices: fewer calls per step.
        ahead = max(1, GATHERED // max(1, size * samples.x.shape[1:].numel()))
        order_rng = self.rng("batches")
        augment_rng = self.rng("augment") if self.augment else None
        for _ in range(self.training.epochs if epochs is None else epochs):
            order = torch.randperm(count, generator=order_rng)
            for rows in torch.split(order, size * ahead):
                xs, ys = self.prepare(*samples.take(rows))
                for x, y in zip(torch.split(xs, size), torch.split(ys, size), strict=True):
                    if len(y) < smallest:
                        continue
                    if self.augment is not None and augment_rng is not None:
                        x = self.augment(x, augment_rng)
                    self.trained_samples += len(y)
                    yield x, y

    def batch_size(self, samples: Samples | None = None, wanted: int | None = None) -> int:
        """The real size of a full batch: as wanted or set, or all samples where they are fewer."""
        count = max(1, len(self.train if samples is None else samples))
        return min((self.training.batch_size if wanted is None else wanted) or count, count)

    def prepare(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A batch on the task's device, its real numbers in the task's precision."""
        return prepare(x, y, self.task)

    @property
    def lr(self) -> float:
        """The learning rate of the present round."""
        return self.training.rate(self.round)

    def optimizer(
        self, *parts: nn.Module | Iterable[Tensor], name: str = "model", lr: float | None = None
    ) -> Optimizer:
        """An optimiser over modules or tensors, as the experiment says; kept over jobs if it says so."""
        parameters = [
            tensor
            for part in parts
            for tensor in (part.parameters() if isinstance(part, nn.Module) else part)
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
        """One optimiser step on a loss, its gradient clipped as the experiment says."""
        optimizer.zero_grad()
        backward(loss)
        self.apply(optimizer)

    def apply(self, optimizer: Optimizer) -> None:
        """Step on gradients that are there already (clipped as the experiment says)."""
        if self.training.clip_norm is not None:
            parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.training.clip_norm)
        if self._scale is None:
            optimizer.step()
        else:
            self._scale.step(optimizer)

    def _loss_scale(self) -> Scale | None:
        """What this client's losses are scaled by in `fp16`; it is learned over all its jobs."""
        if self.training.amp == "fp16" and self._scale is None:
            self._scale = Scale(self.task.device)
        return self._scale

    @contextmanager
    def training_mode(
        self, *models: nn.Module, samples: Samples | None = None, batch_size: int | None = None
    ) -> Iterator[None]:
        """Models in train mode, then in eval mode; BatchNorm does not train on batches of one sample."""
        for model in models:
            model.train()
        single = models if self.batch_size(samples, batch_size) == 1 else ()
        with norms_at_rest(*single):
            yield
        for model in models:
            model.eval()

    # -- looking at data without learning -------------------------------------------------------------

    def outputs(
        self, function: Callable[[Tensor], Tensor], samples: Samples | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`function` over all samples in large batches, no gradient; yields (outputs, labels)."""
        return outputs(function, self.train if samples is None else samples, self.task)

    def class_means(
        self, function: Callable[[Tensor], Tensor], samples: Samples | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean output per class present in the training data: (means, labels, counts), eval mode."""
        if self.guard is not None:
            return self.guard(function, samples)
        self.model.eval()
        means = ClassMean(self.task.num_classes)
        for output, y in self.outputs(function, samples):
            means.add(output, y)
        return means.result()

    def predictor(self, tensors: Tensors) -> nn.Module:
        """This client's model as it would predict with some of its tensors replaced; nothing is changed."""
        model = copy.deepcopy(self.model).eval()
        load_tensors(model, tensors)
        return model

    # -- private state --------------------------------------------------------------------------------

    def module(self, name: str, build: Callable[[], nn.Module], *, keep: bool = True) -> nn.Module:
        """A private module that persists over jobs, built on first use from this client's own stream.

        With `keep=False` a module that does not exist yet is built and forgotten: for `predict`, which
        leaves the client as it is.
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
        """Everything of this client that a later job depends on; live tensors with `copy=False`."""
        for path, kind in tree.made_parts(self.private):
            raise PotluckError(_remedy(path, kind))
        everything = {
            "model": dict(self.model.state_dict()),
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
        try:
            return tree.flatten(everything, copy=copy)
        except TypeError as error:
            raise PotluckError(
                f"What this client keeps cannot be saved: {error}. Keep tensors, numbers, text, dicts and lists."
            ) from None

    def rest(self) -> None:
        """Free what only the job at hand needed: gradients weigh as much as the model."""
        for module in (self.model, *self._modules.values()):
            module.zero_grad()

    def restore(self, flat: tree.Flat) -> None:
        """Become the client that `state` described."""
        # Modules and optimisers take tensors from anywhere; what a method keeps must lie where it computes.
        tensors = {
            name: tensor.to(self.task.device) if name.startswith("/private/") else tensor
            for name, tensor in flat.tensors.items()
        }
        state = tree.unflatten(tree.Flat(tensors, flat.layout))
        self.model.load_state_dict(state["model"])
        self.private = state["private"]
        self._modules, self._saved_modules = {}, state["modules"]
        self._optimizers, self._saved_optimizers = {}, state["optimizers"]
        self._scale = Scale(self.task.device, state["scale"]) if "scale" in state else None


def _remedy(path: str, kind: type) -> str:
    """What to do with something in `me.private` that a checkpoint could not bring back."""
    if issubclass(kind, nn.Module):
        remedy = "use me.module(name, build), which keeps modules"
    else:
        remedy = "keep its fields in a dict"
    return f"me.private{path} is a {kind.__name__}, which a checkpoint cannot bring back; {remedy}."
