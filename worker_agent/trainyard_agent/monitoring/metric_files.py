"""Metric files of trials: read while the program runs, and once more after its end, before the end is told."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from trainyard_agent.host.clock import Clock
from trainyard_agent.monitoring.metric_lines import measurements_in, others_in
from trainyard_agent.runtimes.base import Handle, Runtime
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, TrialMeasurement

READ_S = 1.0
"""Seconds between two reads of a file."""

PATIENCE_S = 30.0
"""Seconds for which the end of a trial is held back while its file cannot be read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """The replicas of a run with what its metric file has: measurements, or without any those of other metrics."""

    replicas: tuple[ReplicaReport, ...]
    measurements: tuple[TrialMeasurement, ...] = ()
    others: Mapping[str, TrialMeasurement] = field(default_factory=dict)


@dataclass(slots=True)
class _TrialFile:
    """The file of one run. `is_final`: it was read after the end of its program. `since`: of its end, while the file
    cannot be read."""

    values: tuple[TrialMeasurement, ...] = ()
    others: Mapping[str, TrialMeasurement] = field(default_factory=dict)
    read_at: float = float("-inf")
    is_final: bool = False
    since: float | None = None


class MetricFiles:
    """Safe to use from any thread."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._lock = Lock()
        self._files: dict[str, _TrialFile] = {}

    def with_measurements(
        self, handles: Mapping[str, Handle], observed: Mapping[str, Sequence[ReplicaReport]]
    ) -> dict[str, Observed]:
        """The reports of each run with its measurements. The end of a trial is left out until its file was read."""
        with self._lock:
            self._files = {run_id: file for run_id, file in self._files.items() if run_id in handles}
            return {
                run_id: self._read(handles[run_id], tuple(replicas))
                if run_id in handles and handles[run_id].metric_tag
                else Observed(tuple(replicas))
                for run_id, replicas in observed.items()
            }

    def _read(self, handle: Handle, replicas: tuple[ReplicaReport, ...]) -> Observed:
        file = self._files.setdefault(handle.run_id, _TrialFile())
        primary = next((replica for replica in replicas if replica.task == PRIMARY.name), None)
        if primary is None or file.is_final:
            return Observed(replicas, file.values, file.others)
        now, ended = self._clock.monotonic(), primary.exit is not None
        if not ended and (primary.state is not ReplicaState.RUNNING or now - file.read_at < READ_S):
            return Observed(replicas, file.values, file.others)
        file.read_at = now
        try:
            content = self._runtime.read_metrics(handle.run_id, PRIMARY.name)
        except Exception as error:  # noqa: BLE001 - of a file that is a program's, or of an engine; read again
            if not ended:
                return Observed(replicas, file.values, file.others)
            file.since = now if file.since is None else file.since
            if now - file.since < PATIENCE_S:
                going = primary.model_copy(update={"state": ReplicaState.RUNNING, "exit": None})
                held = tuple(going if replica is primary else replica for replica in replicas)
                return Observed(held, file.values, file.others)
            _log.warning("the metric file of run %s cannot be read: %s", handle.run_id, error)
        else:
            file.values = measurements_in(content, handle.metric_tag) or file.values  # it is being rewritten
            file.others = {} if file.values else others_in(content)
        file.is_final = ended
        return Observed(replicas, file.values, file.others)
