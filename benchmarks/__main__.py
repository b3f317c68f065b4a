"""Measure speed and memory as ratios inside one run: `python -m benchmarks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Protocol

import typer

from benchmarks import features, small_clients, step
from benchmarks.engines import measure_layout, measure_pool, measure_vectorized
from benchmarks.overheads import measure_data, measure_shares, measure_start
from benchmarks.results import Row, machine, markdown, store_rows, to_json
from benchmarks.scaling import measure_growth
from benchmarks.training import measure_local, measure_methods, measure_scores
from potluck.core.errors import PotluckError, unknown
from potluck.core.random import one_thread
from potluck.worker.memory import retain_freed_memory


class Part(Protocol):
    """Measures something, row by row."""

    def __call__(self, *, quick: bool = False) -> Iterator[Row]:
        """The rows; `quick` only shows that everything works."""


PARTS: Mapping[str, Part] = {
    "local": measure_local,
    "step": step.measure,
    "methods": measure_methods,
    "measures": measure_scores,
    "pool": measure_pool,
    "vectorized": measure_vectorized,
    "small-clients": small_clients.measure,
    "layout": measure_layout,
    "data": measure_data,
    "start": measure_start,
    "features": features.measure,
    "shares": measure_shares,
    "growth": measure_growth,
}


def run_suite(
    out: Path | None = None,
    *,
    quick: bool = False,
    parts: Iterable[str] = tuple(PARTS),
    show: Callable[[str], None] = print,
    store: Path | None = None,
) -> list[Row]:
    """Measure, show each row as it comes, and write `bench.md` and `bench.json` into `out`.

    `store` is a table in which rows of the same parts are replaced.
    """
    chosen = list(parts)
    for name in chosen:
        if name not in PARTS:
            raise unknown("part of the benchmark", name, PARTS)
    retain_freed_memory()
    show(machine())
    rows: list[Row] = []
    with one_thread():
        for name in chosen:
            for row in PARTS[name](quick=quick):
                rows.append(row)
                show(str(row))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.md").write_text(f"{machine()}\n\n{markdown(rows)}", encoding="utf-8")
        (out / "bench.json").write_text(to_json(rows), encoding="utf-8")
        show(f"Written to {out / 'bench.md'} and {out / 'bench.json'}")
    if store is not None:
        store_rows(store, rows)
        show(f"Stored in {store}")
    return rows


def main(
    quick: Annotated[bool, typer.Option("--quick", help="under a minute; the figures mean little")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for bench.md and bench.json")] = Path("bench"),
    part: Annotated[list[str] | None, typer.Option("--part", help=" | ".join(PARTS))] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="table to keep the rows in; rows of the same parts are replaced"),
    ] = None,
) -> None:
    """Measure speed and memory as ratios inside one run; about a quarter of an hour on two free cores."""
    try:
        run_suite(out, quick=quick, parts=part or PARTS, show=typer.echo, store=store)
    except PotluckError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
