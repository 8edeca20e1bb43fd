"""Notes about jobs that are accepted, but may not be meant: headers of the answer, and lines of the command line."""

from pathlib import Path
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, ScriptedAgent, Server
from integration.shells import OPERATOR, Shell
from trainyard_protocol.net.warning_headers import WARNING, warnings_of
from trainyard_protocol.wire.agents import MountOffer


def notes(api: Server, project: str, job_id: str, who: dict[str, str] = ADMIN, **training: Any) -> list[str]:
    """The notes about a job that is submitted to the project, the same as those of its dry run."""
    answers = [api.submit(job_id, who, project, params=p, **training) for p in ({"validateOnly": "true"}, {})]
    assert [answer.status_code for answer in answers] == [200, 200], answers[-1].text
    dry, created = (warnings_of(answer.headers.get_list(WARNING)) for answer in answers)
    assert dry == created
    return created


@on_every_database
def test_first_job_of_a_project_is_told_with_the_project_that_may_be_meant(api: Server) -> None:
    assert notes(api, "vision", "a") == [], "there is no other project"
    assert notes(api, "vison", "b") == [
        'The project vison is new: it has no jobs and no members yet. Did you mean "vision"? '
        "`trainyard projects list` shows all."
    ]
    assert notes(api, "vison", "c") == []
    assert "Did you mean" not in notes(api, "audio-models", "d")[0]
    assert api.set_role("carl", "submitter", "speech") == 200
    assert notes(api, "speech", "e", api.token(owner="carl")[1]) == [], "its member knows of it"
    check = {"config": "jobId: f\ntrainingInput: {pythonModule: a.b}", "format": "yaml"}
    assert "is new" in api.done("POST", "/trainyard/v1/projects/visions/configs:check", json=check)["notes"][0]


def test_mount_that_no_agent_has_is_told_with_those_there_are(api: Server) -> None:
    def wants(job_id: str, *names: str, project: str = "p") -> list[str]:
        return [note for note in notes(api, project, job_id, mounts=[{"name": n} for n in names]) if "mount" in note]

    assert wants("a", "imagnet") == [], "no agent has joined"
    ScriptedAgent(api, mounts=(MountOffer(name="imagenet"), MountOffer(name="scans", projects=("q",)))).sync()
    assert wants("b", "imagenet") == []
    waits = "the job waits until one has it (`--mounts` of the agent)."
    assert wants("c", "imagnet", "scans") == [
        f'No agent has the mount imagnet for the project p: {waits} Did you mean "imagenet"? Agents have: imagenet.',
        f"No agent has the mount scans for the project p: {waits} Agents have: imagenet.",
    ]
    assert wants("d", "scans", project="q") == []


def test_command_line_shows_the_notes(shell: Shell, tmp_path: Path) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    shell("projects add-member carl --role submitter --project vision")
    config = tmp_path / "config.yaml"
    config.write_text("trainingInput:\n  pythonModule: trainer.task\n")
    for words in ("jobs validate", "jobs submit training one"):
        code, _, err = shell(f"{words} --config {config} --project vison")
        assert (code, err.count("Note: The project vison is new"), 'Did you mean "vision"?' in err) == (0, 1, True), err
