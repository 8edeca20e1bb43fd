"""The registry of the engines. One that is not used is never loaded, but for its settings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainyard_agent.settings import AUTO, EngineSettings
from trainyard_protocol.wire.agents import RuntimeName

if TYPE_CHECKING:
    from trainyard_agent.engines.contract import Engine

ENGINES: dict[RuntimeName, str] = {
    "process": f"{__package__}.process",
    "docker": f"{__package__}.docker",
    "kubernetes": f"{__package__}.kubernetes",
    "slurm": f"{__package__}.slurm",
}
"""The package of each engine. Of several on a machine, the first takes the runs that no other wants."""


def engine_of(name: RuntimeName) -> "Engine":
    loaded: Engine = _attribute(name, "engine", "ENGINE")
    return loaded


def kind_of(name: RuntimeName) -> type[EngineSettings]:
    """The settings of an engine, which say what it is."""
    kind: type[EngineSettings] = _attribute(name, "settings", "SETTINGS")
    return kind


def kinds() -> dict[RuntimeName, type[EngineSettings]]:
    return {name: kind_of(name) for name in ENGINES}


def machine_engines() -> list["Engine"]:
    """Every engine of a machine."""
    return [engine_of(name) for name, kind in kinds().items() if not kind.spans_hosts]


def chosen_engines(runtime: str) -> list["Engine"]:
    """The engines of an agent with this `--runtime`."""
    return machine_engines() if runtime == AUTO else [engine_of(runtime)]


def _attribute(name: RuntimeName, module: str, attribute: str) -> Any:
    return getattr(import_module(f"{ENGINES[name]}.{module}"), attribute)
