"""Push a finished run's models, model card and results to a repository of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from potluck import __version__
from potluck.analysis.comparison import compare
from potluck.analysis.formatting import percent
from potluck.analysis.tables import to_csv, to_markdown
from potluck.core.errors import PotluckError, plain
from potluck.core.files import parse_json, read_text
from potluck.runs.export import check_objects, export_restored
from potluck.runs.exported import DESCRIPTION, class_of
from potluck.runs.folder import write_files
from potluck.runs.plan import Parts
from potluck.runs.predict import own_networks
from potluck.runs.read import read_run
from potluck.runs.restore import RestoredRun, restore_run
from potluck.runs.run import ClientResult, Run

CARD, RESULTS, MODELS = "README.md", "results.csv", "clients"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_TASKS = {"image": "image-classification", "text": "text-classification", "table": "tabular-classification"}


@dataclass(frozen=True)
class PushedModel:
    """One exported model of an upload: the client's result, its folder in the repository, its description."""

    client: ClientResult
    folder: str
    description: dict[str, Any]


def push_run(run: str | Path, repo: str, clients: Sequence[int] = (), *, public: bool = False) -> str:
    """Push a finished run to a repository of the Hub, made if it does not exist, and return its address.

    What leaves this machine: exported models of these clients (all that took part, without `clients`), a model card,
    a table of results; no data and no checkpoints. A new repository is private unless `public`. `HF_ENDPOINT` names
    another Hub, `HF_TOKEN` the token.
    """
    if not _REPOSITORY.fullmatch(repo):
        raise PotluckError(f"REPO {plain(repo, 100)!r} is not a Hub repository; write OWNER/NAME.")
    hub = _hub()
    with TemporaryDirectory() as folder:
        write_upload(Path(run), Path(folder), repo, clients)
        try:
            address = hub.create_repo(repo, private=not public, exist_ok=True)
            hub.upload_folder(repo_id=repo, folder_path=folder, commit_message="Push a run of Potluck")
        except Exception as error:  # versions of the library use HTTP clients with errors of their own
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise PotluckError(
                f"The Hub {hub.endpoint} did not take {repo!r} ({plain(reason, 300).rstrip('.')}); check the network, "
                "the token (HF_TOKEN, or: hf auth login) and the repository's name, then push again."
            ) from None
    return str(address)


def _hub() -> Any:
    """Return the Hub's client."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise PotluckError(
            "potluck push needs a package that is not installed; run: pip install 'potluck[hub]'."
        ) from None
    return HfApi(
        endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="potluck", library_version=__version__
    )


def write_upload(run: Path, out: Path, repo: str, clients: Sequence[int] = ()) -> None:
    """Write the files of a repository: a card, a table of results, and a folder for each client's model."""
    finished = read_run(run)
    if not finished.finished:
        raise PotluckError(
            f"The run in {str(run)!r} has not finished; finish it first: potluck resume {run}."
        )
    check_objects(run, Parts())
    restored = restore_run(run)
    models = _write_models(finished, restored, out, clients)
    comparison = compare([finished])
    card = model_card(finished, models, to_markdown(comparison), repo)
    write_files(out, {CARD: card, RESULTS: to_csv(comparison)})


def _write_models(run: Run, restored: RestoredRun, out: Path, clients: Sequence[int]) -> list[PushedModel]:
    infos = restored.plan.federation.task.clients
    absent = restored.removed | set(restored.loop.absent)
    chosen = list(dict.fromkeys(clients)) or [info.index for info in infos if info.index not in absent]
    results = {result.index: result for result in run.client_results}
    models = []
    for index in chosen:
        if not 0 <= index < len(infos):
            raise PotluckError(
                f"--client {index} is not in {str(run.path)!r}; it has clients 0 to {len(infos) - 1}."
            )
        info = infos[index]
        folder = f"{MODELS}/{_folder_names(restored)[index]}"
        place = export_restored(restored, index, out / folder)
        untested = ClientResult(index, info.name, info.architecture, float("nan"), info.samples, None)
        description = parse_json(read_text(place / DESCRIPTION))
        models.append(PushedModel(results.get(index, untested), folder, description))
    return models


def _folder_names(restored: RestoredRun) -> list[str]:
    """Return a folder name for each client: its name, with its number where names differ in other signs only."""
    names = [_slug(info.name) for info in restored.plan.federation.task.clients]
    return names if len(set(names)) == len(names) else [f"{index}-{name}" for index, name in enumerate(names)]


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:80] or "unnamed"


# -- the card ------------------------------------------------------------------------------------------------------


def model_card(run: Run, models: Sequence[PushedModel], results: str, repo: str) -> str:
    """Return the card of a repository, with the metadata that the Hub reads."""
    method = run.method.rpartition(":")[2]
    classes = models[0].description["class_names"] or range(models[0].description["num_classes"])
    lines = [
        *_metadata(run, models),
        f"# {_cell(method)} on {_cell(run.dataset)}: one model per client",
        "",
        f"{len(models)} models that clients of a federation trained with Potluck {__version__} (method "
        f"{_cell(method)}, {run.num_rounds} rounds, seed {run.seed}), each as its client was tested at the end.",
        "",
        f"Classes: {_cell(', '.join(map(str, classes)), 2000)}.",
        "",
        "## Models",
        "",
        "| client | architecture | training samples | test samples | accuracy % |",
        "|---|---|---:|---:|---:|",
        *(_model_row(model) for model in models),
        "",
        "Accuracy is that on the client's own test samples.",
        "",
        "## Results",
        "",
        results,
        f"`{RESULTS}` has all numbers.",
        "",
        *_use(models[0], repo),
        "",
        "## Limits",
        "",
        "A model is fitted to its client's data and was tested on those alone. Models can reveal facts about the rows "
        "they were trained on; class names, words and categories of the data are in `model.json`.",
        "",
    ]
    return "\n".join(lines)


def _metadata(run: Run, models: Sequence[PushedModel]) -> list[str]:
    kind = (models[0].description["raw"] or {}).get("kind")
    tags = ["federated-learning", "heterogeneous-models", _slug(run.method.rpartition(":")[2]).lower()]
    task = [f"pipeline_tag: {_TASKS[kind]}"] if kind in _TASKS else []
    return ["---", "library_name: potluck", *task, "tags:", *(f'- "{tag}"' for tag in tags), "---", ""]


def _model_row(model: PushedModel) -> str:
    client = model.client
    train, test = (
        "–" if count is None else str(count) for count in (client.train_samples, client.test_samples)
    )
    link = f"[{_cell(client.name)}]({model.folder})"
    accuracy = percent(client.accuracy) if client.accuracy == client.accuracy else "–"
    return f"| {link} | {_cell(client.architecture)} | {train} | {test} | {accuracy} |"


def _use(model: PushedModel, repo: str) -> list[str]:
    """Return how to load a model from the repository."""
    own = own_networks(model.description["model"])
    classes = ", ".join(f'"{name}": {name}' for name in dict.fromkeys(class_of(node) for node in own))
    arguments = f", models={{{classes}}}" if own else ""
    return [
        "## Use",
        "",
        "```python",
        "import potluck",
        "from huggingface_hub import snapshot_download",
        *([f"from your_module import {name}" for name in dict.fromkeys(class_of(node) for node in own)]),
        "",
        f'place = snapshot_download("{repo}", allow_patterns="{model.folder}/*")',
        f'model = potluck.load_model(f"{{place}}/{model.folder}"{arguments})',
        "model.predict(…)  # raw inputs as in training; gives class names with probabilities",
        "```",
    ]


def _cell(text: str, limit: int = 200) -> str:
    """Return a text of others for Markdown: on one line, without signs that mean something there."""
    return re.sub(r"([\\`*{}\[\]<>|#])", r"\\\1", plain(" ".join(text.split()), limit))
