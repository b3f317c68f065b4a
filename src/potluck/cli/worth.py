"""`potluck worth-it`: what each client may expect of joining, before or early in training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from potluck.cli import options

if TYPE_CHECKING:
    from potluck.analysis.worth_it import ClientFacts, Rule, RuleScore
    from potluck.experiment import Experiment


@options.with_flags(*options.EXPERIMENT, "seed")
def worth_it(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD|FILE.toml|RUN…", help="an experiment, or folders of runs with a safeguard"
        ),
    ],
    flags: options.Flags,
    settings: options.Settings = None,
    try_rounds: Annotated[
        int,
        typer.Option("--try-rounds", help="train so many federated rounds, and alone, for evidence", min=0),
    ] = 0,
) -> None:
    """Say for each client what it may expect of joining: a gain with an interval, or that it cannot be told."""
    from potluck.core.errors import PotluckError
    from potluck.runs.read import is_run, read_run

    folders = [Path(target) for target in targets if is_run(Path(target))]
    if not folders:
        if len(targets) > 1:
            missing = next(target for target in targets if not is_run(Path(target)))
            raise PotluckError(f"{missing!r} is no run folder; give one experiment, or folders of runs.")
        _show(targets[0], *_from_experiment(targets[0], flags, settings, try_rounds))
        return
    if len(folders) < len(targets):
        raise PotluckError(
            "Experiments and run folders cannot be mixed; give one experiment, or folders of runs."
        )
    if try_rounds or settings or any(value is not None for value in flags.values()):
        raise PotluckError(
            "--try-rounds, --set and flags of experiments have no effect on runs; leave them out."
        )
    from potluck.analysis.worth_it import run_facts

    for folder in folders:
        facts = run_facts(read_run(folder))
        if not facts:
            raise PotluckError(
                f"{str(folder)!r} has no evaluated clients yet; wait for the first evaluation."
            )
        _show(str(folder), facts, _evidence(facts))


def _from_experiment(
    target: str, flags: Mapping[str, Any], settings: list[str] | None, try_rounds: int
) -> tuple[dict[str, ClientFacts], str]:
    """Return the clients of an experiment: from their class counts, or after a few rounds of training."""
    from potluck.analysis.worth_it import counted_facts
    from potluck.core.errors import PotluckError
    from potluck.experiment import merge_settings, parse_experiment, read_target
    from potluck.runs.resolve import resolve

    experiment = parse_experiment(merge_settings(read_target(target), dict(flags), settings))
    if experiment.method.name == "standalone":
        raise PotluckError("method.name = 'standalone' is training alone; name the federated method to join.")
    if try_rounds:
        facts = _pilot(experiment, try_rounds)
        return facts, _evidence(facts)
    federation = resolve(experiment, measure=False).federation
    names = [info.name for info in federation.task.clients]
    counts = federation.class_counts()
    return {name: counted_facts(own) for name, own in zip(names, counts, strict=True) if sum(own)}, "before"


def _pilot(experiment: Experiment, rounds: int) -> dict[str, ClientFacts]:
    """Train a few rounds with a safeguard in a temporary folder."""
    from potluck.analysis.worth_it import run_facts
    from potluck.api import execute

    changes: dict[str, Any] = {
        "schedule.rounds": rounds,
        "evaluate.every": rounds,
        "engine.checkpoint_every": 0,
        "evaluate.newcomers": 0.0,
        "evaluate.newcomer_epochs": None,
    }
    if not experiment.safeguard:
        changes["safeguard.mode"] = "select"
    with tempfile.TemporaryDirectory(prefix="potluck-worth-it-") as folder:
        return run_facts(execute(experiment.with_settings(changes), out=Path(folder) / "run"))


def _evidence(facts: Mapping[str, ClientFacts]) -> str:
    return "early" if any(client.gained is not None for client in facts.values()) else "before"


def _show(title: str, facts: Mapping[str, ClientFacts], when: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from potluck.analysis.worth_it import shipped_rules

    rules = shipped_rules()
    rule, score = rules.get(when, rules["before"])
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in (
        "client",
        "samples",
        "classes",
        "validation",
        "expected gain, points",
        "80 % interval",
        "",
    ):
        justify: Literal["left", "right"] = "left" if heading in ("client", "") else "right"
        table.add_column(heading, justify=justify, no_wrap=heading != "expected gain, points")
    verdicts = []
    for name, client in facts.items():
        prediction = rule.predict(client)
        verdicts.append(prediction.verdict)
        evidence = "" if client.gained is None else f"+{client.gained} -{client.lost} of {client.validation}"
        interval = f"{100 * prediction.low:+.1f} to {100 * prediction.high:+.1f}"
        table.add_row(
            name,
            str(client.samples),
            str(client.classes or ""),
            evidence,
            f"{100 * prediction.gain:+.1f}",
            interval,
            prediction.verdict,
        )
    Console().print(table)
    typer.echo(_explain(rule, score, when, verdicts))


def _explain(rule: Rule, score: RuleScore, when: str, verdicts: Sequence[str]) -> str:
    evidence = {
        "samples": "the number of training samples",
        "counts": "class counts",
        "local": "a short local run",
        "early": "the early difference on validation samples",
    }
    unclear = sum(verdict == "cannot tell" for verdict in verdicts)
    words = [
        f"Expected by {evidence[rule.name]}. On {score.cases:,} results of clients in tasks that the rule was not "
        f"calibrated on: rank correlation of expected and actual gain {score.rank_correlation:+.2f}, "
        f"{score.coverage:.0%} of gains within the interval."
    ]
    if when == "early" and rule.name == "samples":
        words.append(
            "On stored rows early differences on validation samples predicted no better; they are shown only."
        )
    if unclear == len(verdicts) and when == "before":
        words.append(
            "With --safeguard select every client keeps its own model unless the federated one is better."
        )
    return " ".join(words)
