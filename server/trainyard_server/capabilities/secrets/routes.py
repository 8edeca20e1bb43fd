"""Routes of secrets. No answer to people has a value."""

from trainyard_protocol.answers.secrets import RunSecrets, SecretRequest, SecretsView, SecretView
from trainyard_server.api.dependencies import AuthenticatedCaller, CallingAgentKey, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.secrets.secrets import Secrets
from trainyard_server.domain.access.route_access import Access

router = Router()

_SECRETS = "/trainyard/v1/projects/{project}/secrets"


@router.get(_SECRETS, Access.SUBMITTER, "the names of the project's secrets, never their values")
def secrets(project: str, cases: Cases) -> SecretsView:
    """Their names, without values."""
    return cases.of(Secrets).list(project)


@router.put(_SECRETS + "/{name}", Access.ADMIN, "set a secret of the project", "secrets.set")
def set_secret(project: str, name: str, body: SecretRequest, cases: Cases, caller: AuthenticatedCaller) -> SecretView:
    return cases.of(Secrets).set(caller, project, name, body)


@router.delete(_SECRETS + "/{name}", Access.ADMIN, "delete a secret of the project", "secrets.delete")
def delete_secret(project: str, name: str, cases: Cases) -> dict[str, str]:
    cases.of(Secrets).delete(project, name)
    return {}


@router.get(
    "/agent/v1/runs/{run_id}/secrets", Access.AGENT, "the secrets that a run's job refers to", "secrets.use", own=True
)
def of_run(run_id: str, cases: Cases, key: CallingAgentKey) -> RunSecrets:
    """The values for a run, for its agent."""
    return cases.of(Secrets).of_run(run_id, key)
