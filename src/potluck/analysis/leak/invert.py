"""Pictures of a client's classes, made from what the server saw, with the client's extractor and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from potluck.analysis.leak.aims import Aim, Function, auxiliary, find_aim, stand_in
from potluck.analysis.leak.decoder import learn_decoder
from potluck.analysis.leak.finding import Findings, Leak, Shown
from potluck.analysis.leak.members import SIZES, size_of, size_words
from potluck.analysis.leak.pictures import Shades, are_pictures, psnr, ssim
from potluck.core.client import Client
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.runs.answers import Kept
from potluck.runs.ended import Ended

EACH = 3
"""Classes of each size that are shown: the first ones, by client and class."""
WITH, WITHOUT = "with the extractor", "without it"
NONE = "No pictures were made"
SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {"PSNR in dB": psnr, "SSIM": ssim}


@dataclass(frozen=True)
class Case:
    """One class of one client: its own pictures, those of others, the class's usual one, and those that were made."""

    client: int
    label: int
    own: Tensor
    others: Tensor
    usual: Tensor
    made: Mapping[str, Tensor]


def find_pictures(ended: Ended, by_client: Mapping[int, Sequence[Kept]]) -> Findings:
    """How like a client's own pictures those are that can be made from its last answer; or why none can be."""
    federation = ended.resolved.federation
    if not are_pictures(federation.task.input_shape, federation.vocabulary):
        shape = "×".join(map(str, federation.task.input_shape))
        return Findings(skipped=[f"{NONE}: the samples, of shape {shape}, are no images."])
    cases, ways = list[Case](), dict[str, str]()
    for client, kept in by_client.items():
        me, known = ended.client(client), auxiliary(ended, client)
        if (aim := find_aim(me, kept[-1])) is None:
            return Findings(skipped=[f"{NONE}: nothing that was sent is a vector of one class."])
        if len(known) <= federation.task.num_classes:
            return Findings(skipped=[f"{NONE}: other clients have too few test samples to learn from."])
        extractors = {WITH: aim.function}
        ways[WITH] = f"{aim.what}, through {'the weights it sent' if aim.sent else 'its model'}"
        if not aim.sent and (other := stand_in(ended, me, kept, known)) is not None:
            extractors[WITHOUT] = aim.of(other)
            ways[WITHOUT] = f"{aim.what}, through a model of the server's own"
        cases += _cases(ended, me, aim, known, extractors)
    scores = [leak for who, way in ways.items() for leak in judge(cases, who, way)]
    return Findings(scores, [_shown(case) for case in _first(cases)])


def _cases(
    ended: Ended, me: Client, aim: Aim, known: Samples, extractors: Mapping[str, Function]
) -> Iterator[Case]:
    """Every class that the client holds and of which a vector came."""
    x, y = known.take(slice(None))
    shades, labels = Shades.of(x), aim.labels.cpu()
    made, usual = dict[str, Tensor](), torch.empty(0)
    for who, function in extractors.items():
        vectors = torch.cat([found.cpu() for found, _ in me.outputs(function, known)])
        decoder = learn_decoder(vectors, shades.pictures(x), y, me.task.num_classes)
        made[who], usual = decoder(aim.rows.cpu(), labels), decoder.usual(labels)
    for place, label in enumerate(labels.tolist()):
        own, others = _own_and_others(ended, me.info.index, label, shades)
        if len(own):
            each = {who: pictures[place] for who, pictures in made.items()}
            yield Case(me.info.index, label, own, others, usual[place], each)


def _own_and_others(ended: Ended, client: int, label: int, shades: Shades) -> tuple[Tensor, Tensor]:
    """Training samples of a class: the client's, and at most as many of all others, drawn at random."""
    members = ended.resolved.federation.members
    found: list[Tensor] = []
    for one in (members[client], *(other for index, other in enumerate(members) if index != client)):
        rows = torch.nonzero(one.train.labels == label).flatten()
        found.append(shades.pictures(one.train.take(rows)[0]))
    own, others = found[0], torch.cat(found[1:]) if found[1:] else found[0][:0]
    draw = generator(ended.resolved.federation.task.seed, "leak", "others", client, label)
    return own, others[torch.randperm(len(others), generator=draw)[: len(own)]]


def judge(cases: Sequence[Case], who: str, way: str) -> Iterator[Leak]:
    """The made pictures beside the client's mean picture, by class size, and beside the nearest of its samples.

    By chance one takes the usual picture of the class; and the made picture is as near to samples of others as to as
    many of the client's own.
    """
    for size in SIZES:
        there = [case for case in cases if size_of(len(case.own)) == size and who in case.made]
        for name, score in SCORES.items():
            pairs = [
                [score(picture, case.own.mean(0)) for picture in (case.made[who], case.usual)]
                for case in there
            ]
            if pairs:
                text = f"inverted {who}, classes of {size_words(size)}: {name}"
                yield Leak(text, *_means(pairs), way, len(pairs))
    several = [case for case in cases if min(len(case.own), len(case.others)) > 1 and who in case.made]
    for name, score in SCORES.items():
        pairs = [[_nearest(case, who, score, among) for among in (case.own, case.others)] for case in several]
        if pairs:
            text = f"inverted {who}, nearest of two or more samples: {name}"
            yield Leak(text, *_means(pairs), way, len(pairs))


def _means(pairs: list[list[float]]) -> tuple[float, float]:
    score, chance = np.mean(pairs, axis=0).tolist()
    return score, chance


def _nearest(case: Case, who: str, score: Callable[[Tensor, Tensor], float], among: Tensor) -> float:
    """The best score among as many samples as both sides have."""
    return max(score(case.made[who], one) for one in among[: min(len(case.own), len(case.others))])


def _first(cases: Sequence[Case]) -> Iterator[Case]:
    for size in SIZES:
        yield from [case for case in cases if size_of(len(case.own)) == size][:EACH]


def _shown(case: Case) -> Shown:
    nearest = max(case.own, key=lambda one: psnr(case.made[WITH], one))
    pictures = {"its mean picture": case.own.mean(0), "its nearest sample": nearest, **case.made}
    return Shown(case.client, case.label, len(case.own), {**pictures, "usual for the class": case.usual})
