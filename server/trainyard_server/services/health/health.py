"""Health checks of the server for `/healthz`, and admission control when its disk is almost full.

Each probe does a real operation: a query and the writers' lock of the database, a write to the data directory. It runs
in its own thread, at most once at a time for all callers, so a database that hangs blocks no caller. A result is reused
for a second.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from trainyard_protocol.answers.health import Check, CheckStatus, Health, worst
from trainyard_protocol.errors import Unavailable
from trainyard_protocol.fields import sized
from trainyard_protocol.wire.agents import AgentInfo, no_room
from trainyard_server.context import Backend
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.base.probes import PATIENCE_S, DatabaseProbe, Unwritable
from trainyard_server.storage.failures import Failure, failure_of, failure_reason

FRESH_S = 1.0
"""The time for which a result is reused."""

_LATE_S, _DEAD_S = 10.0, 60.0  # since the last successful tick, in addition to the interval
_BLOCK = b"\0" * 4096

logger = logging.getLogger(__name__)


class Probe:
    """A check that may hang. `ask` returns the check, and raises only for bugs."""

    def __init__(self, name: str, ask: Callable[[], Check], patience_s: float, fresh_s: float = FRESH_S) -> None:
        self._name = name
        self._ask = ask
        self._patience_s = patience_s
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._pending: Future[Check] | None = None
        self._started_at = 0.0

    async def check(self) -> Check:
        """The result; DOWN if there is none `patience_s` after the start."""
        pending, started_at = self._started()
        left_s = started_at + self._patience_s - time.monotonic()
        if not pending.done() and left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(pending)), left_s)
        if pending.done():
            return pending.result()
        waited_s = time.monotonic() - started_at
        return Check(status=CheckStatus.DOWN, message=f"no answer for {waited_s:.0f} s")

    def _started(self) -> tuple[Future[Check], float]:
        """The result that is pending or fresh, and when it was started."""
        with self._lock:
            now = time.monotonic()
            if self._pending is None or (self._pending.done() and now - self._started_at >= self._fresh_s):
                self._pending, self._started_at = Future(), now
                name = f"probe-{self._name}"
                threading.Thread(target=self._run, args=(self._pending,), name=name, daemon=True).start()
            return self._pending, self._started_at

    def _run(self, pending: Future[Check]) -> None:
        try:
            check = self._ask()
        except Exception:
            logger.exception("The probe of the %s failed", self._name)
            check = Check(status=CheckStatus.DOWN, message="the check failed; the server's log has the reason")
        pending.set_result(check)


class Heartbeat:
    """Heartbeat of the scheduler: the time of the last successful tick, and the reason if the last one failed."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._succeeded_at = stopwatch()
        self._reason = ""

    def succeeded(self) -> None:
        self._succeeded_at, self._reason = self._stopwatch(), ""

    def failed(self, error: Exception) -> None:
        self._reason = failure_reason(error) or "the server's log has the reason"

    def check(self, tick_s: float) -> Check:
        age_s = self._stopwatch() - self._succeeded_at
        because = f": {self._reason}" if self._reason else ""
        if age_s > _DEAD_S + tick_s:
            return Check(status=CheckStatus.DOWN, message=f"no tick succeeded for {age_s:.0f} s{because}")
        if age_s > _LATE_S + tick_s or self._reason:
            return Check(status=CheckStatus.DEGRADED, message=f"no tick succeeded for {age_s:.0f} s{because}")
        return Check(status=CheckStatus.OK, message="ticks succeed")


class HealthChecks:
    """The health checks of all parts. Close it after use."""

    def __init__(self, backend: Backend, stopwatch: Stopwatch) -> None:
        self._backend = backend
        self.heartbeat = Heartbeat(stopwatch)
        self._probe = DatabaseProbe(backend.store.url)
        self._database = Probe("database", self._ask_database, 1.5 * PATIENCE_S)
        self._disk = Probe("disk", self._ask_disk, 1.5 * PATIENCE_S)
        # Not cached: callers wait for the first agent to connect.
        self._agents = Probe("agents", self._ask_agents, 0.5 * PATIENCE_S, fresh_s=0.0)

    def close(self) -> None:
        self._probe.close()

    async def check(self) -> Health:
        database, disk = await asyncio.gather(self._database.check(), self._disk.check())
        checks = {"database": database, "disk": disk}
        if self._backend.settings.run_loops:
            checks["scheduler"] = self.heartbeat.check(self._backend.settings.tick_s)
        if database.status is CheckStatus.DOWN:
            checks["agents"] = Check(status=CheckStatus.DEGRADED, message="unknown without the database")
        else:
            agents = await self._agents.check()
            if agents.status is CheckStatus.DOWN:  # jobs can be accepted nevertheless
                agents = agents.model_copy(update={"status": CheckStatus.DEGRADED})
            checks["agents"] = agents
        return Health(status=worst(check.status for check in checks.values()), checks=checks)

    def admit(self, size: int = 0) -> None:
        """Admission control: raises Unavailable when the free disk space, less `size` bytes that are to come, is down
        to the reserve for existing jobs."""
        free, reserve = self._free(), self._backend.settings.disk_reserve
        if size and reserve <= free < reserve + size:
            raise Unavailable(
                f"The server's disk is too full for an upload of {sized(size)}: it has {sized(free)} left, and the "
                f"last {sized(reserve)} are reserved for existing jobs. Free some space there; `trainyard doctor` "
                "shows what uses it."
            )
        if free < reserve:
            raise Unavailable(
                f"The server accepts nothing new: its disk has {sized(free)} left, and the last {sized(reserve)} are "
                "reserved for existing jobs. Free some space there; `trainyard doctor` shows what uses it."
            )

    def _free(self) -> int:
        return shutil.disk_usage(self._backend.settings.data_dir).free

    def _ask_database(self) -> Check:
        try:
            latency_s = self._probe.ask()
        except Unwritable as error:
            return Check(status=CheckStatus.DOWN, message=str(error))
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            return _down(failure)
        if self._backend.store.damage is not None:  # which the probe's own statements need not meet
            return _down(self._backend.store.damage)
        return Check(status=CheckStatus.OK, message="answers", latency_ms=round(latency_s * 1000, 3))

    def _ask_disk(self) -> Check:
        settings = self._backend.settings
        try:
            for directory in _disks(settings.data_dir, settings.data_dir / "logs"):
                _write(directory / f".health-{os.getpid()}", settings.durable)
            free = self._free()
        except OSError as error:
            failure = failure_of(error)
            if failure is not None:
                return _down(failure)
            return Check(status=CheckStatus.DOWN, message=f"the data directory cannot be used ({error.strerror})")
        if free < settings.disk_reserve:
            message = f"{sized(free)} are free: nothing new is accepted below {sized(settings.disk_reserve)}"
            return Check(status=CheckStatus.DEGRADED, message=message, free_bytes=free)
        return Check(status=CheckStatus.OK, message=f"{sized(free)} are free", free_bytes=free)

    def _ask_agents(self) -> Check:
        try:
            with self._backend.store.read() as reader:
                agents = reader.agents()
        except Exception as error:
            reason = failure_reason(error)
            if reason is None:
                raise
            return Check(status=CheckStatus.DEGRADED, message=reason)
        alive = sum(self._backend.agent_liveness.is_alive(agent) for agent in agents)
        if not alive:
            silent = f": {len(agents)} silent" if agents else ""
            return Check(status=CheckStatus.DEGRADED, message=f"none is connected, so jobs wait{silent}")
        silent = f", {len(agents) - alive} silent" if alive < len(agents) else ""
        full = sum(
            bool(no_room(AgentInfo.model_validate(agent.info).disks))
            for agent in agents
            if self._backend.agent_liveness.is_alive(agent)
        )
        if full:
            found = f"{full} of them start nothing: no room on a disk (`trainyard agents list` says which)"
            return Check(status=CheckStatus.DEGRADED, message=f"{alive} alive{silent}; {found}")
        return Check(status=CheckStatus.OK, message=f"{alive} alive{silent}")


def _down(failure: Failure) -> Check:
    return Check(status=CheckStatus.DOWN, message=failure.reason, advice=failure.remedy)


def _disks(*directories: Path) -> list[Path]:
    """One directory of each file system. Raises OSError."""
    disks: dict[int, Path] = {}
    for directory in directories:
        disks.setdefault(directory.stat().st_dev, directory)
    return list(disks.values())


def _write(path: Path, durable: bool) -> None:
    try:
        with path.open("wb") as file:
            file.write(_BLOCK)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
