"""Compare stored results as a claim's test says: a figure in words, and what follows from the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generate.scores import MIN_MARGIN, Score, Scores, client_shares, margins, read_scores

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
NOT_RUN, UNTESTABLE = "not run", "not testable"
VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED, NOT_RUN, UNTESTABLE)


@dataclass(frozen=True)
class Finding:
    """What came out, what follows for the claim, and by how many seeds (0 where seeds do not matter).

    `figure` is the one number that decides, `details` are those of every place.
    """

    figure: str
    verdict: str
    seeds: int = 0
    details: str = ""


@dataclass(frozen=True)
class Gap:
    """A difference in points, how large it must be to be more than chance, and what it is between."""

    place: str
    points: float
    margin: float
    rival: str = ""

    def __str__(self) -> str:
        whose = f" ({self.rival})" if self.rival else ""
        return f"{self.place} {round(self.points, 1) + 0.0:+.1f} ± {self.margin:.1f}{whose}"


NO_ROWS = Finding("nothing stored", NOT_RUN)


def compare(test: Mapping[str, Any], results: Path = RESULTS) -> Finding:
    """Return what the stored numbers say of a test, whatever the size of the experiment."""
    if "better" in test:
        return _shares(test, client_shares(test, results))
    scores = read_scores(test, results)
    (kind,) = (name for name in JUDGES if name in test)
    return JUDGES[kind](test, scores)


def _rivals(test: Mapping[str, Any], method: str, there: Mapping[str, Score]) -> list[str]:
    wanted = test.get("of", "others")
    without = (method, *test.get("without", ()))
    return [name for name in there if (name not in without if wanted == "others" else name in wanted)]


def _ahead(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is ahead of the best rival everywhere."""
    return _against(test["ahead"], test, scores, max, 1)


def _behind(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is behind the worst rival everywhere."""
    return _against(test["behind"], test, scores, min, -1)


def _against(
    method: str, test: Mapping[str, Any], scores: Scores, choose: Callable[..., str], sign: int
) -> Finding:
    places = {
        place: (there, rivals)
        for place, there in scores.items()
        if method in there and (rivals := _rivals(test, method, there))
    }
    pairs_found = []
    for place, (there, rivals) in places.items():
        rival = choose(rivals, key=lambda name: there[name].mean)
        pairs_found.append((place, rival, (there[method], there[rival])))
    number = max((len(rivals) for _, rivals in places.values()), default=1)
    gaps = _gaps(pairs_found, number)
    if not gaps:
        return NO_ROWS
    shared = [
        name
        for name in next(iter(places.values()))[1]
        if all(name in rivals for _, rivals in places.values())
    ]
    everywhere = list[Gap]()
    if shared:  # one rival for all places: the best on average
        rival = choose(shared, key=lambda name: sum(there[name].mean for there, _ in places.values()))
        everywhere = _gaps(
            [(place, rival, (there[method], there[rival])) for place, (there, _) in places.items()],
            len(shared),
        )
    overall = _together(everywhere or gaps, rival if shared else "")
    verdict = _told(gaps, overall, sign, test.get("by", 1.0))
    chosen = [overall] if len(gaps) > 1 else gaps
    return _with_details(
        f"lead of {method} in points", gaps, chosen, verdict, [pair for *_, pair in pairs_found]
    )


def _with_details(
    subject: str,
    gaps: Sequence[Gap],
    chosen: Sequence[Gap],
    verdict: str,
    pairs: Sequence[tuple[Score, Score]],
) -> Finding:
    """A finding that shows the gaps that decide, and those of all places in its details."""
    every = [*gaps, *(gap for gap in chosen if gap not in gaps)]
    return Finding(
        f"{subject}: {'; '.join(map(str, chosen))}",
        verdict,
        _seeds(pairs),
        f"{subject}: {'; '.join(map(str, every))}",
    )


def _together(gaps: Sequence[Gap], rival: str = "") -> Gap:
    """The mean over places that have nothing in common, and how far chance reaches in it."""
    reach = math.sqrt(sum(gap.margin**2 for gap in gaps)) / len(gaps)
    return Gap("together", sum(gap.points for gap in gaps) / len(gaps), max(MIN_MARGIN, reach), rival)


def _alike(gaps: Sequence[Gap]) -> Gap:
    """The mean over contenders on the same samples: chance is theirs in common, and does not shrink with their number."""
    return Gap(
        "together",
        sum(gap.points for gap in gaps) / len(gaps),
        max(MIN_MARGIN, sum(gap.margin for gap in gaps) / len(gaps)),
    )


def _gaps(pairs: Sequence[tuple[str, str, tuple[Score, Score]]], rivals: int = 1) -> list[Gap]:
    reach = margins([pair for *_, pair in pairs], rivals)
    return [
        Gap(place, _difference(*pair), margin, rival)
        for (place, rival, pair), margin in zip(pairs, reach, strict=True)
    ]


def _difference(score: Score, rival: Score) -> float:
    """Over the seeds that both have; else of the means."""
    common = [seed for seed in score.by_seed if seed in rival.by_seed]
    if not common:
        return score.mean - rival.mean
    return sum(score.by_seed[seed] - rival.by_seed[seed] for seed in common) / len(common)


def _seeds(pairs: Any) -> int:
    return min(len(score.by_seed) for pair in pairs for score in pair)


def _told(gaps: Sequence[Gap], overall: Gap, sign: int = 1, claimed: float = 1.0) -> str:
    """Ahead on the whole and behind nowhere holds; behind somewhere or on the whole fails, and so does a lead as
    claimed that can be excluded on the whole. Else chance reaches too far."""
    lead = sign * overall.points
    if any(sign * gap.points < -gap.margin for gap in gaps) or lead + overall.margin < claimed:
        return CONTRADICTED
    return SUPPORTED if lead > overall.margin else UNDECIDED


def _keeps(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether contenders do no worse in the first place of each pair than in the second, but for some points."""

    def judge(gaps: Sequence[Gap]) -> str:
        lost = any(gap.points < -max(gap.margin, test.get("within", 0)) for gap in gaps)
        return CONTRADICTED if lost else SUPPORTED

    return _pairwise(test["keeps"], test, scores, judge)


def _falls(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether contenders do worse in the second place of each pair than in the first."""
    return _pairwise(test["falls"], test, scores, lambda gaps: _told(gaps, _alike(gaps)))


def _pairwise(
    names: list[str], test: Mapping[str, Any], scores: Scores, judge: Callable[[Sequence[Gap]], str]
) -> Finding:
    pairs = [
        (f"{first} less {second}", name, (scores[first][name], scores[second][name]))
        for name in names
        for first, second in test["pairs"]
        if name in scores.get(first, {}) and name in scores.get(second, {})
    ]
    gaps = _gaps(pairs)
    if not gaps:
        return NO_ROWS
    least = min(gaps, key=lambda gap: gap.points)
    return _with_details("in points", gaps, [least], judge(gaps), [pair for *_, pair in pairs])


def _equals(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether measured cells are the printed ones, within a share of them."""
    from potluck.recipes.recipe import find_recipe

    recipe, sentences, same = find_recipe(test["recipe"]), [], True
    for name in test["columns"]:
        printed = float(recipe.printed(test["equals"], name).partition("±")[0])
        score = scores.get(recipe.heading(name), {}).get(test["equals"])
        if score is None:
            return NO_ROWS
        same = same and abs(score.mean - printed) <= test["within"] * printed
        sentences.append(f"{score.mean:,.2f} ({printed:,.2f} printed), {recipe.heading(name)}")
    return Finding("; ".join(sentences), SUPPORTED if same else CONTRADICTED)


def _ends(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender's number ends near a value in each place."""
    method, sentences, near = test["ends"], [], []
    for place, value in test["near"].items():
        score = scores.get(place, {}).get(method)
        if score is not None:
            near.append(abs(score.mean - value) <= test["within"])
            sentences.append(f"{place} {score.mean:.2f}, claimed {value:g}")
    if not sentences:
        return NO_ROWS
    return _summed(f"{method} at the end", sentences, SUPPORTED if all(near) else CONTRADICTED)


def _summed(subject: str, sentences: Sequence[str], verdict: str, seeds: int = 0, brief: str = "") -> Finding:
    """A finding that shows its first place, or what is more to the point, and the others in its details."""
    more = f" and {len(sentences) - 1} more" if len(sentences) > 1 else ""
    return Finding(
        f"{subject}: {brief or sentences[0] + more}", verdict, seeds, f"{subject}: {'; '.join(sentences)}"
    )


def _shows(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Numbers as they are, to support a reason."""
    subject = test.get("value", "accuracy").removeprefix("note:")
    sentences = [
        f"{place} {name} {there[name].mean:.3g}"
        for place, there in scores.items()
        for name in test["shows"]
        if name in there
    ]
    return Finding(f"{subject}: " + "; ".join(sentences), SUPPORTED) if sentences else NO_ROWS


def _part(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender's number is less than a share of every rival's."""
    sentences, ratios = [], []
    for place, there in scores.items():
        for rival in _rivals(test, test["part"], there):
            if test["part"] in there and there[rival].mean:
                ratios.append(there[test["part"]].mean / there[rival].mean)
                sentences.append(f"{place} {_share(ratios[-1])} of {rival}'s")
    if not ratios:
        return NO_ROWS
    span = " to ".join(dict.fromkeys(_share(ratio) for ratio in (min(ratios), max(ratios))))
    brief = f"{span} of {' and '.join(test['of'])}'s" if test.get("of", "others") != "others" else span
    verdict = SUPPORTED if max(ratios) < test["below"] else CONTRADICTED
    return _summed(test["part"], sentences, verdict, brief=brief)


def _share(ratio: float) -> str:
    return f"{ratio:.2%}" if ratio < 0.1 else f"{ratio:.0%}" if ratio < 10 else f"{ratio:.0f} times"


def _spread(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether several contenders are within so many points of each other everywhere."""
    spreads = {
        place: [there[name] for name in test["spread"] or there if name in there]
        for place, there in scores.items()
    }
    return _within(test["within"], {place: each for place, each in spreads.items() if len(each) > 1})


def _steady(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is within so many points of itself everywhere."""
    values = [there[test["steady"]] for there in scores.values() if test["steady"] in there]
    return _within(
        test["within"], {f"{test['steady']} over {len(values)} columns": values} if values[1:] else {}
    )


def _within(limit: float, scores: Mapping[str, Sequence[Score]]) -> Finding:
    """No further apart than a limit holds where chance reaches no further either; further, by more than chance, fails."""
    ends = [(place, (max(each, key=_mean), min(each, key=_mean))) for place, each in scores.items()]
    gaps = _gaps([(place, "", pair) for place, pair in ends])
    if not gaps:
        return NO_ROWS
    sentences = [f"{gap.place}: {gap.points:.1f} ± {gap.margin:.1f} points apart" for gap in gaps]
    widest = sentences[max(range(len(gaps)), key=lambda index: gaps[index].points)]
    verdict = SUPPORTED if all(max(gap.points, gap.margin) <= limit for gap in gaps) else UNDECIDED
    if any(gap.points > max(limit, gap.margin) for gap in gaps):
        verdict = CONTRADICTED
    return _summed(
        "at most" if sentences[1:] else "there", sentences, verdict, _seeds(pair for _, pair in ends), widest
    )


def _mean(score: Score) -> float:
    return score.mean


def _reached(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender needs no more than every rival to reach a target; untold where it is not reached.

    A tenth more than the soonest is within what seeds and the spacing of evaluations do; more, in half of the places, fails.
    """
    method, sentences, ratios, used = test["soonest"], [], [], list[Score]()
    for place, there in scores.items():
        rivals = {name: there[name].mean for name in _rivals(test, method, there)}
        if method in there:
            best = min(rivals, key=lambda name: rivals[name], default=None)
            rest = f"{best} {_number(rivals[best])}" if best else "no other"
            sentences.append(f"{place}: {_number(there[method].mean)}, {rest}")
            ratios.append(there[method].mean / rivals[best] if best and rivals[best] else 1.0)
            used += [there[method], *([there[best]] if best else [])]
    if not scores:
        return NO_ROWS
    if not sentences:
        return Finding("the target is not reached", UNDECIDED)
    later = 2 * sum(ratio > 1.1 for ratio in ratios) >= len(ratios)
    verdict = CONTRADICTED if later else SUPPORTED if max(ratios) <= 1 else UNDECIDED
    first = sum(ratio <= 1 for ratio in ratios)
    brief = f"soonest in {first} of {len(ratios)} places" if sentences[1:] else ""
    return _summed(method, sentences, verdict, _seeds([used]), brief)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _columns(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one column is above another for every row."""
    high, low = (scores.get(name, {}) for name in test["above"])
    names = [row for row in test.get("rows", high) if row in high and row in low]
    gaps = _gaps([(row, "", (high[row], low[row])) for row in names])
    if not gaps:
        return NO_ROWS
    overall = _alike(gaps)
    subject = f"{test['above'][0]} less {test['above'][1]} in points"
    pairs = [(high[row], low[row]) for row in names]
    return _with_details(subject, gaps, [overall] if len(gaps) > 1 else gaps, _told(gaps, overall), pairs)


def _shares(test: Mapping[str, Any], shares: Mapping[str, tuple[int, int]]) -> Finding:
    """Whether at least a share of the clients is better off with one method than with another."""
    if not shares:
        return NO_ROWS
    sentences, verdicts = [], []
    for task, (better, count) in shares.items():
        share = better / count
        reach = 2 * math.sqrt(share * (1 - share) / count)
        sentences.append(f"{task} {better} of {count}")
        verdicts.append(
            SUPPORTED
            if share >= test["least"]
            else CONTRADICTED
            if share + reach < test["least"]
            else UNDECIDED
        )
    worst = next((verdict for verdict in (CONTRADICTED, UNDECIDED) if verdict in verdicts), SUPPORTED)
    better, count = (sum(numbers) for numbers in zip(*shares.values(), strict=True))
    return _summed(
        f"clients better off than with {test['than']}", sentences, worst, brief=f"{better} of {count} in all"
    )


JUDGES: dict[str, Callable[[Mapping[str, Any], Scores], Finding]] = {
    "ahead": _ahead,
    "behind": _behind,
    "keeps": _keeps,
    "falls": _falls,
    "equals": _equals,
    "ends": _ends,
    "shows": _shows,
    "part": _part,
    "spread": _spread,
    "steady": _steady,
    "soonest": _reached,
    "above": _columns,
}
"""How a test is judged, by the word that names its contender; `better` speaks of clients, not of scores."""
