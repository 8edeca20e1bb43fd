"""The fake engine: scripted replicas without processes. The smallest engine that fulfils the contract."""

from collections.abc import Iterator
from contextlib import contextmanager

from trainyard_agent.engines.contract import Engine, OpenEngine, Place
from trainyard_agent.engines.fake import FOREVER, FakeHost, FakeRuntime
from trainyard_agent.engines.fake.settings import FakeSettings
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.base import ReadyAtOnce
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.wire.agents import RuntimeName, RuntimeOffer


class FakeEngine(Engine):
    name: RuntimeName = "fake"

    def __init__(self) -> None:
        self.host = FakeHost(SystemClock(), lambda _: FOREVER)
        self.runtime: Runtime = FakeRuntime(self.host)

    def capacity(self, settings: AgentSettings) -> Capacity:
        return Capacity(cpus=tuple(range(settings.of(FakeSettings).fake_cpus)), memory_bytes=1 << 34)

    @contextmanager
    def open(self, place: Place) -> Iterator[OpenEngine]:
        offer = RuntimeOffer(name=self.name, replica_environment=place.settings.environment)
        yield OpenEngine(self.runtime, ReadyAtOnce(), lambda: offer)

    @contextmanager
    def attach(self, settings: AgentSettings) -> Iterator[Runtime]:  # noqa: ARG002 - there is one machine
        yield self.runtime

    def orphans(self, settings: AgentSettings) -> list[Orphan]:  # noqa: ARG002 - nothing is left
        return []


ENGINE = FakeEngine()
