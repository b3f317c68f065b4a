"""All parts of the benchmark, and the files that they end in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from benchmarks import (
    data,
    growth,
    layout,
    local,
    measures,
    methods,
    pool,
    shares,
    small_clients,
    start,
    step,
    vectorized,
)
from benchmarks.rows import Row, machine, markdown, to_json
from benchmarks.store import store_rows
from potluck.core.errors import unknown
from potluck.core.random import one_thread
from potluck.worker.memory import retain_freed_memory


class Part(Protocol):
    """Measures something, row by row."""

    def __call__(self, *, quick: bool = False) -> Iterator[Row]:
        """The rows; `quick` only shows that everything works."""


PARTS: Mapping[str, Part] = {
    "local": local.measure,
    "step": step.measure,
    "methods": methods.measure,
    "measures": measures.measure,
    "pool": pool.measure,
    "vectorized": vectorized.measure,
    "small-clients": small_clients.measure,
    "layout": layout.measure,
    "data": data.measure,
    "start": start.measure,
    "shares": shares.measure,
    "growth": growth.measure,
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
