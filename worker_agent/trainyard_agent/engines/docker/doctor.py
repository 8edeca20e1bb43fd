"""Containers and networks with our labels whose run or agent no longer exists."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineError
from trainyard_agent.engines.docker.network.firewall import Firewall, NotEnforced
from trainyard_agent.engines.examining import orphan_findings, settled
from trainyard_agent.host import machine_id
from trainyard_agent.host.files import read_json
from trainyard_protocol.views.health import Finding


@dataclass(frozen=True, slots=True)
class OrphanContainer:
    """A container or network (`kind`). `why`: why it is an orphan."""

    id: str
    kind: str
    job: str
    run_id: str
    why: str

    @property
    def words(self) -> str:
        run = self.run_id[:12]
        return f"The {self.kind} {self.id[:12]} of run {run} (the job {self.job}) is orphaned: {self.why}."


def findings(state_dir: Path, fix: bool) -> Iterator[Finding]:
    with closing(DockerClient()) as client:
        try:
            client.about()
            orphans = settled(state_dir, lambda: _orphans(client, state_dir))
        except EngineError as error:
            yield _engine_unavailable(state_dir, error)
        else:
            # Containers first: a network with a container cannot be removed.
            orphans.sort(key=lambda orphan: (orphan.kind, orphan.run_id, orphan.id))
            yield from orphan_findings(
                "containers",
                {orphan.words: partial(_remove, client, orphan) for orphan in orphans},
                "It may use CPUs, memory and devices that are assigned to others, and uses disk space.",
                "`trainyard doctor --fix` removes it.",
                fix,
                "There are no orphaned containers or networks.",
            )
    yield from _rule_findings(state_dir, fix)


def _remove(client: DockerClient, orphan: OrphanContainer) -> str:
    try:
        (client.remove if orphan.kind == "container" else client.remove_network)(orphan.id)
    except EngineError as error:
        return str(error)
    return ""


def _rule_findings(state_dir: Path, fix: bool) -> Iterator[Finding]:
    """Nothing where there are no rules, or where this user may not see them: then no agent of this user made any."""
    firewall = Firewall()

    def remove(bridge: str) -> str:
        try:
            firewall.remove(bridge)
        except NotEnforced as error:
            return str(error)
        return ""

    try:
        bridges = settled(state_dir, lambda: sorted(firewall.survey()[1]))
    except NotEnforced:
        return
    yield from orphan_findings(
        "containers",
        {
            f"The firewall rules {bridge} (iptables, table mangle) are orphaned: their network is gone.": partial(
                remove, bridge
            )
            for bridge in bridges
        },
        "They affect nothing, and stay until the machine restarts.",
        "`trainyard doctor --fix` removes them.",
        fix,
    )


def _engine_unavailable(state_dir: Path, error: EngineError) -> Finding:
    if any((state_dir / "containers").glob("[!.]*")):
        return Finding(
            check="containers",
            status="problem",
            found=f"There are runs of containers on this machine, and {error}.",
            meaning="Their state is unknown; they can be neither stopped nor started.",
            advice="Start the container engine, or name it with DOCKER_HOST.",
        )
    if isinstance(error, EngineDown):
        return Finding(check="containers", status="ok", found="There is no container engine, and no run needs one.")
    return Finding(check="containers", status="unknown", found=f"The container engine could not be asked: {error}.")


def _orphans(client: DockerClient, state_dir: Path) -> list[OrphanContainer]:
    labelled: list[tuple[str, str, Mapping[str, str]]] = [
        ("container", item.id, item.labels) for item in client.containers(spec.AGENT)
    ]
    labelled += [("network", item, labels) for item, labels in client.networks(spec.AGENT).items()]
    me = agent_id(state_dir)
    orphans = []
    for kind, identity, labels in labelled:
        run_id, agent = labels.get(spec.RUN, ""), labels[spec.AGENT]
        why = "its run does not exist" if agent == me else _why_agent_is_gone(agent, labels)
        if why and not (agent == me and _known(state_dir, run_id)):
            orphans.append(OrphanContainer(identity, kind, labels.get(spec.JOB, "unknown"), run_id, why))
    return orphans


def agent_id(state_dir: Path) -> str:
    """The agent id of a state directory; "" if there is none or it cannot be read."""
    try:
        return str((read_json(state_dir / "agent.json") or {}).get("agent_id", ""))
    except OSError:
        return ""


def _known(state_dir: Path, run_id: str) -> bool:
    return bool(run_id) and (
        (state_dir / "containers" / run_id / "run.json").exists() or (state_dir / "staging" / run_id).is_dir()
    )


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
