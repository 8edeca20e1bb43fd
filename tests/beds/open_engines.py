"""Settings of an agent, and engines as an agent has them open, without anything behind them."""

from collections.abc import Callable, Mapping

from trainyard_agent.engines.contract import OpenEngine
from trainyard_agent.engines.docker.claim import claim
from trainyard_agent.engines.docker.engine import described, environment_in_containers, offered
from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.registry import kinds
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.settings import AgentSettings, parse
from trainyard_agent.staging.base import ReadyAtOnce
from trainyard_protocol.job.runtimes import Runtimes, load_runtimes
from trainyard_protocol.wire.agents import RuntimeName, RuntimeOffer


def agent_settings(*words: str) -> AgentSettings:
    """The settings of an agent with these flags."""
    return parse(words, kinds())[0]


def process_and_docker(
    runtimes: Mapping[RuntimeName, Runtime],
    engine: Callable[[], EngineState],
    environment: Mapping[str, str],
    table: Runtimes | None = None,
    closed: str = "",
) -> dict[RuntimeName, OpenEngine]:
    """Both engines of a machine. `engine`: what the probe of the container engine has found; `closed`: why no process
    may start."""
    known = table or load_runtimes()
    processes = RuntimeOffer(name="process", replica_environment=dict(environment), problem=closed)
    inside = environment_in_containers(environment)
    return {
        "process": OpenEngine(runtimes["process"], ReadyAtOnce(), lambda: processes, closed=closed),
        "docker": OpenEngine(
            runtimes["docker"],
            ReadyAtOnce(),
            lambda: offered(engine(), inside),
            lambda wanted, gpus: claim(wanted, gpus, known, engine().info is not None, engine().images),
            lambda info: described(info, engine()),
        ),
    }
