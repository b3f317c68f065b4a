"""Ask everything that can be asked of a run's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from potluck.analysis.leak.classes import class_scores, told_shares
from potluck.analysis.leak.finding import Findings, Leak
from potluck.analysis.leak.invert import find_pictures
from potluck.analysis.leak.members import (
    auc_and_rate,
    identified,
    membership_signals,
    rate_by_chance,
    size_words,
)
from potluck.analysis.leak.seen import parts
from potluck.core.random import one_thread
from potluck.runs.answers import Kept, read_answers
from potluck.runs.ended import Ended, bring_back
from potluck.runs.resolve import Parts


def find_leaks(run: Path, parts: Parts = Parts()) -> Findings:
    """What the answers of a run give away. The truth is taken from the run's own data and last checkpoint."""
    ended = bring_back(run, parts)
    by_client: dict[int, list[Kept]] = {}
    for one in read_answers(run, ended.resolved.method):
        by_client.setdefault(one.client, []).append(one)
    scores = [*_classes(ended, by_client), *_members(ended, by_client), *_recognised(by_client)]
    with one_thread():
        pictures = find_pictures(ended, by_client)
    return Findings([*scores, *pictures.scores], pictures.shown, pictures.skipped)


def _classes(ended: Ended, by_client: Mapping[int, Sequence[Kept]]) -> Iterator[Leak]:
    federation = ended.resolved.federation
    counts = np.asarray(federation.class_counts(), dtype=np.int64)
    told = {
        client: found
        for client, kept in by_client.items()
        if (found := told_shares(kept, federation.task.num_classes)) is not None
    }
    if not told:
        return
    scores = class_scores({client: shares for client, (shares, _) in told.items()}, counts)
    way = next(iter(told.values()))[1]
    yield Leak("does it hold a class? (share told right)", *scores["held"], way, len(told) * counts.shape[1])
    yield Leak("in what proportions? (overlap)", *scores["proportions"], way, len(told))


def _members(ended: Ended, by_client: Mapping[int, Sequence[Kept]]) -> Iterator[Leak]:
    aucs, rates, usual, way = list[float](), list[float](), list[float](), ""
    hits: dict[tuple[int, int], list[tuple[float, float]]] = {}
    members = ended.resolved.federation.members
    for client, kept in by_client.items():
        me, last = ended.client(client), kept[-1]
        if (signals := membership_signals(me, last)) is not None:
            auc, rate = auc_and_rate(*signals[:2])
            aucs.append(auc)
            rates.append(rate)
            usual.append(rate_by_chance(len(signals[1])))
            way = signals[2]
        others = [one.train for index, one in enumerate(members) if index != client]
        for size, found in identified(me, last.answer, others).items():
            hits.setdefault(size, []).extend(found)
    if aucs:
        yield Leak("was a sample trained on? (AUC)", float(np.mean(aucs)), 0.5, way, len(aucs))
        yield Leak(
            "… true positives at 1 % false ones",
            float(np.mean(rates)),
            float(np.mean(usual)),
            way,
            len(rates),
        )
    for size, found in sorted(hits.items()):
        score, chance = np.mean(found, axis=0).tolist()
        text = f"is the sample nearest to a class vector its own? (classes of {size_words(size)})"
        yield Leak(text, score, chance, "nearest neighbour, with the client's model", len(found))


def _recognised(by_client: Mapping[int, Sequence[Kept]]) -> Iterator[Leak]:
    """Every client's last answer against the one before of all clients: is its own the nearest?"""
    pairs = {client: kept[-2:] for client, kept in by_client.items() if len(kept) > 1}
    before = {client: parts(kept[0].answer) for client, kept in pairs.items()}
    if len(pairs) < 2 or not any(before.values()):
        return
    hits = 0
    for client, kept in pairs.items():
        now = parts(kept[1].answer)
        hits += min(before, key=lambda other: _apart(now, before[other])) == client
    yield Leak(
        "is a client recognised in its next answer?",
        hits / len(pairs),
        1 / len(pairs),
        "nearest answer",
        len(pairs),
    )


def _apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The mean square over the parts that both have, more by each part that only one of them has."""
    common = [name for name in one.keys() & other.keys() if one[name].shape == other[name].shape]
    if not common:
        return float("inf")
    squares = sum(float((one[name] - other[name]).double().square().sum()) for name in common)
    size = sum(one[name].numel() for name in common)
    usual = sum(float(torch.as_tensor(one[name]).double().square().sum()) for name in common)
    alone = len(one.keys() ^ other.keys()) / len(one.keys() | other.keys())
    return squares / size + alone * usual / size
