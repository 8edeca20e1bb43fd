"""Measures what the replicas use and sends it to the server, periodically.

Measurements that cannot be sent are dropped. An error is logged once, and the next round tries again.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trainyard_agent.host.clock import Clock
from trainyard_agent.monitoring.nvidia_smi import NotMeasured
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.use import ReplicaUse, UseMeter
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.answers.usage import GpuUsage, UsageBatch, UsageSample
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

USAGE_S = 5.0
"""Seconds between two measurements, unless --usage-every is given."""

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""


class Driver(Protocol):
    def measure(self) -> Mapping[str, GpuUsage]:
        """Usage of the machine's devices, by id. Raises NotMeasured."""
        ...


class UsageReporter:
    """Measures all running replicas. `driver` None: the machine has no devices. A round ends after `limit_s`; replicas
    that it has not measured are first in the next one."""

    def __init__(
        self,
        runtime: Runtime,
        control_plane: ServerClient,
        clock: Clock,
        driver: Driver | None = None,
        limit_s: float = USAGE_S,
    ) -> None:
        self._runtime = runtime
        self._control_plane = control_plane
        self._clock = clock
        self._driver = driver
        self._limit_s = limit_s
        self._meter = UseMeter()
        self._measured_at: dict[Key, float] = {}
        self._warned: set[str] = set()

    async def report(self, orders: Iterable[RunOrder], observed: Mapping[str, Sequence[ReplicaReport]]) -> None:
        """Measure all running replicas once. `observed` are their states."""
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
        self._measured_at = {key: at for key, at in self._measured_at.items() if key in devices}
        if not devices:
            return
        samples = await asyncio.to_thread(self._measure, devices)
        if not samples:
            return
        try:
            await self._control_plane.send_usage(UsageBatch(samples=tuple(samples)))
        except TrainyardError as error:  # the sync reports that the server does not answer
            _log.debug("measurements are lost: %s", error.message)

    def _measure(self, devices: Mapping[Key, tuple[str, ...]]) -> list[UsageSample]:
        busy = self._devices() if any(devices.values()) else {}
        give_up_at = self._clock.monotonic() + self._limit_s
        samples = []
        for key in sorted(devices, key=lambda key: self._measured_at.get(key, float("-inf"))):
            at = self._clock.monotonic()
            if at > give_up_at:
                break
            if at == self._measured_at.get(key):
                continue  # no time has passed
            self._measured_at[key] = at
            use = self._use(key)
            if use is None:
                continue
            samples.append(
                UsageSample(
                    run_id=key[0],
                    task=key[1],
                    time=self._clock.now(),
                    cpu=self._meter.cores(key, at, use.cpu_s) if use.cores is None else use.cores,
                    memory_bytes=use.memory_bytes,
                    gpus=tuple(busy[gpu] for gpu in devices[key] if gpu in busy),
                )
            )
        return samples

    def _use(self, key: Key) -> ReplicaUse | None:
        try:
            return self._runtime.usage(*key)
        except Exception as error:  # noqa: BLE001 - logged; the others are measured all the same
            self._warn_once(
                f"the usage of {key[1]} of run {key[0]} cannot be measured: {type(error).__name__}: {error}"
            )
            return None

    def _devices(self) -> Mapping[str, GpuUsage]:
        if self._driver is None:
            return {}
        try:
            return self._driver.measure()
        except NotMeasured as error:
            self._warn_once(f"the usage of the GPUs is unknown: {error}")
            return {}

    def _warn_once(self, message: str) -> None:
        """Log a warning, the same message only once."""
        if message not in self._warned:
            _log.warning("%s", message)
        self._warned.add(message)
