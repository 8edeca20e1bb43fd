"""`trainyard doctor`: checks the installation and says what is wrong and what to do.

Checks of this machine are in `local.checks` and in the agent, which runs as a process of its own; the server checks
itself. A stopped service is not a problem.
"""

from collections.abc import Iterator, Sequence

import trainyard_protocol
from trainyard_cli.capabilities.health import checks
from trainyard_cli.capabilities.health.checks import ok, problem
from trainyard_cli.client import Client
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_cli.v1_client import NO_RETRIES
from trainyard_protocol.answers.cluster import AgentView
from trainyard_protocol.answers.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.errors import TrainyardError

_TIMEOUT_S = 120.0  # the server reads the whole SQLite file

_CHECKS = {
    "database": (
        "Jobs cannot be submitted, shown or scheduled. Running replicas continue.",
        "Start the database again, or check its log. The server reconnects automatically.",
    ),
    "disk": (
        "No new jobs can be submitted, and results of running jobs may not be recorded.",
        "Free disk space, or mount the disk writable. The server then continues automatically.",
    ),
    "scheduler": ("Jobs do not start or end.", "See the server's log."),
    "agents": (
        "Jobs stay queued while no agent can run them.",
        "`trainyard up` starts the agent of this machine; `trainyard agents list` shows what each one lacks.",
    ),
    "logs": (
        "Log lines of some jobs cannot be shown. Other jobs are not affected.",
        "Restore the files from a backup, or leave them: nothing else depends on them.",
    ),
}
"""What a failed health check of the server means, and what to do."""


def examine(target: Target) -> Iterator[Finding]:
    """The findings about the services of this machine, or about a server elsewhere."""
    remote = remote_server(target)
    if remote is not None:
        yield from _of_server(remote)
        return
    state = LocalState(target.state_dir)
    if not state.exists():
        yield ok("services", f"The local service was never started in {state.root}.")
        return
    yield from checks.services(state)
    yield from checks.ports(state)
    server = state.server()
    if server is not None and state.process("server") is not None:
        yield from _of_server(server)
    elif server is not None:
        yield checks.database(state)
    yield from checks.agent(state)
    yield checks.disk(state)


def _of_server(server: Server) -> list[Finding]:
    with Client(server, "", retry_delays=NO_RETRIES, timeout=_TIMEOUT_S) as client:
        try:
            health = client.health()
        except TrainyardError as error:
            meaning, advice = "The server cannot be checked.", "See its log; check its address."
            return [problem("server", error.message, meaning, advice)]
        found = [of_version("server", "The server", health.version), *of_checks(health)]
        try:
            deep = client.health(deep=True)
            found += of_agents(client.status().agents)
        except TrainyardError as error:
            reason = f"The server could not check itself: {error.message}"
            return [*found, Finding(check="server", status="unknown", found=reason)]
        return [*found, *deep.findings]


def of_version(check: str, who: str, version: str) -> Finding:
    own = trainyard_protocol.__version__
    if version == own:
        return ok(check, f"{who} answers and has this version, {own}.")
    return problem(
        check,
        f"{who} has version {version}, this command {own}.",
        "They may not understand each other.",
        "Upgrade the older one. On one machine: `trainyard down`, then `trainyard up`; jobs start again.",
    )


def of_agents(agents: Sequence[AgentView]) -> Iterator[Finding]:
    """Findings about the versions of the agents that are alive, and the room that each has."""
    for agent in agents:
        if agent.alive:
            yield of_version("agents", f"The agent {agent.name}", agent.version)
        if agent.no_room:
            yield problem(
                "agents",
                f"The agent {agent.name} has no room: {agent.no_room}.",
                "Nothing starts there, and running jobs may be unable to write results. Log lines wait.",
                "Free some space there, or make it writable. The agent then continues automatically.",
            )


def of_checks(health: ServerHealth) -> Iterator[Finding]:
    """Problems of the server's health checks."""
    for name, check in health.checks.items():
        if check.status is not CheckStatus.OK:
            meaning, advice = _CHECKS.get(name, ("", ""))
            found = f"The server reports: {name}: {check.message}."
            yield problem(name, found, meaning, check.advice or advice)
