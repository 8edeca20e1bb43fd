"""The whole life of a job of one replica, as its submitter and its agent call the server for it."""

import json
from datetime import UTC, datetime

from benchmarks.filled import TRAINING_INPUT
from benchmarks.scale.bed import PROJECT, ServerBed
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.logs import LogChunk, LogEnd, LogLine, digest
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunOrder, RunReport

SYNCS = 5
"""Syncs of an agent for a job: its order, the reports that it runs and has ended, the answer without it, and the
report without it."""

TASK = "master-replica-0"
_LINES = 10


class JobLife:
    """A job. Call its steps in their order."""

    def __init__(self, server: ServerBed, job_id: str) -> None:
        self._server = server
        self._job_id = job_id
        self._number = 0
        self._seen = ""
        self._started_at = datetime.now(UTC)

    def whole(self) -> None:
        self.submit()
        self._server.tick()
        order = self.start()
        self.end(order)

    def submit(self) -> None:
        body = {"jobId": self._job_id, "trainingInput": TRAINING_INPUT}
        self._server.post(f"/v1/projects/{PROJECT}/jobs", json.dumps(body))

    def start(self) -> RunOrder:
        """The syncs until the replica runs."""
        order = self._find()
        self._report(order, ReplicaState.RUNNING)
        return order

    def end(self, order: RunOrder) -> None:
        """The log, the end of the replica, and the syncs until the agent has forgotten the run."""
        texts = [f"epoch 1 step {n} loss 0.{n:04} examples/s 4711" for n in range(_LINES)]
        time = rfc3339(self._started_at)
        lines = tuple(LogLine(time=time, stream="stdout", text=text) for text in texts)
        self._ship(order, LogChunk.of(0, lines))
        self._report(order, ReplicaState.EXITED)
        end = LogEnd(count=len(lines), sha256=digest(lines))
        self._ship(order, LogChunk(start=len(lines), end=end))
        self._seen = self._server.sync(self._number, seen=self._seen).version
        self._server.sync(self._number, seen=self._seen)

    def _find(self) -> RunOrder:
        with self._server.use_cases.backend.store.read() as reader:
            key = reader.key_of(PROJECT, self._job_id)
            run = reader.live_run(key) if key is not None else None
        if run is None:
            raise RuntimeError(f"No agent has room for {self._job_id}.")
        self._number = int(run.agent_id.removeprefix("a"))
        answer = self._server.sync(self._number)
        self._seen = answer.version
        return next(run for run in answer.runs if run.job_id == self._job_id)

    def _report(self, order: RunOrder, state: ReplicaState) -> None:
        ended = ExitReport(code=0, reason=Reason.COMPLETED, message="", finished_at=datetime.now(UTC))
        replica = ReplicaReport(
            task=TASK,
            state=state,
            address="127.0.0.1:2222",
            started_at=self._started_at,
            exit=ended if state is ReplicaState.EXITED else None,
        )
        report = RunReport(run_id=order.run_id, replicas=(replica,), runtime="process")
        self._seen = self._server.sync(self._number, (report,), self._seen).version

    def _ship(self, order: RunOrder, chunk: LogChunk) -> None:
        path = f"/agent/v1/runs/{order.run_id}/replicas/{TASK}/logs"
        self._server.post(path, chunk.model_dump_json(), agent=True)
