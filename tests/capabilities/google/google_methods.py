"""A program of Google's: calls every method of training of `ml` v1 with the bundled client, and prints the answers.

Without arguments it knows nothing of any server: `discovery.build("ml", "v1")`. With an address and the file of a token
it is told by `client_options`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

called: set[str] = set()


def main(words: list[str]) -> None:
    if words:
        address, token = words
        credentials = Credentials(token=Path(token).read_text().strip())  # type: ignore[no-untyped-call]
        ml = discovery.build("ml", "v1", client_options={"api_endpoint": address}, credentials=credentials)
    else:
        ml = discovery.build("ml", "v1")
    job = "plain" if words else "by_name"
    answers = {name: _answer(call) for name, call in calls(ml.projects(), job)}
    print(json.dumps({"called": sorted(called), "answers": json.loads(json.dumps(answers).replace(job, "JOB"))}))


def calls(projects: Any, job: str) -> Any:
    """Each method of training, with what its answer is known by."""
    parent, name = "projects/local", f"projects/local/jobs/{job}"
    jobs, operations = projects.jobs(), projects.operations()
    locations = projects.locations()
    body = {
        "jobId": job,
        "trainingInput": {"scaleTier": "BASIC", "region": "us-central1", "pythonModule": "trainer.task"},
    }
    yield "getConfig", projects.getConfig(name=parent)
    yield "create", jobs.create(parent=parent, body=body)
    yield "create again", jobs.create(parent=parent, body=body)
    yield "get", jobs.get(name=name)
    yield "list", jobs.list(parent=parent, filter=f"jobId:{job}")
    yield "patch", jobs.patch(name=name, updateMask="labels", body={"labels": {"a": "b"}})
    yield "cancel", jobs.cancel(name=name)
    yield "locations", locations.list(parent=parent)
    yield "location", locations.get(name=f"{parent}/locations/local")
    yield "operations", operations.list(name=parent)
    yield "operation", operations.get(name=f"{parent}/operations/a")
    yield "cancel operation", operations.cancel(name=f"{parent}/operations/a")
    there = f"{parent}/locations/local/operations/a"
    yield "operation there", locations.operations().get(name=there)
    yield "cancel operation there", locations.operations().cancel(name=there)


def _answer(request: Any) -> Any:
    """The fields that stay the same from job to job, or the status of an error."""
    called.add(request.methodId)
    try:
        answer = request.execute()
    except HttpError as error:
        return [error.resp.status, error.reason]
    for one in answer.get("jobs", [answer]):
        for field in (
            "createTime",
            "startTime",
            "endTime",
            "etag",
            "state",
            "jobPosition",
            "trainingOutput",
            "errorMessage",
        ):
            one.pop(field, None)
    return answer


if __name__ == "__main__":
    main(sys.argv[1:])
