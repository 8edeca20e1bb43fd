"""The calls of Kubeflow Pipelines' component `ml_engine.train`, which comes as an image and not as a package.

Each call of google-api-python-client, with its arguments and in its order, as the component's source makes it:
github.com/kubeflow/pipelines, release 1.8.22, components/gcp/container/component_sdk/python/kfp_component/google/
ml_engine: `_train.py` (the body), `_create_job.py` (a job that exists), `_common_ops.py` (the wait), `_client.py`.
"""

import json
import sys
import time
from typing import Any

from google.cloud import storage
from googleapiclient import discovery
from googleapiclient.errors import HttpError

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
WAIT_S = 1  # the component's `wait_interval`


class Component:
    """One step of a pipeline. A second try of its pod makes it anew, with the same arguments."""

    def __init__(self, job_id: str, package: str, *args: str) -> None:
        self._jobs = discovery.build("ml", "v1", cache_discovery=False).projects().jobs()
        self._name = f"projects/local/jobs/{job_id}"
        self._job: dict[str, Any] = {
            "trainingInput": {
                "scaleTier": "BASIC",
                "pythonModule": "trainer.task",
                "packageUris": [package],
                "region": "us-central1",
                "args": [*args],
                "jobDir": f"gs://pipelines/{job_id}",
            },
            "jobId": job_id,
        }

    def train(self) -> Any:
        self.create()
        while (job := self._jobs.get(name=self._name).execute()).get("state") not in ENDED:
            time.sleep(WAIT_S)
        outputs = (json.dumps(job), job["jobId"], job["trainingInput"]["jobDir"])
        if job["state"] != "SUCCEEDED":
            raise RuntimeError(f"Job failed with state {job['state']}. Error: {job.get('errorMessage', '')}")
        return outputs

    def create(self) -> None:
        try:
            self._jobs.create(parent="projects/local", body=self._job).execute()
        except HttpError as error:
            if error.resp.status != 409 or not self._exists():
                raise

    def _exists(self) -> bool:
        existing = self._jobs.get(name=self._name).execute()
        kinds = ("trainingInput", "predictionInput")
        return all(existing.get(kind) == self._job.get(kind) for kind in kinds)

    def cancel(self) -> None:
        self._jobs.cancel(name=self._name, body={"name": self._name}).execute()


def main(path: str) -> None:
    storage.Client().bucket("pipelines").blob("trainer-1.tar.gz").upload_from_filename(path)
    package = "gs://pipelines/trainer-1.tar.gz"
    first = Component("by_pipelines", package, "--epochs", "1").train()
    print("same:", Component("by_pipelines", package, "--epochs", "1").train() == first, first[1:])
    try:
        Component("by_pipelines", package, "--epochs", "2").train()
    except HttpError as refused:
        print("refused:", refused.resp.status)
    try:
        Component("fails_by_pipelines", package, "--fail").train()
    except RuntimeError as failed:
        print(failed)
    cancelled = Component("cancelled_by_pipelines", package, "--wait")
    cancelled.create()
    cancelled.cancel()
    try:
        cancelled.train()
    except RuntimeError as failed:
        print(failed)


main(sys.argv[1])
