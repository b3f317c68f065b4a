"""The four sizes of a reproduction: as printed, with fewer rounds, small for a laptop, and a minute's test."""

from __future__ import annotations

from typing import Literal, get_args

from potluck.core.errors import PotluckError, unknown
from potluck.core.mixed_precision import is_bf16_slow
from potluck.experiment import Experiment, flat_settings, parse_experiment
from potluck.experiment.differences import changes_results
from potluck.models import resolve_models
from potluck.recipes.content import Values, merged

Scale = Literal["smoke", "small", "full", "paper"]

ABOUT: dict[Scale, str] = {
    "paper": "the settings of the paper",
    "full": "the paper's data, clients, models and local training, with fewer rounds where the list below says so",
    "small": "a small version of the experiment: compare the order of the rows, over several seeds, not the numbers",
    "smoke": "two rounds on embedded digits: this shows that every cell runs, and its numbers mean nothing",
}
SMALL = {"turns": 10, "rows": 4000, "cohort": 5, "epochs": 1, "batch_size": 8}
"""`turns` is how often a client takes part on average: all populations train for as long."""
FULL_SHARE = 0.2
"""The share of the paper's rounds at the full scale where neither the recipe nor the user states another."""
SMOKE = {"rounds": 2, "rows": 300, "clients": 4, "batch_size": 16}


def check_scale(text: str) -> Scale:
    """Return the scale of this name."""
    names: tuple[Scale, ...] = get_args(Scale)
    for name in names:
        if text == name:
            return name
    raise unknown("scale", text, names)


def at_scale(values: Values, scale: Scale, own: Values, rounds_share: float | None = None) -> Values:
    """Return an experiment of the paper at another scale.

    `own` is what its recipe asks for at that scale; `rounds_share` is the share of the paper's rounds at the full one.
    """
    paper = parse_experiment(values)
    if scale == "full":
        return _full(values, paper, own, rounds_share)
    if scale == "small":
        return merged(values, _small(paper), own)
    return merged(values, _smoke(paper)) if scale == "smoke" else values


def _full(values: Values, paper: Experiment, own: Values, rounds_share: float | None) -> Values:
    """Return the first rounds of the paper's run; a share that the user states goes before what the recipe says.

    Losses are computed in float32 where the processor only emulates bf16; stored cells say which it was.
    """
    share = rounds_share
    if share is None and "rounds" not in own.get("schedule", {}):
        share = own.get("rounds_share", FULL_SHARE)
    result = merged(values, {key: value for key, value in own.items() if key != "rounds_share"})
    if is_bf16_slow() and result.get("training", {}).get("amp") == "bf16":
        result = merged(result, {"training": {"amp": "off"}})
    if share is None:
        return result
    return merged(result, {"schedule": {"rounds": max(1, round(share * paper.schedule.rounds))}})


def check_rounds_share(share: float | None, scale: Scale) -> float | None:
    """Return the share if it can act; else raise with the remedy."""
    if share is None:
        return None
    if scale != "full":
        raise PotluckError(f"--rounds-share {share:g} has no effect at --scale {scale}; use --scale full.")
    if not 0 < share <= 1:
        raise PotluckError(f"--rounds-share {share:g} must be above 0 and at most 1, such as 0.2.")
    return share


def _small(paper: Experiment) -> Values:
    """Return few rows, a quarter to test on; each client takes part about ten times, for an epoch each."""
    clients = _fewer(paper.partition.clients)
    participation = max(paper.schedule.participation, min(SMALL["cohort"] / clients, 1.0))
    rounds = min(paper.schedule.rounds, round(SMALL["turns"] / participation))
    return {
        "data": {"limit": SMALL["rows"], "augment": [], **_tested(paper)},
        "partition": {"clients": clients, "rule": _without_floor(paper.partition.rule)},
        "training": {
            "epochs": min(paper.training.epochs, SMALL["epochs"]),
            "batch_size": min(paper.training.batch_size, SMALL["batch_size"]),
        },
        "schedule": {"rounds": rounds, "participation": participation},
        "evaluate": {"every": max(1, rounds // 5)},
        **_warm_up(paper, rounds),
    }


def _fewer(clients: int) -> int:
    """Ten of ten, 15 of 50, 20 of 100: fewer, and still different where the paper's populations are."""
    return min(clients, 5 * round(2 * float((clients / 10) ** (1 / 3))))


def _tested(paper: Experiment) -> Values:
    """Clients' own test samples are a quarter of theirs: a tenth of so few would measure chance."""
    return {} if paper.evaluate.protocol == "shared" else {"split": "3:1"}


def _smoke(paper: Experiment) -> Values:
    """Embedded data, few clients, two rounds of one epoch, whatever small models the method can use."""
    kind = paper.partition.rule.partition(":")[0]
    rule = {"pathological": "pathological:2", "dirichlet": "dirichlet:0.5"}.get(kind, kind)
    names = paper.models.names
    alike = names != ("auto",) and len(resolve_models(names)) == 1
    return {
        "data": {"name": "digits", "limit": SMOKE["rows"], "image_size": None, "augment": []},
        "partition": {"clients": min(paper.partition.clients, SMOKE["clients"]), "rule": rule},
        "models": {"names": ["mini-resnet-2" if alike else "auto"], "feature_dim": None, "shared": None},
        "training": {"epochs": 1, "batch_size": min(paper.training.batch_size, SMOKE["batch_size"])},
        "schedule": {
            "rounds": SMOKE["rounds"],
            "participation": max(paper.schedule.participation, 0.5),
        },
        "evaluate": {"every": 1},
        "engine": {"name": "serial", "checkpoint_every": 0},
        **_warm_up(paper, SMOKE["rounds"]),
    }


def _warm_up(paper: Experiment, rounds: int) -> Values:
    """Return an option that counts rounds shrinks as they do, or a short run would be nothing but warm-up."""
    stated = (paper.method.model_extra or {}).get("warm_up")
    return {} if stated is None else {"method": {"warm_up": max(1, stated * rounds // paper.schedule.rounds)}}


def _without_floor(rule: str) -> str:
    """Return a partition without its least number of rows per client, which is for the whole data set."""
    return ",".join(part for part in rule.split(",") if not part.startswith("min_size="))


def differences(paper: Experiment, actual: Experiment) -> dict[str, tuple[str, str]]:
    """Return every setting in which an experiment is not the paper's; where it runs does not count."""
    left, right = flat_text(paper.model_dump()), flat_text(actual.model_dump())
    return {
        key: (left.get(key, "unset"), right.get(key, "unset"))
        for key in left | right
        if left.get(key) != right.get(key) and key != "seed" and changes_results(key)
    }


def flat_text(values: Values) -> dict[str, str]:
    """Nested values by their dotted names, as text; what is unset is left out."""
    return {key: _text(value) for key, value in flat_settings(values).items() if value is not None}


def _text(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
