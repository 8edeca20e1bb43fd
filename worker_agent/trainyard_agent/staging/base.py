"""The contract of a stager, which prepares on the machine what a run's replicas need before they can start.

For package jobs that is the run's own Python environment, for containers also the images.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from trainyard_agent.runtimes.base import Mount, ProgramUser
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_protocol.wire.sync import RunOrder

Phase = Literal["stale", "preparing", "ready", "failed"]
"""`stale`: files of a former agent, which `begin` uses or replaces."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging of a run. `activity` is for people, while preparing; `reason` and `message` (one sentence, or pip's
    output) say what failed. Once ready: `python` is the interpreter to start, `images` the engine's ids of the job's
    images by name ("" is the runtime image of a package job), `users` their users where they do not have their own,
    `packages` the directory of the run's own environment, `job_dir` the directory that is mounted at `job_dir_target`
    for a job-dir which is a path, in a cluster a CLAIM/PATH, `reads` the mounts of those of other jobs; all of these
    for containers. `runtime` is the one that it
    is prepared for, and `runtime_reason` why, where there was a choice. `resolved` are its versions, once ready, where
    they are known.
    """

    phase: Phase
    activity: str = ""
    python: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, ProgramUser] = field(default_factory=dict)
    packages: str = ""
    job_dir: str = ""
    job_dir_target: str = ""
    reads: tuple[Mount, ...] = ()
    reason: Reason = Reason.STAGING_FAILED
    message: str = ""
    runtime: RuntimeName | None = None
    runtime_reason: str = ""
    resolved: ResolvedRun | None = None


class StagingFailed(Exception):
    """A run cannot be prepared."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.staging = Staging("failed", reason=reason, message=message)


class Away(StagingFailed):
    """The failure of a registry, a storage or a server that may pass: it is waited for, then the run is given back."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.GIVEN_BACK, message)


class Stager(Protocol):
    """The methods, in the order in which an agent calls them for a run."""

    def begin(self, order: RunOrder) -> None:
        """Start to prepare a run in the background. Twice, or for a run that is ready: nothing."""
        ...

    def status(self) -> dict[str, Staging]:
        """Every run that was begun and not discarded, by this agent or a former one."""
        ...

    async def settle(self, run_ids: Collection[str], timeout_s: float) -> None:
        """Wait until these runs are ready or have failed, or for the timeout."""
        ...

    async def discard(self, run_id: str) -> None:
        """Cancel the preparation and remove what was prepared. Twice, or unknown run: nothing."""
        ...

    async def close(self) -> None:
        """Cancel all preparations; runs that are ready stay for the next agent. Twice: nothing."""
        ...


class ReadyAtOnce:
    """A stager that does nothing: every run is ready as soon as it is begun."""

    def __init__(self, python: str = "python3") -> None:
        self._ready = Staging("ready", python=python)
        self._begun: set[str] = set()

    def begin(self, order: RunOrder) -> None:
        self._begun.add(order.run_id)

    def status(self) -> dict[str, Staging]:
        return dict.fromkeys(self._begun, self._ready)

    async def settle(self, _run_ids: Collection[str], _timeout_s: float) -> None:
        return

    async def discard(self, run_id: str) -> None:
        self._begun.discard(run_id)

    async def close(self) -> None:
        return
