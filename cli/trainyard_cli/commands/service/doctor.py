"""`trainyard doctor`: checks the installation and says what is wrong and what to do.

Checks of this machine are in `local.checks` and in the agent, which runs as a process of its own; the server checks
itself. A stopped service is not a problem.
"""

import shutil
import textwrap
from collections.abc import Iterator, Sequence

import trainyard_protocol
from trainyard_cli.client import Client
from trainyard_cli.local import checks
from trainyard_cli.local.checks import ok, problem
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_cli.v1_client import NO_RETRIES
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.views.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.views.views import AgentView

_TIMEOUT_S = 120.0  # the server reads the whole SQLite file
_WIDTH = 110
_STATE_WIDTH = len("PROBLEM")

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


def show(findings: Sequence[Finding], output: Output) -> bool:
    """Print the findings and return whether there is no problem."""
    healthy = all(finding.status != "problem" for finding in findings)
    data = {"healthy": healthy, "findings": [finding.model_dump(mode="json") for finding in findings]}
    if not formats.printed(output, data):
        echo(text(findings, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)))
    return healthy


def examine(target: Target) -> Iterator[Finding]:
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
        findings = [of_version("server", "The server", health.version), *of_checks(health)]
        try:
            deep = client.health(deep=True)
            findings += of_agents(client.status().agents)
        except TrainyardError as error:
            found = f"The server could not check itself: {error.message}"
            return [*findings, Finding(check="server", status="unknown", found=found)]
        return [*findings, *deep.findings]


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


def text(findings: Sequence[Finding], width: int) -> str:
    """One block per finding; problems with their meaning and advice."""
    names = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (names + _STATE_WIDTH + 4)
    lines: list[str] = []
    for finding in findings:
        state = finding.status.upper() if finding.status == "problem" else finding.status
        head = f"{finding.check:{names}}  {state:{_STATE_WIDTH}}  "
        lines += _wrapped(finding.found, width, head, indent)
        if finding.status == "problem":
            lines += _wrapped(finding.meaning, width, indent, indent)
            lines += _wrapped(finding.advice, width, f"{indent}-> ", f"{indent}   ")
            lines += [f"{indent}-> {finding.command}"] if finding.command else []  # whole, to be pasted
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    problems = [finding for finding in findings if finding.status == "problem"]
    unknown = sum(finding.status == "unknown" for finding in findings)
    if not problems and unknown:
        return f"No problems were found. Not checked: {formats.count(unknown, 'item')}, above."
    if not problems:
        return "No problems."
    return f"{formats.count(len(problems), 'problem')}."


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    wrapper = textwrap.TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)
