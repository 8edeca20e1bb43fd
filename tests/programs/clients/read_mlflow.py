"""Everything that a tracking server has, as JSON; with `--newest-job`, what it has of that job alone."""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import FileInfo, LoggedModel, Run, ViewType

TEXTS = {"", ".csv", ".html", ".json", ".txt", ".yaml", ".yml"}
LARGEST = 200_000

os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
client = MlflowClient()


def paged(page: Callable[[str | None], Any]) -> Iterator[Any]:
    found = page(None)
    yield from found
    while found.token:
        found = page(found.token)
        yield from found


def files_below(listed: Callable[[str | None], list[FileInfo]], local: Path, path: str | None = None) -> list[Any]:
    """All files and directories, those of a text with it. `local` is a copy of them."""
    found: list[Any] = []
    for file in listed(path):
        entry = {"path": file.path, "is_dir": file.is_dir, "size": file.file_size}
        if file.is_dir:
            entry["files"] = files_below(listed, local, file.path)
        elif Path(file.path).suffix in TEXTS and (local / file.path).stat().st_size < LARGEST:
            entry["text"] = (local / file.path).read_text()
        found.append(entry)
    return found


def artifacts(uri: str, listed: Callable[[str | None], list[FileInfo]]) -> list[Any]:
    if not listed(None):
        return []
    with tempfile.TemporaryDirectory() as scratch:
        return files_below(listed, Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=scratch)))


def described(run: Run) -> dict[str, Any]:
    info, data = run.info, run.data
    history = {key: client.get_metric_history(info.run_id, key) for key in data.metrics}
    return {
        "id": info.run_id,
        "name": info.run_name,
        "experiment": info.experiment_id,
        "uri": info.artifact_uri,
        "status": info.status,
        "lifecycle": info.lifecycle_stage,
        "start": info.start_time,
        "end": info.end_time,
        "parent": data.tags.get("mlflow.parentRunId"),
        "params": data.params,
        "tags": data.tags,
        "latest": data.metrics,
        "history": {key: [[p.timestamp, p.step, p.value] for p in points] for key, points in history.items()},
        "artifacts": artifacts(info.artifact_uri, lambda path: client.list_artifacts(info.run_id, path)),
        "inputs": [
            {
                "name": given.dataset.name,
                "digest": given.dataset.digest,
                "source_type": given.dataset.source_type,
                "source": given.dataset.source,
                "schema": given.dataset.schema,
                "profile": given.dataset.profile,
                "tags": {tag.key: tag.value for tag in given.tags},
            }
            for given in run.inputs.dataset_inputs
        ],
        "model_inputs": [given.model_id for given in run.inputs.model_inputs or ()],
        "model_outputs": [[made.model_id, made.step] for made in run.outputs.model_outputs] if run.outputs else [],
    }


def described_model(model: LoggedModel) -> dict[str, Any]:
    return {
        "id": model.model_id,
        "name": model.name,
        "experiment": model.experiment_id,
        "uri": model.artifact_location,
        "status": str(model.status),
        "type": model.model_type,
        "run": model.source_run_id,
        "created": model.creation_timestamp,
        "params": model.params,
        "tags": model.tags,
        "metrics": [
            [point.key, point.step, point.value, point.run_id, point.dataset_name, point.dataset_digest]
            for point in model.metrics or ()
        ],
        "artifacts": artifacts(
            f"models:/{model.model_id}", lambda path: client.list_logged_model_artifacts(model.model_id, path)
        ),
    }


parser = argparse.ArgumentParser()
parser.add_argument("--newest-job", action="store_true")
arguments = parser.parse_args()


experiments = list(paged(lambda token: client.search_experiments(page_token=token)))
ids = [experiment.experiment_id for experiment in experiments]
found = paged(lambda token: client.search_runs(ids, run_view_type=ViewType.ALL, page_token=token))
runs = [client.get_run(run.info.run_id) for run in found]  # a search has no models
own = ""
if arguments.newest_job:
    numbers = [int(run.info.run_id.split("-")[1]) for run in runs]
    own = f"job-{max(numbers)}"
    runs = [run for run in runs if run.info.run_id == own or run.info.run_id.startswith(f"{own}-")]
found = {run.info.run_id for run in runs}
models = [
    model
    for model in paged(lambda token: client.search_logged_models(ids, page_token=token))
    if model.source_run_id in found
]
used = {run.info.experiment_id for run in runs}
print(
    json.dumps(
        {
            "experiments": {e.experiment_id: e.name for e in experiments if e.experiment_id in used},
            "own": own,
            "runs": [described(run) for run in runs],
            "models": [described_model(model) for model in models],
        }
    )
)
