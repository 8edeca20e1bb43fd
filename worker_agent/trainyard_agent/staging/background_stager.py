"""Base class of the stagers: prepares each run in its own asyncio task, which can be cancelled."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

from trainyard_agent.host import disk
from trainyard_agent.host.files import remove_tree
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_log = logging.getLogger(__name__)


class BackgroundStager(ABC):
    """Implements `base.Stager`. A run is prepared in the directory `root`/RUN."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._status: dict[str, Staging] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self, order: RunOrder) -> None:
        if order.run_id in self._status:
            return
        self._status[order.run_id] = Staging("preparing")
        self._tasks[order.run_id] = asyncio.create_task(self._work(order))

    def status(self) -> dict[str, Staging]:
        stale = {path.name for path in self._root.iterdir()} - self._status.keys()
        return {**dict.fromkeys(stale, Staging("stale")), **self._status}

    async def settle(self, run_ids: Collection[str], timeout_s: float) -> None:
        if tasks := [self._tasks[run_id] for run_id in run_ids if run_id in self._tasks]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def discard(self, run_id: str) -> None:
        await self._end(run_id)
        self._status.pop(run_id, None)
        await asyncio.to_thread(remove_tree, self._root / run_id)

    async def close(self) -> None:
        for run_id in list(self._tasks):
            await self._end(run_id)

    @abstractmethod
    async def _prepare(self, order: RunOrder) -> Staging:
        """Prepare a run and return its staging. Raises StagingFailed. Cancelled: leaves no process."""

    def _set_activity(self, run_id: str, activity: str) -> None:
        self._status[run_id] = Staging("preparing", activity=activity)

    async def _end(self, run_id: str) -> None:
        task = self._tasks.pop(run_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self, order: RunOrder) -> None:
        run_id = order.run_id
        try:
            self._status[run_id] = await self._prepare(order)
        except StagingFailed as failure:
            self._status[run_id] = failure.staging
        except OSError as error:
            message = f"Its environment could not be made: {disk.in_words(error)}."
            reason = Reason.HOST_FAILED if disk.is_machines(error) else Reason.STAGING_FAILED
            self._status[run_id] = Staging("failed", reason=reason, message=message)
        except Exception as error:  # noqa: BLE001 - reported rather than lost in a task
            _log.exception("preparing run %s failed", run_id)
            message = f"Its environment could not be made: {type(error).__name__}: {error}."
            self._status[run_id] = Staging("failed", reason=Reason.STAGING_FAILED, message=message)
