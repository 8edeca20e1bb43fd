"""Containers and networks with our labels whose run or agent no longer exists."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psutil

from trainyard_agent.engines.contract import STAGING, has_run
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineError
from trainyard_agent.engines.docker.network.firewall import Firewall, NotEnforced, removal
from trainyard_agent.host import machine_id
from trainyard_agent.host.files import read_json
from trainyard_agent.runtimes.base import Orphan
from trainyard_protocol.answers.health import Finding


def findings(state_dir: Path) -> Iterator[Finding]:
    """Whether the engine answers, which matters where there are runs of containers."""
    with closing(DockerClient()) as client:
        try:
            engine = client.about()
        except EngineError as error:
            if _has_runs(state_dir):
                yield Finding(
                    check="containers",
                    status="problem",
                    found=f"There are runs of containers on this machine, and {error}.",
                    meaning="Their state is unknown; they can be neither stopped nor started.",
                    advice="Start the container engine, or name it with DOCKER_HOST.",
                )
            elif isinstance(error, EngineDown):
                found = "There is no container engine, and no run needs one."
                yield Finding(check="containers", status="ok", found=found)
        else:
            found = f"The container engine {engine.name} ({engine.version}) answers."
            yield Finding(check="containers", status="ok", found=found)


def orphans(state_dir: Path) -> list[Orphan]:
    """Raises EngineError."""
    with closing(DockerClient()) as client:
        try:
            found = _containers_and_networks(client, state_dir)
        except EngineDown:
            if _has_runs(state_dir):
                raise
            found = []
    return [*found, *_rules()]


def _has_runs(state_dir: Path) -> bool:
    return any((state_dir / "containers").glob("[!.]*"))


def _containers_and_networks(client: DockerClient, state_dir: Path) -> list[Orphan]:
    """Containers first: a network with a container cannot be removed."""
    labelled: list[tuple[str, str, str, Mapping[str, str]]] = [
        ("container", "docker rm --force --volumes", item.id, item.labels) for item in client.containers(spec.AGENT)
    ]
    networks = sorted(client.networks(spec.AGENT).items())
    labelled += [("network", "docker network rm", item, labels) for item, labels in networks]
    me = agent_id(state_dir)
    found = []
    for kind, command, identity, labels in labelled:
        run_id, agent = labels.get(spec.RUN, ""), labels[spec.AGENT]
        why = "the run does not exist" if agent == me else _why_agent_is_gone(agent, labels)
        if why and not (agent == me and run_id and has_run(state_dir, run_id, "containers", STAGING)):
            what = f"{kind} {identity[:12]} of the job {labels.get(spec.JOB, 'unknown')}"
            found.append(Orphan(what, run_id, why, f"{command} {identity}"))
    return found


def _rules() -> list[Orphan]:
    """None where this user may not see the rules: then no agent of this user made any."""
    try:
        bridges = sorted(Firewall().survey()[1])
    except NotEnforced:
        return []
    meaning = "It affects nothing, and stays until the machine restarts."
    return [
        Orphan(f"chain of firewall rules {bridge}", "", "its network does not exist", removal(bridge), meaning)
        for bridge in bridges
    ]


def agent_id(state_dir: Path) -> str:
    """The agent id of a state directory; "" if there is none or it cannot be read."""
    try:
        return str((read_json(state_dir / "agent.json") or {}).get("agent_id", ""))
    except OSError:
        return ""


def _why_agent_is_gone(agent: str, labels: Mapping[str, str]) -> str:
    """The reason to conclude that a container's agent no longer exists; "" if it may exist."""
    agent_dir, host = labels.get(spec.STATE_DIR, ""), labels.get(spec.HOST_NAME, "")
    if not agent_dir or host != machine_id.identity():
        return ""
    if not Path(agent_dir).exists():
        return "" if _is_served(agent_dir) else f"the state directory of its agent, {agent_dir}, was removed"
    try:
        now = (read_json(Path(agent_dir) / "agent.json") or {}).get("agent_id", "")
    except OSError:  # damaged, or not readable by this user
        return ""
    return f"its agent no longer exists, and {agent_dir} belongs to another one" if now and now != agent else ""


def _is_served(agent_dir: str) -> bool:
    """Whether a process of this machine is an agent with this state directory, as far as its command line says it."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid == os.getpid() or "trainyard_agent" not in words:
            continue
        if agent_dir in words or "--state-dir" not in words:  # its environment or a file may name any
            return True
    return False
