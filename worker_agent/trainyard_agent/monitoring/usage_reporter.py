"""Measures what the replicas use and tells the server, every while.

A measurement is worth nothing later, so nothing is kept and nothing is sent twice; and it never stands in the way of
what is measured: trouble is logged once, and the next round tries again.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trainyard_agent.host.clock import Clock
from trainyard_agent.monitoring.nvidia_smi import NotMeasured
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.use import Meter, Use
from trainyard_agent.server_client import ControlPlane
from trainyard_protocol.errors import NotFound, TrainyardError
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.sync import ReplicaReport, RunOrder
from trainyard_protocol.usage import GpuUsage, UsageBatch, UsageSample

USAGE_S = 5.0
"""Between two measurements, unless the agent was told otherwise."""

_UNKNOWN_S = (
    600.0  # after which a server that does not know the path is asked again: it may be a newer one by then
)
_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""


class Driver(Protocol):
    def measure(self) -> Mapping[str, GpuUsage]:
        """How busy the machine's devices are. Raises NotMeasured."""
        ...


class UsageWatch:
    """`driver` None: the machine has no devices that could be measured. After `limit_s` a round looks at nobody more;
    whoever was left out comes first in the next one."""

    def __init__(
        self,
        runtime: Runtime,
        control_plane: ControlPlane,
        clock: Clock,
        driver: Driver | None = None,
        limit_s: float = USAGE_S,
    ) -> None:
        self._runtime = runtime
        self._control_plane = control_plane
        self._clock = clock
        self._driver = driver
        self._limit_s = limit_s
        self._meter = Meter()
        self._looked: dict[Key, float] = {}
        self._said: set[str] = set()
        self._ask_again = float("-inf")

    async def look(self, orders: Iterable[RunOrder], observed: Mapping[str, Sequence[ReplicaReport]]) -> None:
        """Once around all replicas that run. `observed` is how they stand."""
        if self._clock.monotonic() < self._ask_again:
            return
        devices = {
            (order.run_id, replica.task): replica.gpus
            for order in orders
            for replica in order.replicas
            if any(
                report.task == replica.task and report.state is ReplicaState.RUNNING
                for report in observed.get(order.run_id, ())
            )
        }
        self._meter.keep(devices)
        self._looked = {key: at for key, at in self._looked.items() if key in devices}
        if not devices:
            return
        samples = await asyncio.to_thread(self._measure, devices)
        if not samples:
            return
        try:
            await self._control_plane.send_usage(UsageBatch(samples=tuple(samples)))
        except NotFound:
            self._ask_again = self._clock.monotonic() + _UNKNOWN_S
            self._say("the server takes no measurements")
        except TrainyardError as error:  # a server that is away is told of by the sync
            _log.debug("measurements are lost: %s", error.message)

    def _measure(self, devices: Mapping[Key, tuple[str, ...]]) -> list[UsageSample]:
        busy = self._devices() if any(devices.values()) else {}
        give_up_at = self._clock.monotonic() + self._limit_s
        samples = []
        for key in sorted(devices, key=lambda key: self._looked.get(key, float("-inf"))):
            at = self._clock.monotonic()
            if at > give_up_at:
                break
            if at == self._looked.get(key):
                continue  # no time has passed of which anything could be said
            self._looked[key] = at
            use = self._use(key)
            if use is None:
                continue
            samples.append(
                UsageSample(
                    run_id=key[0],
                    task=key[1],
                    time=self._clock.now(),
                    cpu=self._meter.cores(key, at, use.cpu_s),
                    memory_bytes=use.memory_bytes,
                    gpus=tuple(busy[gpu] for gpu in devices[key] if gpu in busy),
                )
            )
        return samples

    def _use(self, key: Key) -> Use | None:
        try:
            return self._runtime.usage(*key)
        except Exception as error:  # noqa: BLE001 - it is said; the others are measured all the same
            self._say(
                f"what {key[1]} of run {key[0]} uses cannot be measured: {type(error).__name__}: {error}"
            )
            return None

    def _devices(self) -> Mapping[str, GpuUsage]:
        if self._driver is None:
            return {}
        try:
            return self._driver.measure()
        except NotMeasured as trouble:
            self._say(f"how busy the GPUs are is not known: {trouble}")
            return {}

    def _say(self, trouble: str) -> None:
        """The same trouble only once."""
        if trouble not in self._said:
            _log.warning("%s", trouble)
        self._said.add(trouble)
