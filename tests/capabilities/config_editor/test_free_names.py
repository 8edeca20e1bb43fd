"""Names that are free for a new job, and notes on a config that is checked."""

from integration.api.api_support import ScriptedAgent, Server

SUGGEST = "/trainyard/v1/projects/p/jobs:suggest"


def test_name_that_is_offered_was_never_used(api: Server, agent: ScriptedAgent) -> None:
    api.create()
    agent.begin()
    agent.exit(code=0)
    api.delete_job()
    assert api.get(SUGGEST, like="job") == {"job_id": "job_2"}
    assert api.get(SUGGEST, like="study.4") == {"job_id": "study_4"}


def test_check_of_a_config_has_the_notes_of_its_submission(api: Server) -> None:
    api.create(project="vision")
    check = {"config": "jobId: f\ntrainingInput: {pythonModule: a.b}", "format": "yaml"}
    assert "is new" in api.done("POST", "/trainyard/v1/projects/visions/configs:check", json=check)["notes"][0]
