"""Calls of Vertex AI that are not offered: each has a sentence, in the form of Google's errors."""

import httpx

from integration.api.api_support import ADMIN, Server

HERE = "projects/p/locations/us-central1"
COLLECTIONS = {
    "trainingPipelines": "A CustomJob trains the same",
    "nasJobs": "docs/how-to/tuning.md",
    "tuningJobs": "Train one of your own as a CustomJob",
    "pipelineJobs": "submit a CustomJob for each step",
    "schedules": "let cron, CI or Airflow submit",
    "models": "in its job-dir (AIP_MODEL_DIR)",
    "endpoints": "Serve the model",
    "batchPredictionJobs": "write predictions",
    "datasets": "put data on gs://",
    "tensorboards": "`trainyard jobs tensorboard JOB`",
    "metadataStores": "leave `experiment` out of aiplatform.init()",
    "featurestores": "a database of your own",
    "indexes": "a vector database of your own",
    "persistentResources": "Leave persistentResourceId out",
    "notebookExecutionJobs": "--package-path FILE.ipynb",
    "migratableResources": "its v1 API is here",
}
"""Some of them, and what is said of each."""


def message(answer: httpx.Response, code: int) -> str:
    error = answer.json()["error"]
    status = {404: "NOT_FOUND", 501: "UNIMPLEMENTED"}[code]
    assert (answer.status_code, error["code"], error["status"]) == (code, code, status), answer.text
    return str(error["message"])


def test_collection_that_is_not_here_is_refused_with_what_to_use(api: Server) -> None:
    """On every verb and in both versions."""
    wrong = []
    for name, says in COLLECTIONS.items():
        calls = [("GET", name), ("POST", name), ("GET", f"{name}/1"), ("PATCH", f"{name}/1"), ("DELETE", f"{name}/1")]
        calls += [("POST", f"{name}/1:cancel"), ("POST", f"{name}:upload"), ("GET", f"{name}/1/parts/2")]
        calls += [("POST", f"{name}/1/parts/2:act"), ("PUT", f"{name}/1")]
        for version in ("v1", "v1beta1"):
            for method, path in calls:
                answer = api.client.request(method, f"/{version}/{HERE}/{path}", headers=ADMIN)
                found = message(answer, 501)
                if not found.startswith(f"Vertex AI's {name} are not offered here: ") or says not in found:
                    wrong.append(f"{method} {version} {path}: {found}")
    assert not wrong, "\n".join(wrong)
