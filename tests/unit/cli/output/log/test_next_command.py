"""The command that helps next after a job has failed."""

from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.output.log.next_command import next_command
from trainyard_cli.settings import Server
from trainyard_protocol.errors import PermissionDenied
from trainyard_protocol.states import JobState
from trainyard_protocol.views.views import JobDetail
from unit.cli.scripted_server import ScriptedServer, ok, refused


def job(name: str, module: str = "trainer.task", image: str = "", **more: Any) -> dict[str, Any]:
    config = {"masterConfig": {"imageUri": image}} if image else {}
    package = "gs://b/trainer-1.0.tar.gz"
    return {"jobId": name, "trainingInput": {"pythonModule": module, "packageUris": [package], **config, **more}}


def hints(script: ScriptedServer, **changes: Any) -> list[str]:
    given = {"job": job("j"), "job_dir": "", "state": JobState.FAILED} | changes
    with Client(Server(script.url, "t"), "p") as client:
        return next_command(client, JobDetail(**given))


def test_failed_job_is_compared_with_the_last_of_its_program_that_succeeded(script: ScriptedServer) -> None:
    another = job("z", packageUris=["gs://b/another-1.0.tar.gz"])
    newer = job("good", packageUris=["gs://b/trainer-1.1.tar.gz"])
    others = [
        job("x", "other.task"),
        job("y", image="team/a:1"),
        another,
        job("s", hyperparameters={"maxTrials": 2}),
        newer,
        job("older"),
    ]
    script.answers = [ok({"jobs": others}), ok({"jobs": others[:3]}), ok({})]
    assert hints(script) == ["To compare it with the last one that succeeded:  jobs diff j good"]
    assert "filter=state%3ASUCCEEDED&pageSize=20" in script.requests[0].path
    assert hints(script) == ["To run it again:  jobs rerun j"]
    assert hints(script) == ["To run it again:  jobs rerun j"]


def test_job_whose_others_are_not_known_can_still_run_again(script: ScriptedServer) -> None:
    script.answers = [refused(PermissionDenied("no list for you"))]
    first, second = hints(script)
    assert first == "To run it again:  jobs rerun j"
    assert "is not known: no list for you" in second


def test_other_jobs_have_no_hint(script: ScriptedServer) -> None:
    assert hints(script, state=JobState.SUCCEEDED) == hints(script, state=JobState.CANCELLED) == []
    assert hints(script, is_study=True) == hints(script, study="s", trial=1) == []
    assert script.requests == []
