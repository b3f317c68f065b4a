"""`potluck report | plot | table | export | leak | watch`: analyse runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.compare import Columns, Reference, Target

Order = Annotated[
    str | None, typer.Option("--order", help="comma list of methods that come first, such as fedgh,fedproto")
]
Names = Annotated[
    list[str] | None, typer.Option("--names", help="labels of methods, such as fedgh=FedGH,fedproto=FedProto")
]

RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that contain run folders")
]


Kind = Annotated[
    str,
    typer.Option(
        "--kind",
        help="accuracy, loss, notes, client-notes, clients, difference, target, pareto, heatmap, confusion, cka, "
        "tsne, sweep, …",
    ),
]


def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", help="the HTML file")] = Path("report.html"),
    reference: Annotated[
        str | None, typer.Option("--reference", help="method that the others are compared with")
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", help="show the cost of reaching this accuracy")
    ] = None,
    networks: Annotated[
        bool, typer.Option("--networks", help="add CKA and t-SNE of features, from checkpoints")
    ] = False,
) -> None:
    """Write one self-contained HTML report about one or more runs."""
    from potluck.report.html import write_report
    from potluck.runs.read import read_runs

    path = write_report(read_runs(*runs), out, reference=reference, target=target, networks=networks)
    typer.echo(f"Report: {path}")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    client: Annotated[str, typer.Option("--client", help="the client's number, from 0, or its name")] = "0",
    out: Annotated[Path | None, typer.Option("--out", help="folder; default: RUN/export/client-N")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx")] = False,
) -> None:
    """Export a client's trained model as it was evaluated: safetensors, a JSON description, and ONNX on request."""
    from potluck.runs.export import export_client
    from potluck.runs.predict import load_call, predict_command
    from potluck.runs.read import read_run

    number = int(client) if client.isdecimal() else read_run(run).client_number(client)
    place = export_client(run, number, out or run / "export" / f"client-{number}", onnx=onnx)
    typer.echo(f"Model: {place}")
    typer.echo(f"Load it with: {load_call(place)}")
    typer.echo(f"Predict with: {predict_command(place)}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="the folder of an exported model")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="image files or folders, texts or text files, CSV files, .npy or .npz files",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="a CSV file with the probability of every class")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", help="module:factory that makes your own network, if the model is one"),
    ] = None,
) -> None:
    """Predict class names, with probabilities, of raw images, texts or rows of a table."""
    from rich.console import Console
    from rich.table import Table

    from potluck.runs.predict import predict_inputs, to_csv

    rows = predict_inputs(model, inputs, network)
    if out is not None:
        out.write_text(to_csv(rows), encoding="utf-8")
        typer.echo(f"Predictions: {out} ({len(rows)} rows)")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("input", overflow="fold")
    for heading, side in (("class", "left"), ("probability", "right"), ("next best", "left")):
        table.add_column(heading, justify="right" if side == "right" else "left")
    for name, prediction in rows:
        next_best = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])[1:2]
        following = "".join(f"{class_name} {share:.3f}" for class_name, share in next_best)
        table.add_row(name, prediction.class_name, f"{prediction.probability:.3f}", following)
    Console().print(table)


def clean(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="folders of finished runs, or folders of such folders"),
    ],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="also the last checkpoint: no resume and no export any more")
    ] = False,
) -> None:
    """Delete what finished runs no longer need: all but their last checkpoint; says how much."""
    from potluck.analysis.formatting import bytes_with_unit
    from potluck.runs.clean import clean_run
    from potluck.runs.folder import EXPERIMENT, SUMMARY
    from potluck.runs.read import find_runs

    named = {run for run in runs if (run / EXPERIMENT).exists()}
    for run in find_runs(runs):
        if run not in named and not (run / SUMMARY).exists():
            typer.echo(f"{run}: not finished, left as it is")
            continue
        cleaned = clean_run(run, checkpoint=checkpoint)
        typer.echo(f"{run}: {bytes_with_unit(cleaned.deleted)} deleted, {bytes_with_unit(cleaned.left)} left")


def plot(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", help="the figure: .pdf, .png or .svg")] = Path("figure.pdf"),
    kind: Kind = "accuracy",
    x: Annotated[
        str, typer.Option("--x", help="rounds, samples, bytes, seconds or virtual_seconds")
    ] = "rounds",
    target: Annotated[float | None, typer.Option("--target", help="draw a line at this accuracy")] = None,
    smooth: Annotated[int, typer.Option("--smooth", help="mean over this many rounds")] = 1,
    reference: Reference = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            help="sweep: the setting that varies; notes: their name; heatmap: architectures, clients or classes; "
            "tsne: features, prototypes or vectors",
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option("--client", help="confusion, client-curves, client-notes: only this client"),
    ] = None,
    order: Order = None,
    names: Names = None,
) -> None:
    """Draw a figure for a paper from one or more runs."""
    from potluck.report.figures import plot as draw
    from potluck.report.style import name_list, name_map
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
        order=name_list(order),
        names=name_map(names),
    )
    typer.echo(f"Figure: {path}")


def table(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", help="the table: .tex, .md or .csv")] = Path("table.tex"),
    columns: Columns = None,
    target: Target = None,
    reference: Reference = None,
    order: Order = None,
    names: Names = None,
    caption: Annotated[str, typer.Option("--caption", help="LaTeX: the table's caption")] = "",
    label: Annotated[str, typer.Option("--label", help="LaTeX: the table's label, such as tab:main")] = "",
) -> None:
    """Write a comparison of runs for a paper; in LaTeX the best and second best are marked, by significance test."""
    from potluck.analysis.comparison import compare
    from potluck.analysis.tables import to_csv, to_latex, to_markdown
    from potluck.cli.compare import column_list
    from potluck.core.errors import PotluckError, unknown
    from potluck.report.style import name_list, name_map
    from potluck.runs.folder import write_files
    from potluck.runs.read import read_runs

    suffix = out.suffix.removeprefix(".")
    if suffix not in ("tex", "md", "csv"):
        raise unknown("table format", suffix or out.name, ("tex", "md", "csv"))
    if suffix != "tex" and (caption or label):
        raise PotluckError(f"--caption and --label apply to LaTeX tables; name the file {out.stem}.tex.")
    shown = column_list(columns, target)
    comparison = compare(
        read_runs(*runs), target, reference, shown, order=name_list(order), names=name_map(names)
    )
    forms = {"csv": to_csv, "md": to_markdown}
    text = to_latex(comparison, caption, label) if suffix == "tex" else forms[suffix](comparison)
    write_files(out.parent, {out.name: text})
    typer.echo(f"Table: {out}")


def leak(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run with --keep-answers")],
) -> None:
    """Measure what the stored answers of a run reveal, each score beside its chance level.

    Scores go to RUN/leaks.json, reconstructed images to RUN/leaks.png, and both into the run's report.
    """
    from rich.console import Console
    from rich.table import Table

    from potluck.analysis.leak import find_leaks
    from potluck.report.html import write_report
    from potluck.report.leaks import draw_pictures
    from potluck.runs.folder import LEAKS, REPORT, write_files

    findings = find_leaks(run)
    table = Table(box=None, pad_edge=False)
    for heading, side in (("question", "left"), ("score", "right"), ("chance", "right"), ("cases", "right")):
        table.add_column(heading, justify="left" if side == "left" else "right")
    table.add_column("from")
    for score in findings.scores:
        table.add_row(
            score.question, f"{score.score:.3f}", f"{score.chance:.3f}", str(score.cases), score.way
        )
    Console().print(table if findings.scores else "The run sent nothing that these attacks apply to.")
    for sentence in findings.skipped:
        typer.echo(sentence)
    stored = findings.stored()
    write_files(run, {LEAKS: json.dumps(stored, indent=1) + "\n"})
    typer.echo(f"Scores: {run / LEAKS}")
    if pictures := draw_pictures(run, stored["pictures"]):
        typer.echo(f"Pictures: {pictures}")
    typer.echo(f"Report: {write_report([run], run / REPORT)}")


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS…]", help="run folders, or folders that contain them; default: runs/"),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="0: any free port", min=0, max=65535)] = 0,
) -> None:
    """Serve a read-only page on this machine that shows runs while they train, until Ctrl-C."""
    from potluck.core.errors import PotluckError
    from potluck.report.live.server import LiveServer
    from potluck.report.live.status import WatchedRuns
    from potluck.runs.folder import RUNS

    for place in runs or ():
        if not place.is_dir():
            raise PotluckError(f"No folder at {str(place)!r}: pass a folder for runs.")
    places = runs or [RUNS]
    with LiveServer(WatchedRuns(places), port) as server:
        typer.echo(
            f"Watching {', '.join(str(place) for place in places)}. Open this address, and do not share it:"
        )
        typer.echo(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Stopped watching; the runs continue.")
