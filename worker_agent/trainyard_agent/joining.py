"""Checks before an agent joins a server: its address, its certificate, the token, and the versions of both."""

from trainyard_agent.server_client import ServerClient
from trainyard_protocol.errors import FailedPrecondition, Internal, NotFound, PermissionDenied, Unauthenticated


async def check_server(client: ServerClient, version: str) -> str:
    """Return what was found, as a sentence. Raises TrainyardError with what is wrong and what to do.

    The server may be of another patch release, no more: agents are updated with it.
    """
    try:
        server = await client.about()
    except Unauthenticated as error:
        raise Unauthenticated(
            f"The server at {client.server} does not know this token, or it has expired or was revoked. An operator "
            "makes another with `trainyard agents add NAME`."
        ) from error
    except PermissionDenied as error:
        raise PermissionDenied(
            f"The token is a person's, not an agent's: {error.message} An operator makes one of an agent with "
            "`trainyard agents add NAME`."
        ) from error
    except (NotFound, Internal) as error:
        raise FailedPrecondition(
            f"At {client.server} there is no Trainyard server of the version {version}: check the address, and update "
            "an older server first."
        ) from error
    if _release(server.version) != _release(version):
        raise FailedPrecondition(
            f"The server at {client.server} has the version {server.version}, this machine {version}. Install that "
            f'version here: pip install "trainyard[agent]=={server.version}".'
        )
    name = f" as {server.agent}" if server.agent else ""
    return f"The server at {client.server} ({server.version}) lets this agent join{name}."


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
