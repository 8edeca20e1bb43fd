"""Status of a job for readers of its log: the `job` and `end` events of the stream."""

import time
from dataclasses import dataclass, field, replace

from anyio import to_thread

from trainyard_protocol.answers.jobs import JobDetail, RunView
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.control.controller import Controller
from trainyard_server.services.logs.formats import event
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.storage.events.notifier import job_topic


@dataclass(frozen=True, slots=True)
class JobStatus:
    """`job`: the event with the job, the same object until a state changes. `end`: the event with the summary of the
    log, and `until`, the cursor of the last line in it. `changed_at`: since when (time.monotonic) the log may have more
    lines."""

    detail: JobDetail = field(repr=False, compare=False)
    job: bytes
    end: bytes | None
    until: int | None
    changed_at: float


class JobStatusReader:
    def __init__(self, controller: Controller, details: JobDetails) -> None:
        self._controller = controller
        self._details = details

    def once(self, project: str, job_id: str, key: int) -> JobStatus:
        """Status with an `end` in any state, for a reader that does not follow. Raises NotFound."""
        self._controller.write_service_lines(key)
        return self._read(project, job_id, key, None, once=True)

    async def poll(
        self, project: str, job_id: str, key: int, last: JobStatus | None, published: frozenset[str]
    ) -> JobStatus:
        """Status for all followers; reads nothing where only the log has changed. Raises NotFound."""
        if last is not None and job_topic(key) not in published:
            return replace(last, changed_at=time.monotonic()) if published else last
        return await to_thread.run_sync(self.current, project, job_id, key, last)

    def current(self, project: str, job_id: str, key: int, last: JobStatus | None) -> JobStatus:
        """Raises NotFound."""
        if last is None:
            self._controller.write_service_lines(key)
        return self._read(project, job_id, key, last, once=False)

    def _read(self, project: str, job_id: str, key: int, last: JobStatus | None, *, once: bool) -> JobStatus:
        # The state is read before the lines: a final job gets no more of them.
        detail = self._details.detail(project, job_id, False)
        is_same = last is not None and _without_counts(last.detail) == _without_counts(detail)
        job = last.job if last is not None and is_same else event("job", detail.model_dump_json())
        end = until = None
        is_final = detail.state in FINAL_JOB_STATES
        if is_final:
            self._controller.write_service_lines(key)
        if is_final or once:
            summary, until = self._details.summary(project, job_id)
            end = event("end", summary.model_copy(update={"state": detail.state}).model_dump_json())
        return JobStatus(detail, job, end, until, time.monotonic())


_COUNTS = {
    "log_lines": 0,
    "gpus_used": (),
    **dict.fromkeys(("first_step", "step", "steps", "step_at", "durable_step", "durable_at")),
    **dict.fromkeys(("metrics", "cpu_used", "memory_used_bytes", "used_at")),
}


def _without_counts(detail: JobDetail) -> JobDetail:
    """A detail without the fields that change with each line: equal to another one if all states are."""
    return detail.model_copy(update={"runs": _uncounted(detail.runs)})


def _uncounted(runs: tuple[RunView, ...]) -> tuple[RunView, ...]:
    return tuple(
        run.model_copy(
            update={
                "replicas": tuple(replica.model_copy(update=_COUNTS) for replica in run.replicas),
                "restarts": _uncounted(run.restarts),
            }
        )
        for run in runs
    )
