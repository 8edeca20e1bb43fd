"""Validation of configs before submission, and the resolved configs of jobs."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.answers.configs import (
    CloneView,
    CommandView,
    ConfigCheck,
    ConfigCheckRequest,
    JobConfig,
    MachineChoice,
    Outlook,
    Problem,
    Source,
    SuggestedId,
)
from trainyard_protocol.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from trainyard_protocol.job.cluster import says_chief
from trainyard_protocol.job.commands import arguments
from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.text import NotReadable
from trainyard_protocol.job.machines import gang
from trainyard_protocol.job.parsing import parse_job
from trainyard_protocol.job.training_input import Job, TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.config_editor import clone
from trainyard_server.capabilities.config_editor import resolved as resolving
from trainyard_server.capabilities.config_editor.draft import ConfigDraft, unreadable
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agents_now, queued_snapshots
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.configs.machine_choices import machine_choices
from trainyard_server.domain.configs.sweep import around
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.scheduler import Placement, Planner, in_order
from trainyard_server.domain.scheduling.spreading import listed
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.storage.db.queries.reader import Reader

MAX_BYTES = 64 * 2**10
"""Limit for the text of a config and for its shell words. Parsing that much YAML takes up to a second."""

_CONCURRENT = 4
_TIMEOUT_S = 2.0
"""Texts that are parsed at the same time, and the longest that another request waits for its turn."""

_MAX_QUEUE = 500
"""The longest queue that is planned to predict whether another job would start now."""

_NEW = -1
"""The key of a job that does not exist."""


class Configs:
    def __init__(self, backend: Backend, jobs: Jobs, job_details: JobDetails) -> None:
        self._backend = backend
        self._jobs = jobs
        self._job_details = job_details
        self._turns = BoundedSemaphore(_CONCURRENT)

    def check(self, caller: Caller, project: str, request: ConfigCheckRequest) -> ConfigCheck:
        """The result of a submission by the caller, without creating the job. Problems are returned, not raised."""
        if len(request.config.encode(errors="replace")) > MAX_BYTES:
            message = f"The config is larger than {MAX_BYTES // 2**10} KiB: submit it with the command line."
            return ConfigCheck(ok=False, problems=(Problem(message=message),))
        if isinstance(request.args, str) and len(request.args) > MAX_BYTES:
            message = f"The arguments are longer than {MAX_BYTES // 2**10} KiB: submit them with the command line."
            return ConfigCheck(ok=False, problems=(Problem(message=message, source="args", field="args"),))
        if not self._turns.acquire(timeout=_TIMEOUT_S):
            raise Unavailable("Too many configs are being checked at the moment: try again.")
        try:
            read = config_text.read(request.config.removeprefix("\ufeff"), request.format)
        except NotReadable as error:
            return ConfigCheck(ok=False, problems=(unreadable(error),))
        finally:
            self._turns.release()
        try:
            args = shlex.split(request.args) if isinstance(request.args, str) else list(request.args)
        except ValueError as error:
            message = f"The arguments are not valid shell words: {str(error).lower()}."
            return ConfigCheck(ok=False, problems=(Problem(message=message, source="args", field="args"),))
        draft = ConfigDraft(read, _overrides(request, args))
        body = draft.body()
        warnings = tuple(draft.replaced())
        notes: list[str] = []
        try:
            created = self._jobs.create(caller, project, body, validate_only=True, note=notes.append)
        except (InvalidArgument, ResourceExhausted) as error:
            problems = tuple(draft.problems(error))
            free_id = ""
            if isinstance(error, AlreadyExists):
                free_id = self.suggest(project, str(body.get("jobId"))).job_id
            return ConfigCheck(ok=False, problems=(*problems, *warnings), suggested_id=free_id)
        job = parse_job(body)
        return ConfigCheck(
            ok=True,
            problems=warnings,
            job={key: created[key] for key in ("jobId", "trainingInput", "labels") if key in created},
            gang=resolving.groups(gang(job.training_input, self._backend.catalog), job.training_input),
            args=tuple(arguments(job.training_input, job.training_input.job_dir)),
            outlook=self._outlook(project, job),
            notes=(
                *notes,
                *_notes(
                    job.training_input,
                    self._backend.job_dir(
                        project, caller.name, job.job_id, job.training_input.job_dir, self._backend.clock()
                    ),
                ),
            ),
        )

    def machines(self) -> tuple[MachineChoice, ...]:
        """The machines that a form offers for a new job."""
        with self._backend.store.read() as reader:
            agents = agents_now(reader, self._backend)
        return machine_choices(self._backend.catalog, agents)

    def config(self, project: str, job_id: str) -> JobConfig:
        """The config of a job, as submitted and as resolved. Raises NotFound."""
        with self._backend.store.read() as reader:
            row = known_job(reader, project, job_id)
            new_id = _clone_id(reader, project, job_id)
            training_input, requests = reader.job_input(row)
            labels = dict(row.labels)
            is_trial = row.study_key is not None
        replicas = resolving.groups(requests, training_input)
        sent = resolving.as_sent(training_input)
        resolved = resolving.resolved(training_input, replicas)
        resolved_text = resolving.as_yaml(resolving.document(resolved, labels))
        tasks = [request.task.name for request in requests]
        # The job-dir of a trial is within its study's, and has its checkpoints.
        own = {key: value for key, value in sent.items() if not is_trial or key != "jobDir"}
        return JobConfig(
            sent=resolving.document(training_input.canonical(), labels),
            sent_text=resolving.as_yaml(resolving.document(sent, labels)),
            resolved=resolving.document(resolved, labels),
            resolved_text=resolved_text,
            filled_lines=resolving.filled_lines(resolved_text, resolving.document(sent, labels)),
            gang=replicas,
            primary="chief" if says_chief(training_input) else "master",
            args=training_input.args,
            job_dir=training_input.job_dir,
            labels=labels,
            commands=(*clone.commands(project, job_id, new_id, sent, labels, tasks), *self._reproduce(project, job_id)),
            clone=clone.clone(job_id, new_id, own, labels),
        )

    def sweep_clone(self, project: str, job_id: str, metric: str) -> CloneView | None:
        """The form of a study around the numbers among a job's arguments; None for a study, and for a job without such
        an argument. Raises NotFound."""
        with self._backend.store.read() as reader:
            row = known_job(reader, project, job_id)
            training_input, _ = reader.job_input(row)
            new_id = _clone_id(reader, project, job_id)
            labels = dict(row.labels)
        spec = around(training_input.args, metric) if training_input.hyperparameters is None else None
        if spec is None:
            return None
        return clone.clone(job_id, new_id, resolving.as_sent(training_input) | {"hyperparameters": spec}, labels)

    def _reproduce(self, project: str, job_id: str) -> Iterator[CommandView]:
        """The command that starts the primary by hand, if the job has been placed."""
        with suppress(FailedPrecondition):
            explanation = self._job_details.explain(project, job_id)
            title = f"Start {explanation.task} by hand"
            yield CommandView(name="reproduce", title=title, command=explanation.reproduce)

    def suggest(self, project: str, like: str) -> SuggestedId:
        """An unused job id: `like` itself or a successor; of a trial `study.7` it is `study_7`. Raises InvalidArgument
        for an invalid id."""
        like = like.replace(".", "_")
        parse_job({"jobId": like, "trainingInput": {}})
        with self._backend.store.read() as reader:

            def is_taken(name: str) -> bool:
                return reader.is_used(project, name)

            return SuggestedId(job_id=clone.next_id(like, is_taken) if is_taken(like) else like)

    def _outlook(self, project: str, job: Job) -> Outlook:
        """Whether the job would start now: the answer of `jobs why` right after its submission."""
        backend, scheduling = self._backend, job.training_input.scheduling
        now = backend.clock()
        snapshot = JobSnapshot(
            key=_NEW,
            project=project,
            job_id=job.job_id,
            state=JobState.QUEUED,
            training_input=job.training_input,
            gang=tuple(gang(job.training_input, backend.catalog)),
            created_at=now,
            queued_at=now,
            priority=scheduling.priority if scheduling else 0,
        )
        with backend.store.read() as reader:
            agents = agents_now(reader, backend)
            queue = _queue(reader)
        planner = Planner(agents, now, backend.quotas, backend.shared_dirs)
        agent_views = candidates(planner.unscaled(snapshot), agents, backend.quotas, backend.shared_dirs)
        if queue is None:
            summary = f"More than {_MAX_QUEUE} jobs are queued; it would be queued by its priority."
            return Outlook(starts=False, summary=summary, agents=agent_views)
        for queued in in_order([*queue, snapshot], backend.quotas.sharing, now):
            answer = planner.add(queued)
            if queued is not snapshot:
                continue
            if isinstance(answer, Placement):
                names = {agent.agent_id: agent.name for agent in agents}
                on = listed([names[part.agent_id] for part in answer.parts])
                summary = f"It would start now, on agent {on}. {answer.spread or answer.scaled}".rstrip()
                return Outlook(starts=True, summary=summary, agents=agent_views)
            return Outlook(starts=False, summary=f"It would wait: {answer.reason}.", agents=agent_views)
        raise AssertionError("the job was planned with the others")


def _clone_id(reader: Reader, project: str, job_id: str) -> str:
    """A free id; `study_7` for a trial, whose own no new job may have."""

    def is_taken(name: str) -> bool:
        return reader.job(project, name) is not None

    like = job_id.replace(".", "_")
    return like if like != job_id and not is_taken(like) else clone.next_id(like, is_taken)


def _queue(reader: Reader) -> list[JobSnapshot] | None:
    """The queue, or None if it is too long to plan."""
    if reader.job_counts(visible=None).get(JobState.QUEUED, 0) > _MAX_QUEUE:
        return None
    return queued_snapshots(reader, reader.queued())


def _overrides(request: ConfigCheckRequest, args: list[str]) -> dict[Source, Any]:
    overrides: dict[Source, Any] = {
        "job_id": request.job_id.strip(),
        "args": args,
        "job_dir": request.job_dir.strip(),
        "labels": request.labels,
        "packages": list(request.package_uris),
    }
    return {source: value for source, value in overrides.items() if value}


_RECORDED = ("network", "service_account", "encryption_config")
"""Fields of the API that are stored with the job and have no effect on machines of one's own."""


def _notes(training_input: TrainingInput, job_dir: str) -> Iterator[str]:
    if training_input.python_module and not training_input.package_uris:
        yield (
            f"It has no package: {training_input.python_module} must be importable where it runs. "
            "Attach the package that contains it, unless it is installed there."
        )
    if not job_dir:
        yield "It has no job-dir: its program gets no output directory."
    elif not training_input.job_dir:
        yield f"Its directory is {job_dir}, which its program finds as TRAINYARD_JOB_DIR."
    names = [to_camel(name) for name in _RECORDED if name in training_input.model_fields_set]
    if names:
        yield f"Stored with the job, but without effect: {', '.join(names)}."
