"""Synthetic run folders with the shape of real ones, equal bytes on every call."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

ARCHITECTURES = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")


@dataclass
class Synthetic:
    """What to make up. `level` is the accuracy a run ends near, `speed` how fast it gets there."""

    method: str = "fedgh"
    seed: int = 0
    clients: int = 10
    rounds: int = 20
    classes: int = 10
    level: float = 0.8
    speed: float = 0.25
    floats_up: int = 1010
    floats_down: int = 5010
    trained_samples: int = 500
    evaluate_every: int = 1
    finished: bool = True
    asynchronous: bool = False
    failure_rate: float = 0.0
    virtual: bool = True
    architectures: tuple[str, ...] = ARCHITECTURES
    notes: tuple[str, ...] = ()
    notes_of_clients: bool = True
    summary: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the run below `folder` and return the run's own folder."""
        path = folder / f"{zlib.crc32(self.method.encode()):08x}-{self.seed}"
        while path.exists():
            path = path.with_name(path.name + "b")
        path.mkdir(parents=True)
        rounds, clients, final = self._metrics()
        (path / "experiment.toml").write_text(self._toml())
        (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
        (path / "clients.jsonl").write_text("".join(json.dumps(record) + "\n" for record in clients))
        if self.finished:
            (path / "summary.json").write_text(json.dumps(self._summary(rounds, final)))
        else:
            with (path / "rounds.jsonl").open("a") as file:
                file.write('{"step": 99, "round": 99, "accu')
        return path

    def class_counts(self) -> list[list[int]]:
        rng = np.random.default_rng(self.seed)
        shares = rng.dirichlet(np.full(self.classes, 0.3), size=self.clients)
        return (shares * 500).astype(int).tolist()

    def _metrics(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[float]]:
        rng = np.random.default_rng([self.seed, zlib.crc32(self.method.encode())])
        offsets = rng.normal(0, 0.06, self.clients)
        rounds: list[dict[str, Any]] = []
        clients: list[dict[str, Any]] = []
        for number in range(1, self.rounds + 1):
            mean = self.level * (1 - np.exp(-self.speed * number)) + rng.normal(0, 0.008)
            accuracies = np.clip(mean + offsets, 0, 1)
            rounds += self._round(number, accuracies, rng)
            if number % self.evaluate_every == 0 or number == self.rounds:
                clients += self._client_rows(number, accuracies, final=number == self.rounds)
        if not self.finished:
            clients = [row for row in clients if not row["final"]]
        return rounds, clients, accuracies.tolist()

    def _round(self, number: int, accuracies: np.ndarray, rng: np.random.Generator) -> list[dict[str, Any]]:
        everyone = list(range(self.clients))
        groups = [[client] for client in everyone] if self.asynchronous else [everyone]
        records = []
        for position, participants in enumerate(groups):
            step = (number - 1) * len(groups) + position + 1
            failed = [c for c in participants if rng.random() < self.failure_rate]
            answered = [c for c in participants if c not in failed]
            measured = number % self.evaluate_every == 0 and position == len(groups) - 1
            up, down = self.floats_up * len(answered), self.floats_down * len(answered)
            record: dict[str, Any] = {
                "step": step,
                "round": number,
                "accuracy": float(accuracies.mean()) if measured else None,
                "accuracy_std": float(accuracies.std()) if measured else None,
                "loss": float(2.3 * np.exp(-self.speed * number) + 0.3 * rng.random()) if measured else None,
                "train_loss": float(2.0 * np.exp(-1.2 * self.speed * number)),
                "train_ce": float(1.5 * np.exp(-1.2 * self.speed * number)),
                "floats_up": up,
                "floats_down": down,
                "bytes_up": 4 * up + 64 * len(answered),
                "bytes_down": 4 * down + 64 * len(answered),
                "trained_samples": self.trained_samples * len(answered),
                "seconds": 0.5 + 0.1 * float(rng.random()),
                "participants": answered,
                "failures": [{"client": c, "reason": "timeout" if c % 2 else "not finite"} for c in failed],
                "staleness": [int(rng.integers(0, 5))] if self.asynchronous else [0] * len(answered),
            }
            if self.notes:
                record["notes"] = dict.fromkeys(self.notes, 1.0 / number)
            if self.notes and self.notes_of_clients:
                record["client_notes"] = {name: [(c + 1) / number for c in answered] for name in self.notes}
            if self.virtual:
                record["virtual_seconds"] = 3.0 * step
            records.append(record)
        return records

    def _client_rows(self, number: int, accuracies: np.ndarray, final: bool) -> list[dict[str, Any]]:
        samples = [sum(counts) for counts in self.class_counts()]
        return [
            {
                **(self._details(client, float(accuracy)) if final else {}),
                "round": number,
                "client": client,
                "name": f"site-{client}",
                "architecture": self._architecture(client),
                "protocol": "local",
                "samples": 50 + client,
                "train_samples": samples[client],
                "accuracy": float(accuracy),
                "loss": float(2 * (1 - accuracy)),
                "final": final,
            }
            for client, accuracy in enumerate(accuracies)
        ]

    def _details(self, client: int, accuracy: float) -> dict[str, Any]:
        """Every second class is taken for the next one in its errors; the client is a little too sure of itself."""
        samples = 50 + client
        right = round(accuracy * samples)
        wrong = [[0, 1, samples - right]] if right < samples else []
        bins = [[0, 0, 0.0] for _ in range(15)]
        bins[12] = [samples, right, 0.84 * samples]
        return {"confusion": sorted([*wrong, [0, 0, right]]), "calibration": bins}

    def _architecture(self, client: int) -> str:
        return self.architectures[client % len(self.architectures)]

    def _summary(self, rounds: list[dict[str, Any]], final: list[float]) -> dict[str, Any]:
        measured = [record for record in rounds if record["accuracy"] is not None]
        best = max(measured, key=lambda record: record["accuracy"])
        seconds = sum(record["seconds"] for record in rounds)
        return {
            "method": self.method,
            "dataset": "digits",
            "clients": self.clients,
            "rounds": self.rounds,
            "seed": self.seed,
            "engine": "serial",
            "best_accuracy": best["accuracy"],
            "best_round": best["round"],
            "final_accuracy": float(np.mean(final)),
            "final_accuracy_std": float(np.std(final)),
            "client_accuracy": final,
            "client_names": [f"site-{client}" for client in range(self.clients)],
            "client_architectures": [self._architecture(c) for c in range(self.clients)],
            "class_counts": self.class_counts(),
            "floats_up_per_client_round": self.floats_up,
            "floats_down_per_client_round": self.floats_down,
            "bytes_up": sum(record["bytes_up"] for record in rounds),
            "bytes_down": sum(record["bytes_down"] for record in rounds),
            "seconds": seconds,
            "samples_per_second": 500 * self.clients * self.rounds / seconds,
            "partition": "dirichlet:0.3",
            "models": list(self.architectures),
            "command": f"potluck run {self.method} --rounds {self.rounds} --seed {self.seed}",
            "flops_per_client_round": 2.0e9,
            **self.summary,
        }

    def _toml(self) -> str:
        settings = {"seed": self.seed, "partition": "dirichlet:0.3", **self.settings}
        sections = {"method": {"name": self.method}, "data": {"name": "digits"}}
        return tomli_w.dumps({**settings, **sections, "schedule": {"rounds": self.rounds}})


def make_run(folder: Path, **options: Any) -> Path:
    """Write one made-up run below `folder`; see `Synthetic` for what can be chosen."""
    return Synthetic(**options).write(folder)
