"""Audit the kept answers of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from potluck.analysis.leak.inference import (
    auc_and_tpr,
    chance_tpr,
    infer_class_shares,
    membership_signals,
    nearest_is_own,
    score_class_shares,
    size_text,
)
from potluck.analysis.leak.inversion import reconstruct_pictures
from potluck.analysis.leak.observations import LeakFindings, LeakScore, comparable_parts
from potluck.core.random import one_thread
from potluck.runs.answers import KeptAnswer, read_answers
from potluck.runs.plan import Parts
from potluck.runs.restore import RestoredRun, restore_run


def find_leaks(run: Path, parts: Parts = Parts()) -> LeakFindings:
    """Score what the answers of a run reveal, against the run's own data and last checkpoint."""
    restored = restore_run(run, parts)
    by_client: dict[int, list[KeptAnswer]] = {}
    for exchange in read_answers(run, restored.plan.method):
        by_client.setdefault(exchange.client, []).append(exchange)
    scores = [*_classes(restored, by_client), *_members(restored, by_client), *_recognised(by_client)]
    with one_thread():
        pictures = reconstruct_pictures(restored, by_client)
    return LeakFindings([*scores, *pictures.scores], pictures.shown, pictures.skipped)


def _classes(ended: RestoredRun, by_client: Mapping[int, Sequence[KeptAnswer]]) -> Iterator[LeakScore]:
    federation = ended.plan.federation
    counts = np.asarray(federation.class_counts(), dtype=np.int64)
    inferred = {
        client: shares
        for client, answers in by_client.items()
        if (shares := infer_class_shares(answers, federation.task.num_classes)) is not None
    }
    if not inferred:
        return
    scores = score_class_shares({client: shares for client, (shares, _) in inferred.items()}, counts)
    source = next(iter(inferred.values()))[1]
    yield LeakScore(
        "does it hold a class? (share told right)", *scores["held"], source, len(inferred) * counts.shape[1]
    )
    yield LeakScore("in what proportions? (overlap)", *scores["proportions"], source, len(inferred))


def _members(ended: RestoredRun, by_client: Mapping[int, Sequence[KeptAnswer]]) -> Iterator[LeakScore]:
    aucs, rates, chances, source = list[float](), list[float](), list[float](), ""
    hits: dict[tuple[int, int], list[tuple[float, float]]] = {}
    members = ended.plan.federation.members
    for client, answers in by_client.items():
        me, last = ended.client(client), answers[-1]
        if (signals := membership_signals(me, last)) is not None:
            auc, rate = auc_and_tpr(*signals[:2])
            aucs.append(auc)
            rates.append(rate)
            chances.append(chance_tpr(len(signals[1])))
            source = signals[2]
        other_samples = [member.train for index, member in enumerate(members) if index != client]
        for size, matches in nearest_is_own(me, last.answer, other_samples).items():
            hits.setdefault(size, []).extend(matches)
    if aucs:
        yield LeakScore("was a sample trained on? (AUC)", float(np.mean(aucs)), 0.5, source, len(aucs))
        yield LeakScore(
            "… true positives at 1 % false ones",
            float(np.mean(rates)),
            float(np.mean(chances)),
            source,
            len(rates),
        )
    for size, matches in sorted(hits.items()):
        score, chance = np.mean(matches, axis=0).tolist()
        text = f"is the sample nearest to a class vector its own? (classes of {size_text(size)})"
        yield LeakScore(text, score, chance, "nearest neighbour, with the client's model", len(matches))


def _recognised(by_client: Mapping[int, Sequence[KeptAnswer]]) -> Iterator[LeakScore]:
    """Score whether the nearest of all clients' previous answers to a client's last answer is its own."""
    pairs = {client: answers[-2:] for client, answers in by_client.items() if len(answers) > 1}
    before = {client: comparable_parts(answers[0].answer) for client, answers in pairs.items()}
    if len(pairs) < 2 or not any(before.values()):
        return
    hits = 0
    for client, exchanges in pairs.items():
        now = comparable_parts(exchanges[1].answer)
        hits += min(before, key=lambda other: _distance(now, before[other])) == client
    yield LeakScore(
        "is a client recognised in its next answer?",
        hits / len(pairs),
        1 / len(pairs),
        "nearest answer",
        len(pairs),
    )


def _distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return the mean square over common parts, increased for each part that only one answer has."""
    common = [name for name in first.keys() & second.keys() if first[name].shape == second[name].shape]
    if not common:
        return float("inf")
    squares = sum(float((first[name] - second[name]).double().square().sum()) for name in common)
    size = sum(first[name].numel() for name in common)
    scale = sum(float(torch.as_tensor(first[name]).double().square().sum()) for name in common)
    alone = len(first.keys() ^ second.keys()) / len(first.keys() | second.keys())
    return squares / size + alone * scale / size
