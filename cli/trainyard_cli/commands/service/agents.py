"""`trainyard agents` and `trainyard agent join`: what they ask, run and print."""

import math
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.people.people import given_token
from trainyard_cli.commands.service import doctor
from trainyard_cli.local import joined_agent
from trainyard_cli.local.agent_manifest import AgentManifest
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import (
    Server,
    Target,
    checked_token,
    chosen_ca_file,
    default_state_dir,
    encrypted_url,
)
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.machines import GIGABYTE
from trainyard_protocol.views.agents import AgentsView
from trainyard_protocol.views.health import sized
from trainyard_protocol.views.people import TokenRequest
from trainyard_protocol.views.views import AgentView

if TYPE_CHECKING:
    from trainyard_storage.tensorflow_front import Reach


def add(target: Target, output: Output, name: str, expires_s: float | None) -> None:
    """Make the token of an agent. The token alone goes to stdout, for scripts."""
    request = TokenRequest(
        owner=name,
        for_agent=True,
        description=f"agent {name}",
        expires_in_s=math.ceil(expires_s) if expires_s else None,
    )
    with connect(target) as client:
        server = client.server
        made = client.create_token(request)
    line = _join_line(server)
    if not output.for_people:
        echo(formats.render(output, {**made.model_dump(mode="json"), "command": line}))
        return
    notify(
        f"On the new machine, with `pip install 'trainyard[agent]'`, run this; it asks for the token:\n\n  {line}\n"
    )
    if server.ca_file is not None:
        notify(f"{server.ca_file.name} is a copy of {server.ca_file}, which is public.")
    if server.is_loopback:
        notify(
            f"{server.url} is this machine only. Another one needs the server's address in the network, with https:// "
            "(docs/machines-more.md)."
        )
    notify(f"The token of {name}, shown this once:")
    echo(made.secret)


def list_all(target: Target, output: Output) -> None:
    with connect(target) as client:
        agents = client.status().agents
    if not output.for_people:
        rows = [agent.model_dump(mode="json") | {"state": agent.state} for agent in agents]
        echo(formats.render(output, rows))
        return
    if not agents:
        notify("No agent has joined yet: `trainyard agents add NAME` says how.")
        return
    now = datetime.now(UTC)
    headers = [
        *("NAME", "ID", "HOST", "STATE", "RUNTIMES", "RUNS", "VCPU", "MEMORY GB", "GPUS"),
        *("DISK FREE", "VERSION", "LAST CONTACT"),
    ]
    echo(formats.table(headers, [_row(agent, now) for agent in agents]))
    for agent in agents:
        if agent.no_room:
            notify(f"{agent.name} starts nothing: {agent.no_room}.")


def drain(target: Target, name: str, *, draining: bool) -> None:
    with connect(target) as client:
        changed = client.drain_agent(name, draining=draining)
    for agent in changed.agents:
        if not draining:
            notify(f"{agent.name} starts runs again.")
        elif agent.runs:
            notify(f"{agent.name} starts no new run. {formats.count(agent.runs, 'run')} of it go on.")
        else:
            notify(f"{agent.name} starts no new run, and has none.")


def remove(target: Target, name: str) -> None:
    with connect(target) as client:
        removed: AgentsView = client.remove_agent(name)
    for agent in removed.agents:
        notify(f"Removed {agent.name} ({agent.agent_id}). If its agent still runs there, stop it.")


def serve_storage(
    url: str, ca_file: Path | None, port: int, containers: bool, reach: "Reach", state_dir: Path | None
) -> int:
    """Raises InvalidArgument, FailedPrecondition."""
    from trainyard_storage import storage_front

    address, authorities = encrypted_url(url, "the server's"), chosen_ca_file(ca_file)
    directory = (state_dir or storage_front.default_directory(default_state_dir())).absolute()
    return storage_front.run(address, authorities, directory, port, containers=containers, reach=reach)


def join(
    url: str,
    token_file: Path | None,
    ca_file: Path | None,
    state_dir: Path | None,
    options: Sequence[str],
    *,
    install: bool,
) -> int:
    """Check that this machine may join, then become its agent, or write its systemd unit. Returns an exit code.

    Raises InvalidArgument, FailedPrecondition.
    """
    address = encrypted_url(url, "the agent's")
    joined = joined_agent.JoinedAgent(
        address, state_dir or joined_agent.default_directory(), chosen_ca_file(ca_file), tuple(options)
    )
    if token_file is not None and str(token_file) != "-":
        joined = joined.with_token_file(token_file)
    elif token_file is not None:
        joined.save_token(given_token(token_file))
    elif not joined.has_token:
        joined.save_token(_asked_token(address))
    if code := joined.check():
        return code
    if not install:
        joined.become()
    unit = joined.install()
    notify(f"Wrote {unit.path}. These commands start the agent, now and at every boot:\n")
    echo("\n".join(unit.commands))
    return 0


def examine(state_dir: Path | None, options: Sequence[str], output: Output) -> bool:
    """Print the findings of an agent's doctor. Returns whether there is no problem. Raises FailedPrecondition."""
    agent = joined_agent.JoinedAgent("", state_dir or joined_agent.default_directory(), None, tuple(options))
    return doctor.show(agent.examine(), output)


def manifest(
    server: str,
    image: str,
    namespace: str,
    token_file: Path | None,
    ca_file: Path | None,
    runtimes: Path | None,
    options: Sequence[str],
) -> None:
    """Print the objects of an agent in a cluster. Raises InvalidArgument."""
    address = encrypted_url(server, "the agent's")
    if Server(address, "").is_loopback:
        raise InvalidArgument(
            f"{address} is this machine alone, which pods do not reach: give its address for them."
        )
    token = given_token(token_file) if token_file is not None else ""
    wanted = AgentManifest(
        address, image, namespace, token, chosen_ca_file(ca_file), runtimes, tuple(options)
    )
    text = wanted.text()
    if not token:
        notify(
            f"There is no --token-file: make the Secret with the agent's token by\n\n  {wanted.secret_command()}\n"
        )
    echo(text.rstrip())


def _asked_token(url: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask for the token at: give --token-file FILE, or - for stdin."
        )
    return checked_token(
        click.prompt(f"Agent's token for {url}", hide_input=True, err=True), "what was typed"
    )


def _join_line(server: Server) -> str:
    ca_file = ["--ca-file", server.ca_file.name] if server.ca_file is not None else []
    return shlex.join(["trainyard", "agent", "join", server.url, *ca_file])


def _row(agent: AgentView, now: datetime) -> list[str]:
    capacity, devices = agent.capacity, agent.capacity.accelerators.total()
    return [
        agent.name,
        agent.agent_id[:12],
        agent.host or "-",
        agent.state,
        agent.runtime_names,
        str(agent.runs),
        f"{agent.cpus_given} of {capacity.vcpus}",
        f"{agent.memory_given_bytes / GIGABYTE:.0f} of {capacity.memory_bytes / GIGABYTE:.0f}",
        f"{agent.accelerators_given or len(agent.gpus_given)} of {devices}" if devices else "-",
        sized(min(disk.free_bytes for disk in agent.disks)) if agent.disks else "-",
        agent.version,
        _age((now - agent.last_seen).total_seconds()),
    ]


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit} ago"
    return f"{max(0.0, seconds):.0f}s ago"
