"""Routes of secrets. No answer to people has a value."""

from typing import Annotated

from fastapi import APIRouter

from trainyard_protocol.views.secrets import RunSecrets, SecretRequest, SecretsView, SecretView
from trainyard_server.api.dependencies import (
    AuthenticatedCaller,
    CallingAgentKey,
    Cases,
    json_of,
)

router = APIRouter()

_SECRETS = "/trainyard/v1/projects/{project}/secrets"


@router.get(_SECRETS)
def secrets(project: str, cases: Cases) -> SecretsView:
    """Their names, without values."""
    return cases.secrets.list(project)


@router.put(_SECRETS + "/{name}")
def set_secret(
    project: str,
    name: str,
    body: Annotated[SecretRequest, json_of(SecretRequest)],
    cases: Cases,
    caller: AuthenticatedCaller,
) -> SecretView:
    return cases.secrets.set(caller, project, name, body)


@router.delete(_SECRETS + "/{name}")
def delete_secret(project: str, name: str, cases: Cases) -> dict[str, str]:
    cases.secrets.delete(project, name)
    return {}


@router.get("/agent/v1/runs/{run_id}/secrets")
def of_run(run_id: str, cases: Cases, key: CallingAgentKey) -> RunSecrets:
    """The values for a run, for its agent."""
    return cases.secrets.of_run(run_id, key)
