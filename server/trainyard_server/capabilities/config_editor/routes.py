"""Routes of configs: the one of a job, and the check of one that is written."""

from trainyard_protocol.answers.configs import ConfigCheck, ConfigCheckRequest, JobConfig, SuggestedId
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.config_editor.configs import Configs
from trainyard_server.domain.access.route_access import UNRECORDED, Access

router = Router(prefix="/trainyard/v1")


@router.get("/projects/{project}/jobs/{job_id}/config", Access.VIEWER, "its config, as sent and as resolved")
def config(project: str, job_id: str, cases: Cases) -> JobConfig:
    """The config as submitted and as resolved, and the command that submits it again."""
    return cases.of(Configs).config(project, job_id)


@router.post("/projects/{project}/configs:check", Access.VIEWER, "check a config without submitting it", UNRECORDED)
def check_config(project: str, body: ConfigCheckRequest, cases: Cases, caller: AuthenticatedCaller) -> ConfigCheck:
    """Validate the text of a config: each problem with its line and column. Creates nothing."""
    return cases.of(Configs).check(caller, project, body)


@router.get("/projects/{project}/jobs:suggest", Access.VIEWER, "a job id that is free")
def suggest(project: str, like: str, cases: Cases) -> SuggestedId:
    """A job id that is not used in the project."""
    return cases.of(Configs).suggest(project, like)
