"""The bucket of a project on a service that other machines reach."""

from integration.api.api_support import ALICE, Server, running_agent
from integration.api.server.test_listening import api, listening  # noqa: F401 - fixtures


def test_job_without_job_dir_has_one_in_the_bucket_of_its_project(api: Server) -> None:  # noqa: F811
    agent = running_agent(api)
    assert agent.run.directory == api.detail()["job_dir"] == "gs://trainyard-p/p/admin/job"
    written = "/upload/storage/v1/b/trainyard-p/o?name=p/admin/job/model"
    api.refusal("POST", written, 403, "so only operators and jobs write to them", ALICE, content=b"x")
    made = "Only operators and jobs make buckets"
    api.refusal("POST", "/storage/v1/b?project=p", 403, made, ALICE, json={"name": "mine"})
