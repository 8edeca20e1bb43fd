"""`trainyard up`, `down` and `status`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.service.shell_init import this_program
from trainyard_cli.commands.shared.options import output_options, server_options, state_options
from trainyard_cli.local import service as service
from trainyard_cli.local.browser_address import dashboard_url
from trainyard_cli.local.options import up_options
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_protocol.states import FINAL_JOB_STATES

if TYPE_CHECKING:  # `up` starts the processes before it loads models
    from trainyard_protocol.answers.cluster import AgentView, RetentionView, ServerStatus
    from trainyard_protocol.answers.health import Check

NOT_HEALTHY = 3


@click.command()
@state_options
@up_options
def up(state_dir: Path, changes: Mapping[str, Any]) -> None:
    """Start the service on this machine, in the background. Running parts are left alone."""
    state = LocalState(state_dir)
    with Activity() as activity:
        now = service.up(state, changes, activity.notify, report=activity.report)
    from trainyard_cli.submission.proposal import proposed_line

    echo(_status_text(now))
    echo(f"\nDashboard:                 {_dashboard(state.server())}  (open it signed in: trainyard dashboard)")
    echo(f"State and logs:            {state.root}")
    if len(program := this_program()) == 1:
        echo(f'Add `jobs` to this shell:  eval "$({program[0]} shell-init)"')
    echo(f"Submit a job:              {proposed_line()}")
    if now.network is not None:
        echo("Add a machine over ssh:    trainyard agents add USER@HOST")
        echo(f"Log in from elsewhere:     {_login_line(now.network)}  (a copy of that file, which is public)")
    echo("Stop everything:           trainyard down")


@click.command()
@state_options
def down(state_dir: Path) -> None:
    """Stop the service on this machine and all its replicas."""
    state = LocalState(state_dir)
    with Activity() as activity:
        activity.report("stopping the service and its replicas")
        stopped = service.down(state, activity.notify)
    if stopped:
        echo("Stopped the local service.")
    else:
        echo("The local service was not running.")


@click.command()
@server_options
@output_options
def status(target: Target, output: Output) -> int:
    """Show processes, health checks, agents and job counts. Exit code 3 if not healthy."""
    server = remote_server(target)
    state = LocalState(target.state_dir)
    now = service.server_status(server) if server else service.status(state)
    dashboard = _dashboard(server or state.server()) if now.health is not None else ""
    if not formats.printed(output, {**_status_data(now), "dashboard": dashboard}):
        echo(_status_text(now))
        if dashboard:
            echo(f"Dashboard: {dashboard}")
    return 0 if now.healthy else NOT_HEALTHY


def _login_line(server: Server) -> str:
    return shlex.join(["trainyard", "login", server.url, "--ca-file", str(server.ca_file)])


def _dashboard(server: Server | None) -> str:
    return f"{dashboard_url(server)}/" if server is not None else ""


def _status_data(now: service.Status) -> dict[str, Any]:
    server = now.server.model_dump(mode="json") if now.server else None
    processes = [
        {"name": part.name, "pid": part.pid, "running": part.pid is not None, "address": part.address}
        for part in now.parts
    ]
    network = now.network.url if now.network else ""
    health = now.health.model_dump(mode="json", include={"status", "checks"}) if now.health else None
    answer = {"healthy": now.healthy, "problem": now.problem, "network_address": network}
    return {**answer, "processes": processes, "health": health, "server": server}


def _status_text(now: service.Status) -> str:
    blocks = []
    if now.parts:
        rows = [[p.name, "running" if p.pid else "stopped", str(p.pid or "-"), p.address or "-"] for p in now.parts]
        blocks.append(formats.table(["PROCESS", "STATE", "PID", "ADDRESS"], rows))
    if now.network is not None:
        blocks.append(f"Other machines reach the server at {now.network.url}")
    if now.health is not None:
        checks = [
            [name, check.status.value, _latency(check), check.message] for name, check in now.health.checks.items()
        ]
        blocks.append(formats.table(["CHECK", "STATE", "TOOK", "MESSAGE"], checks))
        blocks += [f"{name}: {check.advice}" for name, check in now.health.checks.items() if check.advice]
    if now.server is None:
        return "\n\n".join([*blocks, now.problem])
    if now.server.agents:
        headers = ["AGENT", "STATE", "RUNTIME", "CAPACITY", "CPUS", "MEMORY", "GPUS", "RUNS", "USED"]
        blocks.append(formats.table(headers, [_agent_row(agent) for agent in now.server.agents]))
        blocks += _runtimes(now.server.agents)
        blocks += [agent.problem for agent in now.server.agents if agent.problem]
    else:
        blocks.append("No agent has registered yet. Jobs stay queued.")
    blocks.append(f"Jobs: {_counts(now.server)}")
    if now.server.retention is not None:
        blocks.append(retention_text(now.server.retention))
    return "\n\n".join(blocks)


def _runtimes(agents: Sequence["AgentView"]) -> list[str]:
    """Which jobs run in what, one line for each agent."""
    alive = [agent for agent in agents if agent.alive and agent.runtimes_summary]
    names = len(agents) > 1
    lines = [f"{agent.name}: {agent.runtimes_summary}" if names else agent.runtimes_summary for agent in alive]
    return ["\n".join(lines)] if lines else []


def _latency(check: "Check") -> str:
    return "-" if check.latency_ms is None else f"{check.latency_ms:.1f} ms"


def _agent_row(agent: "AgentView") -> list[str]:
    from trainyard_protocol.job.resources import GIGABYTE

    return [
        agent.name,
        agent.state,
        agent.runtime_names,
        agent.capacity_mode,
        str(agent.capacity.vcpus),
        f"{agent.capacity.memory_bytes / GIGABYTE:.1f} GB",
        str(agent.capacity.accelerators.total()),
        str(agent.runs),
        f"{agent.cpu_used:.1f} cores, {agent.memory_used_bytes / GIGABYTE:.1f} GB" if agent.runs else "-",
    ]


def retention_text(retention: "RetentionView") -> str:
    """The limits of the retention, and what was deleted because of them."""
    limits = []
    if retention.keep_jobs_s is not None:
        limits.append(f"jobs are deleted {_period(retention.keep_jobs_s)} after their end")
    if retention.projects:
        have = "has a limit of its own" if retention.projects == 1 else "have limits of their own"
        limits.append(f"{formats.count(retention.projects, 'project')} {have}")
    deleted = formats.count(retention.jobs_deleted, "job")
    was = "was" if retention.jobs_deleted == 1 else "were"
    last = f", the last on {retention.last_removal:%Y-%m-%d %H:%M} UTC" if retention.last_removal else ""
    return f"Retention: {'; '.join(limits)}. So far {deleted} {was} deleted{last}."


def _period(seconds: float) -> str:
    units = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    unit, size = next((unit, size) for unit, size in units.items() if seconds % size == 0 or size == 1)
    return formats.count(round(seconds / size), unit)


def _counts(server: "ServerStatus") -> str:
    counted = {state: count for state, count in server.jobs.items() if count}
    active = [f"{count} {state}" for state, count in counted.items() if state not in FINAL_JOB_STATES]
    ended = [f"{count} {state}" for state, count in counted.items() if state in FINAL_JOB_STATES]
    return ", ".join([*active, *ended]) or "none yet"
