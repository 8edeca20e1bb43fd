"""`trainyard agents add|list|drain|remove` and `trainyard agent join|storage|doctor`."""

import itertools
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.people.people import asked_token, given_token, new_token
from trainyard_cli.commands.shared.options import (
    ca_file_option,
    connected,
    expires_option,
    output_options,
    server_options,
)
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.listening import addresses_of_this_machine
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Server, Target, chosen_ca_file, default_state_dir, encrypted_url
from trainyard_protocol.answers.agents import free_name, matching_ids
from trainyard_protocol.errors import FailedPrecondition, NotFound, Unavailable

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.local.joined_agent import Unit
    from trainyard_protocol.answers.cluster import AgentView
    from trainyard_storage.tensorflow import Reach

_ALIVE_S, _POLL_S = 120.0, 0.5
_POLLS_OF_A_LOOK = 8


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="With USER@HOST, AGENT_OPTIONS are those of `python -m trainyard_agent`, such as --cpus 0-7 or --one-user.",
)
@click.argument("name", metavar="NAME|USER@HOST", required=False, default="")
@click.option(
    "--hosts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a USER@HOST in each line, in place of the argument.",
)
@click.option("--name", "given_name", default="", help="With USER@HOST: the agent's name.  [default: its host name]")
@click.option(
    "--wheel",
    "wheels",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With USER@HOST: install this wheel of trainyard there, not the release from its package index.",
)
@expires_option
@server_options
@output_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def add(
    target: Target,
    output: Output,
    name: str,
    hosts: Path | None,
    given_name: str,
    wheels: tuple[Path, ...],
    expires: float | None,
    options: tuple[str, ...],
) -> None:
    """Make a token for the agent of a new machine, and print the command to run there. Operators only.

    With USER@HOST: install the agent there over ssh, or update it, start it as a systemd unit, and wait until it is
    alive.
    """
    if name.startswith("-"):  # the first of the agent's options
        name, options = "", (name, *options)
    over_ssh = hosts_of(hosts) if hosts is not None else [name] if "@" in name else []
    if bool(name) is (hosts is not None) or (hosts is not None and not over_ssh):
        raise click.UsageError("Give a NAME, a USER@HOST, or --hosts FILE with a USER@HOST in each line.")
    if given_name and len(over_ssh) > 1:
        raise click.UsageError("--name is for one machine.")
    if not over_ssh and (options or wheels or given_name):
        raise click.UsageError(f"{name} is not USER@HOST: append its options to the printed command.")
    with connect(target) as client:
        state = LocalState(target.state_dir)
        server = (state.network_server() if client.server.local else None) or client.server
        alone = _alone(server, ", ".join(over_ssh) or name) if server.is_loopback else ""
        if over_ssh and alone:
            raise FailedPrecondition(alone)
        if client.server.local:
            options = (*_shared_root(state.options().shared_job_dirs, options), *options)
        for host in over_ssh:
            _add_over_ssh(client, server, host, given_name, wheels, expires, options)
        if over_ssh:
            return
        created = new_token(client, name, f"agent {name}", expires, for_agent=True)
    line = _join_line(server)
    if formats.printed(output, {**created.model_dump(mode="json"), "command": line}):
        return
    notify(f"On the new machine, with `pip install 'trainyard[agent]'`, run this; it asks for the token:\n\n  {line}\n")
    if server.ca_file is not None:
        notify(f"{server.ca_file.name} is a copy of {server.ca_file}, which is public.")
    if alone:
        notify(alone)
    notify(f"The token of {name}, shown this once:")
    echo(created.secret)


def _add_over_ssh(
    client: "Client",
    server: Server,
    host: str,
    name: str,
    wheels: Sequence[Path],
    expires: float | None,
    options: Sequence[str],
) -> None:
    from trainyard_cli.capabilities.agents.remote_agent import RemoteAgent

    remote = RemoteAgent(host)
    found = remote.find()
    notify(f"{host}: {'updating' if found.joined else 'installing'} the agent as {found.user}...")
    remote.install(found, wheels)
    status = client.status()
    wanted, is_of_cluster = name or found.name, any("kubernetes" in option for option in options)
    used = {agent.name for agent in status.agents if agent.agent_id != found.agent_id}
    # That of a cluster has its identity there, and the name alone tells whether it is the same.
    name = wanted if is_of_cluster else free_name(wanted, used)
    if name != wanted:
        notify(f"{host}: another agent has the name {wanted}, so this one becomes {name}.")
    reach = reach_of(options) if status.has_storage and not brings_storage(options) else None
    token = ""
    if found.joined != server.url:
        token = new_token(client, name, f"agent {name}", expires, for_agent=True).secret
    remote.join(server, token, options, storage_reach=reach)
    # Read now: until the agent that was there has ended, it calls too.
    before = {agent.agent_id: agent.last_seen for agent in client.status().agents}
    units = "units trainyard-agent and trainyard-storage" if reach is not None else "unit trainyard-agent"
    notify(f"{host}: started as the systemd {units}; waiting for it...")
    log = f"`ssh {host} journalctl {'' if found.user == 'root' else '--user '}-u trainyard-agent`"
    deadline, agent_id = time.monotonic() + _ALIVE_S, found.agent_id
    for polls in itertools.count(1):
        agent_id = agent_id or remote.agent_id()
        for agent in client.status().agents:
            is_it = agent.name == name if is_of_cluster else agent.agent_id == agent_id
            if is_it and agent.alive and before.get(agent.agent_id) != agent.last_seen:
                notify(f"{agent.name} is alive: {_offer_of(agent)}.")
                return
        if time.monotonic() > deadline:
            raise Unavailable(f"{name} has not called {server.url} within {_ALIVE_S:.0f} s. Its log: {log}.")
        if polls % _POLLS_OF_A_LOOK == 0 and (words := remote.last_words()):
            raise FailedPrecondition(f"The agent on {host} cannot continue: {words} Its log: {log}.")
        time.sleep(_POLL_S)


def hosts_of(file: Path) -> list[str]:
    """The machines of a file, each once; a comment begins with #. Raises UsageError with the number of a wrong line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{file} cannot be read as text: {error}.") from error
    hosts: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        host = line.partition("#")[0].strip()
        if not host:
            continue
        user, at, machine = host.partition("@")
        if not (user and at and machine) or len(host.split()) > 1 or host.startswith("-"):
            raise click.UsageError(f"{file}, line {number}: {host!r} is not USER@HOST.")
        hosts[host] = None
    return list(hosts)


def _alone(server: Server, machines: str) -> str:
    """The reason why no other machine reaches a server on loopback, and what to do."""
    if not server.local:
        return (
            f"{server.url} is this machine only: {machines} needs the server's address in the network, with https:// "
            "(docs/tutorials/second-machine.md)."
        )
    ours = ", ".join(addresses_of_this_machine())
    has = f" This machine has {ours}." if ours else ""
    return (
        f"{server.url} is this machine only. So that {machines} can join, run `trainyard down` and `trainyard up "
        f"--listen ADDRESS`, with an address that other machines can reach.{has} Running jobs then restart."
    )


def _shared_root(shared: str, options: Sequence[str]) -> Sequence[str]:
    """The option that lets containers use the directory that all machines share."""
    return ("--job-dir-root", shared) if shared and "--job-dir-root" not in options else ()


def brings_storage(options: Sequence[str]) -> bool:
    """Whether an agent's options give jobs a gs:// of their own, or say that its jobs run on other machines."""
    words = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "slurm", "kubernetes")
    return any(word in option for option in options for word in words)


def reach_of(options: Sequence[str]) -> "Reach":
    """The sites that containers reach through the proxy of gs://, by the network policy of an agent's options."""
    words = [word for option in options for word in option.split("=")]
    policy = words[words.index("--network") + 1] if "--network" in words[:-1] else ""
    if policy == "none":
        return "none"
    return "all" if policy == "all" or (not policy and "--one-user" in words) else "public"


def _offer_of(agent: "AgentView") -> str:
    """`8 vCPU, 64.0 GB and 2 x NVIDIA_L4; process + docker`"""
    from trainyard_protocol.job.resources import GIGABYTE

    capacity = agent.capacity
    parts = [f"{capacity.vcpus} vCPU", f"{capacity.memory_bytes / GIGABYTE:.1f} GB"]
    parts += [f"{count} x {kind}" for kind, count in sorted(capacity.accelerators.items())]
    return f"{', '.join(parts)}; {agent.runtime_names}"


@click.command()
@connected
@output_options
def list_all(client: "Client", output: Output) -> None:
    """List the agents: state, runtimes, capacity, last contact and lease: how long each may be silent."""
    agents = client.status().agents
    if formats.printed(output, [agent.model_dump(mode="json") | {"state": agent.state} for agent in agents]):
        return
    if not agents:
        notify("No agent has joined yet: `trainyard agents add NAME` says how.")
        return
    now = datetime.now(UTC)
    headers = [
        *("NAME", "ID", "HOST", "STATE", "RUNTIMES", "RUNS", "VCPU", "MEMORY GB", "GPUS"),
        *("DISK FREE", "VERSION", "LAST CONTACT", "LEASE"),
    ]
    echo(formats.table(headers, [_row(agent, now) for agent in agents]))
    for agent in agents:
        if agent.problem:
            notify(agent.problem)
        if agent.mounts:
            names = ", ".join(mount.name + ("" if mount.read_only else " (writable)") for mount in agent.mounts)
            notify(f"Mounts of {agent.name}: {names}.")


@click.command()
@click.argument("name", metavar="NAME|ID")
@click.option("--undo", is_flag=True, help="Let it start runs again.")
@click.option("--evict", is_flag=True, help="Move its runs: each is stopped once it has saved a checkpoint.")
@connected
def drain(client: "Client", name: str, undo: bool, evict: bool) -> None:
    """Start no new run on an agent, by name or id. Its runs go on. Operators only.

    With --evict they continue elsewhere, at no cost to their retries; those of jobs with disableRetries stay.
    """
    if undo and evict:
        raise click.UsageError("argument --evict: It is not allowed with --undo.")
    agent_id = _one_of(client, name)
    view = client.evict_agent(agent_id) if evict else client.drain_agent(agent_id, draining=not undo)
    for agent in view.agents:
        if undo:
            notify(f"{agent.name} starts runs again.")
        elif agent.runs and evict:
            notify(f"{agent.name} starts no new run. To be stopped once saved: {formats.count(agent.runs, 'run')}.")
        elif agent.runs:
            notify(f"{agent.name} starts no new run. Still running: {formats.count(agent.runs, 'run')}.")
        else:
            notify(f"{agent.name} starts no new run, and has none.")


@click.command()
@click.argument("name", metavar="NAME|ID|USER@HOST")
@connected
def remove(client: "Client", name: str) -> None:
    """Forget an agent without unfinished runs, by name or id, and revoke its tokens. Operators only.

    The beginning of an id is enough. With USER@HOST: stop it there too, over ssh, and remove what `agents add` has
    installed.
    """
    if "@" not in name:
        for agent in client.remove_agent(_one_of(client, name)).agents:
            notify(f"Removed {agent.name} ({agent.agent_id}). If its agent still runs there, stop it.")
        return
    from trainyard_cli.capabilities.agents.remote_agent import RemoteAgent

    remote = RemoteAgent(name)
    found = remote.find()
    if not found.agent_id:
        raise NotFound(f"There is no agent of {found.user} on {name}.")
    if any(agent.agent_id == found.agent_id for agent in client.status().agents):
        for agent in client.remove_agent(found.agent_id).agents:
            notify(f"Removed {agent.name} ({agent.agent_id}) from {client.server.url}.")
    remote.remove()
    notify(f"{name}: the agent is stopped and removed.")


def _one_of(client: "Client", name: str) -> str:
    """The name or id, or of several agents that it names the id of the one that a person chooses. Where nobody can be
    asked, the server refuses."""
    if not sys.stdin.isatty():
        return name
    agents = client.status().agents
    meant = matching_ids(name, {agent.agent_id: agent.name for agent in agents})
    chosen = [agent for agent in agents if agent.agent_id in meant]
    if len(chosen) < 2:
        return name
    now = datetime.now(UTC)
    rows = [
        [str(number), agent.name, agent.agent_id, agent.host or "-", agent.state, _age(_since(agent, now))]
        for number, agent in enumerate(chosen, start=1)
    ]
    notify(formats.table(["", "NAME", "ID", "HOST", "STATE", "LAST CONTACT"], rows))
    number = click.prompt("Which one", type=click.IntRange(1, len(chosen)), err=True)
    return chosen[number - 1].agent_id


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="AGENT_OPTIONS are those of `python -m trainyard_agent`, such as --cpus 0-7, --runtime docker or "
    "--job-dir-root /mnt/jobs.",
)
@click.argument("url", metavar="URL")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File with the agent's token, or - for standard input.  [default: the saved token, else ask]",
)
@ca_file_option
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The agent's directory.  [default: joined in ~/.local/state/trainyard, for root /var/lib/trainyard-agent]",
)
@click.option("--install", is_flag=True, help="Write a systemd unit for this instead of running it now.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def join(
    url: str,
    token_file: Path | None,
    ca_file: Path | None,
    state_dir: Path | None,
    install: bool,
    options: tuple[str, ...],
) -> int:
    """Run jobs of a server on this machine, until Ctrl-C.

    Checks the address, the certificate, the token and the versions first. `trainyard agents add` makes the token.
    """
    from trainyard_cli.local import joined_agent

    address = encrypted_url(url, "the agent's")
    joined = joined_agent.JoinedAgent(
        address, state_dir or joined_agent.default_directory(), chosen_ca_file(ca_file), options
    )
    if token_file is not None and str(token_file) != "-":
        joined = joined.with_token_file(token_file)
    elif token_file is not None:
        joined.save_token(given_token(token_file))
    elif not joined.has_token:
        joined.save_token(asked_token(f"Agent's token for {address}"))
    if code := joined.check():
        return code
    if not install:
        joined.become()
    _say_commands(joined.install(), "agent")
    return 0


@click.command()
@click.argument("url", metavar="URL")
@ca_file_option
@click.option("--port", type=click.IntRange(1, 65535), default=8479, show_default=True, help="The port on loopback.")
@click.option("--containers", is_flag=True, help="Listen on the address of Docker's bridge too.")
@click.option(
    "--reach",
    type=click.Choice(["all", "public", "none"]),
    default="none",
    show_default=True,
    help="What else containers reach through it, as their HTTPS proxy, where they use TensorFlow's gs://: what this "
    "machine reaches, public addresses alone, or nothing.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Its directory.  [default: storage-proxy in ~/.local/state/trainyard, for root /var/lib/trainyard-storage]",
)
@click.option("--install", is_flag=True, help="Write a systemd unit for this instead of running it now.")
def serve_storage(
    url: str, ca_file: Path | None, port: int, containers: bool, reach: "Reach", state_dir: Path | None, install: bool
) -> int:
    """Serve the server's storage to this machine's jobs, as gs://, until Ctrl-C.

    The agent gives jobs its address: --replica-env STORAGE_EMULATOR_HOST=http://127.0.0.1:8479/{job}
    """
    from trainyard_storage import proxy

    address, authorities = encrypted_url(url, "the server's"), chosen_ca_file(ca_file)
    directory = (state_dir or proxy.default_directory(default_state_dir())).absolute()
    if install:
        from trainyard_cli.local.joined_agent import STORAGE_UNIT, write_unit

        command = [sys.executable, "-P", "-m", "trainyard_cli", "agent", "storage", address, "--port", str(port)]
        command += ["--ca-file", str(authorities)] if authorities is not None else []
        command += ["--containers"] if containers else []
        command += ["--reach", reach, "--state-dir", str(directory)]
        _say_commands(write_unit(STORAGE_UNIT, f"gs:// of {address}", command), "proxy")
        return 0
    return proxy.run(address, authorities, directory, port, containers=containers, reach=reach)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="AGENT_OPTIONS are those that the agent runs with, such as --runtime kubernetes --kubeconfig FILE.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The agent's directory.  [default: as for join]",
)
@output_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def examine(state_dir: Path | None, output: Output, options: tuple[str, ...]) -> int:
    """Check what a joined agent stands on: its engine, its permissions, orphans of runs.

    Exits with 1 if something is wrong.
    """
    from trainyard_cli.local import joined_agent
    from trainyard_cli.output import findings

    agent = joined_agent.JoinedAgent("", state_dir or joined_agent.default_directory(), None, options)
    return 0 if findings.show(agent.examine(), output) else 1


def _say_commands(unit: "Unit", what: str) -> None:
    notify(f"Wrote {unit.path}. These commands start the {what}, now and at every boot:\n")
    echo("\n".join(unit.commands))


def _join_line(server: Server) -> str:
    ca_file = ["--ca-file", server.ca_file.name] if server.ca_file is not None else []
    return shlex.join(["trainyard", "agent", "join", server.url, *ca_file])


def _row(agent: "AgentView", now: datetime) -> list[str]:
    from trainyard_protocol.fields import sized
    from trainyard_protocol.job.resources import GIGABYTE

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
        _age(_since(agent, now)),
        "-" if agent.lease is None else agent.lease.text(now),
    ]


def _since(agent: "AgentView", now: datetime) -> float:
    return (now - agent.last_seen).total_seconds()


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit} ago"
    return f"{max(0.0, seconds):.0f}s ago"
