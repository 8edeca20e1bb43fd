"""Today's service on a state directory of the first release: everything in it is as it was left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness import Service, started
from integration.databases.older_state import TOKEN_OF_ALICE, unpack
from trainyard_protocol.states import JobState
from trainyard_protocol.views.views import LogEntry


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    unpack(tmp_path)
    yield from started(tmp_path)


def test_state_directory_of_the_first_release_opens(service: Service) -> None:
    with service.client() as client:
        jobs = {job["jobId"]: job for job in client.list_jobs()}
        assert list(jobs) == ["long", "study", "bad", "good"]
        assert {name: jobs[name]["state"] for name in ("good", "bad", "study")} == {
            "good": "SUCCEEDED",
            "bad": "FAILED",
            "study": "SUCCEEDED",
        }
        good, bad = client.detail("good"), client.detail("bad")
        assert (good.job["labels"], good.owner, good.job_dir) == ({"purpose": "show"}, "root", "gs://results/good")
        assert len(good.events) == 15
        assert good.events[-1].message == "Job completed successfully."

        entries = [event for event in client.logs("good", follow=False) if isinstance(event, LogEntry)]
        lines = {entry.text: entry.cursor for entry in entries}
        assert len(lines) == len(entries) == 412
        assert (lines["step 1/400 loss=1.100000"], lines["step 400/400 loss=0.002750"]) == (9, 408)
        (cause,) = (
            entry.text
            for entry in client.logs("bad", follow=False)
            if isinstance(entry, LogEntry) and bad.verdict and entry.cursor == bad.verdict.cause_cursor
        )
        assert cause == "ValueError: the data is not there"

        curves = {curve.name: curve for curve in client.metrics("good", points=1000).metrics}
        assert (len(curves["loss"].steps), curves["val_loss"].values[-1]) == (400, 0.00275)

        study = client.trials("study")
        assert (study.best, [trial.parameters for trial in study.trials]) == (1, [{"lr": "0.1"}, {"lr": "0.2"}])
        assert study.trials[0].final is not None
        assert study.trials[0].final.value == 0.091667

        assert [file.name for file in client.files("good")] == ["result.txt"]
        client.download("good", "result.txt", service.work / "result.txt")
        assert (service.work / "result.txt").read_text() == "0.5\n"

        assert [(secret.name, secret.set_by) for secret in client.secrets().secrets] == [("API_KEY", "root")]
        assert [(member.name, member.role) for member in client.members("local").members] == [("alice", "submitter")]
    service.environment["TRAINYARD_TOKEN"] = TOKEN_OF_ALICE
    assert "good" in service.ok("jobs", "list")
    del service.environment["TRAINYARD_TOKEN"]

    service.wait_for("long", JobState.SUCCEEDED)  # it goes on where the machine has failed
