"""Routes of the caller, the server and its quotas."""

from fastapi import Request

from trainyard_protocol.answers.cluster import QuotasView, ServerStatus
from trainyard_protocol.answers.people import Me, SignInCode
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.get("/me", Access.PERSON, "the caller's name and roles")
def me(caller: AuthenticatedCaller) -> Me:
    """The authenticated caller."""
    roles = {project: role.value for project, role in caller.grants.items()}
    return Me(role=str(caller.role or ""), name=caller.name, projects=roles)


@router.get("/status", Access.PERSON, "agents, and how many jobs are in each state")
def status(cases: Cases, caller: AuthenticatedCaller) -> ServerStatus:
    return cases.job_details.status(caller.visible)


@router.post("/quotas:reload", Access.OPERATOR, "read the quota file again", "quotas.reload")
def reload_quotas(cases: Cases) -> QuotasView:
    """Read this server's quota file again. A file with a mistake is refused, and the quotas stay as they were."""
    return cases.cluster.reload_quotas()


@router.post(
    "/sign-in-codes",
    Access.PERSON,
    "a sign-in link for your own browser; needs a token, not a session",
    "sign-in-codes.create",
)
def sign_in_code(request: Request, cases: Cases) -> SignInCode:
    """A sign-in code for the owner of the bearer token. Sessions cannot create codes."""
    return cases.sign_in.code(bearer(request))
