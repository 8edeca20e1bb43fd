"""Containers and networks with our labels whose run, or whose agent, is gone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainyard_agent.host import machine_id as here
from trainyard_agent.host.files import read_json
from trainyard_agent.runtimes.docker import spec as containers
from trainyard_agent.runtimes.docker.engine import Engine, EngineDown, EngineError
from trainyard_agent.runtimes.docker.runtime import DockerRuntime
from trainyard_protocol.health import Finding


@dataclass(frozen=True, slots=True)
class Stray:
    id: str
    kind: str
    job: str
    run_id: str
    whose: str


Settled = Callable[[Callable[[], list[Stray]]], list[Stray]]


def findings(state_dir: Path, settled: Settled, fix: bool) -> Iterator[Finding]:
    with closing(Engine()) as engine:
        try:
            engine.about()
            found = settled(lambda: _strays(engine, state_dir))
        except EngineError as error:
            yield _unasked(state_dir, error)
            return
        if not found:
            yield Finding(check="containers", status="ok", found="No container or network is left of a run.")
        # Containers first: a network that one is on cannot go.
        for stray in sorted(found, key=lambda one: (one.kind, one.run_id, one.id)):
            yield _of(engine, stray, fix)


def _of(engine: Engine, stray: Stray, fix: bool) -> Finding:
    name = f"The {stray.kind} {stray.id[:12]} of run {stray.run_id[:12]} (the job {stray.job})"
    trouble = ""
    by_hand = f", as `docker rm -f {stray.id[:12]}` does" if stray.kind == "container" else ""
    if fix:
        try:
            (engine.remove if stray.kind == "container" else engine.remove_network)(stray.id)
            return Finding(check="containers", status="fixed", found=f"{name} was removed.")
        except EngineError as error:
            trouble = f"It could not be removed: {error}."
    return Finding(
        check="containers",
        status="problem",
        found=f"{name} is left: {stray.whose}.",
        meaning="It may use CPUs, memory and devices that are given to others, and keeps its place on the disk.",
        advice=trouble or f"`trainyard doctor --fix` removes it{by_hand}.",
        fixable=not trouble,
    )


def _unasked(state_dir: Path, error: EngineError) -> Finding:
    if DockerRuntime.has_runs(state_dir):
        return Finding(
            check="containers",
            status="problem",
            found=f"There are runs of containers here, and {error}.",
            meaning="Whether they run cannot be told; they can be neither stopped nor started.",
            advice="Start the container engine, or name it with DOCKER_HOST.",
        )
    if isinstance(error, EngineDown):
        return Finding(
            check="containers", status="ok", found="No container engine is here, and no run needs one."
        )
    return Finding(
        check="containers", status="unknown", found=f"The container engine could not be asked: {error}."
    )


def _strays(engine: Engine, state_dir: Path) -> list[Stray]:
    labelled: list[tuple[str, str, Mapping[str, str]]] = [
        ("container", one.id, one.labels) for one in engine.containers(containers.AGENT)
    ]
    labelled += [("network", one, labels) for one, labels in engine.networks(containers.AGENT).items()]
    me = agent_id(state_dir)
    found = []
    for kind, identity, labels in labelled:
        run_id, agent = labels.get(containers.RUN, ""), labels[containers.AGENT]
        whose = "its run is known nowhere" if agent == me else _gone(agent, labels)
        if whose and not (agent == me and _known(state_dir, run_id)):
            found.append(Stray(identity, kind, labels.get(containers.JOB, "unknown"), run_id, whose))
    return found


def agent_id(state_dir: Path) -> str:
    """The id of the agent of a state directory; "" where there is none that can be read."""
    try:
        return str((read_json(state_dir / "agent.json") or {}).get("agent_id", ""))
    except OSError:
        return ""


def _known(state_dir: Path, run_id: str) -> bool:
    return bool(run_id) and (
        (state_dir / "containers" / run_id / "run.json").exists() or (state_dir / "staging" / run_id).is_dir()
    )


def _gone(agent: str, labels: Mapping[str, str]) -> str:
    """Why the agent of a container is gone for certain; "" where it may live."""
    home, host = labels.get(containers.STATE_DIR, ""), labels.get(containers.HOST_NAME, "")
    if not home or host != here.identity():
        return ""
    if not Path(home).exists():
        return "" if _serves(home) else f"the state directory of its agent, {home}, is gone"
    try:
        now = (read_json(Path(home) / "agent.json") or {}).get("agent_id", "")
    except OSError:  # damaged, or closed to us
        return ""
    return f"its agent is gone, and {home} is another one's now" if now and now != agent else ""


def _serves(home: str) -> bool:
    """Whether a process of this machine is an agent with that state directory."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainyard_agent" in words and home in words:
            return True
    return False
