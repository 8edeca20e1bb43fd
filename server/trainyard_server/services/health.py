"""Whether the server can take jobs and run them: what `/healthz` answers, and what is refused before a disk is full.

Each probe is real: a question to the database and its lock of writers, bytes written to the data directory. It is
asked by a thread of its own, once at a time, however many ask; so a database that hangs holds up nobody, and one
answer counts for a second.
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

from trainyard_protocol.errors import Unavailable
from trainyard_protocol.health import Check, CheckStatus, Health, sized, worst
from trainyard_server.context import Backend
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.probes import PATIENCE_S, DatabaseProbe, Unwritable
from trainyard_server.storage.failures import reason

FRESH_S = 1.0
"""How long an answer counts."""

_LATE_S, _DEAD_S = 10.0, 60.0  # since the last good tick, beyond the pause between two
_BLOCK = b"\0" * 4096

logger = logging.getLogger(__name__)


class Probe:
    """A question that may take for ever. `ask` gives a check; it raises nothing that is no bug."""

    def __init__(
        self, name: str, ask: Callable[[], Check], patience_s: float, fresh_s: float = FRESH_S
    ) -> None:
        self._name = name
        self._ask = ask
        self._patience_s = patience_s
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._flight: Future[Check] | None = None
        self._asked = 0.0

    async def answer(self) -> Check:
        """Waits for at most `patience_s` since the question was asked; then it is DOWN."""
        flight, asked = self._asked_now()
        left_s = asked + self._patience_s - time.monotonic()
        if not flight.done() and left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(flight)), left_s)
        if flight.done():
            return flight.result()
        waited_s = time.monotonic() - asked
        return Check(status=CheckStatus.DOWN, message=f"no answer for {waited_s:.0f} s")

    def _asked_now(self) -> tuple[Future[Check], float]:
        with self._lock:
            now = time.monotonic()
            if self._flight is None or (self._flight.done() and now - self._asked >= self._fresh_s):
                self._flight, self._asked = Future(), now
                name = f"probe-{self._name}"
                threading.Thread(target=self._work, args=(self._flight,), name=name, daemon=True).start()
            return self._flight, self._asked

    def _work(self, flight: Future[Check]) -> None:
        try:
            check = self._ask()
        except Exception:
            logger.exception("The probe of the %s failed", self._name)
            check = Check(
                status=CheckStatus.DOWN, message="it could not be looked at; the server's log says why"
            )
        flight.set_result(check)


class Pulse:
    """The scheduler's: when a tick last succeeded, and why the last one did not."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._good = stopwatch()
        self._why = ""

    def beat(self) -> None:
        self._good, self._why = self._stopwatch(), ""

    def failed(self, error: Exception) -> None:
        self._why = reason(error) or "the server's log says why"

    def check(self, tick_s: float) -> Check:
        age_s = self._stopwatch() - self._good
        because = f": {self._why}" if self._why else ""
        if age_s > _DEAD_S + tick_s:
            return Check(status=CheckStatus.DOWN, message=f"stands still for {age_s:.0f} s{because}")
        if age_s > _LATE_S + tick_s or self._why:
            return Check(
                status=CheckStatus.DEGRADED, message=f"did not come round for {age_s:.0f} s{because}"
            )
        return Check(status=CheckStatus.OK, message="jobs move forward")


class HealthChecks:
    """What is asked of each part, put together. `close` it in the end."""

    def __init__(self, backend: Backend, stopwatch: Stopwatch) -> None:
        self._backend = backend
        self.pulse = Pulse(stopwatch)
        self._probe = DatabaseProbe(backend.store.url)
        self._database = Probe("database", self._ask_database, 1.5 * PATIENCE_S)
        self._disk = Probe("disk", self._ask_disk, 1.5 * PATIENCE_S)
        # Who waits for an agent to come is told at once.
        self._agents = Probe("agents", self._ask_agents, 0.5 * PATIENCE_S, fresh_s=0.0)

    def close(self) -> None:
        self._probe.close()

    async def look(self) -> Health:
        database, disk = await asyncio.gather(self._database.answer(), self._disk.answer())
        checks = {"database": database, "disk": disk}
        if self._backend.settings.run_loops:
            checks["scheduler"] = self.pulse.check(self._backend.settings.tick_s)
        checks["logs"] = self._logs()
        if database.status is CheckStatus.DOWN:
            checks["agents"] = Check(
                status=CheckStatus.DEGRADED, message="not known while the database is away"
            )
        else:
            agents = await self._agents.answer()
            if agents.status is CheckStatus.DOWN:  # no reason to take no jobs
                agents = agents.model_copy(update={"status": CheckStatus.DEGRADED})
            checks["agents"] = agents
        return Health(status=worst(check.status for check in checks.values()), checks=checks)

    def admit(self) -> None:
        """Raises Unavailable where so little of the disk is left that nothing new is taken: the rest is for the
        jobs that are here."""
        free, reserve = self._free(), self._backend.settings.disk_reserve
        if free < reserve:
            raise Unavailable(
                f"The server takes nothing new: its disk has {sized(free)} left, and the last {sized(reserve)} are for "
                "the jobs that are here. Free some space there; `trainyard doctor` shows what takes it."
            )

    def _logs(self) -> Check:
        damaged = len(self._backend.logs.problems())
        if damaged:
            files = f"{damaged} file is" if damaged == 1 else f"{damaged} files are"
            return Check(status=CheckStatus.DEGRADED, message=f"{files} damaged; the others can be read")
        return Check(status=CheckStatus.OK, message="whole, as far as they were read")

    def _free(self) -> int:
        return shutil.disk_usage(self._backend.settings.data_dir).free

    def _ask_database(self) -> Check:
        try:
            latency_s = self._probe.ask()
        except Unwritable as error:
            return Check(status=CheckStatus.DOWN, message=str(error))
        except Exception as error:
            why = reason(error)
            if why is None:
                raise
            return Check(status=CheckStatus.DOWN, message=why)
        return Check(status=CheckStatus.OK, message="answers", latency_ms=round(latency_s * 1000, 3))

    def _ask_disk(self) -> Check:
        settings = self._backend.settings
        try:
            for directory in _disks((settings.data_dir, settings.data_dir / "logs")):
                _write(directory / f".health-{os.getpid()}", settings.durable)
            free = self._free()
        except OSError as error:
            why = reason(error) or f"the data directory cannot be used ({error.strerror})"
            return Check(status=CheckStatus.DOWN, message=why)
        if free < settings.disk_reserve:
            message = f"{sized(free)} are free: nothing new is taken below {sized(settings.disk_reserve)}"
            return Check(status=CheckStatus.DEGRADED, message=message, free_bytes=free)
        return Check(status=CheckStatus.OK, message=f"{sized(free)} are free", free_bytes=free)

    def _ask_agents(self) -> Check:
        try:
            with self._backend.store.read() as reader:
                agents = reader.agents()
        except Exception as error:
            why = reason(error)
            if why is None:
                raise
            return Check(status=CheckStatus.DEGRADED, message=why)
        alive = sum(self._backend.hearing.is_alive(agent) for agent in agents)
        if not alive:
            silent = f": {len(agents)} silent" if agents else ""
            return Check(status=CheckStatus.DEGRADED, message=f"none is here, so jobs wait{silent}")
        silent = f", {len(agents) - alive} silent" if alive < len(agents) else ""
        return Check(status=CheckStatus.OK, message=f"{alive} alive{silent}")


def _disks(directories: tuple[Path, ...]) -> list[Path]:
    """One directory of each file system among them. Raises OSError."""
    found: dict[int, Path] = {}
    for directory in directories:
        found.setdefault(directory.stat().st_dev, directory)
    return list(found.values())


def _write(path: Path, durable: bool) -> None:
    try:
        with path.open("wb") as file:
            file.write(_BLOCK)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
