"""The contract of a stager: what must be on the machine before a run's replicas can start.

For package jobs that is the run's own Python environment (`packages`), for containers also the images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder

Phase = Literal["left", "preparing", "ready", "failed"]
"""`left`: something is there from an earlier agent; `begin` uses or replaces it."""


@dataclass(frozen=True, slots=True)
class Staging:
    """How far it is. `activity` is for people, while preparing; `reason` and `message` (one sentence, or pip's
    own words) say what failed. Once ready: `python` is the interpreter to start, `images` what the engine
    knows each image by that the job names ("" stands for the runtime image of a package job), and `packages`
    the directory of the run's own environment, `job_dir` that of a job-dir which is a path, both where
    containers must be given them.
    """

    phase: Phase
    activity: str = ""
    python: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    packages: str = ""
    job_dir: str = ""
    reason: Reason = Reason.STAGING_FAILED
    message: str = ""


class StagingFailed(Exception):
    """Why a run cannot be prepared."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.staging = Staging("failed", reason=reason, message=message)


class Stager(Protocol):
    def begin(self, order: RunOrder) -> None:
        """Start to prepare, in the background. Twice, or for a run that is ready: nothing."""
        ...

    def status(self) -> dict[str, Staging]:
        """Every run that was begun and not discarded, here or by an earlier agent."""
        ...

    async def discard(self, run_id: str) -> None:
        """End what still prepares it and remove all that was prepared. Unknown run: nothing."""
        ...

    async def close(self) -> None:
        """End all that still prepares; what is ready stays for the next agent. Twice: nothing."""
        ...


class ReadyAtOnce:
    """The stager that has nothing to do: every run is ready as soon as it is begun."""

    def __init__(self, python: str = "python3") -> None:
        self._ready = Staging("ready", python=python)
        self._begun: set[str] = set()

    def begin(self, order: RunOrder) -> None:
        self._begun.add(order.run_id)

    def status(self) -> dict[str, Staging]:
        return dict.fromkeys(self._begun, self._ready)

    async def discard(self, run_id: str) -> None:
        self._begun.discard(run_id)

    async def close(self) -> None:
        return
