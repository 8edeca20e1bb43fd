"""Use cases of dependencies: jobs that start after others are released, or cancelled with the reason."""

from collections.abc import Collection, Mapping
from typing import Any

from trainyard_protocol.answers.dependencies import DependenciesView, NeighbourView
from trainyard_protocol.errors import FailedPrecondition, Violation
from trainyard_protocol.job.keys.dependencies import JOB_DIR, JOB_DIR_VARIABLE, dependency_of
from trainyard_protocol.job.training_input import Job
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.capabilities.dependencies import rules, store
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic

_AT_ONCE = 100
"""Jobs that one step looks at."""


class Dependencies:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller

    def step(self) -> None:
        """Release and cancel the jobs whose predecessors have ended, the oldest first: what is cancelled is decided
        before the jobs that start after it."""
        last = 0
        while True:
            with self._backend.store.read() as reader:
                keys = store.due(reader, self._backend.clock(), last, _AT_ONCE)
            if not keys:
                return
            for key in keys:
                self._settle(key)
            last = keys[-1]

    def of(self, project: str, job_id: str) -> DependenciesView:
        """The jobs that a job starts after, and those that start after it. Raises NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            before, after = store.predecessors(reader, job), store.followers(reader, [job.key])
        return DependenciesView(
            predecessors=tuple(
                NeighbourView(
                    job_id=dependency.job, wanted=dependency.wanted, state=row.state if row is not None else None
                )
                for dependency, row in before
            ),
            followers=tuple(
                NeighbourView(job_id=row.job_id, wanted=dependency.wanted, state=row.state)
                for dependency, row in after
                if row is not None
            ),
        )

    def _settle(self, key: int) -> None:
        """Decide about a held job, in one transaction with what that is decided by."""
        now, clause = self._backend.clock(), ""
        with self._backend.store.write() as writer:
            job = writer.find_job(key)
            if job is None or not job.is_held:
                return
            left = []
            for row in store.open_of(writer, job):
                predecessor = store.predecessor_of(writer, row, now)
                if rules.is_fulfilled(row.dependency, predecessor):
                    store.mark_fulfilled(writer, row)
                    continue
                left.append(row.dependency)
                clause = clause or rules.obstacle(row.dependency, predecessor)
            if clause:
                why = rules.cancellation(clause)
                writer.move_job(job, JobState.CANCELLING, now, why, stop_message=why)
            else:
                writer.hold(job, rules.waits_for(left) if left else "", now)
        self._backend.notifier.publish(job_topic(key), QUEUE_TOPIC)
        if clause:
            self._controller.advance(key)
        else:
            self._controller.write_log(key)


def check_predecessors(backend: Backend, reader: Reader, project: str, job: Job) -> None:
    """Raises FailedPrecondition for a job that is to start after itself, after one that the project does not have, or
    on a condition that cannot be."""
    wrong, rows = [], []
    for number, entry in enumerate(job.training_input.after):
        dependency = dependency_of(entry)
        row = reader.job(project, dependency.job)
        rows.append(row)
        if problem := _problem(reader, project, job.job_id, dependency.job, row):
            wrong.append(Violation(f"after[{number}]", problem))
        elif dependency.condition is not None and row is not None and studies.kind_of(reader, row.key).is_study:
            wrong.append(
                Violation(
                    f"after[{number}]",
                    f"has a condition on {dependency.condition.metric}, but {dependency.job} is a study, whose trials "
                    f"have the metrics: write {dependency.job} alone.",
                )
            )
    first = rows[0] if rows else None
    uses_directory = any(JOB_DIR in word for word in job.training_input.args)
    if uses_directory and first is not None and not _directory(backend, first):
        wrong.append(
            Violation("args", f"have {JOB_DIR}, and {first.job_id} has no directory: submit it with --job-dir.")
        )
    if wrong:
        raise FailedPrecondition(wrong)


def _problem(reader: Reader, project: str, job_id: str, name: str, row: JobRow | None) -> str:
    if name == job_id:
        return f"{name} is this job itself: name a job that was submitted before."
    if row is not None:
        return ""
    deleted = reader.deleted_job(project, name)
    if deleted is not None:
        return f"The job {name} was deleted on {deleted.deleted_at:%Y-%m-%d} by {deleted.deleted_by}."
    return (
        f"The project {project} has no job {name}. A job starts after jobs of its own project that were submitted "
        "before it."
    )


def refuse_removal(backend: Backend, keys: Collection[int]) -> None:
    """Raises FailedPrecondition for jobs that one is to start after, or has the directory of, that has not ended."""
    with backend.store.read() as reader:
        for dependency, follower in store.followers(reader, keys):
            if follower is not None and follower.state not in FINAL_JOB_STATES:
                raise FailedPrecondition(
                    f"The job {dependency.job} cannot be deleted yet: {follower.job_id} starts after it, and is "
                    f"{follower.state}. Wait until that has ended, or cancel it."
                )


def variables(backend: Backend, reader: Reader, job: JobRow, _token: str) -> Mapping[str, Any]:
    """The directories of the predecessors, as variables of a run: that of the first, and all of them."""
    if not job.training_input.get("after"):
        return {}
    rows = [row for _, row in store.predecessors(reader, job) if row is not None]
    directories = list(dict.fromkeys(filter(None, (_directory(backend, row) for row in rows))))
    if not directories:
        return {}
    own = {JOB_DIR_VARIABLE: directories[0], f"{JOB_DIR_VARIABLE}S": " ".join(directories)}
    return {"variables": own, "reads": directories}


def _directory(backend: Backend, job: JobRow) -> str:
    given = str(job.training_input.get("jobDir") or "")
    return backend.job_dir(job.project, job.owner, job.job_id, given, job.created_at)
