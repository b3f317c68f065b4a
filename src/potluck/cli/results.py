"""`potluck report` and `potluck plot`: looking at finished (or unfinished) runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that hold some")
    ],
    out: Annotated[Path, typer.Option("--out", help="the HTML file")] = Path("report.html"),
    reference: Annotated[
        str | None, typer.Option("--reference", help="method to compare clients with")
    ] = None,
    target: Annotated[float | None, typer.Option("--target", help="accuracy to measure the cost of")] = None,
    networks: Annotated[
        bool, typer.Option("--networks", help="also what networks see: CKA and t-SNE, from checkpoints")
    ] = False,
) -> None:
    """Write one self-contained HTML file about one or more runs."""
    from potluck.report.html import write_report
    from potluck.runs.read import read_runs

    path = write_report(read_runs(*runs), out, reference=reference, target=target, networks=networks)
    typer.echo(f"Report: {path}")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    client: Annotated[int, typer.Option("--client", help="the client's number, from 0")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="folder; default: RUN/export/client-N")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx")] = False,
) -> None:
    """Write a client's trained model as it was tested: safetensors, a small JSON, and ONNX if asked."""
    from potluck.runs.export import export_client

    place = export_client(run, client, out or run / "export" / f"client-{client}", onnx=onnx)
    typer.echo(f"Model: {place}")
    typer.echo(f"Load it with: potluck.load_model({str(place)!r})")


def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that hold some")
    ],
    out: Annotated[Path, typer.Option("--out", help="the figure: .pdf, .png or .svg")] = Path("figure.pdf"),
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="accuracy, loss, notes, client-notes, clients, difference, target, pareto, heatmap, confusion, cka, "
            "tsne, sweep, …",
        ),
    ] = "accuracy",
    x: Annotated[str, typer.Option("--x", help="rounds, bytes, seconds or virtual_seconds")] = "rounds",
    target: Annotated[float | None, typer.Option("--target", help="draw a line at this accuracy")] = None,
    smooth: Annotated[int, typer.Option("--smooth", help="mean over this many rounds")] = 1,
    reference: Annotated[
        str | None, typer.Option("--reference", help="method that differences are taken to")
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            help="sweep: the setting varied; notes: which; heatmap: architectures, clients or classes; tsne: features, "
            "prototypes or vectors",
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option("--client", help="confusion, client-curves, client-notes: of this client alone"),
    ] = None,
) -> None:
    """Draw a figure for print from one or more runs."""
    from potluck.report.figures import plot as draw
    from potluck.runs.read import read_runs

    path = draw(
        read_runs(*runs),
        out,
        kind=kind,
        x=x,
        target=target,
        smooth=smooth,
        reference=reference,
        field=field,
        client=client,
    )
    typer.echo(f"Figure: {path}")
