"""Base class of the stagers: prepares each run in its own asyncio task, which can be cancelled.

What is away is waited for, whichever it is: a registry, a storage, the server. The job's log has its failure once, and
at last how long it was waited for.
"""

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from trainyard_agent.host import disk
from trainyard_agent.host.files import remove_tree
from trainyard_agent.installer.patience import PATIENCE_S, Patience
from trainyard_agent.staging.base import Away, Staging, StagingFailed
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_protocol.wire.sync import RunOrder

_AGAIN = "tries again: "
_NUMBER = re.compile(r"\d+")

_log = logging.getLogger(__name__)


class BackgroundStager(ABC):
    """Implements `base.Stager`. A run is prepared in the directory `root`/RUN."""

    def __init__(self, root: Path, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: how long what is away is waited for."""
        self._root = root
        self._patience_s = patience_s
        self._reported: dict[str, dict[str, str]] = {}
        """The activities that each run had, by what is compared: what is done or fails again is no news."""
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
        self._reported.pop(run_id, None)
        await asyncio.to_thread(remove_tree, self._root / run_id)

    async def close(self) -> None:
        for run_id in list(self._tasks):
            await self._end(run_id)

    @abstractmethod
    async def _prepare(self, order: RunOrder) -> Staging:
        """Prepare a run and return its staging. Raises StagingFailed. Cancelled: leaves no process."""

    def _set_activity(self, run_id: str, activity: str) -> None:
        reported = self._reported.setdefault(run_id, {})
        if not (activity in reported and self._status[run_id].activity.startswith(_AGAIN)):
            self._status[run_id] = Staging("preparing", activity=activity)
        reported[activity] = activity

    def _set_waiting(self, run_id: str, why: str) -> None:
        """The same failure has other numbers in it each time, such as a port."""
        text = f"{_AGAIN}{why.rstrip('.')}"
        first = self._reported.setdefault(run_id, {}).setdefault(_without_numbers(text), text)
        self._status[run_id] = Staging("preparing", activity=first)

    async def _prepared(self, order: RunOrder) -> Staging:
        """Prepare a run, again while what it needs is away, for so long with each failure. Raises StagingFailed."""
        waits: dict[str, Patience] = {}
        why, waited_s = "", 0.0
        while True:
            try:
                staged = await self._prepare(order)
            except Away as away:
                why = away.staging.message
                patience = waits.setdefault(_without_numbers(why), Patience(self._patience_s))
                pause_s = patience.pause_s()
                if not pause_s:
                    raise Away(f"What it needs has been away for {patience.waited_s:.0f} s: {why}") from away
                self._set_waiting(order.run_id, why)
                await asyncio.sleep(pause_s)
                waited_s = max(waited.waited_s for waited in waits.values())
            else:
                return _with_note(staged, f"It has what was away for {waited_s:.0f} s: {why}") if why else staged

    async def _end(self, run_id: str) -> None:
        task = self._tasks.pop(run_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self, order: RunOrder) -> None:
        run_id = order.run_id
        try:
            self._status[run_id] = await self._prepared(order)
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


def _with_note(staged: Staging, note: str) -> Staging:
    """The staging with a sentence for the job's log."""
    resolved = staged.resolved or ResolvedRun()
    notes = (note.rstrip("."), *resolved.installed)
    return replace(staged, resolved=resolved.model_copy(update={"installed": notes}).bounded())


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)
