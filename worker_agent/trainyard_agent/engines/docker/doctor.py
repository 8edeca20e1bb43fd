"""Containers and networks with our labels whose run or agent no longer exists."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.engine import Engine, EngineDown, EngineError
from trainyard_agent.engines.docker.runtime import DockerRuntime
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


Settled = Callable[[Callable[[], list[OrphanContainer]]], list[OrphanContainer]]


def findings(state_dir: Path, settled: Settled, fix: bool) -> Iterator[Finding]:
    with closing(Engine()) as engine:
        try:
            engine.about()
            orphans = settled(lambda: _orphans(engine, state_dir))
        except EngineError as error:
            yield _engine_unavailable(state_dir, error)
            return
        if not orphans:
            yield Finding(
                check="containers", status="ok", found="There are no orphaned containers or networks."
            )
        # Containers first: a network with a container cannot be removed.
        for orphan in sorted(orphans, key=lambda one: (one.kind, one.run_id, one.id)):
            yield _finding(engine, orphan, fix)


def _finding(engine: Engine, orphan: OrphanContainer, fix: bool) -> Finding:
    name = f"The {orphan.kind} {orphan.id[:12]} of run {orphan.run_id[:12]} (the job {orphan.job})"
    failure = ""
    by_hand = f", as `docker rm -f {orphan.id[:12]}` does" if orphan.kind == "container" else ""
    if fix:
        try:
            (engine.remove if orphan.kind == "container" else engine.remove_network)(orphan.id)
            return Finding(check="containers", status="fixed", found=f"{name} was removed.")
        except EngineError as error:
            failure = f"It could not be removed: {error}."
    return Finding(
        check="containers",
        status="problem",
        found=f"{name} is orphaned: {orphan.why}.",
        meaning="It may use CPUs, memory and devices that are assigned to others, and uses disk space.",
        advice=failure or f"`trainyard doctor --fix` removes it{by_hand}.",
        fixable=not failure,
    )


def _engine_unavailable(state_dir: Path, error: EngineError) -> Finding:
    if DockerRuntime.has_runs(state_dir):
        return Finding(
            check="containers",
            status="problem",
            found=f"There are runs of containers on this machine, and {error}.",
            meaning="Their state is unknown; they can be neither stopped nor started.",
            advice="Start the container engine, or name it with DOCKER_HOST.",
        )
    if isinstance(error, EngineDown):
        return Finding(
            check="containers", status="ok", found="There is no container engine, and no run needs one."
        )
    return Finding(
        check="containers", status="unknown", found=f"The container engine could not be asked: {error}."
    )


def _orphans(engine: Engine, state_dir: Path) -> list[OrphanContainer]:
    labelled: list[tuple[str, str, Mapping[str, str]]] = [
        ("container", one.id, one.labels) for one in engine.containers(spec.AGENT)
    ]
    labelled += [("network", one, labels) for one, labels in engine.networks(spec.AGENT).items()]
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
    return (
        f"its agent no longer exists, and {agent_dir} belongs to another one" if now and now != agent else ""
    )


def _is_served(agent_dir: str) -> bool:
    """Whether a process of this machine is an agent with this state directory."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainyard_agent" in words and agent_dir in words:
            return True
    return False
