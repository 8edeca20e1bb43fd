"""Engines of an agent as one: each run is in the engine that was chosen for it.

`--runtime` says where new runs may start. An engine of the machine that still has runs is opened all the same, so that
none is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.engines.contract import Engine, OpenEngine, Place
from trainyard_agent.engines.registry import chosen_engines, engine_of, kinds
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.runtime_set import Choice, Choices, RuntimeSet
from trainyard_agent.server_client import ServerClient
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.stager_set import StagerSet
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName
from trainyard_protocol.wire.sync import RunOrder

_ANY = TrainingInput()
"""A job that wants no engine."""

_NOWHERE = Choice("none")
"""The choice for a run that no engine can start: the server gives an agent none."""


@dataclass(frozen=True, slots=True)
class OpenRuntimes:
    """The engines as one. `info` adds to an agent's own fields what it offers now. `written`: directories that every
    run needs, beside the state directory."""

    runtime: Runtime
    stager: Stager
    info: Callable[[AgentInfo], AgentInfo]
    written: tuple[Path, ...] = ()


@contextmanager
def open_engines(settings: AgentSettings, agent_id: str, control_plane: ServerClient) -> Iterator[OpenRuntimes]:
    """Open the engines for these settings. Raises SettingsRefused, InvalidArgument."""
    chosen = chosen_engines(settings.runtime)
    private = tuple(path for kind in kinds().values() for path in kind.private_files())
    opened: dict[RuntimeName, OpenEngine] = {}
    with ExitStack() as stack:
        for engine in (*chosen, *_still_used(settings, chosen)):
            admits = engine in chosen
            place = Place(settings, agent_id, control_plane, admits, admits and len(chosen) == 1, private)
            opened[engine.name] = stack.enter_context(engine.open(place))
        admitted = {engine.name: opened[engine.name] for engine in chosen if not opened[engine.name].closed}
        yield as_one(admitted, {name: opened[name] for name in kinds() if name in opened})


def as_one(admitted: Mapping[RuntimeName, OpenEngine], opened: Mapping[RuntimeName, OpenEngine]) -> OpenRuntimes:
    """The opened engines as one. Of these, `admitted` are those that start new runs."""

    def chosen(order: RunOrder) -> Choice:
        uses_gpus = any(replica.has_gpus for replica in order.replicas)
        return choose(order.training_input, uses_gpus, admitted, opened)

    choices = Choices(chosen)
    return OpenRuntimes(
        RuntimeSet({name: engine.runtime for name, engine in opened.items()}, choices),
        StagerSet({name: engine.stager for name, engine in opened.items()}, choices),
        lambda info: described(info, admitted, opened),
        tuple(path for engine in admitted.values() for path in engine.written),
    )


def _still_used(settings: AgentSettings, chosen: Sequence[Engine]) -> list[Engine]:
    """Further engines of the machine that may have runs."""
    if chosen[0].spans_hosts:
        return []
    names = {engine.name for engine in chosen}
    others = {name: kind for name, kind in kinds().items() if name not in names and not kind.spans_hosts}
    return [engine_of(name) for name, kind in others.items() if kind.may_have_runs(settings.state_dir)]


def choose(
    wanted: TrainingInput,
    uses_gpus: bool,
    admitted: Mapping[RuntimeName, OpenEngine],
    opened: Mapping[RuntimeName, OpenEngine],
) -> Choice:
    """The engine of a job, of those that admit new runs: one that wants it, else the first that can start it. The
    reason is that of the engine; else why another one does not have the job."""
    claims = {name: engine.claim(wanted, uses_gpus) for name, engine in admitted.items()}
    able = {name: claim for name, claim in claims.items() if claim is not None}
    for name, claim in able.items():
        if claim.wants:
            return Choice(name, claim.why)
    if not able:
        return _NOWHERE
    first, *others = able
    if others:
        return Choice(first, next((able[name].why for name in others if able[name].why), ""))
    return Choice(first, next((engine.closed for engine in opened.values() if engine.closed), ""))


def described(
    info: AgentInfo, admitted: Mapping[RuntimeName, OpenEngine], opened: Mapping[RuntimeName, OpenEngine]
) -> AgentInfo:
    """The agent with what it offers now. `info.capacity` is the machine's: an engine may have a part of it, which is
    then the capacity for all runs."""
    offers = {
        name: engine.offer().model_copy(update={"retiring": name not in admitted}) for name, engine in opened.items()
    }
    default = choose(_ANY, False, admitted, opened).runtime
    info = info.model_copy(
        update={
            "runtime": default,
            "runtimes": tuple(offers.values()),
            "replica_environment": offers[default].replica_environment,
        }
    )
    for engine in opened.values():
        info = engine.describe(info)
    return info
