"""How samples spread over clients and classes: counts, a table of sizes, the papers' bubble plot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError

COLOUR = "#0072B2"  # the blue of Okabe and Ito: distinct from white and grey under colour blindness


def counts(labels: ArrayLike, parts: Sequence[NDArray[np.int64]], num_classes: int) -> NDArray[np.int64]:
    """Return the number of rows per client and class, `[clients, classes]`."""
    values, owners = np.asarray(labels), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cells = owners * num_classes + values[np.concatenate(parts)]
    return np.bincount(cells, minlength=len(parts) * num_classes).reshape(len(parts), num_classes)


def sizes_table(counts: NDArray[np.int64], class_names: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    """Return a line per client: its rows, its classes, and the class it has most of."""
    width = max([10, *map(len, names)])
    lines = [f"{'client':>{width}} {'rows':>8} {'classes':>8}  most of"]
    for client, row in enumerate(counts):
        top = int(np.argmax(row))
        name = class_names[top] if class_names else f"class {top}"
        share = row[top] / max(row.sum(), 1)
        label = names[client] if names else str(client)
        lines.append(f"{label:>{width}} {row.sum():>8,} {(row > 0).sum():>8}  {name} ({share:.0%})")
    sizes = counts.sum(axis=1)
    lines.append(f"{'all':>{width}} {sizes.sum():>8,} {(counts.sum(axis=0) > 0).sum():>8}  ")
    lines[-1] += f"rows per client {sizes.min():,} to {sizes.max():,}, mean {sizes.mean():,.1f}"
    return "\n".join(lines)


def bubble_plot(
    counts: NDArray[np.int64],
    path: str | os.PathLike[str] | None = None,
    title: str = "",
    class_names: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Any:
    """Draw a bubble per client (across) and class (up) whose area is the number of samples; save by suffix.

    Returns the matplotlib figure, which a notebook shows by itself.
    """
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    width, height = min(max(4.5, 2.2 + 0.28 * clients), 18), min(max(3.2, 1.4 + 0.26 * classes), 16)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    # The largest bubble just fills its cell: a cell is this many points wide, and sizes are areas in points².
    cell = 72 * min((width - 2.0) / clients, (height - 1.0) / classes)
    scale = cell**2 / max(int(counts.max()), 1)
    client, label = np.nonzero(counts)
    areas = counts[client, label] * scale
    axes.scatter(client, label, s=areas, color=COLOUR, alpha=0.75, linewidths=0)
    axes.set(
        xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3), title=title
    )
    every = -(-clients // 25)
    axes.set_xticks(range(0, clients, every), list(names)[::every] or None)
    axes.tick_params(axis="x", rotation=45 if names else 0)
    step = -(-classes // 25)
    axes.set_yticks(range(0, classes, step), list(class_names)[::step] or None)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for number in _legend_sizes(int(counts.max())):
        axes.scatter([], [], s=number * scale, color=COLOUR, alpha=0.75, linewidths=0, label=f"{number:,}")
    axes.legend(title="samples", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelspacing=1.2)
    if path is not None:
        try:
            figure.savefig(path, dpi=160)
        except (OSError, ValueError) as error:
            raise PotluckError(
                f"--out {str(path)!r} cannot be drawn ({error}); name a .png, .svg or .pdf in a folder that exists."
            ) from None
    return figure


def _legend_sizes(largest: int) -> list[int]:
    """Up to three round numbers below the largest count."""
    sizes: list[int] = []
    for share in (0.1, 0.4, 1.0):
        value = share * largest
        unit = 10 ** max(len(str(int(value))) - 1, 0)
        sizes.append(max(int(value // unit * unit), 1))
    return sorted(set(sizes))
