"""`trainyard doctor`: checks the installation and says what is wrong and what to do.

Checks of this machine are in `local.checks` and in the agent, which runs as a process of its own; the server checks
itself. A stopped service is not a problem.
"""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

import trainyard_protocol
from trainyard_cli.client import Client
from trainyard_cli.commands.service.service import NOT_HEALTHY
from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.local import checks
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
_MAX_CLOCK_OFFSET_S = 2.0
_WIDTH = 110
_STATE_WIDTH = len("PROBLEM")

_MEANINGS = {
    "database": "Jobs cannot be submitted, shown or scheduled. Running replicas go on.",
    "disk": "No new jobs can be submitted, and results of running jobs may not be recorded.",
    "scheduler": "Jobs do not start or end.",
    "agents": "Jobs stay queued while no agent can run them.",
    "descriptors": "The server will refuse new connections, of agents too.",
    "logs": "Log lines of some jobs cannot be shown. Other jobs are not affected.",
}
_ADVICE = {
    "database": "Start the database again, or see its log. The server reconnects by itself.",
    "disk": "Free disk space, or mount the disk writable. The server continues by itself.",
    "scheduler": "See the server's log.",
    "agents": "`trainyard up` starts the agent of this machine; `trainyard agents list` says what each one lacks.",
    "descriptors": "Find out who holds its connections (`ss -tnp`), or start it with a higher limit (`ulimit -n`).",
    "logs": "Restore the files from a backup, or leave them: nothing else depends on them.",
}


@click.command()
@click.option("--fix", is_flag=True, help="Fix the problems that can be fixed safely.")
@server_options
@output_options
def doctor(target: Target, output: Output, fix: bool) -> int:
    """Check this machine, the service and its jobs for problems. Exit code 3 if there are any."""
    return 0 if show(tuple(examine(target, fix)), output) else NOT_HEALTHY


def show(findings: Sequence[Finding], output: Output) -> bool:
    healthy = all(finding.status != "problem" for finding in findings)
    if output.for_people:
        echo(text(findings, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)))
    else:
        data = {"healthy": healthy, "findings": [finding.model_dump(mode="json") for finding in findings]}
        echo(formats.render(output, data))
    return healthy


def examine(target: Target, fix: bool) -> Iterator[Finding]:
    remote = remote_server(target)
    if remote is not None:
        yield from of_server(remote, fix)
        return
    state = LocalState(target.state_dir)
    if not state.exists():
        yield Finding(
            check="services", status="ok", found=f"The local service was never started in {state.root}."
        )
        return
    yield from checks.services(state, fix)
    yield from checks.ports(state)
    server, live_runs = state.server(), None
    if server is not None and state.process("server") is not None:
        probe = ServerProbe(server)
        yield from probe.findings(fix)
        live_runs = probe.live_runs
    yield from checks.agent(state, live_runs, fix)
    yield from checks.disk(state)


def of_server(server: Server, fix: bool) -> Iterator[Finding]:
    yield from ServerProbe(server).findings(fix)


class ServerProbe:
    """Findings of a server. `live_runs` is set once the findings were consumed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.live_runs: tuple[str, ...] | None = None

    def findings(self, fix: bool) -> Iterator[Finding]:
        with Client(self._server, "", retry_delays=NO_RETRIES, timeout=_TIMEOUT_S) as client:
            try:
                before = datetime.now(UTC)
                health = client.health()
                after = datetime.now(UTC)
            except TrainyardError as error:
                yield _problem(
                    "server",
                    error.message,
                    "The server cannot be checked.",
                    "See its log; check its address.",
                )
                return
            yield from of_version(health)
            yield from of_checks(health)
            yield of_clock(health.time, before, after)
            try:
                if fix:
                    yield from client.repair().findings
                deep = client.health(deep=True)
                agents = client.status().agents
            except TrainyardError as error:
                yield Finding(
                    check="server",
                    status="unknown",
                    found=f"The server could not check itself: {error.message}",
                )
                return
            yield from of_agents(agents, health.version)
            yield from deep.findings
            self.live_runs = deep.live_runs


def of_version(health: ServerHealth) -> Iterator[Finding]:
    mine = trainyard_protocol.__version__
    if health.version == mine:
        yield Finding(check="server", status="ok", found=f"The server answers and has this version, {mine}.")
        return
    yield _problem(
        "server",
        f"The server has version {health.version}, this command {mine}.",
        "They may not understand each other.",
        "Upgrade the older one. On one machine: `trainyard down`, then `trainyard up`; jobs start again.",
    )


def of_agents(agents: Sequence[AgentView], version: str) -> Iterator[Finding]:
    """Version check of the agents that are alive."""
    others = [agent for agent in agents if agent.alive and agent.version != version]
    for agent in others:
        yield _problem(
            "agents",
            f"The agent {agent.name} has version {agent.version}, the server {version}.",
            "They may not understand each other.",
            "Restart the agent with the same version. On one machine: `trainyard down`, then `trainyard up`.",
        )
    for agent in agents:
        if agent.no_room:
            yield _problem(
                "agents",
                f"The agent {agent.name} has no room: {agent.no_room}.",
                "Nothing starts there; what runs may be unable to write its results. Its log lines wait.",
                "Free some space there, or make it writable. It goes on by itself then.",
            )
    alive = sum(agent.alive for agent in agents)
    if alive and not others:
        message = f"{formats.count(alive, 'agent')} alive, with the server's version."
        yield Finding(check="agents", status="ok", found=message)


def of_checks(health: ServerHealth) -> Iterator[Finding]:
    """Problems of the server's health checks."""
    for name, check in health.checks.items():
        if check.status is not CheckStatus.OK:
            message = f"The server reports: {name}: {check.message}."
            yield _problem(name, message, _MEANINGS.get(name, ""), check.advice or _ADVICE.get(name, ""))


def of_clock(theirs: datetime, before: datetime, after: datetime) -> Finding:
    """Compare the server's clock with ours, read before and after."""
    offset_s = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    if offset_s <= _MAX_CLOCK_OFFSET_S:
        return Finding(check="clock", status="ok", found="The clocks of the server and this machine agree.")
    direction = "behind" if theirs < before else "ahead"
    return _problem(
        "clock",
        f"The server's clock is {offset_s:.0f} s {direction} of this machine's.",
        "Times of jobs and log lines are wrong.",
        "Synchronize both with NTP (`timedatectl set-ntp true`).",
    )


def text(findings: Sequence[Finding], width: int) -> str:
    """One block per finding; problems with their meaning and advice."""
    names = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (names + _STATE_WIDTH + 4)
    lines: list[str] = []
    for finding in findings:
        state = finding.status.upper() if finding.status in ("problem", "fixed") else finding.status
        head = f"{finding.check:{names}}  {state:{_STATE_WIDTH}}  "
        lines += _wrapped(finding.found, width, head, indent)
        if finding.status == "problem":
            lines += _wrapped(finding.meaning, width, indent, indent)
            lines += _wrapped(finding.advice, width, f"{indent}-> ", f"{indent}   ")
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    problems = [finding for finding in findings if finding.status == "problem"]
    fixed = sum(finding.status == "fixed" for finding in findings)
    words = f"{formats.count(fixed, 'problem')} fixed. " if fixed else ""
    if not problems:
        return f"{words}No problems."
    words += formats.count(len(problems), "problem")
    fixable = sum(finding.fixable for finding in problems)
    return f"{words}; `trainyard doctor --fix` fixes {fixable} of them." if fixable else f"{words}."


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _problem(check: str, message: str, meaning: str, advice: str) -> Finding:
    return Finding(check=check, status="problem", found=message, meaning=meaning, advice=advice)
