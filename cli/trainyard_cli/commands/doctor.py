"""`trainyard doctor`: everything that can be looked at, what is wrong with it, and what to do.

What stands on this machine is looked at here (`local_checks`) and by the agent's own code, in a process of its own;
what the server knows is asked of it. A service that is stopped is no problem by itself.
"""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

import trainyard_protocol
from trainyard_cli.client import NO_PATIENCE, Client
from trainyard_cli.local import checks as local_checks
from trainyard_cli.local.state import LocalState
from trainyard_cli.output import formats
from trainyard_cli.output.formats import Output
from trainyard_cli.settings import Server, Where, remote_server
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.views import AgentView

_TIMEOUT_S = 120.0  # SQLite's file is read from one end to the other
_CLOCK_S = 2.0
_WIDTH = 110
_STATE_WIDTH = len("PROBLEM")

_MEANINGS = {
    "database": "No job can be taken, shown or moved forward; those that run go on.",
    "disk": "Nothing new can be taken, and what runs may not be able to say how it ended.",
    "scheduler": "Jobs neither start nor end.",
    "agents": "Jobs wait: nobody can run them.",
    "logs": "Lines of some jobs cannot be shown; the others are not concerned.",
}
_ADVICE = {
    "database": "Start it again, or see its own log; the server finds it by itself.",
    "disk": "Free some space, or have it mounted for writing; the server goes on by itself.",
    "scheduler": "See the server's log.",
    "agents": "`trainyard up` starts the one of this machine.",
    "logs": "Restore the files from a backup, or leave them: nothing else hangs on them.",
}


def run(where: Where, output: Output, fix: bool) -> bool:
    """Prints what was found; returns whether nothing is wrong."""
    findings = tuple(examine(where, fix))
    healthy = all(finding.status != "problem" for finding in findings)
    if output.for_people:
        click.echo(text(findings, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)))
    else:
        data = {"healthy": healthy, "findings": [finding.model_dump(mode="json") for finding in findings]}
        click.echo(formats.render(output, data))
    return healthy


def examine(where: Where, fix: bool) -> Iterator[Finding]:
    remote = remote_server(where)
    if remote is not None:
        yield from of_server(remote, fix)
        return
    state = LocalState(where.state_dir)
    if not state.exists():
        yield Finding(
            check="services", status="ok", found=f"The local service was never started in {state.root}."
        )
        return
    yield from local_checks.services(state, fix)
    yield from local_checks.ports(state)
    server, live_runs = state.server(), None
    if server is not None and state.process("server") is not None:
        looked = Looked(server)
        yield from looked.findings(fix)
        live_runs = looked.live_runs
    yield from local_checks.agent(state, live_runs, fix)
    yield from local_checks.disk(state)


def of_server(server: Server, fix: bool) -> Iterator[Finding]:
    yield from Looked(server).findings(fix)


class Looked:
    """What the server says; `live_runs` are known once the findings were read."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.live_runs: tuple[str, ...] | None = None

    def findings(self, fix: bool) -> Iterator[Finding]:
        with Client(self._server, "", patience=NO_PATIENCE, timeout=_TIMEOUT_S) as client:
            try:
                before = datetime.now(UTC)
                health = client.health()
                after = datetime.now(UTC)
            except TrainyardError as error:
                yield _problem(
                    "server", error.message, "Nothing can be asked of it.", "See its log, or its address."
                )
                return
            yield from of_version(health)
            yield from of_checks(health)
            yield of_clock(health.time, before, after)
            try:
                if fix:
                    yield from client.mend().findings
                deep = client.health(deep=True)
                agents = client.status().agents
            except TrainyardError as error:
                yield Finding(
                    check="server", status="unknown", found=f"It could not look at itself: {error.message}"
                )
                return
            yield from of_agents(agents, health.version)
            yield from deep.findings
            self.live_runs = deep.live_runs


def of_version(health: ServerHealth) -> Iterator[Finding]:
    mine = trainyard_protocol.__version__
    if health.version == mine:
        yield Finding(check="server", status="ok", found=f"It answers, and is of this version, {mine}.")
        return
    yield _problem(
        "server",
        f"It is of version {health.version}, and this command of {mine}.",
        "What the one says the other may not understand.",
        "Upgrade the older; on one machine: `trainyard down`, then `trainyard up`. Jobs go on.",
    )


def of_agents(agents: Sequence[AgentView], version: str) -> Iterator[Finding]:
    """Those that are alive; of a silent one nothing is known."""
    others = [agent for agent in agents if agent.alive and agent.version != version]
    for agent in others:
        yield _problem(
            "agents",
            f"The agent {agent.name} is of version {agent.version}, and the server of {version}.",
            "What the one says the other may not understand.",
            "Start the agent again from the same version; on one machine: `trainyard down`, then `trainyard up`.",
        )
    alive = sum(agent.alive for agent in agents)
    if alive and not others:
        found = f"{_things(alive, 'agent')} alive, of the server's version."
        yield Finding(check="agents", status="ok", found=found)


def of_checks(health: ServerHealth) -> Iterator[Finding]:
    """What is not ok; the rest says itself with the findings."""
    for name, check in health.checks.items():
        if check.status is not CheckStatus.OK:
            found = f"The server says of its {name}: {check.message}."
            yield _problem(name, found, _MEANINGS.get(name, ""), _ADVICE.get(name, ""))


def of_clock(theirs: datetime, before: datetime, after: datetime) -> Finding:
    """Their time was read somewhere between the other two."""
    off_s = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    if off_s <= _CLOCK_S:
        return Finding(check="clock", status="ok", found="The server's clock and this machine's agree.")
    where = "behind" if theirs < before else "ahead"
    return _problem(
        "clock",
        f"The server's clock is {off_s:.0f} s {where} of this machine's.",
        "Times of jobs and of log lines do not fit together.",
        "Have both set by NTP (`timedatectl set-ntp true`).",
    )


def text(findings: Sequence[Finding], width: int) -> str:
    """One block for each finding, the problems with what they mean and what to do."""
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
    wrong = [finding for finding in findings if finding.status == "problem"]
    fixed = sum(finding.status == "fixed" for finding in findings)
    words = f"Mended {_things(fixed)}. " if fixed else ""
    if not wrong:
        return f"{words}Nothing is wrong."
    words += f"{_things(len(wrong))} {'is' if len(wrong) == 1 else 'are'} wrong"
    fixable = sum(finding.fixable for finding in wrong)
    return f"{words}; `trainyard doctor --fix` mends {fixable} of them." if fixable else f"{words}."


def _things(number: int, thing: str = "thing") -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


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


def _problem(check: str, found: str, meaning: str, advice: str) -> Finding:
    return Finding(check=check, status="problem", found=found, meaning=meaning, advice=advice)
