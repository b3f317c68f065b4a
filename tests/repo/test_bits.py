"""Compare every method's short runs with recorded results: losses and traffic everywhere, bits on known processors.

Refactoring must not change results. Losses are compared within a tolerance and traffic exactly on every machine; digests
of final weights, metrics and message bytes only where the processor computes as one on which they were recorded.
`python tests/repo/test_bits.py` records both: on a new kind of processor, or after a change that is meant to change
results (name the reason in the commit; digests of other processors are then dropped). With the name of a method it records
that method alone, which is what a new one needs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck import wire
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.loop.callbacks import Callback
from potluck.methods import METHODS

RECORDED = Path(__file__).with_name("bits.json")
EXACT = ("floats_up", "floats_down", "bytes_up", "bytes_down", "trained_samples", "participants", "staleness")
METRICS = ("step", "round", "accuracy", "accuracy_std", "loss", "train_loss", "floats_up", "floats_down", "bytes_up",
           "bytes_down", "virtual_seconds", "trained_samples", "participants", "staleness")  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "serial": {},
    "asynchronous": {"schedule": {"buffer": 1, "concurrency": 3, "staleness_power": 0.5}},
    "robust": {"schedule": {"robust": "geometric-median"}},
    "robust-asynchronous": {"schedule": {"robust": "median", "buffer": 2, "concurrency": 4}},
    "row-privacy": {
        "privacy": {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0},
        "models": {"names": ["small-mlp", "small-wide"]},
    },
    "pool": {"engine": {"name": "pool", "workers": 2}},
    "vectorized": {"engine": {"name": "serial", "vectorize": "on"}, "models": {"names": ["small-mlp"]}},
    "adapters": {"training": {"train": "lora:2,lora:4"}, "models": {"names": ["small-cnn"]}},
}
OTHER_ENGINES = {
    "pool": ("fedgh", "fedavg"),
    "vectorized": ("fedproto", "fedavg"),
    "adapters": ("hetlora", "flexlora", "flora"),
}
"""Variants of some methods alone."""


class Digests(Callback):
    """Hash messages as they travel, and everything that is left at the end."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str, int, str]] = []
        self.records: list[dict[str, Any]] = []
        self.weights: dict[str, str] = {}
        self.scores: list[dict[str, Any]] = []

    def on_send(self, client: Any, message: Any, round_number: int) -> None:
        self.messages.append((round_number, "down", client.index, _hash(wire.encode(message))))

    def on_update(self, update: Any, round_number: int) -> None:
        self.messages.append((round_number, "up", update.client.index, _hash(wire.encode(update.payload))))

    def on_step(self, step: Any) -> None:
        record = asdict(step.record)
        self.records.append({name: record[name] for name in METRICS})

    def on_end(self, end: Any) -> None:
        self.weights["server"] = _tensors(tree.flatten(end.state).tensors)
        for result in end.scores:
            index = result.client.index
            self.scores.append(
                {"client": index, "accuracy": result.score.accuracy, "loss": result.score.loss}
            )
            self.weights[f"client {index}"] = _tensors(tree.flatten(end.fetch(index)).tensors)

    def result(self) -> dict[str, Any]:
        """Digests of all three, and the numbers that every machine can compare."""
        return {
            "digests": {
                "messages": _hash(json.dumps(sorted(self.messages)).encode()),
                "metrics": _hash(json.dumps([self.records, self.scores], sort_keys=True).encode()),
                "weights": _hash(json.dumps(self.weights, sort_keys=True).encode()),
            },
            "exact": [[record[name] for name in EXACT] for record in self.records],
            "losses": [value for value in self._losses() if value is not None],
        }

    def _losses(self) -> Iterator[float | None]:
        for record in self.records:
            yield record["loss"]
            yield record["train_loss"]
        for score in self.scores:
            yield score["loss"]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _tensors(tensors: dict[str, torch.Tensor]) -> str:
    parts = [
        f"{name} {tuple(tensor.shape)} {_hash(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())}"
        for name, tensor in sorted(tensors.items())
    ]
    return _hash("\n".join(parts).encode())


def results(method: str, variant: str, out: Path) -> dict[str, Any]:
    """Results of one short run; empty where the combination is rejected."""
    recorder = Digests()
    settings = {"engine": {"name": "serial"}, **VARIANTS[variant]}
    try:
        potluck.run(
            method,
            clients=4,
            rounds=2,
            seed=3,
            out=out,
            checkpoint_every=0,
            callbacks=[recorder],
            data={"limit": 120},
            **settings,
        )
    except PotluckError:
        return {}
    return recorder.result()


def processor() -> str:
    """Digest of a small training job in plain torch: equal where the processor's kernels round alike."""
    rng = torch.Generator().manual_seed(0)
    image, weight = torch.randn(16, 3, 16, 16, generator=rng), torch.randn(24, 3, 3, 3, generator=rng)
    dense = torch.randn(24 * 14 * 14, 32, generator=rng)
    for tensor in (weight, dense):
        tensor.requires_grad_()
    torch.nn.functional.conv2d(image, weight).relu().flatten(1).matmul(dense).logsumexp(1).sum().backward()
    return _tensors({"weight": weight.grad, "dense": dense.grad})  # type: ignore[dict-item]


def cases() -> list[tuple[str, str]]:
    own = [name for name in VARIANTS if name not in OTHER_ENGINES]
    return [
        *((method, variant) for variant in own for method in METHODS),
        *((method, variant) for variant, methods in OTHER_ENGINES.items() for method in methods),
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_results_match_recorded_ones(variant: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    expected = recorded["digests"].get(processor(), {})
    for method in (method for method, name in cases() if name == variant):
        key = f"{method} {variant}"
        assert key in recorded["runs"], f"{key} is not recorded; run python tests/repo/test_bits.py {method}"
        new, old = results(method, variant, tmp_path / method), recorded["runs"][key]
        assert bool(new) == bool(old), f"{key}: rejected before or now, not both"
        if new:
            assert new["exact"] == old["exact"], key
            assert new["losses"] == pytest.approx(old["losses"], rel=1e-3), key
            assert new["digests"] == expected.get(key, new["digests"]), key


def record(chosen: Sequence[str] = ()) -> None:
    """Write results of these methods, else of all; digests of other processors stay if the numbers did not change."""
    if wrong := sorted(set(chosen) - set(METHODS)):
        sys.exit(f"No method is named {', '.join(wrong)}; choose from {', '.join(METHODS)}.")
    todo = [(method, variant) for method, variant in cases() if not chosen or method in chosen]
    before = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"runs": {}, "digests": {}}
    with tempfile.TemporaryDirectory() as folder:
        runs = {f"{m} {v}": results(m, v, Path(folder) / f"{m}-{v}") for m, v in todo}
    digests = {key: run.pop("digests") for key, run in runs.items() if run}
    same = all(
        run.get("losses", []) == pytest.approx(before["runs"].get(key, {}).get("losses", []), rel=1e-3)
        for key, run in runs.items()
        if key in before["runs"]
    )
    unchanged = before["digests"] if same else {}
    earlier = {key: run for key, run in before["runs"].items() if chosen}
    old_digests = unchanged.get(processor(), {}) if chosen else {}
    RECORDED.write_text(
        json.dumps(
            {"runs": earlier | runs, "digests": {**unchanged, processor(): old_digests | digests}},
            indent=1,
            sort_keys=True,
        )
        + "\n"
    )
    rejected = [key for key, run in runs.items() if not run]
    print(f"{len(runs)} recorded, rejected: {', '.join(rejected) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record(sys.argv[1:])
